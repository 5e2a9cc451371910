// A word in context (L3.1): the same token in several sentences starts as one vector and ends as several.

import { html, nothing, svg } from "lit-html";
import * as api from "ch/api";
import { told } from "ch/colours";
import { broken, lensed, shown, spelt } from "ch/shown";
import { defaults } from "ch/state";

const MOLE = { word: "mole", texts: ["American shrew mole", "one mole of carbon dioxide", "take a biopsy of the mole"], others: "mouse rat gram unit tumor skin spy" };
const IT = { word: "it", texts: ["The chicken didn't cross the road because it was too tired", "The chicken didn't cross the road because it was too wide"], others: "chicken road he she they" };
const LINES = ["", "dashed", "dotted", "long", "thin", "faint"];
defaults({ ...MOLE, after: -1 });

/** The word, its sentences, how alike it is in each two of them, and what it is like in each. */
export function context({ card, resource, state, set }) {
  const body = { model: card.name, word: state.word, texts: state.texts };
  const found = resource(`context ${JSON.stringify(body)}`, ({ signal }) => api.json("POST", "/api/context", body, { cached: true, signal }), "context");
  const example = (words, whole) => html`<button type="button" class="quiet" @click=${() => set(whole)}>${words}</button>`;
  const put = (i, text) => set({ texts: state.texts.map((old, n) => (n === i ? text : old)) });
  return html`<section class="context"><h3>One word, several sentences</h3>
    <div class="row"><label>word <input type="text" size="10" .value=${state.word} @change=${(event) => set({ word: event.target.value })}></label>
      ${example("mole: animal, amount, skin", MOLE)} ${example("it: tired or wide", IT)}</div>
    <ol class="sentences" start="0">${state.texts.map((text, i) => html`<li><input type="text" aria-label=${`sentence ${i}`} .value=${text} @change=${(event) => put(i, event.target.value)}>
      ${state.texts.length > 2 ? html`<button type="button" class="quiet" aria-label=${`take sentence ${i} away`} @click=${() => set({ texts: state.texts.filter((_, n) => n !== i) })}>×</button>` : nothing}</li>`)}
      ${state.texts.length < 4 ? html`<li class="more"><button type="button" class="quiet" @click=${() => set({ texts: [...state.texts, state.texts.at(-1)] })}>one more</button></li>` : nothing}</ol>
    ${shown(found, (value) => drawn(value, state))}
    ${found.value && !found.error ? instead(card, body, resource, state, set) : nothing}</section>`;
}

function drawn({ view, near, readings }, state) {
  const { values, shape: [rows, pairs], axes, note } = lensed(view);
  const [first, parts] = [readings[0], readings[0].word.length];
  return html`<ch-figure .caption=${`How alike “${state.word}” is in each two sentences`} .note=${note}>
      ${chart(values, rows, pairs, axes)}
      <div class="scroll"><table class="numbers cosines"><thead><tr><td></td>${axes[0].labels.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
        <tbody>${axes[1].labels.map((pair, p) => html`<tr><th scope="row">${pair}</th>${axes[0].labels.map((_, l) => html`<td>${values[l * pairs + p].toFixed(4)}</td>`)}</tr>`)}</tbody></table></div>
    </ch-figure>
    <p>Alone, as a row of the embedding matrix, it is nearest to ${near.axes[0].labels.map((name, i) => html`${i ? ", " : ""}<span class="word">${name}</span> <span class="hint">${told(lensed(near).values[i])}</span>`)}.
      ${parts > 1 ? html`<span class="hint">It is not one token here but ${parts} (${first.word.map((i) => first.tokens[i]).join(" ")}); its vector is their mean.</span>` : nothing}</p>`;
}

/** Other words in its place: to which of them has the sentence made it alike? */
function instead(card, { model, word, texts }, resource, state, set) {
  const layers = card.encoder_layers || card.layers; // an encoder-decoder is looked at where it reads
  const body = { model, word, texts, others: state.others.trim().split(/\s+/), layer: Math.min(state.after, layers - 1) };
  const found = resource(`instead ${JSON.stringify(body)}`, ({ signal }) => api.json("POST", "/api/instead", body, { cached: true, signal }), "instead");
  return html`<h4 class="apart">What it is like, once the sentence is read</h4>
    <div class="row"><label class="wide">other words in its place <input type="text" .value=${state.others} @change=${(event) => set({ others: event.target.value })}></label>
      <label>after layer <select @change=${(event) => set({ after: Number(event.target.value) })}>${Array.from({ length: layers }, (_, i) => html`<option value=${i} ?selected=${i === (state.after < 0 ? layers - 1 : Math.min(state.after, layers - 1))}>${i}</option>`)}</select></label></div>
    ${shown(found, (view) => html`<ch-view .view=${spelt(view)} .pending=${found.pending} .caption=${`“${word}” and other words in its place`}></ch-view>
      <p class="nearest">${texts.map((text, i) => html`<span>In <q>${text}</q> it is most like <b class="word">${best(view, i + 1)}</b>.</span> `)}</p>`)}`;
}

function best(view, row) {
  const { values, shape: [, cols], axes } = lensed(view);
  const line = Array.from(values.subarray(row * cols, (row + 1) * cols));
  return axes[1].labels[line.indexOf(Math.max(...line))];
}

/** A line for each pair of sentences. */
function chart(values, layers, pairs, axes) {
  if (!values.every(Number.isFinite)) return broken();
  const low = Math.min(0, ...values), [wide, tall] = [560, 190];
  const x = (l) => 40 + (l / Math.max(1, layers - 1)) * (wide - 110), y = (value) => 12 + ((1 - value) / (1 - low)) * (tall - 44);
  const every = Math.ceil(layers / 10);
  const ends = apart(Array.from({ length: pairs }, (_, p) => y(values[(layers - 1) * pairs + p])), 13);
  return html`<svg class="cosine" viewBox="0 0 ${wide} ${tall}" role="img" aria-label="cosine by layer; the numbers are in the table below">
    ${[1, 0.5, 0, ...(low < -0.4 ? [-0.5] : [])].map((value) => svg`<line class="axis" x1="36" x2=${wide - 66} y1=${y(value)} y2=${y(value)}></line><text x="30" y=${y(value) + 4} text-anchor="end">${value}</text>`)}
    ${Array.from({ length: pairs }, (_, p) => svg`<path class=${LINES[p % LINES.length]} d=${Array.from({ length: layers }, (_, l) => `${l ? "L" : "M"}${x(l).toFixed(1)} ${y(values[l * pairs + p]).toFixed(1)}`).join("")}></path>
      <text class="name" x=${x(layers - 1) + 8} y=${ends[p] + 4}>${axes[1].labels[p]}</text>`)}
    ${axes[0].labels.map((name, l) => (l % every && l !== layers - 1 ? nothing : svg`<text x=${x(l)} y=${tall - 8} text-anchor="middle">${name.replace("layer ", "")}</text>`))}</svg>`;
}

/** The same heights, moved down where names would lie on each other. */
function apart(heights, least) {
  const order = heights.map((_, i) => i).sort((a, b) => heights[a] - heights[b]), found = [...heights];
  order.forEach((i, n) => n && (found[i] = Math.max(found[i], found[order[n - 1]] + least)));
  return found;
}
