// Attention (L3): all heads, one head as heat map or lines, and its computation step by step.

import { html, nothing } from "lit-html";
import { anatomy, rowSums } from "ch/anatomy";
import { decoded } from "ch/api";
import { LOOK } from "ch/atlas";
import { listed, numbered, oneOf } from "ch/choose";
import { told } from "ch/colors";
import { locked } from "ch/inspector";
import { apart, pattern } from "ch/pair";
import { layers, mask, parts, path, place, sides, texts } from "ch/paths";
import { array, asked, got, run as runOf } from "ch/run";
import { defaults } from "ch/state";

defaults({ sort: "", lines: false, autoscale: false, scale_scores: true, anatomy: false, score_heads: false, compare_text: "" });
defaults({ encoder_key: -1 }, { inText: true }); // encoder attention: the selected key of the selected source token

const FEW = 256; // texts up to this many tokens are scored automatically
const AFTER = "An edit changes a component's output, so patterns change only in later layers. An ablated head keeps its own pattern.";
const NAMES = { attention: "decoder", cross: "cross", encoder: "encoder" };

export default {
  id: "attention", title: "Attention",
  sentence: "Which tokens each token attends to. Choose a head to see how its pattern is computed.",
  template(context) {
    const { state, card } = context;
    const where = place(state, card);
    const hidden = mask(card, where.part);
    context.marks.own = where.part === "encoder" ? "key" : "query";
    const one = head(context, where, hidden.hidden); // requested first: it is the main figure
    return html`${presets(context)}<div class="heads">${atlas(context, where)}<div>${chooser(context, where, hidden)}${one}</div></div>
      <details class="apart" ?open=${state.anatomy} @toggle=${(event) => event.target.open !== context.state.anatomy && context.set({ anatomy: event.target.open }, { replace: true })}>
        <summary><h2>How this head computes its pattern</h2></summary>${state.anatomy ? anatomy(context, where, hidden.hidden) : nothing}</details>`;
  },
};

function presets({ card, state, set }) {
  const { attention_text: fluffy, coreference: pair } = card.examples;
  if (!card.reads_text || card.architecture === "encoder-decoder") return nothing;
  const show = (text, versus) => () => set({ text, compare_text: versus, cell: "", pins: [] });
  const two = pair.every(Boolean) && pair[0] !== pair[1];
  return html`<div class="row presets"><span class="hint">Try</span>
    ${fluffy ? html`<button type="button" class="quiet" @click=${show(fluffy, "")}>a fluffy blue creature</button>` : nothing}
    ${two ? html`<button type="button" class="quiet" aria-pressed=${state.compare_text === pair[1]} @click=${show(...pair)}>the chicken: tired / wide</button>` : nothing}
    ${state.compare_text ? html`<button type="button" class="chip" @click=${() => set({ compare_text: "" })}>compared with “${state.compare_text}”
      <span aria-hidden="true">×</span><span class="unseen">, close</span></button>` : nothing}</div>`;
}

function atlas({ run, card, state, set }, { part, layer, head }) {
  const pictures = `/api/runs/${run.id}/patterns?part=${part}`, numbers = `/api/runs/${run.id}/head-scores?part=${part}`;
  const seen = array(pictures, "atlas");
  const wanted = seen.value && !seen.pending && (run.tokens.length <= FEW || state.sort || state.score_heads); // slow for long texts
  const scores = wanted ? got(numbers, "scores", (found) => ({ definitions: found.scores, view: decoded(found.view) })) : {};
  const pooled = seen.value?.pooled > 1 ? `max-pooled ${seen.value.pooled}×` : "";
  const [queries, keys] = sides(run, part).map(texts), [r, c] = chosen(state, part), look = queries[r] && keys[c] && seen.value?.pooled === 1 ? [r, c] : null;
  const words = look ? `${queries[look[0]]} → ${keys[look[1]]}` : "";
  const sorted = state.sort === LOOK ? words && `Sorted by the weight of ${words} in each head (resolution 1/255). Select another cell to change it.`
    : state.sort && scores.value ? `${state.sort}: ${scores.value.definitions[state.sort] ?? "does not apply to this text"}` : "";
  return html`<ch-figure .caption=${`All ${layers(card, part)} × ${card.n_heads} heads`} .bare=${true} .badge=${pooled} .pending=${seen.pending}
      .note=${sorted || "One thumbnail per head: queries are rows, keys are columns. Layers are rows, heads are columns."}>
    ${seen.value ? order(scores, state, set, words) : nothing}
    ${seen.error ? html`<p class="problem">${seen.error.message}</p>` : nothing}
    <ch-atlas .atlas=${seen.value ?? null} .scores=${scores.value?.view ?? null} .sort=${state.sort} .look=${look} .stretch=${state.autoscale} .layer=${layer} .head=${head}
      .off=${switchedOff(state, card, part)}
      @pick=${({ detail }) => set({ ...detail, cell: "" })}></ch-atlas></ch-figure>`;
}

/** Ablated heads as layer × heads + head. */
function switchedOff({ edits }, card, part) {
  const places = Array.from({ length: layers(card, part) }, (_, layer) => `${path(part, layer)}.z`);
  return edits.filter(({ op, name }) => op === "ablate" && places.includes(name)).map(({ name, head }) => places.indexOf(name) * card.n_heads + head);
}

/** The sort order of heads; scores of long texts are computed on request. */
function order(scores, state, set, words) {
  if (scores.error) return html`<p class="problem">${scores.error.message}</p>`;
  if (!scores.value) {
    return html`<div class="row">${scores.pending ? html`<span class="hint">Scoring heads …</span>`
      : html`<button type="button" class="quiet" @click=${() => set({ score_heads: true }, { replace: true })}>Score heads</button>`}</div>`;
  }
  const kinds = [["", "layer and head"], ...Object.keys(scores.value.definitions).map((kind) => [kind, kind]), ...(words ? [[LOOK, words]] : [])];
  return html`<div class="row">${listed("Sort by", kinds, state.sort, (sort) => set({ sort }))}</div>`;
}

function chooser({ card, state, set }, { part, layer, head }, hidden) {
  return html`<div class="row">
    ${parts(card).length > 1 ? oneOf("which attention", parts(card).map((each) => [each, NAMES[each]]), part, (to) => set({ part: to, cell: "" })) : nothing}
    ${numbered("layer", layers(card, part), layer, (to) => set({ layer: to, cell: "" }))}${numbered("head", card.n_heads, head, (to) => set({ head: to, cell: "" }))}
    ${oneOf("display", [[false, "heat map"], [true, "lines"]], state.lines, (lines) => set({ lines }))}
    <label title="Scale colors to the largest weight of each head instead of 1"><input type="checkbox" .checked=${state.autoscale}
      @change=${({ target }) => set({ autoscale: target.checked })}> autoscale colors</label>
    <ch-edit .name=${`${path(part, layer)}.z`} .head=${head} .label=${"this head"}></ch-edit>
    <span class="hint">${hidden.words}</span></div>`;
}

/** One head of the run; next to it the same head with edits or with another text. */
function head(context, where, hidden) {
  const { run, edited, card, state } = context;
  const other = edited ? { run: edited, title: "with the edits" } : state.compare_text ? { run: runOf(asked(card, { text: state.compare_text }), "beside").value, title: `“${state.compare_text}”` } : null;
  const first = patternOf(run, where, "pattern");
  if (!other?.run) return figure(context, where, run, first, hidden, "");
  const second = patternOf(other.run, where, "other pattern");
  const same = texts(run.tokens).findIndex((text, i) => text !== other.run.tokens[i]?.text);
  const note = edited ? AFTER : same > 0 && card.architecture !== "encoder" && where.part === "attention"
    ? `The texts differ from token ${same} on. With the causal mask, all rows above are identical.` : "";
  return html`<div class="pair">${figure(context, where, run, first, hidden, edited ? "without edits" : `“${context.text}”`)}${figure(context, where, other.run, second, hidden, other.title)}</div>
    ${difference(run, where, first, second, hidden, (most) => (edited && most ? "" : note))}`;
}

const chosen = (state, part) => (part === "encoder" ? [state.key, state.encoder_key] : [state.query, state.key]);
const patternOf = (run, { part, layer, head }, slot) => pattern(run.id, path(part, layer), head, slot);

function figure({ state, set, hover, marks }, { part, layer, head }, run, found, hidden, title) {
  const name = `${path(part, layer)}.pattern`;
  const [queries, keys] = sides(run, part).map(texts);
  const fits = found.value?.shape[0] === queries.length && found.value?.shape[1] === keys.length;
  const kept = locked(name);
  const caption = `${part === "attention" ? "" : `${NAMES[part]}, `}layer ${layer}, head ${head}${title ? ` · ${title}` : ""}`;
  const values = fits ? found.value : null;
  const { own } = marks, cell = chosen(state, part), query = marks.token >= 0 && marks.of === own ? marks.token : state[own];
  const sums = values ? rowSums(values) : null;
  return html`<ch-figure .caption=${caption} .pending=${found.pending}
      .note=${sums ? `The weight of each key (column) for each query (row). Rows sum to 1: smallest ${told(sums.least, 7)}, largest ${told(sums.most, 7)}.${state.autoscale ? ` Full color is ${told(sums.highest)}.` : ""}` : ""}>
    ${found.error ? html`<p class="problem">${found.error.message}</p>` : nothing}
    ${state.lines
      ? html`<ch-lines .values=${values} .rows=${queries} .cols=${keys} .query=${query} .label=${`${caption}, as lines`}
          @pick=${({ detail }) => set({ [own]: detail.row === state[own] ? -1 : detail.row })} @hover=${({ detail }) => hover(detail ? detail.row : -1)}></ch-lines>`
      : html`<ch-map .values=${values} .rows=${queries} .cols=${keys} .most=${state.autoscale ? null : 1} .masked=${hidden} .name=${name} .run=${run.id} .index=${(r, c) => [head, r, c]}
          .cursor=${kept && kept[0] === head ? kept.slice(1) : cell[0] >= 0 ? cell : null} .label=${caption} .measure=${"weight"} .by=${["query", "key"]}
          @hover=${({ detail }) => hover(detail ? detail.row : -1)} @pick=${({ detail }) => set({ [own]: detail.row, [own === "key" ? "encoder_key" : "key"]: detail.col }, { replace: true })}></ch-map>`}</ch-figure>`;
}

function difference(run, { part, layer, head }, first, second, hidden, note) {
  if (!first.value || !second.value) return nothing;
  const [queries, keys] = sides(run, part).map(texts), same = (side) => (_, i) => i < Math.min(first.value.shape[side], second.value.shape[side]);
  const places = [queries, keys].map((labels, side) => labels.map((_, i) => [i, i]).filter(same(side)));
  const { most, ...values } = apart(first.value, second.value, ...places);
  return html`<ch-figure .caption=${`Difference · layer ${layer}, head ${head}`} .note=${`Second minus first: blue is more weight, orange is less; ${most ? `full color is ±${told(most)}` : "there is no difference"}. ${note(most)}`}>
    <ch-map .values=${values} .rows=${queries.filter(same(0))} .cols=${keys.filter(same(1))} .signed=${true} .masked=${hidden}
      .label=${"difference"} .measure=${"difference"} .by=${["query", "key"]}></ch-map></ch-figure>`;
}
