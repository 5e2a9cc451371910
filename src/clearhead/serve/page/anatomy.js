// The anatomy of one head: from queries and keys to what it writes, each step with its real numbers (L3.3 – L3.7).

import { html, nothing } from "lit-html";
import { told } from "ch/colours";
import { path, sides, texts } from "ch/paths";
import { array } from "ch/run";
import { once } from "ch/steady";

const STEPS = ["q_turned", "k_turned", "v", "scores", "masked", "pattern", "z"];

/** The steps of the chosen head, as a template. */
export function anatomy({ run, card, state, set, marks }, { part, layer, head }, masked) {
  const at = path(part, layer), group = Math.floor(head / (card.heads / card.kv_heads));
  const get = (what) => {
    const which = what === "k_turned" || what === "v" ? group : head;
    const url = `/api/runs/${run.id}/tensor/${at}.${what}?head=${which}`;
    return array(url, `anatomy ${what}`);
  };
  const found = Object.fromEntries(STEPS.map((what) => [what, get(what)]));
  const missing = STEPS.map((what) => found[what]).find(({ error }) => error);
  if (missing) return html`<p class="problem">${missing.error.message}</p>`;
  const v = Object.fromEntries(STEPS.map((what) => [what, found[what].value]));
  const [queries, keys] = sides(run, part).map(texts);
  const ready = Object.values(v).every(Boolean) && v.scores.shape[0] === queries.length;
  if (!ready) return html`<p class="loading">The head is being taken apart …</p>`;
  const scaled = state.scaled || !card.scaled;
  const steps = scaled ? { scores: v.scores, masked: v.masked, pattern: v.pattern } : once(v.scores, "unscaled", () => unscaled(v, card.d_head, masked));
  const sums = rowSums(steps.pattern);
  const real = (what) => (scaled ? `${at}.${what}` : "");
  const row = state[marks.own], cell = row >= 0 && row < queries.length ? [row, -1] : null;
  const map = (what, values, rows, cols, { name = `${at}.${what}`, index = (r, c) => [head, r, c], by = ["token", "dimension"], ...more } = {}) =>
    html`<ch-map .values=${values} .rows=${rows} .cols=${cols} .name=${name} .run=${run.id} .index=${index} .by=${by} .label=${what} .measure=${what}
      .signed=${more.signed ?? true} .most=${more.most ?? null} .masked=${more.masked ?? null} .cursor=${more.cursor ?? null} .most_cell=${18}></ch-map>`;
  const grid = (what, more) => map(what, steps[what], queries, keys, { name: real(what), by: ["query", "key"], ...more });
  const shared = { index: (r, c) => [group, r, c] };
  const turned = card.position === "rotary" && part !== "cross" ? ", turned by its position" : "";
  const groups = card.kv_heads < card.heads ? `, shared by ${card.heads / card.kv_heads} heads` : "";
  const last = cell ? row : queries.length - 1;
  return html`<div class="anatomy">
    ${step("q", formula.q, `what each token asks${turned}`, map("q_turned", v.q_turned, queries, null))}
    ${step("k", formula.k, `what each token answers to${turned}${groups}`, map("k_turned", v.k_turned, keys, null, shared))}
    ${step("v", formula.v, `what each token passes on${groups}`, map("v", v.v, keys, null, shared))}
    ${step("scores", scaled ? formula.scores : formula.raw, html`how well each key fits each query ${card.scaled ? html`<label class="switch"><input type="checkbox"
      .checked=${state.scaled} @change=${({ target }) => set({ scaled: target.checked })}> divided by √${card.d_head}</label>` : nothing}`, grid("scores"))}
    ${step("mask", formula.masked, masked ? "hatched cells are −∞: a query may not look there" : "nothing is hidden from a query", grid("masked", { masked }))}
    ${step("softmax", formula.pattern, html`each row adds up to 1 (here ${told(sums.least, 7)} to ${told(sums.most, 7)}); its largest weight is ${told(sums.largest)}
      on average${scaled ? "" : html` <b>without scaling</b>, ${told(rowSums(v.pattern).largest)} with it`}`, grid("pattern", { masked, most: 1, signed: false, cursor: cell }))}
    ${step("z", formula.z, scaled ? "weights times values: what the head has gathered" : "the model’s own z; it scales", map("z", v.z, queries, null))}
    ${step("out", formula.out, html`all heads side by side, times W_O, is added to the stream; each head’s share of a number of it is in the inspector:
      <button type="button" class="quiet" @click=${() => set({ cell: `${at}.out@${last},0` })}>${at}.out</button>`, nothing)}
  </div>`;
}

function step(name, math, words, picture) {
  return html`<section><h3>${name}</h3><p class="math">${math}</p><p class="hint">${words}</p>${picture}</section>`;
}

/** The same head if its scores were not divided by the square root of its width; computed from its own q and k. */
function unscaled(v, width, masked) {
  const [rows, cols] = v.scores.shape, [, d] = v.q_turned.shape, scale = Math.sqrt(width);
  const scores = new Float32Array(rows * cols), hidden = new Float32Array(rows * cols), pattern = new Float32Array(rows * cols);
  for (let r = 0; r < rows; r++) {
    let most = -Infinity, sum = 0;
    for (let c = 0; c < cols; c++) {
      let product = 0;
      for (let i = 0; i < d; i++) product += v.q_turned.data[r * d + i] * v.k_turned.data[c * d + i];
      const bias = v.scores.data[r * cols + c] - product / scale;
      scores[r * cols + c] = product + bias;
      hidden[r * cols + c] = masked?.(r, c) ? -Infinity : product + bias;
      most = Math.max(most, hidden[r * cols + c]);
    }
    for (let c = 0; c < cols; c++) sum += pattern[r * cols + c] = Math.exp(hidden[r * cols + c] - most);
    for (let c = 0; c < cols; c++) pattern[r * cols + c] /= sum;
  }
  const shape = [rows, cols];
  return { scores: { shape, data: scores }, masked: { shape, data: hidden }, pattern: { shape, data: pattern } };
}

/** The least and the largest sum of a row, the mean of each row's largest weight, and the largest of all; computed once for a pattern. */
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
