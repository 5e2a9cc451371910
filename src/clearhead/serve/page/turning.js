// Rotary positions (L2.5): pairs of dimensions of a query and a key are rotated by their positions.

import { html, nothing, svg } from "lit-html";
import * as api from "ch/api";
import { listed, slider } from "ch/choose";
import { told } from "ch/colors";
import { broken, shown } from "ch/shown";
import { defaults } from "ch/state";
import "ch/curve";

defaults({ shift: 0, distance: 0 });
const DIALS = 6;
const SIZE = 60; // length of the longest arrow

/** Dials of some dimension pairs of a query and a key, and q · k as the positions change. */
export function turning(ctx, { inv_freq: rates, is_rotary: turns, scheme: kind }) {
  const { card, run, resource, state } = ctx;
  if (!run || !run.activations[`blocks.${state.layer}.attn.q`] || !run.tokens.length) return nothing;
  const layer = state.layer, head = Math.min(state.head, card.n_heads - 1);
  const shared = Math.floor(head / (card.n_heads / card.n_kv_heads)); // grouped-query attention
  const path = (name, h) => `/api/runs/${run.id}/tensor/blocks.${layer}.attn.${name}?head=${h}`;
  const found = resource(`turning ${run.id} ${layer} ${head}`, async ({ signal }) => {
    const [q, k, scores] = await Promise.all([["q", head], ["k", shared], ["scores", head]].map(([name, h]) => api.npy(path(name, h), { signal })));
    return { q, k, scores };
  }, "turning");
  return html`<ch-figure .caption=${"Rotary positions: rotating pairs"} .badge=${turns ? "yours" : "for comparison"}>
    ${turns ? nothing : html`<p class="hint">This model uses ${kind} positions. Its queries and keys are shown as rotary positions would rotate them.</p>`}
    ${shown(found, (value) => dials(ctx, value, rates, turns, layer, head))}</ch-figure>`;
}

function dials({ card, run, state, set }, { q, k, scores }, rates, turns, layer, head) {
  const tokens = run.tokens, last = tokens.length - 1;
  if (q.shape[0] !== tokens.length) return nothing; // still of the previous text
  const i = Math.min(last, state.query < 0 ? last : state.query);
  const j = Math.min(last, state.key < 0 ? Math.max(0, i - 1) : state.key);
  const width = q.shape[1], half = rates.length;
  const [a, b] = [q.data.subarray(i * width, (i + 1) * width), k.data.subarray(j * width, (j + 1) * width)];
  if (![...a, ...b].every(Number.isFinite)) return broken();
  const scale = !card.scale_scores ? 1 : Math.sqrt(width);
  const product = (distance) => turned(a, b, rates, distance) / scale;
  const at = [i + state.shift + state.distance, j + state.shift];
  const pairs = spread(half, DIALS);
  const longest = Math.max(1e-9, ...pairs.flatMap((p) => [Math.hypot(a[p], a[p + half]), Math.hypot(b[p], b[p + half])]));
  const pick = (key, value) => listed(html`<span class=${`dot ${key[0]}`}></span>${key}`, tokens.map(({ text }, n) => [n, `${n} ${text}`]), value, (to) => set({ [key]: to }));
  const slide = (key, words, max) => slider(words, { min: 0, max, value: state[key] }, (to) => set({ [key]: to }, { replace: true }));
  const now = product(at[0] - at[1]), model = scores.data[i * scores.shape[1] + j];
  return html`
    <div class="row">${pick("query", i)} ${pick("key", j)}
      <span class="hint">layer ${layer}, head ${head}</span></div>
    <div class="row">${slide("shift", "shift both by", 64)} ${slide("distance", "shift only the query by", 32)}
      ${state.shift || state.distance ? html`<button type="button" class="quiet" @click=${() => set({ shift: 0, distance: 0 })}>reset</button>` : nothing}</div>
    <div class="dials">${pairs.map((p) => dial(p, a, b, half, rates[p], at, longest))}</div>
    <div class="columns turned"><div>
      <p class="large">${told(now, 5)}</p>
      <p class="hint">q · k ${scale === 1 ? "" : html`÷ √${width}`} over all ${half} pairs, query at ${at[0]}, key at ${at[1]}, <b>${at[0] - at[1]} apart</b>.
        ${state.shift && !state.distance ? html`Both positions changed, the score did not: only the distance matters.` : nothing}
        ${!state.shift && !state.distance && turns && Number.isFinite(model) ? html`The model computes ${told(model, 5)}.` : nothing}</p></div>
      ${curve(product, at[0] - at[1])}</div>`;
}

function dial(p, a, b, half, rate, [i, j], longest) {
  const arrow = (v, place, name) => {
    const angle = rate * place, [x, y] = [v[p], v[p + half]];
    const end = [x * Math.cos(angle) - y * Math.sin(angle), y * Math.cos(angle) + x * Math.sin(angle)].map((n) => (n / longest) * SIZE);
    return svg`<line class=${name} x1="0" y1="0" x2=${end[0]} y2=${-end[1]}></line><circle class=${name} cx=${end[0]} cy=${-end[1]} r="4"></circle>`;
  };
  const degrees = (rate * 180) / Math.PI;
  return html`<figure><svg viewBox="-70 -70 140 140" role="img" aria-label=${`pair ${p}: query rotated by ${Math.round(degrees * i)}°, key by ${Math.round(degrees * j)}°`}>
    <circle class="rim" r=${SIZE + 6}></circle><path class="cross" d="M-66 0H66M0-66V66"></path>${arrow(b, j, "k")}${arrow(a, i, "q")}</svg>
    <figcaption>pair ${p}<br><span class="hint">${told(degrees)}° per position</span></figcaption></figure>`;
}

/** The score by distance. */
function curve(product, distance) {
  const way = distance < 0 ? -1 : 1; // the key may follow the query
  const points = Array.from({ length: Math.max(32, Math.abs(distance)) + 1 }, (_, d) => [way * d, product(way * d)]);
  return html`<ch-curve .lines=${[{ label: "", points }]} .mark=${distance} .by=${"distance of query and key"} .measure=${"q · k"} .high=${150} .label=${"q · k by distance"}></ch-curve>`;
}

/** q · k after rotation at a given distance; dimensions beyond the pairs are not rotated. */
export function turned(a, b, rates, distance) {
  const half = rates.length;
  let sum = 0;
  for (let p = 0; p < half; p++) {
    const [cos, sin] = [Math.cos(rates[p] * distance), Math.sin(rates[p] * distance)];
    sum += (a[p] * b[p] + a[p + half] * b[p + half]) * cos + (a[p] * b[p + half] - a[p + half] * b[p]) * sin;
  }
  for (let d = 2 * half; d < a.length; d++) sum += a[d] * b[d];
  return sum;
}

const spread = (size, most) => [...new Set(Array.from({ length: Math.min(most, size) }, (_, n) => Math.round((n * (size - 1)) / Math.max(1, Math.min(most, size) - 1))))];
