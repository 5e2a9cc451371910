// Input controls: button group, select, slider, text field.

import { html } from "lit-html";

/** A button group. `options` are [value, words] or [value, words, hint]. */
export function oneOf(label, options, value, choose) {
  return html`<div class="choices" role="group" aria-label=${label}>${options.map(([option, words, hint]) => html`
    <button type="button" aria-pressed=${option === value} title=${hint ?? words} @click=${() => choose(option)}>${words}</button>`)}</div>`;
}

/** A select box; `options` are [value, words]. */
export function listed(label, options, value, choose) {
  const pick = ({ target }) => choose(options[target.selectedIndex][0]);
  return html`<label class="listed">${label} <select @change=${pick}>${options.map(([option, words]) => html`<option ?selected=${option === value}>${words}</option>`)}</select></label>`;
}

/** A select box of the numbers below `count`. */
export const numbered = (label, count, value, choose) => listed(label, Array.from({ length: count }, (_, i) => [i, i]), value, choose);

/** A slider with its value; reports every move. */
export function slider(label, { min, max, step = 1, value, told = String, hint = "", key = "" }, choose) {
  return html`<label class="slider" title=${hint}>${label}
    <input type="range" data-key=${key} min=${min} max=${max} step=${step} .value=${String(value)} @input=${({ target }) => choose(Number(target.value))}>
    <output>${told(value)}</output></label>`;
}

/** A text field; reports when editing ends. */
export const line = (label, value, choose, { wide = true, ...more } = {}) => html`<label class=${wide ? "wide" : ""}>${label}
  <input type="text" spellcheck="false" size=${more.size ?? 20} title=${more.hint ?? ""} placeholder=${more.placeholder ?? ""} .value=${value} @change=${({ target }) => choose(target.value)}></label>`;

/** Index of the selected token; negative values count from the end. */
export const placeOf = (query, count) => Math.max(0, Math.min(count - 1, query < 0 ? count + query : query));
