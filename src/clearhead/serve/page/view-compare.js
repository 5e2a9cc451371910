// Compare: two prompts, heads or models side by side with their difference; and a model over its training.

import { html, nothing } from "lit-html";
import { line, listed, numbered, oneOf } from "ch/choose";
import { told } from "ch/colors";
import { apart, likeliest, pattern, shared } from "ch/pair";
import { layers, mask, path, sides, texts } from "ch/paths";
import { asked, got, home, known, run } from "ch/run";
import { count as counted, shown } from "ch/shown";
import { defaults } from "ch/state";
import { training } from "ch/training";
import "ch/figure";
import "ch/map";

defaults({ compare: "prompts", second_text: null, layer2: 0, head2: 1, model2: "" });

const MODES = [["prompts", "two prompts"], ["heads", "two heads"], ["models", "two models"], ["training", "training"]];

function template(ctx) {
  const { card, state, set } = ctx;
  const modes = card.reads_text ? MODES : MODES.filter(([mode]) => mode !== "prompts");
  const mode = modes.some(([each]) => each === state.compare) ? state.compare : modes[0][0];
  return html`<div class="row">${oneOf("what to compare", modes, mode, (compare) => set({ compare }))}</div>
    ${{ prompts, heads, models, training }[mode](ctx)}`;
}

function prompts(ctx) {
  const { card, state, set } = ctx;
  const both = card.architecture === "encoder-decoder", [tired, wide] = card.examples.coreference;
  const key = both ? "source" : "text", other = state.second_text ?? (both || state.text !== null ? "" : card.examples.comparison);
  const there = other ? run({ ...asked(card), [key]: other }, "the text beside") : null;
  return html`<div class="row">${line("Second text:", other, (second_text) => set({ second_text }), { placeholder: "second text" })}
      ${!both && tired ? html`<button type="button" @click=${() => set({ text: tired, second_text: wide })}>The chicken: tired or wide?</button>` : nothing}</div>
    ${there ? shown(there, (beside) => two(ctx, [ctx.run, beside], [ctx[key], other])) : html`<p class="hint">Enter a second text to compare.</p>`}`;
}

function models(ctx) {
  const { card, state, set, run: here } = ctx;
  const others = (known().value ?? []).map(({ name }) => name).filter((name) => name !== card.name);
  if (!others.length) return html`<p class="hint">Only one model is loaded. Open two to compare them: <code>clearhead explore first second</code>. Two checkpoints of a run work too.</p>`;
  const name = others.includes(state.model2) ? state.model2 : "";
  const there = name && run({ ...asked(card), model: name }, "the model beside");
  const both = name && got(home(name)).value?.head === card.head ? [card.name, name] : null;
  return html`<div class="row">${listed("Second model:", [["", "select a model"], ...others.map((each) => [each, each])], name, (model2) => set({ model2 }))}</div>
    ${here && there ? shown(there, (beside) => two(ctx, [here, beside], [card.name, name], both)) : nothing}`;
}

/** Two runs: one head of each, their difference over shared tokens, and the next-token probabilities. */
function two(ctx, runs, names, models) {
  const { card, state, set } = ctx;
  if (!runs[0]) return nothing;
  const count = layers(card, partOf(card)), layer = Math.min(state.layer, count - 1), head = Math.min(state.head, card.n_heads - 1), here = path(partOf(card), layer);
  const [first, second] = runs.map((each) => tokensOf(card, each));
  if (!first || !second) return html`<p class="hint">The two models have different input types.</p>`;
  const pairs = shared(first, second);
  const fits = runs.every((each) => each.activations[`${here}.pattern`]?.shape[0] > head);
  const tops = runs.every((each) => each.top.length && each.top[0].prob !== null) && card.head === "lm" && models !== null;
  return html`<div class="row">${numbered("Layer", count, layer, (to) => set({ layer: to }))}${numbered("Head", card.n_heads, head, (to) => set({ head: to }))}
      <p class="hint">${first.length === second.length ? "Both have the same number of tokens and are compared position by position." : `They share ${counted(pairs.length, "token")} at the beginning and end; the difference covers those.`}</p></div>
    ${fits ? triple(ctx, runs.map((each, i) => ({ run: each, path: here, head, name: names[i] })), pairs) : html`<p class="hint">The second model has no layer ${layer}, head ${head}.</p>`}
    ${tops ? html`<ch-figure .caption=${"Next token"} .note=${"The top tokens of either, with their probability in both."}>${likeliest(runs, names.map(short), models)}</ch-figure>` : nothing}`;
}

/** Encoder-decoders are compared in the encoder, where their inputs differ. */
const partOf = ({ architecture }) => (architecture === "encoder-decoder" ? "encoder" : "attention");
const tokensOf = (card, run) => sides(run, partOf(card))[0];

function heads(ctx) {
  const { card, state, set, run: here } = ctx;
  if (!here) return html`<p class="hint">Enter an input first.</p>`;
  const most = (value, count) => Math.min(value, count - 1);
  const count = layers(card, partOf(card));
  const chosen = [[most(state.layer, count), most(state.head, card.n_heads)], [most(state.layer2, count), most(state.head2, card.n_heads)]];
  const pairs = tokensOf(card, here).map((_, i) => [i, i]);
  return html`<div class="row">${numbered("Layer", count, chosen[0][0], (layer) => set({ layer }))}${numbered("Head", card.n_heads, chosen[0][1], (head) => set({ head }))}<span class="hint">and</span>
      ${numbered("Layer", count, chosen[1][0], (layer2) => set({ layer2 }))}${numbered("Head", card.n_heads, chosen[1][1], (head2) => set({ head2 }))}</div>
    ${triple(ctx, chosen.map(([layer, head]) => ({ run: here, path: path(partOf(card), layer), head, name: `layer ${layer}, head ${head}` })), pairs)}`;
}

/** Two patterns and their difference. */
function triple(ctx, sides, pairs) {
  const { card } = ctx;
  const found = sides.map(({ run: { id }, path, head }, i) => pattern(id, path, head, `side ${i}`));
  const failed = found.find(({ error }) => error);
  if (failed) return html`<p class="problem">${failed.error.message}</p>`;
  if (!found.every(({ value }) => value)) return html`<p class="hint">Running the model …</p>`;
  const pending = found.some((each) => each.pending);
  const { hidden } = mask(card, partOf(card));
  const labels = sides.map(({ run }) => texts(tokensOf(card, run)));
  const fits = found.every(({ value }, i) => value.shape[0] === labels[i].length);
  const name = ([i, j]) => (labels[0][i] === labels[1][j] ? labels[0][i] : `${labels[0][i]} / ${labels[1][j]}`);
  const [{ value: first }, { value: second }] = found;
  const between = fits && pairs.length ? apart(first, second, pairs) : null, names = pairs.map(name), none = !(between?.most >= 1e-6);
  return html`<ch-figure .caption=${"Side by side"} .pending=${pending} .note=${`In the difference, blue means more weight in the second, orange in the first.${!none ? ` Full color is ±${told(between.most)}.` : ""}`}>
    <div class="triple">${sides.map(({ run: { id }, path, head, name }, i) => html`<div><h3>${short(name)}</h3><ch-map .values=${found[i].value} .rows=${labels[i]} .cols=${labels[i]} .most=${1} .masked=${hidden} .name=${`${path}.pattern`} .run=${id} .index=${(r, c) => [head, r, c]}
        .by=${["query", "key"]} .measure=${"pattern"} .label=${name}></ch-map></div>`)}
      ${between ? html`<div><h3>second minus first</h3><ch-map .values=${between} .signed=${true} .rows=${names} .cols=${names} .masked=${hidden} .most=${none ? 1 : null} .by=${["query", "key"]} .measure=${"difference"} .label=${"difference"}></ch-map>
        ${none ? html`<p class="note">No difference${hidden ? ": with a causal mask, later tokens do not affect earlier ones" : ""}.</p>` : nothing}</div>` : html`<p class="hint">They share no tokens.</p>`}</div>
  </ch-figure>`;
}

const short = (text) => (text.length > 44 ? `${text.slice(0, 20)}…${text.slice(-22)}` : text);

export default {
  id: "compare",
  title: "Compare",
  sentence: "Two prompts, heads or models side by side with their difference, or a model over its training.",
  free: true,
  template,
};
