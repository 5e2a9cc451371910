// The header: which model, what it reads, and what has been changed on the way.

import { html, nothing } from "lit-html";
import * as api from "ch/api";
import { dark } from "ch/colours";
import { dropEdit, editWords } from "ch/edit";
import { save } from "ch/export";
import { asked, card, resource } from "ch/run";
import { changed, link, set, state } from "ch/state";

const few = (n) => (n >= 1e9 ? `${(n / 1e9).toFixed(1)}B` : n >= 1e6 ? `${(n / 1e6).toFixed(1)}M` : n >= 1e3 ? `${(n / 1e3).toFixed(0)}k` : String(n));

/** What another model begins with. */
export const FRESH = { text: null, source: null, edits: [], cell: "", pins: [], layer: 0, head: 0, query: -1, key: -1, part: "attention" };

/** The header of the page. */
export function prompt({ card, text, source }) {
  const models = resource("models", () => api.json("GET", "/api/models")).value ?? [];
  const both = card.kind === "encoder-decoder";
  const facts = [card.kind, `${both ? `${card.encoder_layers} + ` : ""}${card.layers} layers`, `${card.heads} heads`, `width ${card.width}`,
    card.vocabulary ? `${few(card.vocabulary)} tokens` : "", `${few(card.parameters)} parameters`, card.device, card.step === null ? "" : `step ${card.step}`].filter(Boolean);
  const saved = api.snapshot ? html`<p class="saved" title=${api.ONLY}>saved page of “${card.name}”</p>` : null;
  return html`<header class="top">
    <div class="model"><span class="brand">clearhead</span>
      ${models.length > 1 ? chooser(models, card) : html`<b>${card.name}</b>`}
      <span class="facts">${facts.join(" · ")}</span>
      <span class="tools">${tools()}</span></div>
    ${card.text || card.chat ? html`<form class="prompt" @submit=${(event) => read(event)}>
      ${both ? field("source", "What it reads", source ?? "", false) : nothing}
      ${field("text", both ? "What it has written so far; as long as this is empty, what it writes itself" : "What it reads", text ?? "", both)}
      ${saved ?? html`<button type="submit" class="main">Run</button>`}</form>` : saved ?? nothing}
    </header>`;
}

function chooser(models, card) {
  const change = ({ target }) => set({ ...FRESH, model: target.value });
  return html`<select aria-label="model" .value=${card.name} @change=${change}>
    ${models.map(({ name }) => html`<option .value=${name} ?selected=${name === card.name}>${name}</option>`)}</select>`;
}

const percent = ({ prob }) => `${(100 * prob).toFixed(1)} %`;

/** The edits as chips, and what they did to the answer. */
export function editControls({ run, edited }) {
  const { edits } = state();
  if (!edits.length) return nothing;
  const best = run?.top[0], other = edited?.top[0];
  const same = best?.id === other?.id, left = edited?.top.find(({ id }) => id === best?.id);
  return html`<section class="edits" aria-label="edits">
    ${edits.map((edit) => html`<button type="button" class="chip" title="Take this edit away" @click=${() => dropEdit(edit)}>
      ${editWords(edit)} <span aria-hidden="true">×</span><span class="unseen">, take away</span></button>`)}
    ${edits.length > 1 ? html`<button type="button" class="quiet" @click=${() => set({ edits: [] })}>all off</button>` : nothing}
    ${edits.some(({ op }) => op === "swap") ? html`<label>from the text
      <input type="text" size="36" placeholder="another text of as many tokens" .value=${state().against} @change=${({ target }) => set({ against: target.value })}></label>` : nothing}
    ${best && other && best.prob !== null ? html`<p>Next: <b>${best.text}</b> ${percent(best)} → ${same ? "" : html`<b>${other.text}</b> `}${percent(other)}
      ${same ? nothing : html`<span class="hint">(${best.text} now ${left ? percent(left) : "below the first ten"})</span>`}</p>` : nothing}
  </section>`;
}

function field(name, label, value, own) {
  const rows = Math.min(6, Math.max(1, value.split("\n").length, Math.ceil(value.length / 90)));
  const key = (event) => {
    if (event.key === "Escape") drop(event.target, name);
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    event.target.form.requestSubmit();
    event.target.blur(); // keys are the page's again
  };
  return html`<label><span class="unseen">${label}</span><textarea name=${name} rows=${rows} spellcheck="false" placeholder=${label}
    ?readonly=${api.snapshot} title=${api.snapshot ? api.ONLY : ""} .value=${value} @focus=${({ target }) => (before = [state()[name], target.value])}
    @input=${(event) => type(event.target, name, own)} @keydown=${key}></textarea></label>`;
}

let before = [null, ""]; // of the field in which someone types: its state and its text when that began
/** What was typed is forgotten. */
function drop(target, name) {
  clearTimeout(timer);
  if (api.snapshot || target.value === before[1]) return;
  target.value = before[1];
  put({ [name]: before[0] }, true);
}

let timer = 0;
/** Typing is read after a short rest, and is one step of the history until Run or Enter ends it. */
function type(target, name, own) {
  clearTimeout(timer);
  timer = setTimeout(() => put({ [name]: target.value || (own ? null : "") }, true), 350);
}

function read(event) {
  event.preventDefault();
  clearTimeout(timer);
  const form = event.currentTarget;
  put(form.source ? { text: form.text.value || null, source: form.source.value } : { text: form.text.value }, false);
}

function put(patch, replace) {
  set({ ...patch, query: -1, key: -1, step: 0 }, { replace });
}

function tools() {
  return html`<button type="button" class="quiet" title="Copy the link to exactly this" @click=${(event) => share(event.target)}>Link</button>
    ${api.snapshot ? nothing : html`<button type="button" class="quiet" title="Save this page with its numbers as one file that needs no server" ?disabled=${saving} @click=${whole}>${saving ? "Saving …" : "Save page"}</button>`}
    <button type="button" class="quiet" title="Light or dark" aria-label="light or dark" @click=${turn}>${dark() ? "☀" : "☾"}</button>
    <button type="button" class="quiet" title="Keys (?)" aria-label="keys" @click=${() => document.getElementById("help").showModal()}>?</button>`;
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
    button.textContent = "In the address bar";
  }
  setTimeout(() => (button.textContent = "Link"), 1600);
}

let saving = false;
/** All that the views need at first, as `clearhead explore --save` has it, and whatever was seen besides. */
async function whole() {
  const found = card().value, { edits, against, layer, head, query } = state();
  saving = true;
  changed();
  try {
    const needed = await api.json("POST", `/api/page?layer=${layer}&head=${head}&query=${query}`, asked(found, { edits, against }));
    const [page, seen] = await Promise.all([api.shell(), api.everything()]);
    const data = JSON.stringify({ ...needed, ...seen, hash: location.hash }).replaceAll("<", "\\u003c");
    save(`${document.title.replace(/[^\w.-]+/g, "-")}.html`, page.replace('"the numbers go here"', () => data), "text/html");
  } catch (error) {
    alert(error.message);
  } finally {
    saving = false;
    changed();
  }
}
