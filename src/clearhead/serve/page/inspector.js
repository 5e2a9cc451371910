// The inspector: the value under the pointer, its arithmetic, and Python code that reproduces it.

import { html, nothing } from "lit-html";
import { told } from "ch/colors";
import { got } from "ch/run";
import { told as said } from "ch/shown";
import { changed, set, state } from "ch/state";

const PATIENCE = 70; // milliseconds of hovering before the explanation is requested
let hovered = null; // { run, name, index, value }; numbers that are no activation: { title, where, measure, value, note }
let kept = null; // a clicked number without activation name: { cell, view }
let resting = null;
let timer = 0;

/** Show a cell: `hover` previews it, `lock` stores it in the URL, `pin` adds it to the list. null ends the preview. */
export function inspect(cell, how = "hover") {
  if (how === "hover") {
    hovered = cell;
    clearTimeout(timer);
    timer = setTimeout(() => { resting = hovered; changed(); }, PATIENCE);
    changed();
  } else if (cell && !cell.name) {
    kept = { cell, view: state().view };
    if (state().cell) set({ cell: "" });
    changed();
  } else if (cell) {
    kept = null;
    const place = placeOf(cell);
    if (how === "pin") set({ pins: [...state().pins.filter((pin) => pin !== place), place] });
    else set({ cell: place });
  }
}

/** Clear the inspector. */
export function clear() {
  hovered = resting = kept = null;
  set({ cell: "", pins: [] });
  changed();
}

const placeOf = ({ name, index }) => `${name}@${index?.join(",")}`;
const nameless = () => (kept?.view === state().view ? kept.cell : null);

/** Parse a cell of the URL: name@1,5,3. */
export function read(place) {
  const [name, index = ""] = place.split("@");
  return name ? { name, index: index.split(",").filter(Boolean).map(Number) } : null;
}

/** Indices of the locked cell if it belongs to this activation, else null. */
export function locked(name) {
  const cell = read(state().cell);
  return cell?.name === name ? cell.index : null;
}

/** Whether the inspector has content. */
export const open = () => !!(hovered || nameless() || state().cell || state().pins.length);

/** The inspector panel. */
export function panel({ run, edited }) {
  const shown = hovered ?? nameless() ?? read(state().cell);
  const ready = hovered ? resting && placeOf(resting) === placeOf(hovered) : true;
  const id = (cell) => cell.run || run?.id;
  const clearable = nameless() || state().cell || state().pins.length;
  const hint = html`<p class="hint">Point at any number to inspect it. Click to lock, Shift-click to pin, Esc to clear.</p>`;
  return html`<header><h2>Inspector</h2>${clearable ? html`<button type="button" class="quiet" @click=${clear}>Clear (Esc)</button>` : nothing}</header>
    ${shown && !shown.name ? plain(shown) : shown && run ? about(shown, run, id(shown), ready, "inspected") : hint}
    ${shown?.name && edited && !hovered ? changedTo(shown, edited) : nothing}
    ${state().pins.map(read).filter(Boolean).map((cell) => html`<hr>${about(cell, run, id(cell), true, `pin ${placeOf(cell)}`)}`)}`;
}

/** A derived number that is no activation. */
function plain({ title, where, measure, value, note }) {
  return html`<section class="cell"><p class="path">${title}</p>
    <p class="value" data-value=${value}>${typeof value === "number" ? exact(value) : value}</p>
    <dl>${measure ? html`<dt>measure</dt><dd>${measure}</dd>` : nothing}${where.length ? html`<dt>where</dt><dd>${lines(where)}</dd>` : nothing}
      ${note ? html`<dt>description</dt><dd>${note}</dd>` : nothing}</dl></section>`;
}

const lines = (labels) => labels.map((label, i) => html`${i ? html`<br>` : nothing}${label}`);

function about(cell, run, id, ready, slot) {
  const what = run && Object.hasOwn(run.activations, cell.name) ? run.activations[cell.name] : null;
  if (!what) return html`<p class="hint">This model has no ${cell.name}.</p>`;
  const url = `/api/runs/${id}/explain?name=${encodeURIComponent(cell.name)}&index=${cell.index.join(",")}`;
  const found = ready ? got(url, slot) : { pending: true };
  const why = found.value && !found.pending ? found.value : null;
  const value = why ? why.value : cell.value;
  return html`<section class="cell ${found.pending ? "pending" : ""}">
    <p class="path">${cell.name}<span>[${cell.index.join(", ")}]</span></p>
    <p class="what">${what.description}</p>
    <p class="value" data-value=${value ?? nothing}>${value === null || value === undefined ? why ? told(number(why)) : " " : exact(value)}</p>
    <dl><dt>shape</dt><dd>${(why?.shape ?? what.shape).join(" × ")}</dd>
      ${why ? html`<dt>where</dt><dd>${lines(why.labels)}</dd>` : nothing}
      ${why?.is_largest ? html`<dt>rank</dt><dd>the largest value</dd>`
        : why?.percentile !== null && why?.percentile !== undefined ? html`<dt>percentile</dt><dd>${Math.min(99.9, why.percentile).toFixed(1)}</dd>` : nothing}
      <dt>formula</dt><dd>${what.formula}</dd></dl>
    ${said(found.error) ? html`<p class="problem">${found.error.message}</p>` : nothing}
    ${why ? html`<ol class="steps">${why.steps.map(step)}</ol>
      <details class="python"><summary>Python</summary><pre>${why.python}</pre></details>
      <p><button type="button" @click=${(event) => copy(event.target, why.python)}>Copy as Python</button></p>` : nothing}
  </section>`;
}

/** The same cell with the edits. */
function changedTo(cell, edited) {
  const url = `/api/runs/${edited.id}/explain?name=${encodeURIComponent(cell.name)}&index=${cell.index.join(",")}`;
  const { value } = got(url, "inspected, edited");
  return value ? html`<p class="after">With the edits <b>${value.value === null ? told(number(value)) : told(value.value, 6)}</b>
    <button type="button" class="quiet" @click=${(event) => copy(event.target, value.python)}>Copy as Python</button></p>` : nothing;
}

const number = (why) => ({ "-inf": -Infinity, inf: Infinity })[why.special] ?? NaN;

function step({ description, value, special, terms }) {
  return html`<li><span>${description}</span>${value === undefined ? nothing : html` <b>${value === null ? told(number({ special })) : told(value, 6)}</b>`}
    ${terms?.length ? html`<table class="terms"><tbody>${terms.map(([label, a, b, product]) => html`<tr><th scope="row" title=${label} colspan=${a === null && b === null ? 3 : 1}>${label.replace(/^dimension /, "dim ")}</th>
      ${a === null && b === null ? nothing : html`<td>${a === null ? "" : told(a, 4)}</td><td>${b === null ? "" : html`× ${told(b, 4)}`}</td>`}<td>${told(product, 4)}</td></tr>`)}</tbody></table>` : nothing}</li>`;
}

/** Six digits; all digits in the tooltip. */
function exact(value) {
  return html`<span title=${String(value)}>${told(value, 6)}</span>`;
}

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Clipboard access denied; copy the code below Python.";
  }
  setTimeout(() => (button.textContent = "Copy as Python"), 1600);
}
