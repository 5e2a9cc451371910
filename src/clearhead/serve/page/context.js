// A word in context (L3.1): one embedding becomes a different vector in each sentence.

import { html, nothing } from "lit-html";
import { line, numbered } from "ch/choose";
import { told } from "ch/colors";
import { posted } from "ch/run";
import { broken, lensed, shown, spelt } from "ch/shown";
import { defaults } from "ch/state";
import { once } from "ch/steady";
import "ch/curve";

const MOLE = { word: "mole", texts: [], substitutes: "" }; // empty: the examples of the model's card
const KINDS = ["", "dashed", "dotted", "long", "thin", "faint"];
defaults({ ...MOLE, context_layer: -1 });

/** The word in several sentences: pairwise similarity by layer, and similarity to substitutes. */
export function context({ card, state, set }) {
  const { context_texts, coreference } = card.examples, texts = state.texts.length ? state.texts : context_texts;
  const body = { model: card.name, word: state.word, texts };
  const found = posted("context", body, "context");
  const example = (words, whole) => html`<button type="button" class="quiet" @click=${() => set(whole)}>${words}</button>`;
  const put = (i, text) => set({ texts: texts.map((old, n) => (n === i ? text : old)) });
  return html`<section class="context"><h2>One word, several sentences</h2>
    <div class="row">${line("word", state.word, (word) => set({ word }), { wide: false, size: 10 })}
      ${example("mole: animal, unit, growth", MOLE)} ${example("it: tired or wide", { word: "it", texts: coreference, substitutes: "chicken road he she they" })}</div>
    <ol class="sentences" start="0">${texts.map((text, i) => html`<li><input type="text" aria-label=${`sentence ${i}`} .value=${text} @change=${(event) => put(i, event.target.value)}>
      ${texts.length > 2 ? html`<button type="button" class="quiet" aria-label=${`remove sentence ${i}`} @click=${() => set({ texts: texts.filter((_, n) => n !== i) })}>×</button>` : nothing}</li>`)}
      ${texts.length < 4 ? html`<li class="more"><button type="button" class="quiet" @click=${() => set({ texts: [...texts, texts.at(-1)] })}>add a sentence</button></li>` : nothing}</ol>
    ${shown(found, (value) => drawn(value, state))}
    ${found.value && !found.error ? instead(card, body, state, set) : nothing}</section>`;
}

function drawn({ view, nearest: near, occurrences: readings }, state) {
  const { values, shape: [rows, pairs], axes, note } = lensed(view);
  const [first, parts] = [readings[0], readings[0].word.length];
  return html`<ch-figure .caption=${`Similarity of “${state.word}” between sentences`} .note=${note}>
      ${values.every(Number.isFinite) ? html`<ch-curve .lines=${lines(view, rows, pairs)} .names=${axes[0].labels.map((name) => name.replace("layer ", ""))} .by=${"layer"} .measure=${"cosine"} .least=${0} .most=${1} .label=${"cosine similarity by layer, also in the table below"}></ch-curve>` : broken()}
      <div class="scroll"><table class="numbers cosines"><thead><tr><td></td>${axes[0].labels.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
        <tbody>${axes[1].labels.map((pair, p) => html`<tr><th scope="row">${pair}</th>${axes[0].labels.map((_, l) => html`<td>${values[l * pairs + p].toFixed(4)}</td>`)}</tr>`)}</tbody></table></div>
    </ch-figure>
    <p>Nearest neighbors in the embedding matrix: ${near.axes[0].labels.map((name, i) => html`${i ? ", " : ""}<span class="word">${name}</span> <span class="hint">${told(lensed(near).values[i])}</span>`)}.
      ${parts > 1 ? html`<span class="hint">The word has ${parts} tokens here (${first.word.map((i) => first.tokens[i]).join(" ")}); its vector is their mean.</span>` : nothing}</p>`;
}

/** One line per pair of sentences. */
const lines = (view, layers, pairs) => once(view, "lines", () => view.axes[1].labels.map((label, p) => (
  { label, kind: KINDS[p % KINDS.length], points: Array.from({ length: layers }, (_, l) => [l, lensed(view).values[l * pairs + p]]) })));

/** Compare the word in context with other words in its place. */
function instead(card, { model, word, texts }, state, set) {
  const layers = card.encoder_layers || card.n_layers; // of an encoder-decoder, the encoder
  const others = state.substitutes.trim() || card.examples.substitutes.join(" ");
  const body = { model, word, texts, substitutes: others.split(/\s+/), layer: Math.min(state.context_layer, layers - 1) };
  const found = posted("context/substitute", body, "instead");
  return html`<h3 class="apart">Similarity to substitutes in context</h3>
    <div class="row">${line("substitutes", others, (substitutes) => set({ substitutes }))}
      ${numbered("after layer", layers, state.context_layer < 0 ? layers - 1 : Math.min(state.context_layer, layers - 1), (context_layer) => set({ context_layer }))}</div>
    ${shown(found, (view) => html`<ch-view .view=${spelt(view)} .pending=${found.pending} .caption=${`“${word}” compared with substitutes`}></ch-view>
      <p class="nearest">${texts.map((text, i) => html`<span>In <q>${text}</q> it is most similar to <b class="word">${best(view, i + 1)}</b>.</span> `)}</p>`)}`;
}

function best(view, row) {
  const { values, shape: [, cols], axes } = lensed(view);
  const line = Array.from(values.subarray(row * cols, (row + 1) * cols));
  return axes[1].labels[line.indexOf(Math.max(...line))];
}
