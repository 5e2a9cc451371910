// Tokens (L1): text is split into tokens, each token has an id, and each id selects a row of the embedding matrix.

import { html, nothing } from "lit-html";
import { oneOf } from "ch/choose";
import { array, got, home, posted, reading } from "ch/run";
import { count, numbers, shown } from "ch/shown";
import { defaults } from "ch/state";

defaults({ side: "source" });
const BY = ["token", "dimension"];
const MANY = 300; // longer texts show no ids

function template(ctx) {
  const { card, state, set } = ctx;
  const both = card.architecture === "encoder-decoder";
  const source = both && state.side === "source";
  const text = source ? reading(card).source : reading(card).text;
  const body = { model: card.name, text: text ?? "", source };
  const cut = posted("tokenize", body, "tokens");
  return html`
    ${both ? oneOf("which text", [["source", "source"], ["target", "target"]], state.side, (side) => set({ side })) : nothing}
    ${shown(cut, (told) => drawn(ctx, told, source))}`;
}

function drawn(ctx, told, source) {
  const { state, set } = ctx, own = (ctx.marks.own = source ? "key" : "query");
  const { tokens } = told;
  if (!tokens.length) return html`<p class="hint">No text yet. Type some above.</p>`;
  const typed = tokens.filter((token) => !token.added).length;
  const last = tokens.findLastIndex((token) => !token.added);
  const at = state[own] < 0 ? Math.max(0, last) : Math.min(tokens.length - 1, state[own]);
  return html`
    <ch-figure .caption=${"Tokenized text"}>
      <div class="cut" role="group" aria-label="tokens of the text">${tokens.map((token, i) => html`
        <button type="button" class="piece ${token.special ? "special" : ""} ${token.added ? "added" : ""}" aria-pressed=${i === at}
          title=${token.added ? "added by the model, not typed" : `id ${token.id}`} @click=${() => set({ [own]: i })}>
          <span class="word">${token.text}</span>${tokens.length > MANY ? nothing : html`<span class="id">${token.id}</span>`}</button>`)}</div>
      <p class="hint">${count(told.bytes, "byte")}, ${count(typed, "token")}${typed ? html`: ${(told.bytes / typed).toFixed(2)} bytes per token` : nothing}.
        The vocabulary has ${count(told.vocab_size, "token")}${told.merges ? html` and ${count(told.merges, "merge")} of frequent pairs` : nothing}.
        ${tokens.some((token) => token.added) ? html`Dashed tokens were added by the model.` : nothing}</p>
      ${told.decoded === null ? nothing : html`<p class="hint">Decoding gives a different text: <q>${told.decoded}</q></p>`}
    </ch-figure>
    ${way(ctx, told, tokens[at], at, source)}
    ${rows(ctx, tokens, source, at)}`;
}

/** One token step by step: bytes, merges, id, one-hot vector, embedding. */
function way(ctx, told, token, at, source) {
  const { bytes, steps } = told.details[token.id];
  const { card } = ctx;
  const row = got(`${home(card.name)}/embedding-rows?ids=${token.id}`, "row");
  const matrix = got(`${home(card.name)}/embedding-matrix`, "matrix");
  const place = token.id / Math.max(1, told.vocab_size - 1);
  return html`<h2>Token ${at}, <span class="word">${token.text}</span>, step by step</h2>
    <ol class="way">
      <li><h3>Bytes</h3>
        <p class="bytes">${bytes.map((byte) => html`<code>${byte.toString(16).padStart(2, "0")}</code>`)}</p>
        <p class="hint">${odd(bytes, token)}</p></li>
      ${steps.length ? html`<li><h3>Merges</h3>
        <ol class="merges">${steps.map((step) => html`<li>${step.map((symbol) => html`<span class="symbol">${symbol}</span>`)}</li>`)}</ol>
        <p class="hint">The pair that was learned first is merged first.</p></li>` : nothing}
      <li><h3>Id</h3><p class="large">${count(token.id)}</p>
        <p class="hint">of ${count(told.vocab_size)}, starting at 0${token.special ? "; a special token that typed text cannot produce" : ""}</p></li>
      <li><h3>One-hot vector</h3>
        <svg class="onehot" viewBox="0 0 120 34" role="img" aria-label=${`a vector of ${told.vocab_size} zeros with a one at ${token.id}`}>
          <line x1="2" x2="118" y1="28" y2="28"></line><line class="one" x1=${2 + 116 * place} x2=${2 + 116 * place} y1="28" y2="5"></line>
          <text x=${Math.max(8, Math.min(114, 2 + 116 * place + 7))} y="12">1</text></svg>
        <p class="hint">${count(told.vocab_size - 1, "zero")} and a single 1. Multiplied by E it selects a row:
          <math><mrow><msub><mi>e</mi><mn>${token.id}</mn></msub><mo>·</mo><mi>E</mi><mo>=</mo><mi>E</mi><mo>[</mo><mn>${token.id}</mn><mo>]</mo></mrow></math></p></li>
      <li class="wide"><h3>Row of the embedding matrix E</h3>
        <div class="found">
          ${shown(matrix, (view) => html`<div class="minimap" .style=${`--at:${place}`}>
            <ch-map .values=${numbers(view)} .signed=${true} .most_cell=${3} .label=${"the embedding matrix, downsampled"} .measure=${"value"} .by=${BY}></ch-map>
            <span class="here" aria-hidden="true"></span></div>`, "Loading the embedding matrix …")}
          <div>${shown(row, (view) => html`<ch-map class="one-row" .values=${numbers(view)} .signed=${true} .most_cell=${14} .tall=${20} .label=${`row ${token.id} of E`} .measure=${"value"} .by=${BY}></ch-map>
            <p class="hint">${view.shape[1]} numbers: the embedding of <span class="word">${token.text}</span>, independent of context.</p>`)}
            <p class="hint">${matrix.value?.note ?? ""}</p>
            <p class="hint">Edit this embedding: <ch-edit .name=${source ? "encoder.embed" : "embed"} .token=${at}></ch-edit></p></div>
        </div></li>
    </ol>`;
}

function odd(bytes, token) {
  if (token.special) return "The name of a special token; the model only sees its id.";
  if (bytes.every((byte) => byte < 128)) return `UTF-8: ${count(bytes.length, "byte")}, one per character.`;
  const whole = !/^(‹[0-9a-f]{2}›)+$/.test(token.text);
  return whole ? `UTF-8: ${count(bytes.length, "byte")}; non-ASCII characters take two to four.` : "Part of a character; its other bytes are in adjacent tokens.";
}

/** The embeddings of all tokens of the run. */
function rows({ run, state, set, marks: { own } }, tokens, source, at) {
  if (!run) return nothing;
  const name = source ? "encoder.embed" : "embed";
  const read = source ? run.source_tokens : run.tokens;
  if (!run.activations[name] || read?.length !== tokens.length) return nothing;
  const found = array(`/api/runs/${run.id}/tensor/${name}`, "rows of tokens");
  return html`<ch-figure .caption=${"Token embeddings"}>
    ${shown(found, (value) => html`<ch-map .values=${value} .rows=${tokens.map((token) => token.text)} .signed=${true} .tall=${Math.max(2, Math.min(14, Math.floor(480 / tokens.length)))} .name=${name} .run=${run.id}
      .cursor=${state[own] < 0 ? null : [at, 0]} .by=${BY} .label=${"the vector of each token"} @pick=${(event) => set({ [own]: event.detail.row })}></ch-map>
    <p class="hint">One row of ${value.shape[1]} numbers per token${run.activations[name].formula ? html` (<span class="formula">${run.activations[name].formula}</span>)` : nothing}.
      Repeated tokens have identical rows: positions are not included yet.</p>`)}
  </ch-figure>`;
}

export default {
  id: "tokens",
  title: "Tokens",
  sentence: "Text is split into tokens, each token has an id, and each id selects a row of the embedding matrix.",
  template,
};
