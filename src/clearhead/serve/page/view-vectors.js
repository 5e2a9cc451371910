// Vector lab (L1.4): vector arithmetic, directions and similarities over the whole vocabulary.

import { html, nothing, svg } from "lit-html";
import { line, listed } from "ch/choose";
import { posted } from "ch/run";
import { count, lensed, shown, spelt } from "ch/shown";
import { defaults } from "ch/state";
import { once } from "ch/steady";

defaults({ expression: "king - man + woman", include_inputs: false, vectors_layer: -1, pairs: "cat:cats dog:dogs", direction_words: "one two student students teacher teachers house houses", similarity_words: "king queen man woman apple" });
const SUMS = ["king - man + woman", "Paris - France + Italy", "walking - walk + swim", "bigger - big + small"];

function template(ctx) {
  const { card, state, set } = ctx;
  const layers = card.architecture === "encoder-decoder" ? card.encoder_layers : card.n_layers;
  return html`
    <div class="row">${listed("vectors", [[-1, "the embedding matrix"], ...Array.from({ length: layers }, (_, i) => [i, `the residual stream after layer ${i}, each word on its own`])], state.vectors_layer, (vectors_layer) => set({ vectors_layer }))}</div>
    ${sum(ctx)} ${direction(ctx)} ${alike(ctx)}`;
}

function asked({ card, state }, body, slot) {
  const whole = { model: card.name, ...body, layer: state.vectors_layer < 0 ? null : state.vectors_layer };
  return posted("vectors", whole, slot);
}

const field = (label, key, { state, set }, hint = "") => line(label, state[key], (text) => set({ [key]: text }), { hint });

/** king - man + woman. */
function sum(ctx) {
  const { state, set } = ctx;
  const found = asked(ctx, { expression: state.expression, include_inputs: state.include_inputs }, "sum of words");
  return html`<section><h2>Vector arithmetic</h2>
    <div class="row">${field("sum", "expression", ctx, "words joined by + and -")}
      <label><input type="checkbox" .checked=${state.include_inputs} @change=${(event) => set({ include_inputs: event.target.checked })}> include the input words</label></div>
    <div class="row">${SUMS.map((written) => html`<button type="button" class="quiet" @click=${() => set({ expression: written })}>${written}</button>`)}</div>
    ${shown(found, (value) => html`${pieces(value.words)}<div class="columns">
      <ch-figure .caption=${"Nearest neighbors by cosine"} .pending=${found.pending} .note=${`Among all ${count(value.num_words)} tokens; input vectors are normalized.`}>
        <ch-bars .labels=${value.view.axes[0].labels} .values=${lensed(value.view).values} .most=${1} .signed=${false} .measure=${"cosine"} @pick=${({ detail }) => set({ expression: bare(value.view.axes[0].labels[detail.index]) })}></ch-bars></ch-figure>
      <figure class="lie">${plane(value)}<figcaption class="hint">Projection onto the first two principal components, which explain ${(100 * value.explained_variance).toFixed(0)} % of the variance; distances are approximate.</figcaption></figure></div>`)}
  </section>`;
}

/** Name the words that have several tokens. */
function pieces(words) {
  const several = words.filter((word) => word.pieces.length > 1);
  if (!several.length) return nothing;
  return html`<p class="several">Several tokens: ${several.map(({ text, pieces: parts }, i) => html`${i ? ", " : ""}<b>${text}</b> (${parts.map((part, n) => html`${n ? " " : ""}<code>${part}</code>`)})`)}.
    The vector of such a word is the mean of its tokens${several.length > words.length / 2 ? "; arithmetic with mostly such words means little" : ""}.</p>`;
}

/** The view without the part of its note about tokens. */
const brief = (view) => once(view, "brief", () => ({ ...view, note: view.note.split(";")[0] }));

const bare = (name) => name.replace(/^[·▁]|^##/, "");

function plane({ points }) {
  const xs = points.map(({ position }) => position[0]), ys = points.map(({ position }) => position[1]);
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const x = (value) => 40 + ((value - left) / (right - left || 1)) * 300, y = (value) => 270 - ((value - low) / (high - low || 1)) * 240;
  const own = points.filter(({ role }) => role === "input"), goal = points.at(-1);
  return html`<svg viewBox="0 0 440 300" role="img" aria-label="input words and their neighbors in a plane">
    ${own.length === 3 ? svg`<path class="way" d=${`M${x(own[1].position[0])} ${y(own[1].position[1])}L${x(own[0].position[0])} ${y(own[0].position[1])}M${x(own[2].position[0])} ${y(own[2].position[1])}L${x(goal.position[0])} ${y(goal.position[1])}`}></path>` : nothing}
    ${named(points, x, y).map(({ text, role, cx, cy, place }) => svg`<circle class=${role} cx=${cx} cy=${cy} r=${role === "neighbor" ? 3.5 : 5}><title>${text}</title></circle>
      ${place ? svg`<text class=${role} x=${place.x} y=${place.y + 11}>${text}</text>` : nothing}`)}</svg>`;
}

/** Place a label next to each point, input words first; labels without room are omitted. */
function named(points, x, y) {
  const taken = points.map(({ position }) => ({ x: x(position[0]) - 4, y: y(position[1]) - 4, wide: 8, tall: 8 }));
  const free = (box) => box.x >= 0 && box.x + box.wide <= 440 && !taken.some((other) => box.x < other.x + other.wide && other.x < box.x + box.wide && box.y < other.y + other.tall && other.y < box.y + box.tall);
  const rank = { result: 0, input: 1, neighbor: 2 };
  return [...points].sort((a, b) => rank[a.role] - rank[b.role]).map(({ text: whole, role, position }) => {
    const text = role === "result" ? "result" : bare(whole), wide = 6.7 * text.length, [cx, cy] = [x(position[0]), y(position[1])];
    const places = [[8, -7], [-8 - wide, -7], [-wide / 2, -21], [-wide / 2, 7], [8, -19], [8, 5]].map(([dx, dy]) => ({ x: cx + dx, y: cy + dy, wide, tall: 14 }));
    const place = places.find(free);
    if (place) taken.push(place);
    return { text, role, cx, cy, place };
  });
}

/** The mean difference of word pairs, and the projection of words onto it. */
function direction(ctx) {
  const { state } = ctx;
  const pairs = state.pairs.trim().split(/\s+/).map((pair) => pair.split(":"));
  const right = pairs.every((pair) => pair.length === 2 && pair[0] && pair[1]);
  const words = state.direction_words.trim().split(/\s+/).filter(Boolean);
  const found = right && words.length ? asked(ctx, { pairs, words }, "direction") : null;
  return html`<section><h2>A direction</h2>
    <p class="hint">The mean difference between the words of each pair, and the dot product of other words with it.</p>
    <div class="row">${field("pairs", "pairs", ctx, "first:second pairs separated by spaces")}${field("words", "direction_words", ctx)}</div>
    ${!right ? html`<p class="problem">Write pairs like cat:cats dog:dogs.</p>` : !found ? html`<p class="hint">Enter words to project.</p>` : shown(found, (value) => html`${pieces(value.words)}<div class="columns">
      <ch-view .view=${brief(lensed(value.view))} .pending=${found.pending} .caption=${"Along the direction"}></ch-view>
      ${pairs.length > 1 ? html`<ch-view .view=${spelt(value.agreement)} .pending=${found.pending} .caption=${"Cosine between the pairs' differences"}></ch-view>` : nothing}</div>`)}</section>`;
}

/** Pairwise similarities. */
function alike(ctx) {
  const words = ctx.state.similarity_words.trim().split(/\s+/).filter(Boolean);
  const found = words.length > 1 ? asked(ctx, { words }, "alike") : null;
  return html`<section><h2>Similarities</h2>
    <div class="row">${field("words", "similarity_words", ctx)}</div>
    ${!found ? html`<p class="hint">Enter two or more words.</p>` : shown(found, (value) => html`${pieces(value.words)}<ch-view .view=${brief(spelt(value.view))} .pending=${found.pending} .caption=${"Pairwise cosine similarity"}></ch-view>`)}</section>`;
}

export default {
  id: "vectors",
  title: "Vector lab",
  sentence: "Words are vectors: similar words are close, and directions carry meaning.",
  free: true,
  template,
};
