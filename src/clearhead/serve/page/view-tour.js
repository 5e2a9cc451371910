// The tour: lecture topics as captions over the live views; the current stop is part of the URL.

import { html, nothing, render } from "lit-html";
import { snapshot } from "ch/api";
import { card, got, home, known } from "ch/run";
import { changed, defaults, moved, on, set, state } from "ch/state";
import { PARTS, stops } from "ch/stops";

defaults({ tour: "" });

function template({ card }) {
  const all = stops(card).map((stop) => (stop.view ? stop : elsewhere(stop, card))), first = all.find(({ view }) => view), done = all.find(({ id }) => id === state().tour);
  const unknown = all.every(({ view }) => view) ? [] : others(card).filter(({ views }) => !views).map(({ name }) => name);
  return html`<p class="row"><button type="button" class="main" @click=${() => go(card, first)}>Start the tour</button>
      ${done ? html`<button type="button" @click=${() => go(card, done)}>Continue at ${done.title}</button>` : nothing}
      <span class="hint">Keys: N next, B back, Esc end.</span>
      ${unknown.length && !wanted ? html`<button type="button" class="quiet" @click=${() => { wanted = true; changed(); }}>Load ${unknown.join(", ")}</button>` : nothing}</p>
    <div class="parts">${PARTS.map(({ title }, i) => html`<section><h2>${i + 1}. ${title}</h2><ol>${all.filter(({ part }) => part === title).map((stop) => html`<li>
      <button type="button" class="stop" ?disabled=${!stop.view} aria-current=${stop.id === state().tour ? "step" : "false"} @click=${() => go(stop.card ?? card, stop)}>
        <b>${stop.title}</b><span>${!stop.view ? `Requires ${stop.needs}.` : stop.card ? `With ${stop.card.name}: ${stop.say}` : stop.say}</span></button></li>`)}</ol></section>`)}</div>`;
}

let wanted = false; // whether to load models that are not loaded yet
const others = (card) => (snapshot ? [] : known().value ?? []).filter(({ name }) => name !== card.name)
  .map((other) => (other.views || !wanted ? other : got(home(other.name)).value ?? other));

/** A stop that this model cannot show, with the card of another loaded model that can. */
function elsewhere(stop, card) {
  for (const other of others(card).filter(({ views }) => views)) {
    const found = stops(other).find(({ id }) => id === stop.id);
    if (found.view) return { ...found, card: other };
  }
  return stop;
}

let seen = "machine"; // view before the tour
on(({ view, tour }) => tour || view === "tour" || (seen = view));
let before = null; // state before the tour: every stop starts from it, and it is restored at the end

function go(to, stop) {
  if (!stop?.view) return;
  if (!state().tour || !before) before = { ...state(), view: seen, tour: "" };
  const model = to.name === card().value.name ? state().model : to.name;
  set(moved(before, { model, cell: "", pins: [], ...stop.at(to), view: stop.view, tour: stop.id }));
}

/** The next or previous stop that this model can show. */
function move(by) {
  const found = card().value;
  if (!found || !state().tour) return;
  const here = stops(found).filter(({ view }) => view);
  const at = here.findIndex(({ id }) => id === state().tour);
  if (at + by >= here.length) end();
  else if (at + by >= 0) go(found, here[at + by]);
}

function end() {
  set({ ...before, tour: "" });
  before = null;
}

// ---------------------------------------------------------------- caption
const host = document.createElement("aside");
host.className = "tour-caption";
host.setAttribute("aria-label", "tour");
host.setAttribute("aria-live", "polite");
document.body.append(host);

function caption() {
  const found = card().value, here = found ? stops(found).filter(({ view }) => view) : [];
  const at = here.findIndex(({ id }) => id === state().tour), stop = here[at];
  const strayed = stop && stop.view !== state().view;
  host.hidden = !stop || state().view === "tour";
  document.body.classList.toggle("touring", !host.hidden);
  render(host.hidden ? nothing : html`
    <p class="where">${stop.part}<span>${at + 1} of ${here.length}${stop.id.startsWith("L") ? ` · ${stop.id}` : ""}</span></p>
    <h2>${stop.title}</h2><p class="say">${stop.say}</p>
    <p class="steps-on"><button type="button" ?disabled=${at === 0} @click=${() => move(-1)}>Back</button>
      ${strayed ? html`<button type="button" class="main" @click=${() => go(found, stop)}>Return</button>` : html`<button type="button" class="main" @click=${() => move(1)}>${at === here.length - 1 ? "Finish" : "Next"}</button>`}
      <button type="button" class="quiet" @click=${end}>End the tour</button></p>`, host);
  light(host.hidden || strayed ? null : stop);
}

let lit = null;
let reached = ""; // stop that was scrolled to
/** Highlight the target of the caption once it is rendered. */
function light(stop) {
  const target = stop ? targetOf(stop.find) : null;
  if (lit !== target) {
    lit?.classList.remove("toured");
    target?.classList.add("toured");
    lit = target;
  }
  if (!stop) reached = "";
  else if (target && reached !== stop.id) {
    if ("ready" in document.body.dataset) reached = stop.id; // content above may still grow until then
    target.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  }
}

/** Find an element by selector, or a figure by its caption. */
function targetOf(find) {
  if (!find) return null;
  if (typeof find === "string" && /^(main|ch-|[.#])/.test(find)) return document.querySelector(find);
  const fits = (text) => (find instanceof RegExp ? find.test(text) : text.toLowerCase().includes(find.toLowerCase()));
  return [...document.querySelectorAll("main ch-figure")].find((figure) => fits(figure.caption)) ?? null;
}

let waiting = 0;
on(() => { // the page is rendered two frames after the last change
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(() => (waiting = requestAnimationFrame(caption)));
});

document.addEventListener("keydown", (event) => {
  if (!state().tour || event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select")) return;
  const by = { n: 1, b: -1 }[event.key.toLowerCase()];
  if (event.key === "Escape") end();
  else if (by) move(by);
  else return;
  event.preventDefault();
});

export default {
  id: "tour",
  title: "Tour",
  sentence: "The lecture topics, one by one, on the live views of your model.",
  free: true,
  template,
};
