// The page: header, rail of views, current view, inspector and token strip, rendered from the state.

import { html, nothing, render } from "lit-html";
import * as api from "ch/api";
import { editControls, prompt } from "ch/header";
import * as inspector from "ch/inspector";
import { help, listen } from "ch/keys";
import { layers } from "ch/paths";
import { pointedAt } from "ch/pointed";
import { busy, card, current, lost, reading, resource, retry } from "ch/run";
import { changed, on, set, state } from "ch/state";
import { told } from "ch/shown";
import "ch/bars";
import "ch/edit";
import "ch/figure";
import "ch/lines";
import "ch/map";
import "ch/tokens";
import "ch/view";

const root = document.getElementById("page");
const views = new Map();
const marks = { token: -1, of: "query", own: "query" }; // token under the pointer, its strip (source: key), and the strip of the current view

async function start() {
  if (api.snapshot?.hash && !location.hash) history.replaceState(null, "", api.snapshot.hash);
  const { imports } = JSON.parse(document.querySelector('script[type="importmap"]').textContent);
  const names = Object.keys(imports).filter((name) => name.startsWith("ch/view-"));
  const loaded = await Promise.allSettled(names.map((name) => import(name)));
  for (const found of loaded) {
    if (found.status === "fulfilled") views.set(found.value.default.id, found.value.default);
    else console.error(found.reason);
  }
  root.replaceChildren();
  on(schedule);
  listen({ shown, move });
  root.addEventListener("inspect", ({ detail }) => inspector.inspect(detail, detail?.how));
  root.addEventListener("pointerover", ({ target }) => over(pointedAt(target)));
  root.addEventListener("click", (event) => {
    const cell = pointedAt(event.target);
    if (cell) inspector.inspect(cell, "lock");
    setTimeout(() => uncover(event), 120);
  });
  api.whenSettled(schedule);
  window.addEventListener("theme", schedule);
  schedule();
}

let pointing = false; // whether the pointer is at a number in a table or drawing; maps and bars report themselves
function over(cell) {
  if (cell || pointing) inspector.inspect(cell);
  pointing = !!cell;
}

/** In narrow windows, scroll the clicked element above the inspector sheet. */
function uncover({ target, clientY }) {
  const sheet = root.querySelector(".inspector.open");
  if (!sheet || getComputedStyle(sheet).position !== "fixed" || !target.closest?.("main")) return;
  const hidden = clientY + 30 - sheet.getBoundingClientRect().top;
  if (hidden > 0) window.scrollBy({ top: hidden });
}

let tab = "";
/** Scroll the active tab into view when the rail is horizontal. */
function bring() {
  const rail = root.querySelector(".rail"), open = rail?.querySelector("[aria-current=page]");
  if (!open || tab === open.textContent) return;
  tab = open.textContent;
  rail.scrollLeft = open.offsetLeft - rail.offsetLeft - (rail.clientWidth - open.clientWidth) / 2;
}

/** Expose the heights of header and strip as CSS variables. */
const edges = new ResizeObserver((entries) => {
  for (const { target } of entries) document.documentElement.style.setProperty(target.matches(".top") ? "--top" : "--strip", `${target.offsetHeight}px`);
});

let scheduled = false;
function schedule() {
  delete document.body.dataset.ready; // immediately: tests wait for it
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    draw();
    if (api.pending() || busy() || scheduled) return;
    setTimeout(reach, 60); // after all elements have their size
    document.body.dataset.ready = "";
  });
}

/** Make overflowing boxes scrollable by keyboard. */
function reach() {
  for (const box of root.querySelectorAll(".scroll")) {
    const large = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
    if (large === (box.tabIndex === 0)) continue;
    box.tabIndex = large ? 0 : -1;
    box.setAttribute("role", large ? "group" : "presentation");
    box.setAttribute("aria-label", large ? "scrollable content" : "");
  }
}

/** The views available for this model, in the order of its card. */
function shown() {
  return (card().value?.views ?? []).filter((id) => views.has(id)).map((id) => views.get(id));
}

function draw() {
  const model = card();
  render(model.value ? page(model.value) : opening(model), root);
  for (const part of root.querySelectorAll(":scope > .top, :scope > .strip")) edges.observe(part);
  bring();
  comeBack();
}

function opening(model) {
  const other = state().model ? html`<button type="button" @click=${() => set({ model: "" })}>Show another model</button>` : nothing;
  return html`<main class="alone">${model.error
    ? html`<h1>clearhead</h1><p class="problem">${model.error.message}</p><p><button type="button" @click=${retry}>Try again</button> ${other}</p>`
    : html`<p class="loading">Loading the model …</p>`}</main>`;
}

function page(found) {
  const here = shown();
  const view = here.find(({ id }) => id === state().view) ?? here[0];
  const now = current(found);
  marks.own = "query";
  const context = {
    state: state(), set, card: found, resource, ...reading(found), marks,
    run: now.run, edited: now.edited, pending: now.pending, error: now.error, empty: !!now.empty,
    inspect: inspector.inspect, hover: point,
  };
  document.title = `${view?.title ?? "clearhead"} · ${found.name} · clearhead`;
  return html`<a class="skip" href="#view" @click=${skip}>Skip to the view</a>
    ${prompt(context)}
    <nav class="rail" aria-label="views">${here.map((each, i) => html`<button type="button" aria-current=${each === view ? "page" : "false"}
      title=${each.sentence ?? ""} @click=${() => set({ view: each.id })}><kbd>${i < 9 ? i + 1 : ""}</kbd>${each.title}</button>`)}</nav>
    <main id="view" tabindex="-1" class="view ${view?.id ?? ""} ${now.pending ? "pending" : ""}">${body(view, context)}</main>
    <aside class=${inspector.open() ? "inspector open" : "inspector"} aria-label="inspector">${inspector.panel(context)}</aside>
    ${strip(context)}
    ${lost() ? html`<div class="lost" role="alert">The server does not respond. Restart it; this page reconnects automatically.</div>` : nothing}
    ${help()}`;
}

function body(view, context) {
  if (!view) return html`<p class="hint">No view supports this model.</p>`;
  const title = html`<header class="title"><h1>${view.title}</h1>${view.sentence ? html`<p>${view.sentence}</p>` : nothing}</header>`;
  const trouble = told(context.error) ? html`<p class="problem" role="alert">${context.error.message}</p>` : nothing;
  const mind = editControls(context);
  if (view.free || context.run) return html`${title}${trouble}${guarded(view, context)}${mind}`;
  if (context.empty) return html`${title}<p class="hint">This model reads ${context.card.reads_images ? "images" : "audio"}. Open one in the Patches view.</p>`;
  return html`${title}${trouble}${context.error ? nothing : html`<p class="loading">Running the model …</p>`}`;
}

/** Isolate errors of a view. */
function guarded(view, context) {
  try {
    return view.template(context);
  } catch (error) {
    console.error(error);
    return html`<p class="problem">This view failed to render (${error.message}).</p>`;
  }
}

function strip({ run, card }) {
  if (!run) return html`<footer class="strip" aria-label="tokens"></footer>`;
  const row = (tokens, label, key) => html`<ch-tokens .tokens=${tokens} .selected=${state()[key]} .marked=${marks.of === key ? marks.token : -1} .label=${label}
    @pick=${({ detail }) => set({ [key]: detail.index === state()[key] ? -1 : detail.index })} @hover=${({ detail }) => point(detail.index, key)}></ch-tokens>`;
  const both = run.source_tokens && card.architecture === "encoder-decoder";
  return html`<footer class="strip" aria-label="tokens">
    ${both ? html`<div class="side"><span>source</span>${row(run.source_tokens, "source tokens", "key")}</div>` : nothing}
    <div class="side">${both ? html`<span>target</span>` : nothing}${row(run.tokens, "tokens", "query")}</div>
    <span class="count">${run.tokens.length} of ${card.context_length} tokens · ${run.milliseconds.toFixed(0)} ms</span></footer>`;
}

function point(token, of = marks.own) {
  if (marks.token === token && marks.of === of) return;
  Object.assign(marks, { token, of });
  changed();
}

function skip(event) {
  event.preventDefault();
  document.getElementById("view").focus();
}

/** Move the selected layer, head or token. */
function move(what, by) {
  const found = card().value;
  if (!found) return;
  if (what === "query") {
    const { own } = marks, { run } = current(found), last = ((own === "key" ? run?.source_tokens : run?.tokens)?.length ?? 0) - 1, at = state()[own];
    if (last >= 0) set({ [own]: Math.max(0, Math.min(last, at < 0 ? (by > 0 ? 0 : last) : at + by)) });
    return;
  }
  const most = what === "head" ? found.n_heads : layers(found, state().part);
  set({ [what]: Math.max(0, Math.min(most - 1, state()[what] + by)) });
}

let asking = false;
async function comeBack() {
  if (!lost() || asking) return;
  asking = true;
  for (let wait = 500; !(await api.alive()); wait = Math.min(4000, 1.5 * wait)) await new Promise((done) => setTimeout(done, wait));
  asking = false;
  retry();
}

start();
