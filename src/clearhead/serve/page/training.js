// The training trace: attention, logit lens and embeddings at recorded steps, and the loss curve.

import { html, nothing, svg } from "lit-html";
import { decoded } from "ch/api";
import { listed, oneOf } from "ch/choose";
import { told } from "ch/colors";
import { play, playing } from "ch/player";
import { got, home } from "ch/run";
import { shown } from "ch/shown";
import { defaults, set, state } from "ch/state";
import { once } from "ch/steady";
import "ch/atlas";
import "ch/curve";
import "ch/figure";
import "ch/map";
import "ch/view";

defaults({ trace_part: "", trace_index: -1, probe: 0, trace_difference: false });

const TITLES = { attention: "attention", cross: "cross-attention", encoder: "the encoder's attention" };

export function training({ card }) {
  const url = `${home(card.name)}/training`, story = got(url, "training", (found) => ({ ...found, lines: lines(found.curve) }));
  return shown(story, ({ trace: film, lines, curve }) => {
    if (!film) return html`${loss(lines, curve, null, () => {})}<p class="hint">No activations were recorded; use <code>clearhead train … --record-activations</code>.</p>`;
    const last = film.steps.length - 1, at = state().trace_index < 0 ? last : Math.min(state().trace_index, last);
    const probe = Math.min(state().probe, film.probes.length - 1);
    return html`${scrub(film, at, last)}
      ${loss(lines, curve, film.steps[at], (step) => set({ trace_index: nearest(film.steps, step) }))}
      ${film.probes.length > 1 ? listed("Probe", film.probes.map(({ text }, i) => [i, text.slice(0, 80)]), probe, (to) => set({ probe: to }))
        : html`<p class="hint probe">Probe: <q>${film.probes[probe].text}</q></p>`}
      ${heads(url, film, at, probe)}${answers(url, film, at, probe)}${film.embeddings.length ? plane(url, film, at) : nothing}`;
  });
}

const nearest = (steps, step) => steps.reduce((best, each, i) => (Math.abs(each - step) < Math.abs(steps[best] - step) ? i : best), 0);

function lines({ loss, valid_loss }) {
  return [{ label: "training", points: loss }, { label: "validation", points: valid_loss, kind: "other" }].filter(({ points }) => points.length);
}

function scrub(film, at, last) {
  const known = film.losses[at], show = (trace_index) => set({ trace_index }, { replace: true });
  return html`<div class="scrub"><button type="button" class="main play" @click=${() => play(at === last ? 0 : at, last, show)}>${playing() ? "Pause" : "Play"}</button>
    <input type="range" min="0" max=${last} .value=${String(at)} aria-label="step" aria-valuetext=${`step ${film.steps[at]}`} @input=${(event) => show(Number(event.target.value))}>
    <output>step <b>${film.steps[at].toLocaleString("en")}</b>${known === null ? nothing : html` · loss ${told(known)}`}</output></div>`;
}

function loss(lines, { accuracy }, mark, pick) {
  if (!lines.length) return nothing;
  const best = accuracy.length ? ` Final accuracy ${(100 * accuracy.at(-1)[1]).toFixed(1)} %.` : "";
  return html`<ch-figure .caption=${"Loss"} .note=${`From the log of the run.${mark === null ? "" : " The line marks the selected step; click to select another."}${best}`}>
    <ch-curve .lines=${lines} .mark=${mark} .measure=${"loss"} .label=${"loss by step"} @pick=${({ detail }) => pick(detail.x)}></ch-curve></ch-figure>`;
}

/** All heads at this step and the selected head enlarged, or its difference from the final step. */
function heads(url, film, at, probe) {
  const part = film.parts.includes(state().trace_part) ? state().trace_part : film.parts.includes("cross") ? "cross" : film.parts[0];
  const of = (step, slot) => got(`${url}/attention?step=${step}&probe=${probe}&part=${part}`, slot, (view) => cut(decoded(view)));
  const now = of(film.steps[at], "film"), end = of(film.steps.at(-1), "end of the film");
  return html`<ch-figure .caption=${`Attention during training: ${TITLES[part]}`} .pending=${now.pending} .note=${`All heads at this step; rows are queries and sum to 1. Full color is ${told(fullOf(now.value?.cols.length ?? 1))}. Select a head to enlarge it.`}>
    <div class="row">${film.parts.length > 1 ? oneOf("which attention", film.parts.map((each) => [each, TITLES[each]]), part, (trace_part) => set({ trace_part })) : nothing}
      ${oneOf("what is shown", [[false, "the pattern"], [true, "minus the final pattern"]], state().trace_difference, (trace_difference) => set({ trace_difference }))}</div>
    ${shown(now, ({ heads, rows, cols, atlas }) => {
      const [layers, each] = atlas.shape, [layer, head] = [Math.min(state().layer, layers - 1), Math.min(state().head, each - 1)], number = layer * each + head;
      const later = state().trace_difference && end.value ? less(heads[number], end.value.heads[number]) : null;
      return html`<div class="forming"><ch-atlas .atlas=${atlas} .layer=${layer} .head=${head} @pick=${({ detail }) => set(detail)}></ch-atlas>
        <div><h3>Layer ${layer}, head ${head}</h3><ch-map .values=${later ?? heads[number]} .signed=${!!later} .rows=${rows} .cols=${cols} .most=${fullOf(cols.length)} .by=${["query", "key"]} .measure=${later ? "difference" : "pattern"}
          .label=${`layer ${layer}, head ${head}, step ${film.steps[at]}`}></ch-map></div></div>`;
    })}</ch-figure>`;
}

/** Full color at eight times the uniform weight, so that early patterns are visible. */
const fullOf = (keys) => Math.min(1, 8 / keys);

function cut(view) {
  const [layers, count, rows, cols] = view.shape, size = rows * cols;
  const heads = Array.from({ length: layers * count }, (_, i) => ({ shape: [rows, cols], data: view.values.subarray(i * size, (i + 1) * size) }));
  const atlas = { shape: view.shape, data: Uint8Array.from(view.values, (weight) => Math.min(255, (255 * weight) / fullOf(cols))) };
  return { atlas, heads, rows: view.axes[2].labels, cols: view.axes[3].labels };
}

const less = (now, end) => once(now, end, () => ({ shape: now.shape, data: now.data.map((value, i) => value - end.data[i]) }));

function answers(url, film, at, probe) {
  const found = got(`${url}/lens?step=${film.steps[at]}&probe=${probe}`, "film of the lens", decoded);
  return shown(found, (view) => html`<ch-view .view=${view} .pending=${found.pending} .caption=${"Predictions by layer at this step"}></ch-view>`);
}

/** All token embeddings in a plane; tokens of the probe texts are labeled. */
function plane(url, film, at) {
  const found = got(`${url}/embeddings?step=${film.steps[at]}`, "film of embeddings", decoded);
  const named = new Set(film.probes.flatMap(({ tokens }) => tokens));
  return shown(found, ({ values, axes: [{ labels }] }) => {
    const most = values.reduce((a, b) => Math.max(a, Math.abs(b)), 1e-30);
    const [x, y] = [(i) => 260 + (240 * values[2 * i]) / most, (i) => 180 - (165 * values[2 * i + 1]) / most];
    const dots = labels.map((_, i) => `M${x(i).toFixed(1)} ${y(i).toFixed(1)}h0`).join("");
    return html`<ch-figure .caption=${"Embeddings of all tokens"} .pending=${found.pending} .note=${"First two principal components, aligned between steps. Tokens of the probe texts are labeled."}>
      <svg class="plane" viewBox="0 0 520 360" role="img" aria-label=${`${labels.length} embeddings in a plane`}><path d=${dots}></path>
        ${labels.map((label, i) => (named.has(label) ? svg`<text x=${x(i)} y=${y(i)}>${label}</text>` : nothing))}</svg></ch-figure>`;
  });
}
