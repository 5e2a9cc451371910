// The computation of one attention head, step by step with its real numbers (L3.3 – L3.7).

import { html, nothing } from "lit-html";
import { told } from "ch/colors";
import { path, sides, texts } from "ch/paths";
import { array } from "ch/run";
import { once } from "ch/steady";

const STEPS = ["rot_q", "rot_k", "v", "scores", "masked_scores", "pattern", "z"];

/** The steps of the selected head. */
export function anatomy({ run, card, state, set, marks }, { part, layer, head }, masked) {
  const at = path(part, layer), group = Math.floor(head / (card.n_heads / card.n_kv_heads));
  const get = (what) => {
    const which = what === "rot_k" || what === "v" ? group : head;
    const url = `/api/runs/${run.id}/tensor/${at}.${what}?head=${which}`;
    return array(url, `anatomy ${what}`);
  };
  const found = Object.fromEntries(STEPS.map((what) => [what, get(what)]));
  const missing = STEPS.map((what) => found[what]).find(({ error }) => error);
  if (missing) return html`<p class="problem">${missing.error.message}</p>`;
  const v = Object.fromEntries(STEPS.map((what) => [what, found[what].value]));
  const [queries, keys] = sides(run, part).map(texts);
  const ready = Object.values(v).every(Boolean) && v.scores.shape[0] === queries.length;
  if (!ready) return html`<p class="loading">Loading this head …</p>`;
  const scaled = state.scale_scores || !card.scale_scores;
  const steps = scaled ? { scores: v.scores, masked_scores: v.masked_scores, pattern: v.pattern } : once(v.scores, "unscaled", () => unscaled(v, card.d_head, masked));
  const sums = rowSums(steps.pattern);
  const real = (what) => (scaled ? `${at}.${what}` : "");
  const row = state[marks.own], cell = row >= 0 && row < queries.length ? [row, -1] : null;
  const map = (what, values, rows, cols, { name = `${at}.${what}`, index = (r, c) => [head, r, c], by = ["token", "dimension"], ...more } = {}) =>
    html`<ch-map .values=${values} .rows=${rows} .cols=${cols} .name=${name} .run=${run.id} .index=${index} .by=${by} .label=${what} .measure=${what}
      .signed=${more.signed ?? true} .most=${more.most ?? null} .masked=${more.masked ?? null} .cursor=${more.cursor ?? null} .most_cell=${18}></ch-map>`;
  const grid = (what, more) => map(what, steps[what], queries, keys, { name: real(what), by: ["query", "key"], ...more });
  const shared = { index: (r, c) => [group, r, c] };
  const turned = card.position === "rotary" && part !== "cross" ? ", rotated by its position" : "";
  const groups = card.n_kv_heads < card.n_heads ? `, shared by ${card.n_heads / card.n_kv_heads} heads` : "";
  const last = cell ? row : queries.length - 1;
  return html`<div class="anatomy">
    ${step("q", formula.q, `query of each token${turned}`, map("rot_q", v.rot_q, queries, null))}
    ${step("k", formula.k, `key of each token${turned}${groups}`, map("rot_k", v.rot_k, keys, null, shared))}
    ${step("v", formula.v, `value of each token${groups}`, map("v", v.v, keys, null, shared))}
    ${step("scores", scaled ? formula.scores : formula.raw, html`how well each key matches each query ${card.scale_scores ? html`<label class="switch"><input type="checkbox"
      .checked=${state.scale_scores} @change=${({ target }) => set({ scale_scores: target.checked })}> divided by √${card.d_head}</label>` : nothing}`, grid("scores"))}
    ${step("mask", formula.masked, masked ? "hatched cells are −∞: masked positions" : "no positions are masked", grid("masked_scores", { masked }))}
    ${step("softmax", formula.pattern, html`each row sums to 1 (here ${told(sums.least, 7)} to ${told(sums.most, 7)}); its largest weight is ${told(sums.largest)}
      on average${scaled ? "" : html` <b>without scaling</b>, ${told(rowSums(v.pattern).largest)} with it`}`, grid("pattern", { masked, most: 1, signed: false, cursor: cell }))}
    ${step("z", formula.z, scaled ? "weights times values: the output of the head" : "the model’s own z (with scaling)", map("z", v.z, queries, null))}
    ${step("out", formula.out, html`all heads concatenated, times W_O, are added to the residual stream; the inspector shows each head’s contribution:
      <button type="button" class="quiet" @click=${() => set({ cell: `${at}.out@${last},0` })}>${at}.out</button>`, nothing)}
  </div>`;
}

function step(name, math, words, picture) {
  return html`<section><h3>${name}</h3><p class="math">${math}</p><p class="hint">${words}</p>${picture}</section>`;
}

/** The head without dividing scores by √d_head, computed from its own q and k. */
function unscaled(v, width, masked) {
  const [rows, cols] = v.scores.shape, [, d] = v.rot_q.shape, scale = Math.sqrt(width);
  const scores = new Float32Array(rows * cols), hidden = new Float32Array(rows * cols), pattern = new Float32Array(rows * cols);
  for (let r = 0; r < rows; r++) {
    let most = -Infinity, sum = 0;
    for (let c = 0; c < cols; c++) {
      let product = 0;
      for (let i = 0; i < d; i++) product += v.rot_q.data[r * d + i] * v.rot_k.data[c * d + i];
      const bias = v.scores.data[r * cols + c] - product / scale;
      scores[r * cols + c] = product + bias;
      hidden[r * cols + c] = masked?.(r, c) ? -Infinity : product + bias;
      most = Math.max(most, hidden[r * cols + c]);
    }
    for (let c = 0; c < cols; c++) sum += pattern[r * cols + c] = Math.exp(hidden[r * cols + c] - most);
    for (let c = 0; c < cols; c++) pattern[r * cols + c] /= sum;
  }
  const shape = [rows, cols];
  return { scores: { shape, data: scores }, masked_scores: { shape, data: hidden }, pattern: { shape, data: pattern } };
}

/** Smallest and largest row sum, mean of the row maxima, and the overall maximum; computed once per pattern. */
export const rowSums = (pattern) => once(pattern, "sums", () => summed(pattern));
function summed({ shape: [rows, cols], data }) {
  let least = Infinity, most = -Infinity, largest = 0, highest = 0;
  for (let r = 0, i = 0; r < rows; r++) {
    let sum = 0, top = 0;
    for (let c = 0; c < cols; c++, i++) {
      sum += data[i];
      if (data[i] > top) top = data[i];
    }
    least = Math.min(least, sum);
    most = Math.max(most, sum);
    largest += top / rows;
    highest = Math.max(highest, top);
  }
  return { least, most, largest, highest };
}

const formula = {
  q: html`<math><mi>Q</mi><mo>=</mo><mi>X</mi><msub><mi>W</mi><mi>Q</mi></msub></math>`,
  k: html`<math><mi>K</mi><mo>=</mo><mi>X</mi><msub><mi>W</mi><mi>K</mi></msub></math>`,
  v: html`<math><mi>V</mi><mo>=</mo><mi>X</mi><msub><mi>W</mi><mi>V</mi></msub></math>`,
  scores: html`<math><mi>S</mi><mo>=</mo><mi>Q</mi><msup><mi>K</mi><mi mathvariant="normal">T</mi></msup><mo>/</mo><msqrt><msub><mi>d</mi><mi>k</mi></msub></msqrt></math>`,
  raw: html`<math><mi>S</mi><mo>=</mo><mi>Q</mi><msup><mi>K</mi><mi mathvariant="normal">T</mi></msup></math>`,
  masked: html`<math><mi>S</mi><mo>+</mo><mi>M</mi></math>`,
  pattern: html`<math><mi>A</mi><mo>=</mo><mtext>softmax</mtext><mo>(</mo><mi>S</mi><mo>+</mo><mi>M</mi><mo>)</mo></math>`,
  z: html`<math><mi>Z</mi><mo>=</mo><mi>A</mi><mi>V</mi></math>`,
  out: html`<math><mtext>concat</mtext><mo>(</mo><msub><mi>Z</mi><mn>1</mn></msub><mo>…</mo><msub><mi>Z</mi><mi>h</mi></msub><mo>)</mo><msub><mi>W</mi><mi>O</mi></msub></math>`,
};
