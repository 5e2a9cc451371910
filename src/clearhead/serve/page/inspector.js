// The inspector: what is under the cursor, the arithmetic that made it, and the Python that prints it.

import { html, nothing } from "lit-html";
import * as api from "ch/api";
import { told } from "ch/colours";
import { resource } from "ch/run";
import { changed, set, state } from "ch/state";

const PATIENCE = 70; // milliseconds on a cell before its arithmetic is asked for
let hovered = null; // { run, name, index, value }
let resting = null;
let timer = 0;

/** Show a cell: hover previews it; `lock` keeps it in the URL, `pin` beside others. A null ends the preview. */
export function inspect(cell, how = "hover") {
  if (how === "hover") {
    hovered = cell;
    clearTimeout(timer);
    timer = setTimeout(() => { resting = hovered; changed(); }, PATIENCE);
    changed();
  } else if (cell) {
    const place = placeOf(cell);
    if (how === "pin") set({ pins: [...state().pins.filter((pin) => pin !== place), place] });
    else set({ cell: place });
  }
}

/** Nothing is kept any more. */
export function clear() {
  hovered = resting = null;
  set({ cell: "", pins: [] });
  changed();
}

const placeOf = ({ name, index }) => `${name}@${index.join(",")}`;

/** A place as the URL has it: name@1,5,3. */
export function read(place) {
  const [name, index = ""] = place.split("@");
  return name ? { name, index: index.split(",").filter(Boolean).map(Number) } : null;
}

/** What the state keeps of a value: its indices, or null. */
export function locked(name) {
  const cell = read(state().cell);
  return cell?.name === name ? cell.index : null;
}

/** Whether there is anything to show. */
export const open = () => !!(hovered || state().cell || state().pins.length);

/** The panel at the right. */
export function panel({ run, edited }) {
  const shown = hovered ?? read(state().cell);
  const ready = hovered ? resting && placeOf(resting) === placeOf(hovered) : true;
  const id = (cell) => cell.run || run?.id;
  const kept = state().cell || state().pins.length;
  const hint = html`<p class="hint">Point at any number to see what it is. Click keeps it, Shift-click collects, Esc clears.</p>`;
  return html`<header><h2>Inspector</h2>${kept ? html`<button type="button" class="quiet" @click=${clear}>Clear (Esc)</button>` : nothing}</header>
    ${shown && run ? about(shown, run, id(shown), ready, "inspected") : hint}
    ${shown && edited && !hovered ? changedTo(shown, edited) : nothing}
    ${state().pins.map(read).filter(Boolean).map((cell) => html`<hr>${about(cell, run, id(cell), true, `pin ${placeOf(cell)}`)}`)}`;
}

function about(cell, run, id, ready, slot) {
  const what = run?.names[cell.name];
  if (!what) return html`<p class="hint">This model has no ${cell.name}.</p>`;
  const url = `/api/runs/${id}/why?name=${encodeURIComponent(cell.name)}&index=${cell.index.join(",")}`;
  const found = ready ? resource(url, ({ signal }) => api.json("GET", url, undefined, { signal }), slot) : { pending: true };
  const why = found.value && !found.pending ? found.value : null;
  const value = why ? why.value : cell.value;
  return html`<section class="cell ${found.pending ? "pending" : ""}">
    <p class="path">${cell.name}<span>[${cell.index.join(", ")}]</span></p>
    <p class="what">${what.sentence}</p>
    <p class="value" data-value=${value ?? nothing}>${value === null || value === undefined ? why ? told(number(why)) : " " : exact(value)}</p>
    <dl><dt>shape</dt><dd>${(why?.shape ?? what.shape).join(" × ")}</dd>
      ${why ? html`<dt>where</dt><dd>${why.labels.join(" · ")}</dd>` : nothing}
      ${why?.percentile !== null && why?.percentile !== undefined ? html`<dt>larger than</dt><dd>${why.percentile.toFixed(1)} % of its values</dd>` : nothing}
      <dt>formula</dt><dd>${what.formula}</dd></dl>
    ${found.error ? html`<p class="problem">${found.error.message}</p>` : nothing}
    ${why ? html`<ol class="steps">${why.steps.map(step)}</ol>
      <details class="python"><summary>Python</summary><pre>${why.python}</pre></details>
      <p><button type="button" @click=${(event) => copy(event.target, why.python)}>Copy as Python</button></p>` : nothing}
  </section>`;
}

/** The same cell after the edits. */
function changedTo(cell, edited) {
  const url = `/api/runs/${edited.id}/why?name=${encodeURIComponent(cell.name)}&index=${cell.index.join(",")}`;
  const { value } = resource(url, ({ signal }) => api.json("GET", url, undefined, { signal }), "inspected, edited");
  return value ? html`<p class="after">With the edits <b>${value.value === null ? told(number(value)) : told(value.value, 6)}</b>
    <button type="button" class="quiet" @click=${(event) => copy(event.target, value.python)}>Copy as Python</button></p>` : nothing;
}

const number = (why) => ({ "-inf": -Infinity, inf: Infinity })[why.special] ?? NaN;

function step({ words, value, special, terms }) {
  return html`<li><span>${words}</span>${value === undefined ? nothing : html` <b>${value === null ? told(number({ special })) : told(value, 6)}</b>`}
    ${terms?.length ? html`<table class="terms"><tbody>${terms.map(([label, a, b, product]) => html`<tr><th scope="row">${label}</th>
      <td>${a === null ? "" : told(a, 4)}</td><td>${b === null ? "" : html`× ${told(b, 4)}`}</td><td>${told(product, 4)}</td></tr>`)}</tbody></table>` : nothing}</li>`;
}

/** Six digits, and all of them if someone wants to copy. */
function exact(value) {
  return html`<span title=${String(value)}>${told(value, 6)}</span>`;
}

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copying is not allowed here; select the text below Python.";
  }
  setTimeout(() => (button.textContent = "Copy as Python"), 1600);
}
