// A word in context (L3.1): the same token in several sentences starts as one vector and ends as several.

import { html, nothing } from "lit-html";
import { line, numbered } from "ch/choose";
import { told } from "ch/colours";
import { posted } from "ch/run";
import { broken, lensed, shown, spelt } from "ch/shown";
import { defaults } from "ch/state";
import { once } from "ch/steady";
import "ch/curve";

const MOLE = { word: "mole", texts: [], others: "" }; // empty: the sentences and words of the model's card
const KINDS = ["", "dashed", "dotted", "long", "thin", "faint"];
defaults({ ...MOLE, after: -1 });

/** The word, its sentences, how alike it is in each two of them, and what it is like in each. */
export function context({ card, state, set }) {
  const { mole, pair } = card.examples, texts = state.texts.length ? state.texts : mole;
  const body = { model: card.name, word: state.word, texts };
  const found = posted("context", body, "context");
  const example = (words, whole) => html`<button type="button" class="quiet" @click=${() => set(whole)}>${words}</button>`;
  const put = (i, text) => set({ texts: texts.map((old, n) => (n === i ? text : old)) });
  return html`<section class="context"><h2>One word, several sentences</h2>
    <div class="row">${line("word", state.word, (word) => set({ word }), { wide: false, size: 10 })}
      ${example("mole: animal, amount, skin", MOLE)} ${example("it: tired or wide", { word: "it", texts: pair, others: "chicken road he she they" })}</div>
    <ol class="sentences" start="0">${texts.map((text, i) => html`<li><input type="text" aria-label=${`sentence ${i}`} .value=${text} @change=${(event) => put(i, event.target.value)}>
      ${texts.length > 2 ? html`<button type="button" class="quiet" aria-label=${`take sentence ${i} away`} @click=${() => set({ texts: texts.filter((_, n) => n !== i) })}>×</button>` : nothing}</li>`)}
      ${texts.length < 4 ? html`<li class="more"><button type="button" class="quiet" @click=${() => set({ texts: [...texts, texts.at(-1)] })}>one more</button></li>` : nothing}</ol>
    ${shown(found, (value) => drawn(value, state))}
    ${found.value && !found.error ? instead(card, body, state, set) : nothing}</section>`;
}

function drawn({ view, near, readings }, state) {
  const { values, shape: [rows, pairs], axes, note } = lensed(view);
  const [first, parts] = [readings[0], readings[0].word.length];
  return html`<ch-figure .caption=${`How alike “${state.word}” is in each two sentences`} .note=${note}>
      ${values.every(Number.isFinite) ? html`<ch-curve .lines=${lines(view, rows, pairs)} .names=${axes[0].labels.map((name) => name.replace("layer ", ""))} .by=${"layer"} .measure=${"cosine"} .least=${0} .most=${1} .label=${"cosine by layer; the numbers are in the table below"}></ch-curve>` : broken()}
      <div class="scroll"><table class="numbers cosines"><thead><tr><td></td>${axes[0].labels.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
        <tbody>${axes[1].labels.map((pair, p) => html`<tr><th scope="row">${pair}</th>${axes[0].labels.map((_, l) => html`<td>${values[l * pairs + p].toFixed(4)}</td>`)}</tr>`)}</tbody></table></div>
    </ch-figure>
    <p>Alone, as a row of the embedding matrix, it is nearest to ${near.axes[0].labels.map((name, i) => html`${i ? ", " : ""}<span class="word">${name}</span> <span class="hint">${told(lensed(near).values[i])}</span>`)}.
      ${parts > 1 ? html`<span class="hint">It is not one token here but ${parts} (${first.word.map((i) => first.tokens[i]).join(" ")}); its vector is their mean.</span>` : nothing}</p>`;
}

/** A line for each pair of sentences. */
const lines = (view, layers, pairs) => once(view, "lines", () => view.axes[1].labels.map((label, p) => (
  { label, kind: KINDS[p % KINDS.length], points: Array.from({ length: layers }, (_, l) => [l, lensed(view).values[l * pairs + p]]) })));

/** Other words in its place: to which of them has the sentence made it alike? */
function instead(card, { model, word, texts }, state, set) {
  const layers = card.encoder_layers || card.layers; // an encoder-decoder is looked at where it reads
  const others = state.others.trim() || card.examples.others.join(" ");
  const body = { model, word, texts, others: others.split(/\s+/), layer: Math.min(state.after, layers - 1) };
  const found = posted("instead", body, "instead");
  return html`<h3 class="apart">What it is like, once the sentence is read</h3>
    <div class="row">${line("other words in its place", others, (others) => set({ others }))}
      ${numbered("after layer", layers, state.after < 0 ? layers - 1 : Math.min(state.after, layers - 1), (after) => set({ after }))}</div>
    ${shown(found, (view) => html`<ch-view .view=${spelt(view)} .pending=${found.pending} .caption=${`“${word}” and other words in its place`}></ch-view>
      <p class="nearest">${texts.map((text, i) => html`<span>In <q>${text}</q> it is most like <b class="word">${best(view, i + 1)}</b>.</span> `)}</p>`)}`;
}

function best(view, row) {
  const { values, shape: [, cols], axes } = lensed(view);
  const line = Array.from(values.subarray(row * cols, (row + 1) * cols));
  return axes[1].labels[line.indexOf(Math.max(...line))];
}
