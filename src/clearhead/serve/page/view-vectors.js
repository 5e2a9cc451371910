// Vector lab (L1.4): sums of words, directions, and who is near whom, over the whole vocabulary.

import { html, nothing, svg } from "lit-html";
import { line, listed } from "ch/choose";
import { posted } from "ch/run";
import { count, lensed, shown, spelt } from "ch/shown";
import { defaults } from "ch/state";
import { once } from "ch/steady";

defaults({ sum: "king - man + woman", own: false, deep: -1, pairs: "cat:cats dog:dogs", along: "one two student students teacher teachers house houses", alike: "king queen man woman apple" });
const SUMS = ["king - man + woman", "Paris - France + Italy", "walking - walk + swim", "bigger - big + small"];

function template(ctx) {
  const { card, state, set } = ctx;
  const layers = card.kind === "encoder-decoder" ? card.encoder_layers : card.layers;
  return html`
    <div class="row">${listed("vectors", [[-1, "the embedding matrix"], ...Array.from({ length: layers }, (_, i) => [i, `the stream after layer ${i}, each word read alone`])], state.deep, (deep) => set({ deep }))}</div>
    ${sum(ctx)} ${direction(ctx)} ${alike(ctx)}`;
}

function asked({ card, state }, body, slot) {
  const whole = { model: card.name, ...body, layer: state.deep < 0 ? null : state.deep };
  return posted("vectors", whole, slot);
}

const field = (label, key, { state, set }, hint = "") => line(label, state[key], (text) => set({ [key]: text }), { hint });

/** king - man + woman. */
function sum(ctx) {
  const { state, set } = ctx;
  const found = asked(ctx, { written: state.sum, own: state.own }, "sum of words");
  return html`<section><h2>A sum of words</h2>
    <div class="row">${field("sum", "sum", ctx, "words with + and - between them")}
      <label><input type="checkbox" .checked=${state.own} @change=${(event) => set({ own: event.target.checked })}> its own words may be answers</label></div>
    <div class="row">${SUMS.map((written) => html`<button type="button" class="quiet" @click=${() => set({ sum: written })}>${written}</button>`)}</div>
    ${shown(found, (value) => html`${pieces(value.words)}<div class="columns">
      <ch-figure .caption=${"Nearest by cosine"} .pending=${found.pending} .note=${`Of all ${count(value.size)} tokens; every word of the sum counts with length 1.`}>
        <ch-bars .labels=${value.view.axes[0].labels} .values=${lensed(value.view).values} .most=${1} .signed=${false} .measure=${"cosine"} @pick=${({ detail }) => set({ sum: bare(value.view.axes[0].labels[detail.index]) })}></ch-bars></ch-figure>
      <figure class="lie">${plane(value)}<figcaption class="hint">The same words in the plane in which they lie furthest apart: it holds ${(100 * value.share).toFixed(0)} % of their spread, so distances here are only a shadow.</figcaption></figure></div>`)}
  </section>`;
}

/** Says plainly which words are not one token. */
function pieces(words) {
  const several = words.filter((word) => word.pieces.length > 1);
  if (!several.length) return nothing;
  return html`<p class="several">Not one token here: ${several.map(({ text, pieces: parts }, i) => html`${i ? ", " : ""}<b>${text}</b> (${parts.map((part, n) => html`${n ? " " : ""}<code>${part}</code>`)})`)}.
    The vector of such a word is the mean of its pieces${several.length > words.length / 2 ? "; where most words are in pieces, sums of them mean little" : ""}.</p>`;
}

/** A view whose note does not tell the pieces again. */
const brief = (view) => once(view, "brief", () => ({ ...view, note: view.note.split(";")[0] }));

const bare = (name) => name.replace(/^[·▁]|^##/, "");

function plane({ points }) {
  const xs = points.map(({ at }) => at[0]), ys = points.map(({ at }) => at[1]);
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const x = (value) => 40 + ((value - left) / (right - left || 1)) * 300, y = (value) => 270 - ((value - low) / (high - low || 1)) * 240;
  const own = points.filter(({ role }) => role === "own"), goal = points.at(-1);
  return html`<svg viewBox="0 0 440 300" role="img" aria-label="the words of the sum and their neighbours in a plane">
    ${own.length === 3 ? svg`<path class="way" d=${`M${x(own[1].at[0])} ${y(own[1].at[1])}L${x(own[0].at[0])} ${y(own[0].at[1])}M${x(own[2].at[0])} ${y(own[2].at[1])}L${x(goal.at[0])} ${y(goal.at[1])}`}></path>` : nothing}
    ${named(points, x, y).map(({ text, role, cx, cy, place }) => svg`<circle class=${role} cx=${cx} cy=${cy} r=${role === "near" ? 3.5 : 5}><title>${text}</title></circle>
      ${place ? svg`<text class=${role} x=${place.x} y=${place.y + 11}>${text}</text>` : nothing}`)}</svg>`;
}

/** Each point with a place for its name beside it, the words of the sum first; where there is none, the name is left out. */
function named(points, x, y) {
  const taken = points.map(({ at }) => ({ x: x(at[0]) - 4, y: y(at[1]) - 4, wide: 8, tall: 8 }));
  const free = (box) => box.x >= 0 && box.x + box.wide <= 440 && !taken.some((other) => box.x < other.x + other.wide && other.x < box.x + box.wide && box.y < other.y + other.tall && other.y < box.y + box.tall);
  const rank = { sum: 0, own: 1, near: 2 };
  return [...points].sort((a, b) => rank[a.role] - rank[b.role]).map(({ text: whole, role, at }) => {
    const text = role === "sum" ? "the sum" : bare(whole), wide = 6.7 * text.length, [cx, cy] = [x(at[0]), y(at[1])];
    const places = [[8, -7], [-8 - wide, -7], [-wide / 2, -21], [-wide / 2, 7], [8, -19], [8, 5]].map(([dx, dy]) => ({ x: cx + dx, y: cy + dy, wide, tall: 14 }));
    const place = places.find(free);
    if (place) taken.push(place);
    return { text, role, cx, cy, place };
  });
}

/** What pairs have in common, and how far words lie along it. */
function direction(ctx) {
  const { state } = ctx;
  const pairs = state.pairs.trim().split(/\s+/).map((pair) => pair.split(":"));
  const right = pairs.every((pair) => pair.length === 2 && pair[0] && pair[1]);
  const words = state.along.trim().split(/\s+/).filter(Boolean);
  const found = right && words.length ? asked(ctx, { pairs, words }, "direction") : null;
  return html`<section><h2>A direction</h2>
    <p class="hint">What leads from the first word of each pair to the second, and how far other words lie along it: their dot product with the mean difference.</p>
    <div class="row">${field("pairs", "pairs", ctx, "first:second, with spaces between pairs")}${field("words", "along", ctx)}</div>
    ${!right ? html`<p class="problem">Write pairs as cat:cats dog:dogs.</p>` : !found ? html`<p class="hint">Give some words to measure.</p>` : shown(found, (value) => html`${pieces(value.words)}<div class="columns">
      <ch-view .view=${brief(lensed(value.view))} .pending=${found.pending} .caption=${"Along the direction"}></ch-view>
      ${pairs.length > 1 ? html`<ch-view .view=${spelt(value.agreement)} .pending=${found.pending} .caption=${"Do the pairs point the same way?"}></ch-view>` : nothing}</div>`)}</section>`;
}

/** Each with each. */
function alike(ctx) {
  const words = ctx.state.alike.trim().split(/\s+/).filter(Boolean);
  const found = words.length > 1 ? asked(ctx, { words }, "alike") : null;
  return html`<section><h2>Who is like whom</h2>
    <div class="row">${field("words", "alike", ctx)}</div>
    ${!found ? html`<p class="hint">Give two words or more.</p>` : shown(found, (value) => html`${pieces(value.words)}<ch-view .view=${brief(spelt(value.view))} .pending=${found.pending} .caption=${"Cosine of each two"}></ch-view>`)}</section>`;
}

export default {
  id: "vectors",
  title: "Vector lab",
  sentence: "Words are vectors: near ones are alike, and directions carry meaning.",
  free: true,
  template,
};
