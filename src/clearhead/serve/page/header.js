// The header: model, prompt and edits.

import { html, nothing } from "lit-html";
import * as api from "ch/api";
import { line } from "ch/choose";
import { dark } from "ch/colors";
import { dropEdit, editWords } from "ch/edit";
import { save } from "ch/export";
import { fileOf } from "ch/given";
import { again, asked, card, changes, known } from "ch/run";
import { changed, link, set, state } from "ch/state";

const few = (n) => (n >= 1e9 ? `${(n / 1e9).toFixed(1)}B` : n >= 1e6 ? `${(n / 1e6).toFixed(1)}M` : n >= 1e3 ? `${(n / 1e3).toFixed(0)}k` : String(n));

/** The header of the page. */
export function prompt({ card, text, source }) {
  const models = api.snapshot ? [] : known().value ?? []; // a saved page contains one model
  const both = card.architecture === "encoder-decoder";
  const facts = [card.architecture, `${both ? `${card.encoder_layers} + ` : ""}${card.n_layers} layers`, `${card.n_heads} heads`, `d_model ${card.d_model}`,
    card.vocab_size ? `${few(card.vocab_size)} tokens` : "", `${few(card.num_parameters)} parameters`, card.device, card.step === null ? "" : `step ${card.step}`].filter(Boolean);
  const saved = api.snapshot ? html`<p class="saved" title=${api.ONLY}>saved page of “${card.name}”</p>` : null;
  return html`<header class="top">
    <div class="model"><span class="brand">clearhead</span>
      ${models.length > 1 ? chooser(models, card) : html`<b>${card.name}</b>`}
      <span class="facts">${facts.join(" · ")}</span>
      <span class="tools">${tools()}</span></div>
    ${card.reads_text || card.has_chat ? html`<form class="prompt" @submit=${run} @input=${later} @keydown=${key} @focusin=${() => (begun = false)}>
      ${both ? field("source", "Source text", source ?? "") : nothing}
      ${field("text", both ? "Target text so far (empty: the model's own translation)" : "Input text", text ?? "")}
      ${saved ?? html`<button type="submit" class="main">Run</button>`}</form>` : saved ?? nothing}
    </header>`;
}

function chooser(models, card) {
  const change = ({ target }) => {
    clearTimeout(typing);
    document.querySelector("form.prompt")?.reset(); // discard unsent typing for the previous model
    set({ model: target.value });
  };
  return html`<select aria-label="model" .value=${card.name} @change=${change}>
    ${models.map(({ name }) => html`<option .value=${name} ?selected=${name === card.name}>${name}</option>`)}</select>`;
}

const percent = ({ prob }) => `${(100 * prob).toFixed(1)} %`;

/** The edits as chips, and their effect on the prediction. */
export function editControls({ run, edited }) {
  const { edits } = state();
  if (!edits.length) return nothing;
  const best = run?.top[0], other = edited?.top[0];
  const same = best?.id === other?.id, left = edited?.top.find(({ id }) => id === best?.id);
  return html`<section class="edits" aria-label="edits">
    ${edits.map((edit) => html`<button type="button" class="chip" title="Remove this edit" @click=${() => dropEdit(edit)}>
      ${editWords(edit)} <span aria-hidden="true">×</span><span class="unseen">, remove</span></button>`)}
    ${edits.length > 1 ? html`<button type="button" class="quiet" @click=${() => set({ edits: [] })}>remove all</button>` : nothing}
    ${edits.some(({ op }) => op === "patch") ? line("patch from", state().patch_from, (patch_from) => set({ patch_from }), { wide: false, size: 36, placeholder: "another text with the same number of tokens" }) : nothing}
    ${best && other && best.prob !== null ? html`<p>${run.answer_token === null ? "Next token" : "Masked token"}: <b>${best.text}</b> ${percent(best)} → ${same ? "" : html`<b>${other.text}</b> `}${percent(other)}
      ${same ? nothing : html`<span class="hint">(${best.text} now ${left ? percent(left) : "not in the top 10"})</span>`}</p>` : nothing}
  </section>`;
}

/** A text field; resetting its form restores the text of the state. */
function field(name, label, value) {
  const rows = Math.min(6, Math.max(1, value.split("\n").length, Math.ceil(value.length / 90)));
  return html`<label><span class="unseen">${label}</span><textarea name=${name} rows=${rows} spellcheck="false" placeholder=${label}
    ?readonly=${api.snapshot} title=${api.snapshot ? api.ONLY : ""} .defaultValue=${value} .value=${value}></textarea></label>`;
}

let typing = 0; // debounce timer of typing
let begun = false; // whether the current typing already has a history entry
window.addEventListener("popstate", () => (begun = false));

/** Apply typed text after a short pause. */
function later({ currentTarget: form }) {
  clearTimeout(typing);
  typing = setTimeout(() => read(form), 350);
}

function read(form) {
  clearTimeout(typing);
  const other = [...form.querySelectorAll("textarea")].filter(({ value, defaultValue }) => value !== defaultValue);
  if (!other.length) return;
  set(Object.fromEntries(other.map(({ name, value }) => [name, value || (name === "text" && form.source ? null : "")])), { replace: begun });
  begun = true;
}

function run(event) {
  event.preventDefault();
  read(event.currentTarget);
  begun = false;
}

function key(event) {
  const { target, currentTarget: form } = event;
  if (event.key === "Escape" && !api.snapshot) { // discard what was typed
    clearTimeout(typing);
    if (begun) history.back();
    else form.reset();
  }
  if (event.key !== "Enter" || event.shiftKey || !target.matches("textarea")) return;
  event.preventDefault();
  form.requestSubmit();
  target.blur(); // return keyboard shortcuts to the page
}

function tools() {
  return html`<button type="button" class="quiet" title="Copy a link to this view" @click=${(event) => share(event.target)}>Link</button>
    ${api.snapshot ? nothing : html`<button type="button" class="quiet" title="Save this page with its data as one HTML file" ?disabled=${saving} @click=${whole}>${saving ? "Saving …" : "Save page"}</button>`}
    <button type="button" class="quiet" title="Light or dark theme" aria-label="light or dark theme" @click=${turn}>${dark() ? "☀" : "☾"}</button>
    <button type="button" class="quiet" title="Keyboard shortcuts (?)" aria-label="keyboard shortcuts" @click=${() => document.getElementById("help").showModal()}>?</button>`;
}

function turn() {
  const next = dark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("theme", next);
  } catch { /* a page opened as a file may have no storage */ }
  window.dispatchEvent(new Event("theme"));
}

try {
  const chosen = localStorage.getItem("theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch { /* as above */ }

async function share(button) {
  try {
    await navigator.clipboard.writeText(link());
    button.textContent = "Copied";
  } catch {
    button.textContent = "See the address bar";
  }
  setTimeout(() => (button.textContent = "Link"), 1600);
}

let saving = false;
const settled = async () => {
  do await new Promise((done) => setTimeout(done, 30));
  while (!("ready" in document.body.dataset));
};

/** Save the page with the data that every view requests, like `clearhead explore --output`. */
async function whole() {
  const found = card().value, { layer, head, query, view } = state(), { hash } = location, { title } = document;
  saving = true;
  api.note();
  again();
  try {
    for (const each of found.views) {
      set({ view: each }, { replace: true });
      await settled();
    }
    const body = asked(found, changes() ?? {}), read = body.image ?? body.audio;
    const needed = await api.json("POST", `/api/snapshot?layer=${layer}&head=${head}&query=${query}`, body);
    const given = read && { name: fileOf(found)?.name ?? (found.reads_images ? "a drawing" : "a tone"), data: read };
    const [page, seen] = await Promise.all([api.shell(), api.everything()]);
    const data = JSON.stringify({ ...needed, ...seen, given, hash }).replaceAll("<", "\\u003c");
    save(`${title.replace(/[^\w.-]+/g, "-")}.html`, page.replace('"SNAPSHOT_DATA"', () => data), "text/html");
  } catch (error) {
    alert(error.message);
  } finally {
    saving = false;
    set({ view }, { replace: true });
    changed();
  }
}
