// What a view says while something is on its way, or when it could not be had.

import { html } from "lit-html";
import { decoded, snapshot } from "ch/api";
import { once } from "ch/steady";

/** Whether an error has something to say; that nobody answers is said once, by the page. */
export const told = (error) => !!error && (error.status !== 0 || !!snapshot);

/** The value drawn; dimmed while a newer one is on its way; a sentence where there is none. */
export function shown(resource, draw, waiting = "The model is at work …") {
  if (told(resource.error)) return html`<p class="problem" role="status">${resource.error.message}</p>`;
  if (resource.value === undefined || resource.value === null) return html`<p class="hint" role="status">${waiting}</p>`;
  return html`<div class="${resource.pending ? "stale" : ""}" aria-busy=${resource.pending ? "true" : "false"}>${draw(resource.value)}</div>`;
}

/** What is said where a model has computed no numbers. */
export const broken = () => html`<p class="problem" role="status">There are no numbers here; the weights of the model may be broken.</p>`;

/** A view of the lens as it was sent -> the same with numbers, for <ch-view>; the same object each time. */
export const lensed = (view) => once(view, "lensed", () => decoded(view));

/** The same for <ch-map>: { shape, data }. */
export const numbers = (view) => once(view, "numbers", () => ({ shape: view.shape, data: lensed(view).values }));

/** A small matrix with its numbers in the cells. */
export function spelt(view) {
  const { shape: [rows, cols], values } = lensed(view);
  if (rows > 12 || cols > 12) return lensed(view);
  const cell = (r, c) => values[r * cols + c].toFixed(2).replace("-", "−");
  return once(view, "spelt", () => ({ ...lensed(view), words: Array.from({ length: rows }, (_, r) => Array.from({ length: cols }, (_, c) => cell(r, c))) }));
}

/** 12,345 for people. */
export const count = (number, word = "") => `${number.toLocaleString("en")}${word ? ` ${word}${number === 1 ? "" : "s"}` : ""}`;
