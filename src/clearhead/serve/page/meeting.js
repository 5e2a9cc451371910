// The unembedding (L5.1): last hidden state · row of a token = its logit.

import { html, nothing } from "lit-html";
import { told } from "ch/colors";
import { array, got, home } from "ch/run";
import { numbers, shown } from "ch/shown";
import { once } from "ch/steady";

const BY = ["", "dimension"];

/** h · E[token] for one candidate: both vectors, their product, and the sum. */
export function meeting({ card }, run, words, ranks, id) {
  const last = run.tokens.length - 1;
  const state = array(`/api/runs/${run.id}/tensor/final_norm?rows=${last}:${last + 1}`, "last state");
  const row = got(`${home(card.name)}/embedding-rows?ids=${id}&unembedding=true`, "row of the unembedding");
  return html`<ch-figure .caption=${"How a logit is computed"} .badge=${card.tie_embeddings ? "tied to the embedding matrix" : "separate unembedding matrix"}>
    ${shown(state, (value) => (row.value ? strips(value, row.value, run, words, ranks, id) : nothing))}</ch-figure>`;
}

function strips(state, row, run, words, ranks, id) {
  const values = numbers(row);
  if (values.shape[1] !== state.data.length) return nothing;
  const made = once(row, state, () => ({ shape: values.shape, data: values.data.map((value, i) => value * state.data[i]) }));
  const sum = made.data.reduce((a, b) => a + b, 0), logit = ranks.logits[id], last = run.tokens.length - 1;
  const same = Math.abs(logit - sum) <= 1e-3 * Math.max(1, Math.abs(logit));
  const strip = (words, value, name) => html`<span>${words}</span><ch-map .values=${value} .signed=${true} .most_cell=${12} .tall=${14} .label=${words} .by=${BY} .name=${name} .run=${name ? run.id : ""} .index=${name ? (r, c) => [last, c] : null}></ch-map>`;
  return html`<div class="meeting">
      ${strip("last hidden state h", state, "final_norm")}<span class="sign" aria-hidden="true">×</span>
      ${strip(`row of ${words[id] ?? id}`, values, "")}<span class="sign" aria-hidden="true">=</span>
      ${strip("products", made, "")}<span></span></div>
    <p>${same
      ? html`Their sum is <b>${told(sum, 6)}</b>, the logit of <code>${words[id] ?? id}</code>.`
      : html`Their sum is <b>${told(sum, 6)}</b>; with the head's scale or bias, the logit of <code>${words[id] ?? id}</code> is <b>${told(logit, 6)}</b>.`}</p>
    <p class="hint">Point at another candidate to see its row; the inspector lists every term. Softmax: <math><mrow><msub><mi>p</mi><mi>i</mi></msub><mo>=</mo><mfrac><msup><mi>e</mi><mrow><msub><mi>u</mi><mi>i</mi></msub><mo>/</mo><mi>T</mi></mrow></msup><mrow><munder><mo>∑</mo><mi>j</mi></munder><msup><mi>e</mi><mrow><msub><mi>u</mi><mi>j</mi></msub><mo>/</mo><mi>T</mi></mrow></msup></mrow></mfrac></mrow></math></p>`;
}
