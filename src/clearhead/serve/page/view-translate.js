// Translation (L6.2): the decoder writes, looking at what the encoder has read; beam search follows several texts at once.

import { html, nothing } from "lit-html";
import { between } from "ch/between";
import { numbered, oneOf, slider } from "ch/choose";
import { told } from "ch/colours";
import { layers as layersOf, mask, path, texts } from "ch/paths";
import { play, playing } from "ch/player";
import { array, asked as request, changes, posted, reading, run } from "ch/run";
import { shown } from "ch/shown";
import { changed, defaults } from "ch/state";
import { beamTree, pathTo } from "ch/tree";
import "ch/edit";
import "ch/figure";
import "ch/map";
import "ch/tokens";

defaults({ beam: 4, penalty: 1, mean: false, look: "cross" });
defaults({ branch: -1, upto: 0 }, { inText: true });

const PARTS = [["cross", "cross", "What is written looks at the source"], ["attention", "decoder", "What is written looks at what was written"], ["encoder", "encoder", "The source looks at itself"]];
let hovered = -1; // the place under the pointer, which is in no URL

function template(ctx) {
  const { card, state, set } = ctx;
  const given = card.sound ? { sound: request(card).sound } : { text: reading(card).source ?? "" };
  if (!(given.sound ?? given.text ?? "").trim()) return html`<p class="hint">There is nothing to translate yet. ${card.sound ? "Give the model a sound in the view Patches." : "Type a sentence above."}</p>`;
  const search = asked(ctx, given, { beam: state.beam, length_penalty: state.penalty }, "translation");
  return html`
    <div class="row">
      ${slider("Beams", { min: 1, max: 8, value: state.beam }, (beam) => set({ beam, branch: -1 }, { replace: true }))}
      ${slider("Length penalty", { min: 0, max: 2, step: 0.1, value: state.penalty, told: (v) => v.toFixed(1) }, (penalty) => set({ penalty, branch: -1 }, { replace: true }))}
    </div>
    ${shown(search, (found) => drawn(ctx, found), "The model translates …")}`;
}

/** A translation, with what it is of: that may be another thing already while the next is on its way. */
function asked({ card }, given, more, slot) {
  const body = { model: card.name, ...given, ...more };
  return posted("translate", body, slot, (found) => ({ ...found, given }));
}

function drawn(ctx, found) {
  const { state } = ctx;
  const way = found.nodes[state.branch] ? pathTo(found.nodes, state.branch) : found.best[0].path;
  const steps = way.map((number) => found.nodes[number]);
  return html`${results(ctx, found, way, steps)}${edited(ctx, found.given)}${attention(ctx, found, steps)}${tree(ctx, found, way)}`;
}

/** The texts that were found, and how the one that is looked at adds up. */
function results({ state, set }, { best }, way, steps) {
  const last = steps.at(-1), length = steps.length;
  const chosen = best.findIndex((one) => String(one.path) === String(way));
  return html`<ch-figure .caption=${"What it writes"} .note=${"A text's log-probability is the sum over its tokens. Divided by its length to the power of the penalty, it is the score by which texts are ranked."}>
    <div class="scroll"><table class="found-texts"><thead><tr><th scope="col">text</th><th scope="col">tokens</th><th scope="col">log-probability</th><th scope="col">score</th></tr></thead>
      <tbody>${best.map((one, i) => html`<tr class=${i === chosen ? "picked" : ""} data-logprob=${one.logprob} data-score=${one.score}>
        <th scope="row"><button type="button" class="text" aria-pressed=${i === chosen} @click=${() => set({ branch: i ? one.path.at(-1) : -1 })}>${one.text || "(nothing)"}</button></th>
        <td>${one.tokens.length}</td><td>${told(one.logprob, 4)}</td><td>${told(one.score, 4)}</td></tr>`)}</tbody></table></div>
    <p class="sum" data-logprob=${last.logprob}>${steps.map((step, i) => html`<span class="term" data-own=${step.own}><b class="word">${step.text}</b>
        <span>${i ? (step.own < 0 ? "− " : "+ ") : step.own < 0 ? "−" : ""}${Math.abs(step.own).toFixed(3)}</span></span>`)}
      <span class="term total"><b>=</b><span>${told(last.logprob, 5)}</span></span>
      ${last.score === null ? html`<span class="hint">This text was ${last.fate === "dropped" ? "dropped" : "still being written"} here.</span>`
        : html`<span class="term total"><b>÷ ${length}<sup>${state.penalty.toFixed(1)}</sup> =</b><span>${told(last.score, 4)}</span></span>`}</p>
  </ch-figure>`;
}

/** With edits: what the edited model writes, the likeliest token each time, beside what it wrote before. */
function edited(ctx, given) {
  if (!changes()) return nothing;
  const plain = asked(ctx, given, { beam: 1, length_penalty: 1 }, "greedy");
  const other = asked(ctx, given, changes(), "edited translation");
  return html`<ch-figure .caption=${"With your edits"} .note=${"Both greedy: the likeliest token each time. Under each token its log-probability."}>
    ${shown(plain, ({ best: [one], nodes }) => line("before", one, one.path.map((n) => nodes[n])))}
    ${shown(other, (one) => line("after", one, one.steps))}</ch-figure>`;
}

function line(when, { text, logprob }, steps) {
  return html`<p class="written" data-when=${when} data-text=${text}><span class="when">${when}</span>${steps.map((step) => html`<span class="term"><b class="word">${step.text}</b><span>${told(step.own, 2)}</span></span>`)}
    <span class="term total"><b>=</b><span>${told(logprob, 4)}</span></span></p>`;
}

function attention({ card, state, set }, found, steps) {
  const part = PARTS.some(([each]) => each === state.look) ? state.look : "cross";
  const layers = layersOf(card, part);
  const layer = Math.min(state.layer, layers - 1), head = Math.min(state.head, card.heads - 1);
  const ids = [...found.start.map(({ id }) => id), ...steps.slice(0, -1).map(({ id }) => id)];
  const { sound, text } = found.given;
  const body = { model: card.name, ids, ...(sound ? { sound } : { source: text }), ...changes() };
  const made = run(body, "written run");
  const name = `${path(part, layer)}.pattern`;
  const url = made.value && !made.pending ? `/api/runs/${made.value.id}/tensor/${name}${state.mean ? "" : `?head=${head}`}` : null;
  const pattern = url ? array(url, "cross pattern", state.mean ? meanOf : undefined) : made;
  const source = texts(found.source), after = texts(steps), before = texts([...found.start, ...steps.slice(0, -1)]);
  const [rows, cols] = { cross: [after, source], attention: [after, before], encoder: [source, source] }[part];
  const labels = part === "encoder" ? rows : before.map((read, i) => `${read} → ${after[i]}`);
  return html`<ch-figure .caption=${{ cross: "Cross-attention: where each written token looks in the source", attention: "Self-attention of the decoder", encoder: "Self-attention of the encoder: no mask, it sees both ways" }[part]}
      .pending=${pattern.pending} .note=${part === "encoder" ? "Each row adds up to 1." : "Before the arrow of a row stands the token that was read in that step, after it the one that was then written: the row is the look that chose it. Each row adds up to 1."}
      .badge=${changes() ? "with your edits" : ""}>
    <div class="row">
      ${oneOf("which attention", PARTS, part, (look) => set({ look }))}
      ${numbered("Layer", layers, layer, (to) => set({ layer: to }))}
      ${oneOf("heads", [[false, "one head"], [true, "mean of all"]], state.mean, (mean) => set({ mean }))}
      ${state.mean ? nothing : numbered("Head", card.heads, head, (to) => set({ head: to }))}
      ${state.mean ? nothing : html`<ch-edit .name=${`${path(part, layer)}.z`} .head=${head} .label=${`head ${head}`}></ch-edit>`}
    </div>
    ${shown(pattern, (values) => values.shape?.length !== 2 || values.shape[0] !== rows.length ? nothing : html`
      ${between(cols, rows, values, hovered >= 0 ? hovered : chosenRow(state, rows.length), {
        pick: (query) => set({ query }), hover: (row) => { hovered = row; changed(); }, label: `${part}, layer ${layer}`,
      })}
      <ch-map .values=${values} .rows=${labels} .cols=${cols} .most=${1} .name=${state.mean ? "" : name} .run=${made.value?.id ?? ""} .index=${(r, c) => [head, r, c]}
        .masked=${mask(card, part).hidden} .by=${["query", "key"]} .measure=${"pattern"} .label=${`${part}, layer ${layer}`}
        .cursor=${state.query >= 0 && state.key >= 0 ? [state.query, state.key] : null} @pick=${(event) => set({ query: event.detail.row, key: event.detail.col })}></ch-map>`)}
  </ch-figure>`;
}

const chosenRow = ({ query }, count) => (query >= 0 && query < count ? query : -1);

function meanOf({ shape: [heads, rows, cols], data }) {
  const mean = new Float32Array(rows * cols);
  for (let h = 0; h < heads; h++) for (let i = 0; i < mean.length; i++) mean[i] += data[h * mean.length + i] / heads;
  return { shape: [rows, cols], data: mean };
}

function tree({ state, set }, { nodes, best, start }, way) {
  const last = Math.max(...nodes.map(({ step }) => step)), upto = state.upto ? Math.min(state.upto, last) : last;
  const show = (to) => set({ upto: to === last ? 0 : to }, { replace: true });
  const there = nodes.filter(({ step }) => step <= upto), count = (fate) => there.filter((node) => node.fate === fate).length;
  return html`<ch-figure .caption=${"Beam search: every text that was considered"}
      .note=${"A column for each step, the likeliest text on top. Round ones went on, square ones ended, dashed ones were dropped. Choose one to see how it adds up and where it looked."}>
    <div class="row"><button type="button" class="play" @click=${() => play(1, last, show)}>${playing() ? "Pause" : "Play"}</button>
      ${slider("Step", { min: 1, max: last, value: upto, told: (v) => `${v} of ${last}` }, show)}
      <p class="legend"><span class="key best">the winner</span><span class="key">went on: ${count("kept")}</span><span class="key finished">ended: ${count("finished")}</span><span class="key dropped">dropped: ${count("dropped")}</span></p></div>
    ${beamTree(nodes, texts(start).join(""), best[0].path, way, upto, (branch) => set({ branch: branch === state.branch ? -1 : branch }))}
  </ch-figure>`;
}

export default {
  id: "translate",
  title: "Translate",
  sentence: "The encoder reads, the decoder writes and looks back at what was read; beam search follows several texts at once.",
  free: true, // it makes runs of its own
  template,
};
