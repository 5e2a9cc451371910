// Translation (L6.2): encoder, decoder, cross-attention and beam search.

import { html, nothing } from "lit-html";
import { between } from "ch/between";
import { numbered, oneOf, slider } from "ch/choose";
import { told } from "ch/colors";
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

defaults({ num_beams: 4, length_penalty: 1, mean_heads: false, translate_part: "cross" });
defaults({ beam_node: -1, beam_step: 0 }, { inText: true });

const PARTS = [["cross", "cross", "Target tokens attend to the source"], ["attention", "decoder", "Target tokens attend to the target"], ["encoder", "encoder", "Source tokens attend to the source"]];
let hovered = -1; // the row under the pointer, not part of the URL

function template(ctx) {
  const { card, state, set } = ctx;
  const given = card.reads_audio ? { audio: request(card).audio } : { text: reading(card).source ?? "" };
  if (!(given.audio ?? given.text ?? "").trim()) return html`<p class="hint">Nothing to translate yet. ${card.reads_audio ? "Open a sound in the Patches view." : "Type a sentence above."}</p>`;
  const search = asked(ctx, given, { num_beams: state.num_beams, length_penalty: state.length_penalty }, "translation");
  return html`
    <div class="row">
      ${slider("Beams", { min: 1, max: 8, value: state.num_beams }, (num_beams) => set({ num_beams, beam_node: -1 }, { replace: true }))}
      ${slider("Length penalty", { min: 0, max: 2, step: 0.1, value: state.length_penalty, told: (v) => v.toFixed(1) }, (length_penalty) => set({ length_penalty, beam_node: -1 }, { replace: true }))}
    </div>
    ${shown(search, (found) => drawn(ctx, found), "Translating …")}`;
}

/** A translation together with its input, which may be outdated while the next one loads. */
function asked({ card }, given, more, slot) {
  const body = { model: card.name, ...given, ...more };
  return posted("translate", body, slot, (found) => ({ ...found, given }));
}

function drawn(ctx, found) {
  const { state } = ctx;
  const way = found.nodes[state.beam_node] ? pathTo(found.nodes, state.beam_node) : found.best[0].path;
  const steps = way.map((number) => found.nodes[number]);
  return html`${results(ctx, found, way, steps)}${edited(ctx, found.given)}${attention(ctx, found, steps)}${tree(ctx, found, way)}`;
}

/** The translations, and the log-probabilities of the selected one. */
function results({ state, set }, { best }, way, steps) {
  const last = steps.at(-1), length = steps.length;
  const chosen = best.findIndex((one) => String(one.path) === String(way));
  return html`<ch-figure .caption=${"Translations"} .note=${"The log-probability of a translation is the sum over its tokens. Its score is the log-probability divided by length^penalty."}>
    <div class="scroll"><table class="found-texts"><thead><tr><th scope="col">text</th><th scope="col">tokens</th><th scope="col">log-probability</th><th scope="col">score</th></tr></thead>
      <tbody>${best.map((one, i) => html`<tr class=${i === chosen ? "picked" : ""} data-logprob=${one.logprob} data-score=${one.score}>
        <th scope="row"><button type="button" class="text" aria-pressed=${i === chosen} @click=${() => set({ beam_node: i ? one.path.at(-1) : -1 })}>${one.text || "(nothing)"}</button></th>
        <td>${one.tokens.length}</td><td>${told(one.logprob, 4)}</td><td>${told(one.score, 4)}</td></tr>`)}</tbody></table></div>
    <p class="sum" data-logprob=${last.logprob}>${steps.map((step, i) => html`<span class="term" data-logprob=${step.token_logprob}><b class="word">${step.text}</b>
        <span>${i ? (step.token_logprob < 0 ? "− " : "+ ") : step.token_logprob < 0 ? "−" : ""}${Math.abs(step.token_logprob).toFixed(3)}</span></span>`)}
      <span class="term total"><b>=</b><span>${told(last.logprob, 5)}</span></span>
      ${last.score === null ? html`<span class="hint">This hypothesis was ${last.status === "dropped" ? "pruned" : "unfinished"} at this step.</span>`
        : html`<span class="term total"><b>÷ ${length}<sup>${state.length_penalty.toFixed(1)}</sup> =</b><span>${told(last.score, 4)}</span></span>`}</p>
  </ch-figure>`;
}

/** Greedy translation with and without the edits. */
function edited(ctx, given) {
  if (!changes()) return nothing;
  const plain = asked(ctx, given, { num_beams: 1, length_penalty: 1 }, "greedy");
  const other = asked(ctx, given, changes(), "edited translation");
  return html`<ch-figure .caption=${"With your edits"} .note=${"Both greedy. The log-probability is shown below each token."}>
    ${shown(plain, ({ best: [one], nodes }) => line("before", one, one.path.map((n) => nodes[n])))}
    ${shown(other, (one) => line("after", one, one.steps))}</ch-figure>`;
}

function line(when, { text, logprob }, steps) {
  return html`<p class="written" data-when=${when} data-text=${text}><span class="when">${when}</span>${steps.map((step) => html`<span class="term"><b class="word">${step.text}</b><span>${told(step.token_logprob, 2)}</span></span>`)}
    <span class="term total"><b>=</b><span>${told(logprob, 4)}</span></span></p>`;
}

function attention({ card, state, set }, found, steps) {
  const part = PARTS.some(([each]) => each === state.translate_part) ? state.translate_part : "cross";
  const layers = layersOf(card, part);
  const layer = Math.min(state.layer, layers - 1), head = Math.min(state.head, card.n_heads - 1);
  const ids = [...found.decoder_start.map(({ id }) => id), ...steps.slice(0, -1).map(({ id }) => id)];
  const { audio, text } = found.given;
  const body = { model: card.name, ids, ...(audio ? { audio } : { source: text }), ...changes() };
  const made = run(body, "written run");
  const name = `${path(part, layer)}.pattern`;
  const url = made.value && !made.pending ? `/api/runs/${made.value.id}/tensor/${name}${state.mean_heads ? "" : `?head=${head}`}` : null;
  const pattern = url ? array(url, "cross pattern", state.mean_heads ? meanOf : undefined) : made;
  const source = texts(found.source), after = texts(steps), before = texts([...found.decoder_start, ...steps.slice(0, -1)]);
  const [rows, cols] = { cross: [after, source], attention: [after, before], encoder: [source, source] }[part];
  const labels = part === "encoder" ? rows : before.map((read, i) => `${read} → ${after[i]}`);
  return html`<ch-figure .caption=${{ cross: "Cross-attention: source tokens that each target token attends to", attention: "Self-attention of the decoder", encoder: "Self-attention of the encoder (no mask)" }[part]}
      .pending=${pattern.pending} .note=${part === "encoder" ? "Rows sum to 1." : "Each row is labeled input token → predicted token. Rows sum to 1."}
      .badge=${changes() ? "with your edits" : ""}>
    <div class="row">
      ${oneOf("which attention", PARTS, part, (translate_part) => set({ translate_part }))}
      ${numbered("Layer", layers, layer, (to) => set({ layer: to }))}
      ${oneOf("heads", [[false, "one head"], [true, "mean of all"]], state.mean_heads, (mean_heads) => set({ mean_heads }))}
      ${state.mean_heads ? nothing : numbered("Head", card.n_heads, head, (to) => set({ head: to }))}
      ${state.mean_heads ? nothing : html`<ch-edit .name=${`${path(part, layer)}.z`} .head=${head} .label=${`head ${head}`}></ch-edit>`}
    </div>
    ${shown(pattern, (values) => values.shape?.length !== 2 || values.shape[0] !== rows.length ? nothing : html`
      ${between(cols, rows, values, hovered >= 0 ? hovered : chosenRow(state, rows.length), {
        pick: (query) => set({ query }), hover: (row) => { hovered = row; changed(); }, label: `${part}, layer ${layer}`,
      })}
      <ch-map .values=${values} .rows=${labels} .cols=${cols} .most=${1} .name=${state.mean_heads ? "" : name} .run=${made.value?.id ?? ""} .index=${(r, c) => [head, r, c]}
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

function tree({ state, set }, { nodes, best, decoder_start: start }, way) {
  const last = Math.max(...nodes.map(({ step }) => step)), upto = state.beam_step ? Math.min(state.beam_step, last) : last;
  const show = (to) => set({ beam_step: to === last ? 0 : to }, { replace: true });
  const there = nodes.filter(({ step }) => step <= upto), count = (status) => there.filter((node) => node.status === status).length;
  return html`<ch-figure .caption=${"Beam search: all hypotheses"}
      .note=${"One column per step, most likely hypothesis on top. Round: continued; square: finished; dashed: pruned. Select one to see its log-probabilities and attention."}>
    <div class="row"><button type="button" class="play" @click=${() => play(1, last, show)}>${playing() ? "Pause" : "Play"}</button>
      ${slider("Step", { min: 1, max: last, value: upto, told: (v) => `${v} of ${last}` }, show)}
      <p class="legend"><span class="key best">best</span><span class="key">continued: ${count("kept")}</span><span class="key finished">finished: ${count("finished")}</span><span class="key dropped">pruned: ${count("dropped")}</span></p></div>
    ${beamTree(nodes, texts(start).join(""), best[0].path, way, upto, (node) => set({ beam_node: node === state.beam_node ? -1 : node }))}
  </ch-figure>`;
}

export default {
  id: "translate",
  title: "Translate",
  sentence: "The encoder reads the source, the decoder generates the target with cross-attention; beam search keeps several hypotheses.",
  free: true, // makes its own runs
  template,
};
