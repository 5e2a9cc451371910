// Ways to choose: a few words side by side, one number of many, a slider.

import { html } from "lit-html";

/** Buttons side by side, one of them pressed. `options` are [value, words] or [value, words, hint]. */
export function oneOf(label, options, value, choose) {
  return html`<div class="choices" role="group" aria-label=${label}>${options.map(([option, words, hint]) => html`
    <button type="button" aria-pressed=${option === value} title=${hint ?? words} @click=${() => choose(option)}>${words}</button>`)}</div>`;
}

/** One of the numbers below `count`. */
export function numbered(label, count, value, choose) {
  return html`<label class="numbered">${label}
    <select .value=${String(value)} @change=${(event) => choose(Number(event.target.value))}>
      ${Array.from({ length: count }, (_, i) => html`<option value=${i} ?selected=${i === value}>${i}</option>`)}</select></label>`;
}

/** A slider with its value beside it; it tells on every move. */
export function slider(label, { min, max, step = 1, value, told = String }, choose) {
  return html`<label class="slider">${label}
    <input type="range" min=${min} max=${max} step=${step} .value=${String(value)} @input=${(event) => choose(Number(event.target.value))}>
    <output>${told(value)}</output></label>`;
}

/** The place of the chosen token: state.query counts from the end below 0. */
export const placeOf = (query, count) => Math.max(0, Math.min(count - 1, query < 0 ? count + query : query));
