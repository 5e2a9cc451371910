// Ways to choose: a few words side by side, one of many, a slider.

import { html } from "lit-html";

/** Buttons side by side, one of them pressed. `options` are [value, words] or [value, words, hint]. */
export function oneOf(label, options, value, choose) {
  return html`<div class="choices" role="group" aria-label=${label}>${options.map(([option, words, hint]) => html`
    <button type="button" aria-pressed=${option === value} title=${hint ?? words} @click=${() => choose(option)}>${words}</button>`)}</div>`;
}

/** A list to choose from; `options` are [value, words]. */
export function listed(label, options, value, choose) {
  const pick = ({ target }) => choose(options[target.selectedIndex][0]);
  return html`<label class="listed">${label} <select @change=${pick}>${options.map(([option, words]) => html`<option ?selected=${option === value}>${words}</option>`)}</select></label>`;
}

/** One of the numbers below `count`. */
export const numbered = (label, count, value, choose) => listed(label, Array.from({ length: count }, (_, i) => [i, i]), value, choose);

/** A slider with its value beside it; it tells on every move. */
export function slider(label, { min, max, step = 1, value, told = String, hint = "", key = "" }, choose) {
  return html`<label class="slider" title=${hint}>${label}
    <input type="range" data-key=${key} min=${min} max=${max} step=${step} .value=${String(value)} @input=${({ target }) => choose(Number(target.value))}>
    <output>${told(value)}</output></label>`;
}

/** A line of text, which tells when it is done. */
export const line = (label, value, choose, { wide = true, ...more } = {}) => html`<label class=${wide ? "wide" : ""}>${label}
  <input type="text" spellcheck="false" size=${more.size ?? 20} title=${more.hint ?? ""} placeholder=${more.placeholder ?? ""} .value=${value} @change=${({ target }) => choose(target.value)}></label>`;

/** The place of the chosen token: state.query counts from the end below 0. */
export const placeOf = (query, count) => Math.max(0, Math.min(count - 1, query < 0 ? count + query : query));
