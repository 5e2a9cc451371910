// Position (L2): how this model and others encode token order.

import { html, nothing } from "lit-html";
import * as api from "ch/api";
import { slider } from "ch/choose";
import { told } from "ch/colors";
import { posted, reading } from "ch/run";
import { lensed, numbers, shown } from "ch/shown";
import { defaults } from "ch/state";
import { once } from "ch/steady";
import { turning } from "ch/turning";

defaults({ num_positions: 32, offset: 4 });
const PLACES = ["position", "dimension"];
const SUM = ["token", "dimension"], OTHERS = ["position", "other"], LOOK = ["query", "key"];
const AFTER = (query, key) => key > query; // masked in a decoder
const KINDS = {
  none: "None. Attention treats its input as a set: word order has no effect.",
  learned: "Learned: an embedding matrix with one trained row per position.",
  sinusoidal: "Sinusoidal: sine and cosine waves of decreasing frequency. Nothing is learned; nearby positions are similar.",
  t5: "T5 relative bias: each head adds a learned bias per distance to its scores. Absolute positions do not matter.",
  alibi: "ALiBi: each head subtracts a penalty proportional to distance from its scores, with its own slope.",
  shaw: "Shaw: a learned vector per distance is added to the keys.",
  rotary: "Rotary: queries and keys are rotated by angles proportional to their position, so only distances matter.",
};

function template(ctx) {
  const { card, state, set } = ctx;
  const body = { model: card.name, num_positions: Math.max(2, Math.min(state.num_positions, card.context_length, 512)) };
  const found = posted("positions", body, "positions");
  return html`
    <div class="row">${slider("positions", { min: 8, max: Math.min(card.context_length, 256), step: 8, value: body.num_positions }, (num_positions) => set({ num_positions }, { replace: true }))}</div>
    ${shown(found, (value) => schemes(value))}
    ${sum(ctx)}
    ${found.value ? turning(ctx, found.value) : nothing}
    ${order(ctx)} ${later(ctx)}`;
}

/** The model's own scheme next to others for comparison. */
function schemes({ scheme: kind, own, compared }) {
  const [yours, other] = ["yours", "for comparison"];
  const cosine = kind === "rotary" ? "The mean cosine of the angles between two positions." : "Cosine similarity of position vectors.";
  return html`
    <p class="lead"><span class="badge yours">yours</span> ${KINDS[kind] ?? kind}</p>
    ${own.own && kind !== "sinusoidal" ? picture("Position × dimension", own.own, yours, kind === "rotary" ? "The cosine of each pair's angle: the first pairs rotate fast, the last ones barely." : "") : nothing}
    ${own.bias ? bias(own.bias) : nothing}
    <ch-figure .caption=${"Sinusoidal positions next to binary counting"} .badge=${kind === "sinusoidal" ? "yours" : other}
      .note=${"Left: alternating sine and cosine, each pair with a lower frequency. Right: the position in binary, for comparison; each bit flips half as often as the previous one."}>
      <div class="beside">${map(compared.sinusoidal ?? own.own)}${map(compared.binary)}</div></ch-figure>
    ${own.similarity ? picture("Similarity of positions", own.similarity, yours, cosine, OTHERS) : nothing}`;
}

const picture = (caption, view, badge, note = "", by = PLACES) => html`<ch-figure .caption=${caption} .badge=${badge} .note=${note}>${map(view, by)}</ch-figure>`;

function map(view, by = PLACES) {
  const rows = view.axes[0].labels;
  return html`<ch-map .values=${numbers(view)} .rows=${rows} .signed=${view.signed} .most=${view.vmax} .label=${view.title} .measure=${view.value_name} .by=${by} .most_cell=${16} .tall=${Math.max(2, Math.min(16, Math.floor(480 / rows.length)))}></ch-map>`;
}

/** The bias by distance, and as a matrix added to the scores of each head. */
function bias(view) {
  const { values, shape: [heads, distances], axes } = lensed(view);
  const bands = once(view, "bands", () => {
    const far = axes[1].labels.map(Number), size = Math.min(24, Math.max(...far) + 1), zero = far.indexOf(0);
    return Array.from({ length: heads }, (_, head) => ({ shape: [size, size], data: Float32Array.from({ length: size * size }, (_, i) => {
      const at = zero + Math.floor(i / size) - (i % size);
      return at >= 0 && at < distances ? values[head * distances + at] : NaN;
    }) }));
  });
  const most = values.reduce((a, b) => Math.max(a, Math.abs(b)), 1e-9);
  return html`<ch-view .view=${lensed(view)} .caption=${"Bias added to scores, by distance (yours)"}></ch-view>
    <ch-figure .caption=${"The same bias as a matrix over queries and keys"} .badge=${"yours"} .note=${"Queries are rows, keys are columns: the bias is constant along diagonals. All heads share one color scale."}>
      <div class="maps many">${bands.map((band, head) => html`<div><h3>head ${head}</h3><ch-map .values=${band} .signed=${true} .most=${most} .label=${`bias of head ${head}`} .by=${LOOK} .most_cell=${9} .tall=${9} .masked=${Number(axes[1].labels[0]) === 0 ? AFTER : null}></ch-map></div>`)}</div></ch-figure>`;
}

/** Token embedding + position embedding = input of the first block, on one color scale. */
function sum({ run, resource, set }) {
  if (!run) return nothing;
  const side = run.source_tokens && !run.activations["embed"] ? "encoder." : "";
  const names = ["embed", "pos_embed", "full_embed"].map((name) => side + name).filter((name) => run.activations[name]);
  if (names.length < 3) {
    return html`<ch-figure .caption=${"Token + position"}><p class="hint">This model adds no position embeddings; positions enter in the attention scores.</p></ch-figure>`;
  }
  const found = resource(`${run.id} token + position`, async ({ signal }) => {
    const parts = await Promise.all(names.map((name) => api.npy(`/api/runs/${run.id}/tensor/${name}`, { signal })));
    const most = Math.max(...parts.map(({ data }) => data.reduce((a, b) => Math.max(a, Math.abs(b)), 0)));
    return { parts, most, labels: (side ? run.source_tokens : run.tokens).map((token) => token.text) };
  }, "token + position");
  const words = ["token embeddings", "position embeddings", "input of the first block"];
  return html`<ch-figure .caption=${"Token + position embeddings"}>
    ${shown(found, ({ parts, most, labels }) => html`<div class="sum">${parts.map((part, i) => html`
      ${i ? html`<span class="sign" aria-hidden="true">${i === 1 ? "+" : "="}</span>` : nothing}
      <div><h3>${words[i]}</h3><ch-map .values=${part} .rows=${labels} .signed=${true} .most=${most} .tall=${Math.max(2, Math.min(14, Math.floor(480 / labels.length)))} .name=${names[i]} .run=${run.id} .label=${words[i]} .by=${SUM}
        @pick=${(event) => set({ query: event.detail.row })}></ch-map></div>`)}</div>
      <p class="hint">Common color scale from −${told(most)} to ${told(most)}. ${run.activations[names[2]].formula}</p>`)}
  </ch-figure>`;
}

/** The tokens in reverse order: without positions, attention cannot tell (L2.1). */
function order(ctx) {
  const { card } = ctx, body = { model: card.name, text: reading(card).text ?? "" };
  if (card.architecture === "encoder-decoder" || !card.reads_text || !body.text) return nothing;
  const found = posted("positions/reverse", body, "order");
  return html`<ch-figure .caption=${"The same words in reverse order"}>
    ${shown(found, ({ view, rows, token: at, is_complete: whole }) => {
      const { values, shape: [, layers] } = lensed(view);
      const row = (words, n) => html`<tr><th scope="row">${words}</th>${Array.from({ length: layers }, (_, i) => html`<td>${share(values[n * layers + i])}</td>`)}</tr>`;
      return html`<p>Relative change of the residual stream of <b class="word">${rows[0][at]}</b> when the tokens before it are reversed${whole ? "" : ` (first ${rows[0].length} tokens of the text)`}:</p>
        <div class="scroll"><table class="numbers"><thead><tr><td></td>${view.axes[1].labels.map((name) => html`<th scope="col">layer ${name}</th>`)}</tr></thead>
          <tbody>${row(`with ${card.position} positions (yours)`, 0)}${row("with all tokens at the same position", 1)}</tbody></table></div>
        <p class="hint">Without positions, the first layer treats the tokens as a set. ${card.architecture === "decoder"
          ? "Later layers of a decoder can tell, because of the causal mask." : "Without a causal mask, later layers cannot tell either."}</p>`;
    })}</ch-figure>`;
}

const share = (value) => (value < 1e-5 ? "< 0.001 %" : `${told(100 * value)} %`);

/** Effect of shifting all positions: none if only distances matter. */
function later(ctx) {
  const { card, state, set } = ctx;
  if (card.architecture === "encoder-decoder" || !card.reads_text) return nothing;
  const body = { model: card.name, text: reading(card).text ?? "", offset: Math.max(1, state.offset) };
  if (!body.text) return nothing;
  const found = posted("positions/shift", body, "shifted");
  return html`<ch-figure .caption=${"The same text, shifted"}>
    <div class="row">${slider("shift by", { min: 1, max: Math.max(1, Math.min(32, card.context_length - 1)), value: body.offset }, (to) => set({ offset: to }, { replace: true }))}</div>
    ${shown(found, ({ residual: stream, patterns, is_complete: whole }) => {
      const most = lensed(stream).values.reduce((a, b) => Math.max(a, b), 0);
      const still = most < 1e-4, largest = (view) => Math.max(1e-4, lensed(view).values.reduce((a, b) => Math.max(a, b), 0));
      const map = (view, words) => html`<div><h3>${words}</h3><ch-map .values=${numbers(view)} .rows=${view.axes[0].labels} .cols=${view.axes[1].labels} .most=${largest(view)} .label=${view.note} .measure=${"change"}></ch-map></div>`;
      return html`<p>${still
        ? html`<b>Nothing changes</b> (at most ${told(most)} of the norm, which is rounding): only distances matter in this model.`
        : html`The residual stream changes by up to <b>${told(100 * most)} %</b> of its norm: absolute positions matter in this model.`}
          ${whole ? nothing : html`<span class="badge">first ${stream.shape[1]} tokens</span>`}</p>
        ${still ? nothing : html`<div class="columns moved">${map(stream, "layer × token: relative change of the residual stream")}${map(patterns, "layer × head: largest change of a weight")}</div>`}`;
    })}
  </ch-figure>`;
}

export default {
  id: "position",
  title: "Position",
  sentence: "How the model encodes the order of its tokens.",
  template,
};
