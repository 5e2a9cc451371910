// Position (L2): attention sees a set; what tells it the order, in this model and in others.

import { html, nothing } from "lit-html";
import * as api from "ch/api";
import { slider } from "ch/choose";
import { told } from "ch/colours";
import { posted, reading } from "ch/run";
import { lensed, numbers, shown } from "ch/shown";
import { defaults } from "ch/state";
import { once } from "ch/steady";
import { turning } from "ch/turning";

defaults({ count: 32, later: 4 });
const PLACES = ["position", "dimension"];
const SUM = ["token", "dimension"], OTHERS = ["position", "other"], LOOK = ["query", "key"];
const AFTER = (query, key) => key > query; // what a decoder does not see
const KINDS = {
  none: "None. Attention sees a set: the same words in another order are the same to it.",
  learned: "Learned: a matrix with a row for each position, random at first and trained with everything else.",
  sinusoidal: "Sinusoidal: waves of falling frequency. Nothing is learned; near positions are alike.",
  relative: "Relative: each head has learned what to add to a score for each distance. Where a sentence begins does not matter.",
  alibi: "ALiBi: the further away a key, the more is taken from its score; each head has its own slope.",
  shaw: "Relative keys: a vector for each distance is added to the keys.",
  rotary: "Rotary: queries and keys are turned by angles that grow with their position, so only distances count.",
};

function template(ctx) {
  const { card, state, set } = ctx;
  const body = { model: card.name, count: Math.max(2, Math.min(state.count, card.context, 512)) };
  const found = posted("positions", body, "positions");
  return html`
    <div class="row">${slider("positions", { min: 8, max: Math.min(card.context, 256), step: 8, value: body.count }, (count) => set({ count }, { replace: true }))}</div>
    ${shown(found, (value) => schemes(value))}
    ${sum(ctx)}
    ${found.value ? turning(ctx, found.value) : nothing}
    ${order(ctx)} ${later(ctx)}`;
}

/** The model's own scheme, and others beside it. */
function schemes({ kind, own, compared }) {
  const [yours, other] = ["yours", "for comparison"];
  const cosine = kind === "rotary" ? "The mean cosine of the angles between each two." : "The cosine of each two.";
  return html`
    <p class="lead"><span class="badge yours">yours</span> ${KINDS[kind] ?? kind}</p>
    ${own.own && kind !== "sinusoidal" ? picture("Position × dimension", own.own, yours, kind === "rotary" ? "The cosine of each pair's angle: the first pairs turn fast, the last hardly at all." : "") : nothing}
    ${own.bias ? bias(own.bias) : nothing}
    <ch-figure .caption=${"Sinusoidal waves, beside binary counting"} .badge=${kind === "sinusoidal" ? "the waves are yours" : other}
      .note=${"Left: sine and cosine by turns, each pair slower than the one before it. Right: the position's number in binary, for comparison; each bit flips half as often as the one before it."}>
      <div class="beside">${map(compared.waves ?? own.own)}${map(compared.binary)}</div></ch-figure>
    ${own.similarity ? picture("How alike positions are", own.similarity, yours, cosine, OTHERS) : nothing}`;
}

const picture = (caption, view, badge, note = "", by = PLACES) => html`<ch-figure .caption=${caption} .badge=${badge} .note=${note}>${map(view, by)}</ch-figure>`;

function map(view, by = PLACES) {
  const rows = view.axes[0].labels;
  return html`<ch-map .values=${numbers(view)} .rows=${rows} .signed=${view.signed} .most=${view.most} .label=${view.title} .measure=${view.measure} .by=${by} .most_cell=${16} .tall=${Math.max(2, Math.min(16, Math.floor(480 / rows.length)))}></ch-map>`;
}

/** A bias by distance, as it lies over the scores of each head: a band along the diagonal. */
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
  return html`<ch-view .view=${lensed(view)} .caption=${"What is added to a score, by distance (yours)"}></ch-view>
    <ch-figure .caption=${"The same, as it lies over the scores"} .badge=${"yours"} .note=${"Query down, key across: every diagonal has one value, wherever the text begins. All heads have one scale."}>
      <div class="maps many">${bands.map((band, head) => html`<div><h3>head ${head}</h3><ch-map .values=${band} .signed=${true} .most=${most} .label=${`bias of head ${head}`} .by=${LOOK} .most_cell=${9} .tall=${9} .masked=${Number(axes[1].labels[0]) === 0 ? AFTER : null}></ch-map></div>`)}</div></ch-figure>`;
}

/** E[w] + P[i] = the start of the stream, all three on one scale. */
function sum({ run, resource, set }) {
  if (!run) return nothing;
  const side = run.source && !run.names["embed.tokens"] ? "encoder." : "";
  const names = ["embed.tokens", "embed.positions", "embed"].map((name) => side + name).filter((name) => run.names[name]);
  if (names.length < 3) {
    return html`<ch-figure .caption=${"Token + position"}><p class="hint">This model adds nothing to its embeddings: positions come in later, where queries meet keys.</p></ch-figure>`;
  }
  const found = resource(`${run.id} token + position`, async ({ signal }) => {
    const parts = await Promise.all(names.map((name) => api.npy(`/api/runs/${run.id}/tensor/${name}`, { signal })));
    const most = Math.max(...parts.map(({ data }) => data.reduce((a, b) => Math.max(a, Math.abs(b)), 0)));
    return { parts, most, labels: (side ? run.source : run.tokens).map((token) => token.text) };
  }, "token + position");
  const words = ["what the tokens are", "where they stand", "the start of the stream"];
  return html`<ch-figure .caption=${"Token + position = what goes in"}>
    ${shown(found, ({ parts, most, labels }) => html`<div class="sum">${parts.map((part, i) => html`
      ${i ? html`<span class="sign" aria-hidden="true">${i === 1 ? "+" : "="}</span>` : nothing}
      <div><h3>${words[i]}</h3><ch-map .values=${part} .rows=${labels} .signed=${true} .most=${most} .tall=${Math.max(2, Math.min(14, Math.floor(480 / labels.length)))} .name=${names[i]} .run=${run.id} .label=${words[i]} .by=${SUM}
        @pick=${(event) => set({ query: event.detail.row })}></ch-map></div>`)}</div>
      <p class="hint">All three have one scale, from −${told(most)} to ${told(most)}. ${run.names[names[2]].formula}</p>`)}
  </ch-figure>`;
}

/** The words in another order: without positions attention cannot tell (L2.1). */
function order(ctx) {
  const { card } = ctx, body = { model: card.name, text: reading(card).text ?? "" };
  if (card.kind === "encoder-decoder" || !card.text || !body.text) return nothing;
  const found = posted("order", body, "order");
  return html`<ch-figure .caption=${"The same words in another order"}>
    ${shown(found, ({ view, rows, at, whole }) => {
      const { values, shape: [, layers] } = lensed(view);
      const row = (words, n) => html`<tr><th scope="row">${words}</th>${Array.from({ length: layers }, (_, i) => html`<td>${share(values[n * layers + i])}</td>`)}</tr>`;
      return html`<p>What does <b class="word">${rows[0][at]}</b> notice when the tokens before it come in reverse? This far its stream moves, as a share of its length${whole ? "" : `; of the text only the first ${rows[0].length} tokens are read here`}:</p>
        <div class="scroll"><table class="numbers"><thead><tr><td></td>${view.axes[1].labels.map((name) => html`<th scope="col">layer ${name}</th>`)}</tr></thead>
          <tbody>${row(`with ${card.position} positions (yours)`, 0)}${row("with all tokens at one place", 1)}</tbody></table></div>
        <p class="hint">Without positions the first layer sees a set, whatever the order. ${card.kind === "decoder"
          ? "Later layers of a decoder can tell after all: those before have looked back at other tokens." : "In an encoder no later layer can tell either, since all tokens see all."}</p>`;
    })}</ch-figure>`;
}

const share = (value) => (value < 1e-5 ? "< 0.001 %" : `${told(100 * value)} %`);

/** What a shift of the whole text changes: nothing, where only distances count. */
function later(ctx) {
  const { card, state, set } = ctx;
  if (card.kind === "encoder-decoder" || !card.text) return nothing;
  const body = { model: card.name, text: reading(card).text ?? "", by: Math.max(1, state.later) };
  if (!body.text) return nothing;
  const found = posted("shifted", body, "shifted");
  return html`<ch-figure .caption=${"The same text, begun later"}>
    <div class="row">${slider("start later by", { min: 1, max: Math.max(1, Math.min(32, card.context - 1)), value: body.by }, (to) => set({ later: to }, { replace: true }))}</div>
    ${shown(found, ({ stream, patterns, whole }) => {
      const most = lensed(stream).values.reduce((a, b) => Math.max(a, b), 0);
      const still = most < 1e-4, largest = (view) => Math.max(1e-4, lensed(view).values.reduce((a, b) => Math.max(a, b), 0));
      const map = (view, words) => html`<div><h3>${words}</h3><ch-map .values=${numbers(view)} .rows=${view.axes[0].labels} .cols=${view.axes[1].labels} .most=${largest(view)} .label=${view.note} .measure=${"change"}></ch-map></div>`;
      return html`<p>${still
        ? html`<b>Nothing moves</b> (at most ${told(most)} of a stream's length, which is rounding): only distances count in this model.`
        : html`The streams move by up to <b>${told(100 * most)} %</b> of their length: this model also knows <i>where</i> a text begins.`}
          ${whole ? nothing : html`<span class="badge">of the first ${stream.shape[1]} tokens</span>`}</p>
        ${still ? nothing : html`<div class="columns moved">${map(stream, "layer × token: the stream, as a share of its length")}${map(patterns, "layer × head: the weight that moved most")}</div>`}`;
    })}
  </ch-figure>`;
}

export default {
  id: "position",
  title: "Position",
  sentence: "What tells the model in which order its tokens stand.",
  template,
};
