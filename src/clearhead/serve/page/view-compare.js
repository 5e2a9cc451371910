// Compare: two prompts, two heads or two models side by side, and what lies between them; and a model with its own past.

import { html, nothing } from "lit-html";
import { line, listed, numbered, oneOf } from "ch/choose";
import { told } from "ch/colours";
import { apart, likeliest, pattern, shared } from "ch/pair";
import { layers, mask, path, sides, texts } from "ch/paths";
import { asked, got, home, known, run } from "ch/run";
import { count as counted, shown } from "ch/shown";
import { defaults } from "ch/state";
import { training } from "ch/training";
import "ch/figure";
import "ch/map";

defaults({ pair: "prompts", second: null, layer2: 0, head2: 1, model2: "" });

const MODES = [["prompts", "two prompts"], ["heads", "two heads"], ["models", "two models"], ["training", "its training"]];

function template(ctx) {
  const { card, state, set } = ctx;
  const modes = card.text ? MODES : MODES.filter(([mode]) => mode !== "prompts");
  const mode = modes.some(([each]) => each === state.pair) ? state.pair : modes[0][0];
  return html`<div class="row">${oneOf("what to compare", modes, mode, (pair) => set({ pair }))}</div>
    ${{ prompts, heads, models, training }[mode](ctx)}`;
}

function prompts(ctx) {
  const { card, state, set } = ctx;
  const both = card.kind === "encoder-decoder", [tired, wide] = card.examples.pair;
  const key = both ? "source" : "text", other = state.second ?? (both || state.text !== null ? "" : card.examples.beside);
  const there = other ? run({ ...asked(card), [key]: other }, "the text beside") : null;
  return html`<div class="row">${line("Beside it:", other, (second) => set({ second }), { placeholder: "another text" })}
      ${!both && tired ? html`<button type="button" @click=${() => set({ text: tired, second: wide })}>The chicken: tired or wide?</button>` : nothing}</div>
    ${there ? shown(there, (beside) => two(ctx, [ctx.run, beside], [ctx[key], other])) : html`<p class="hint">Write another text to compare with.</p>`}`;
}

function models(ctx) {
  const { card, state, set, run: here } = ctx;
  const others = (known().value ?? []).map(({ name }) => name).filter((name) => name !== card.name);
  if (!others.length) return html`<p class="hint">Only one model is here. Two can be compared when both are opened: <code>clearhead explore first second</code>. Checkpoints of one run are two models.</p>`;
  const name = others.includes(state.model2) ? state.model2 : "";
  const there = name && run({ ...asked(card), model: name }, "the model beside");
  const both = name && got(home(name)).value?.head === card.head ? [card.name, name] : null;
  return html`<div class="row">${listed("Beside it:", [["", "choose a model"], ...others.map((each) => [each, each])], name, (model2) => set({ model2 }))}</div>
    ${here && there ? shown(there, (beside) => two(ctx, [here, beside], [card.name, name], both)) : nothing}`;
}

/** Two runs: one head of each, their difference over the tokens they share, and what follows. */
function two(ctx, runs, names, models) {
  const { card, state, set } = ctx;
  if (!runs[0]) return nothing;
  const count = layers(card, partOf(card)), layer = Math.min(state.layer, count - 1), head = Math.min(state.head, card.heads - 1), here = path(partOf(card), layer);
  const [first, second] = runs.map((each) => tokensOf(card, each));
  if (!first || !second) return html`<p class="hint">The two models do not read the same kind of thing.</p>`;
  const pairs = shared(first, second);
  const fits = runs.every((each) => each.names[`${here}.pattern`]?.shape[0] > head);
  const tops = runs.every((each) => each.top.length && each.top[0].prob !== null) && card.head === "language" && models !== null;
  return html`<div class="row">${numbered("Layer", count, layer, (to) => set({ layer: to }))}${numbered("Head", card.heads, head, (to) => set({ head: to }))}
      <p class="hint">${first.length === second.length ? "Both have as many tokens; they are compared place by place." : `They share ${counted(pairs.length, "token")}, at the beginning and at the end; the difference is over those.`}</p></div>
    ${fits ? triple(ctx, runs.map((each, i) => ({ run: each, path: here, head, name: names[i] })), pairs) : html`<p class="hint">The other model has no layer ${layer}, head ${head}.</p>`}
    ${tops ? html`<ch-figure .caption=${"What follows"} .note=${"The likeliest of either, with their probability in both."}>${likeliest(runs, names.map(short), models)}</ch-figure>` : nothing}`;
}

/** Of an encoder-decoder the source is compared: that is what differs. */
const partOf = ({ kind }) => (kind === "encoder-decoder" ? "encoder" : "attention");
const tokensOf = (card, run) => sides(run, partOf(card))[0];

function heads(ctx) {
  const { card, state, set, run: here } = ctx;
  if (!here) return html`<p class="hint">Give the model something to read first.</p>`;
  const most = (value, count) => Math.min(value, count - 1);
  const count = layers(card, partOf(card));
  const chosen = [[most(state.layer, count), most(state.head, card.heads)], [most(state.layer2, count), most(state.head2, card.heads)]];
  const pairs = tokensOf(card, here).map((_, i) => [i, i]);
  return html`<div class="row">${numbered("Layer", count, chosen[0][0], (layer) => set({ layer }))}${numbered("Head", card.heads, chosen[0][1], (head) => set({ head }))}<span class="hint">beside</span>
      ${numbered("Layer", count, chosen[1][0], (layer2) => set({ layer2 }))}${numbered("Head", card.heads, chosen[1][1], (head2) => set({ head2 }))}</div>
    ${triple(ctx, chosen.map(([layer, head]) => ({ run: here, path: path(partOf(card), layer), head, name: `layer ${layer}, head ${head}` })), pairs)}`;
}

/** Two patterns and their difference. */
function triple(ctx, sides, pairs) {
  const { card } = ctx;
  const found = sides.map(({ run: { id }, path, head }, i) => pattern(id, path, head, `side ${i}`));
  const failed = found.find(({ error }) => error);
  if (failed) return html`<p class="problem">${failed.error.message}</p>`;
  if (!found.every(({ value }) => value)) return html`<p class="hint">The model is at work …</p>`;
  const pending = found.some((each) => each.pending);
  const { hidden } = mask(card, partOf(card));
  const labels = sides.map(({ run }) => texts(tokensOf(card, run)));
  const fits = found.every(({ value }, i) => value.shape[0] === labels[i].length);
  const name = ([i, j]) => (labels[0][i] === labels[1][j] ? labels[0][i] : `${labels[0][i]} / ${labels[1][j]}`);
  const [{ value: first }, { value: second }] = found;
  const between = fits && pairs.length ? apart(first, second, pairs) : null, names = pairs.map(name), none = !(between?.most >= 1e-6);
  return html`<ch-figure .caption=${"Side by side"} .pending=${pending} .note=${`In the difference blue means that the second gives more weight, orange that the first does; no colour is no difference.${!none ? ` The colour is full from ±${told(between.most)} on.` : ""}`}>
    <div class="triple">${sides.map(({ run: { id }, path, head, name }, i) => html`<div><h3>${short(name)}</h3><ch-map .values=${found[i].value} .rows=${labels[i]} .cols=${labels[i]} .most=${1} .masked=${hidden} .name=${`${path}.pattern`} .run=${id} .index=${(r, c) => [head, r, c]}
        .by=${["query", "key"]} .measure=${"pattern"} .label=${name}></ch-map></div>`)}
      ${between ? html`<div><h3>the second less the first</h3><ch-map .values=${between} .signed=${true} .rows=${names} .cols=${names} .masked=${hidden} .most=${none ? 1 : null} .by=${["query", "key"]} .measure=${"difference"} .label=${"difference"}></ch-map>
        ${none ? html`<p class="note">No difference at all${hidden ? ": with a causal mask, what comes later changes nothing before it" : ""}.</p>` : nothing}</div>` : html`<p class="hint">They share no token.</p>`}</div>
  </ch-figure>`;
}

const short = (text) => (text.length > 44 ? `${text.slice(0, 20)}…${text.slice(-22)}` : text);

export default {
  id: "compare",
  title: "Compare",
  sentence: "Two prompts, two heads or two models side by side, and what lies between them; or a model and its own past.",
  free: true,
  template,
};
