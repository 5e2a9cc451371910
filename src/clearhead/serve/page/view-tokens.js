// Tokens (L1): a text is cut into pieces, each piece is a number, and each number picks a row of the embedding matrix.

import { html, nothing } from "lit-html";
import { oneOf } from "ch/choose";
import { array, got, home, posted, reading } from "ch/run";
import { count, numbers, shown } from "ch/shown";
import { defaults } from "ch/state";

defaults({ side: "source" });
const BY = ["token", "dimension"];
const MANY = 300; // tokens, of which only the text is shown

function template(ctx) {
  const { card, state, set } = ctx;
  const both = card.kind === "encoder-decoder";
  const source = both && state.side === "source";
  const text = source ? reading(card).source : reading(card).text;
  const body = { model: card.name, text: text ?? "", source };
  const cut = posted("tokens", body, "tokens");
  return html`
    ${both ? oneOf("which text", [["source", "what it reads"], ["target", "what it writes"]], state.side, (side) => set({ side })) : nothing}
    ${shown(cut, (told) => drawn(ctx, told, source))}`;
}

function drawn(ctx, told, source) {
  const { state, set } = ctx, own = (ctx.marks.own = source ? "key" : "query");
  const { tokens } = told;
  if (!tokens.length) return html`<p class="hint">There is no text yet. Type some above: it is cut while you type.</p>`;
  const typed = tokens.filter((token) => !token.added).length;
  const last = tokens.findLastIndex((token) => !token.added);
  const at = state[own] < 0 ? Math.max(0, last) : Math.min(tokens.length - 1, state[own]);
  return html`
    <ch-figure .caption=${"The text, cut into pieces"}>
      <div class="cut" role="group" aria-label="pieces of the text">${tokens.map((token, i) => html`
        <button type="button" class="piece ${token.special ? "special" : ""} ${token.added ? "added" : ""}" aria-pressed=${i === at}
          title=${token.added ? "put there by the model's rules, not typed" : `id ${token.id}`} @click=${() => set({ [own]: i })}>
          <span class="word">${token.text}</span>${tokens.length > MANY ? nothing : html`<span class="id">${token.id}</span>`}</button>`)}</div>
      <p class="hint">${count(told.bytes, "byte")} became ${count(typed, "token")}${typed ? html`: ${(told.bytes / typed).toFixed(2)} bytes a token` : nothing}.
        The vocabulary has ${count(told.vocabulary, "piece")}${told.merges ? html`, made by ${count(told.merges, "merge")} of the most frequent neighbours` : nothing}.
        ${tokens.some((token) => token.added) ? html`Dashed pieces were added by the model's own rules.` : nothing}</p>
      ${told.back === null ? nothing : html`<p class="hint">Back to text these tokens are another one: <q>${told.back}</q></p>`}
    </ch-figure>
    ${way(ctx, told, tokens[at], at, source)}
    ${rows(ctx, tokens, source, at)}`;
}

/** One token, step by step: piece, bytes, merges, number, one-hot row, row of the matrix. */
function way(ctx, told, token, at, source) {
  const { bytes, steps } = told.made[token.id];
  const { card } = ctx;
  const row = got(`${home(card.name)}/rows?ids=${token.id}`, "row");
  const matrix = got(`${home(card.name)}/matrix`, "matrix");
  const place = token.id / Math.max(1, told.vocabulary - 1);
  return html`<h2>Token ${at}, <span class="word">${token.text}</span>, on its way in</h2>
    <ol class="way">
      <li><h3>Bytes</h3>
        <p class="bytes">${bytes.map((byte) => html`<code>${byte.toString(16).padStart(2, "0")}</code>`)}</p>
        <p class="hint">${odd(bytes, token)}</p></li>
      ${steps.length ? html`<li><h3>Merges</h3>
        <ol class="merges">${steps.map((step) => html`<li>${step.map((symbol) => html`<span class="symbol">${symbol}</span>`)}</li>`)}</ol>
        <p class="hint">Always the two neighbours that were learned first.</p></li>` : nothing}
      <li><h3>Number</h3><p class="large">${count(token.id)}</p>
        <p class="hint">of ${count(told.vocabulary)}, from 0${token.special ? "; a special token, which no typed text becomes" : ""}</p></li>
      <li><h3>One-hot row</h3>
        <svg class="onehot" viewBox="0 0 120 34" role="img" aria-label=${`a row of ${told.vocabulary} zeros with a one at ${token.id}`}>
          <line x1="2" x2="118" y1="28" y2="28"></line><line class="one" x1=${2 + 116 * place} x2=${2 + 116 * place} y1="28" y2="5"></line>
          <text x=${Math.max(8, Math.min(114, 2 + 116 * place + 7))} y="12">1</text></svg>
        <p class="hint">${count(told.vocabulary - 1, "zero")} and one 1. Times E it is the row of E at that place:
          <math><mrow><msub><mi>e</mi><mn>${token.id}</mn></msub><mo>·</mo><mi>E</mi><mo>=</mo><mi>E</mi><mo>[</mo><mn>${token.id}</mn><mo>]</mo></mrow></math></p></li>
      <li class="wide"><h3>Row of the embedding matrix E</h3>
        <div class="found">
          ${shown(matrix, (view) => html`<div class="minimap" .style=${`--at:${place}`}>
            <ch-map .values=${numbers(view)} .signed=${true} .most_cell=${3} .label=${"the whole embedding matrix, made small"} .measure=${"value"} .by=${BY}></ch-map>
            <span class="here" aria-hidden="true"></span></div>`, "Looking at the whole matrix …")}
          <div>${shown(row, (view) => html`<ch-map class="one-row" .values=${numbers(view)} .signed=${true} .most_cell=${14} .tall=${20} .label=${`row ${token.id} of E`} .measure=${"value"} .by=${BY}></ch-map>
            <p class="hint">${view.shape[1]} numbers: all that the model knows of <span class="word">${token.text}</span> before it has read anything else.</p>`)}
            <p class="hint">${matrix.value?.note ?? ""}</p>
            <p class="hint">And if it were something else? <ch-edit .name=${source ? "encoder.embed.tokens" : "embed.tokens"} .token=${at}></ch-edit></p></div>
        </div></li>
    </ol>`;
}

function odd(bytes, token) {
  if (token.special) return "The name of a special token; the model only ever sees its number.";
  if (bytes.every((byte) => byte < 128)) return `UTF-8: ${count(bytes.length, "byte")}, one for each character.`;
  const whole = !/^(‹[0-9a-f]{2}›)+$/.test(token.text);
  return whole ? `UTF-8: ${count(bytes.length, "byte")}; characters beyond ASCII take two to four.` : "A part of a character: its other bytes are in the tokens beside it.";
}

/** All tokens of the run with their rows. */
function rows({ run, state, set, marks: { own } }, tokens, source, at) {
  if (!run) return nothing;
  const name = source ? "encoder.embed.tokens" : "embed.tokens";
  const read = source ? run.source : run.tokens;
  if (!run.names[name] || read?.length !== tokens.length) return nothing;
  const found = array(`/api/runs/${run.id}/tensor/${name}`, "rows of tokens");
  return html`<ch-figure .caption=${"Text in, vectors out"}>
    ${shown(found, (value) => html`<ch-map .values=${value} .rows=${tokens.map((token) => token.text)} .signed=${true} .tall=${Math.max(2, Math.min(14, Math.floor(480 / tokens.length)))} .name=${name} .run=${run.id}
      .cursor=${state[own] < 0 ? null : [at, 0]} .by=${BY} .label=${"the vector of each token"} @pick=${(event) => set({ [own]: event.detail.row })}></ch-map>
    <p class="hint">One row of ${value.shape[1]} numbers for each token${run.names[name].formula ? html` (<span class="formula">${run.names[name].formula}</span>)` : nothing}.
      A token that comes twice has the same row twice: where it stands is not in it yet.</p>`)}
  </ch-figure>`;
}

export default {
  id: "tokens",
  title: "Tokens",
  sentence: "Text is cut into pieces, each piece is a number, and each number picks one row of a matrix.",
  template,
};
