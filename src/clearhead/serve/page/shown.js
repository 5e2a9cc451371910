// Rendering resources: loading, error and value; decoding views.

import { html } from "lit-html";
import { decoded, snapshot } from "ch/api";
import { once } from "ch/steady";

/** Whether to show an error; a lost connection is reported once by the page. */
export const told = (error) => !!error && (error.status !== 0 || !!snapshot);

/** Render a resource: its value (dimmed while reloading), its error, or a waiting message. */
export function shown(resource, draw, waiting = "Running the model …") {
  if (told(resource.error)) return html`<p class="problem" role="status">${resource.error.message}</p>`;
  if (resource.value === undefined || resource.value === null) return html`<p class="hint" role="status">${waiting}</p>`;
  return html`<div class="${resource.pending ? "stale" : ""}" aria-busy=${resource.pending ? "true" : "false"}>${draw(resource.value)}</div>`;
}

/** Message for NaN results. */
export const broken = () => html`<p class="problem" role="status">Not a number: the weights of the model may be corrupt.</p>`;

/** Decode a lens view for <ch-view>; memoized. */
export const lensed = (view) => once(view, "lensed", () => decoded(view));

/** The same for <ch-map>: { shape, data }. */
export const numbers = (view) => once(view, "numbers", () => ({ shape: view.shape, data: lensed(view).values }));

/** A small matrix with its numbers written in the cells. */
export function spelt(view) {
  const { shape: [rows, cols], values } = lensed(view);
  if (rows > 12 || cols > 12) return lensed(view);
  const cell = (r, c) => values[r * cols + c].toFixed(2).replace("-", "−");
  return once(view, "spelt", () => ({ ...lensed(view), words: Array.from({ length: rows }, (_, r) => Array.from({ length: cols }, (_, c) => cell(r, c))) }));
}

/** Format a count: 12,345. */
export const count = (number, word = "") => `${number.toLocaleString("en")}${word ? ` ${word}${number === 1 ? "" : "s"}` : ""}`;
