// The training microscope: what heads, answers and embeddings looked like at each step, and the loss meanwhile.

import { html, nothing, svg } from "lit-html";
import { decoded } from "ch/api";
import { listed, oneOf } from "ch/choose";
import { told } from "ch/colours";
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

defaults({ filmed: "", moment: -1, probe: 0, than: false });

const TITLES = { attention: "attention", cross: "cross-attention", encoder: "the encoder's attention" };

export function training({ card }) {
  const url = `${home(card.name)}/training`, story = got(url, "training", (found) => ({ ...found, lines: lines(found.curve) }));
  return shown(story, ({ film, lines, curve }) => {
    if (!film) return html`${loss(lines, curve, null, () => {})}<p class="hint">This run was not watched; <code>clearhead train … --microscope</code> keeps a film of it.</p>`;
    const last = film.steps.length - 1, at = state().moment < 0 ? last : Math.min(state().moment, last);
    const probe = Math.min(state().probe, film.probes.length - 1);
    return html`${scrub(film, at, last)}
      ${loss(lines, curve, film.steps[at], (step) => set({ moment: nearest(film.steps, step) }))}
      ${film.probes.length > 1 ? listed("Probe", film.probes.map(({ text }, i) => [i, text.slice(0, 80)]), probe, (to) => set({ probe: to }))
        : html`<p class="hint probe">Probe: <q>${film.probes[probe].text}</q></p>`}
      ${heads(url, film, at, probe)}${answers(url, film, at, probe)}${film.embeddings.length ? plane(url, film, at) : nothing}`;
  });
}

const nearest = (steps, step) => steps.reduce((best, each, i) => (Math.abs(each - step) < Math.abs(steps[best] - step) ? i : best), 0);

function lines({ loss, valid }) {
  return [{ label: "training", points: loss }, { label: "validation", points: valid, kind: "other" }].filter(({ points }) => points.length);
}

function scrub(film, at, last) {
  const known = film.losses[at], show = (moment) => set({ moment }, { replace: true });
  return html`<div class="scrub"><button type="button" class="main play" @click=${() => play(at === last ? 0 : at, last, show)}>${playing() ? "Pause" : "Play"}</button>
    <input type="range" min="0" max=${last} .value=${String(at)} aria-label="step" aria-valuetext=${`step ${film.steps[at]}`} @input=${(event) => show(Number(event.target.value))}>
    <output>step <b>${film.steps[at].toLocaleString("en")}</b>${known === null ? nothing : html` · loss ${told(known)}`}</output></div>`;
}

function loss(lines, { accuracy }, mark, pick) {
  if (!lines.length) return nothing;
  const best = accuracy.length ? ` Accuracy at the end ${(100 * accuracy.at(-1)[1]).toFixed(1)} %.` : "";
  return html`<ch-figure .caption=${"The loss"} .note=${`From the log of the run.${mark === null ? "" : " The line marks the step below; click to go to another."}${best}`}>
    <ch-curve .lines=${lines} .mark=${mark} .measure=${"loss"} .label=${"the loss by step"} @pick=${({ detail }) => pick(detail.x)}></ch-curve></ch-figure>`;
}

/** All heads at this step, and the chosen one large; or how far it is from what it became. */
function heads(url, film, at, probe) {
  const part = film.parts.includes(state().filmed) ? state().filmed : film.parts.includes("cross") ? "cross" : film.parts[0];
  const of = (step, slot) => got(`${url}/attention?step=${step}&probe=${probe}&part=${part}`, slot, (view) => cut(decoded(view)));
  const now = of(film.steps[at], "film"), end = of(film.steps.at(-1), "end of the film");
  return html`<ch-figure .caption=${`Heads forming: ${TITLES[part]}`} .pending=${now.pending} .note=${`Every head at this step; a row is a query, and adds up to 1. Full colour from ${told(fullOf(now.value?.cols.length ?? 1))} on. Choose one to see it large.`}>
    <div class="row">${film.parts.length > 1 ? oneOf("which attention", film.parts.map((each) => [each, TITLES[each]]), part, (filmed) => set({ filmed })) : nothing}
      ${oneOf("what is shown", [[false, "the pattern"], [true, "less what it became"]], state().than, (than) => set({ than }))}</div>
    ${shown(now, ({ heads, rows, cols, atlas }) => {
      const [layers, each] = atlas.shape, [layer, head] = [Math.min(state().layer, layers - 1), Math.min(state().head, each - 1)], number = layer * each + head;
      const later = state().than && end.value ? less(heads[number], end.value.heads[number]) : null;
      return html`<div class="forming"><ch-atlas .atlas=${atlas} .layer=${layer} .head=${head} @pick=${({ detail }) => set(detail)}></ch-atlas>
        <div><h3>Layer ${layer}, head ${head}</h3><ch-map .values=${later ?? heads[number]} .signed=${!!later} .rows=${rows} .cols=${cols} .most=${fullOf(cols.length)} .by=${["query", "key"]} .measure=${later ? "difference" : "pattern"}
          .label=${`layer ${layer}, head ${head}, step ${film.steps[at]}`}></ch-map></div></div>`;
    })}</ch-figure>`;
}

/** Eight times an even share has the full colour, or the patterns of the beginning could not be seen. */
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
  return shown(found, (view) => html`<ch-view .view=${view} .pending=${found.pending} .caption=${"What it would have answered, layer by layer"}></ch-view>`);
}

/** Every token in a plane; those of the probes by name. */
function plane(url, film, at) {
  const found = got(`${url}/embeddings?step=${film.steps[at]}`, "film of embeddings", decoded);
  const named = new Set(film.probes.flatMap(({ tokens }) => tokens));
  return shown(found, ({ values, axes: [{ labels }] }) => {
    const most = values.reduce((a, b) => Math.max(a, Math.abs(b)), 1e-30);
    const [x, y] = [(i) => 260 + (240 * values[2 * i]) / most, (i) => 180 - (165 * values[2 * i + 1]) / most];
    const dots = labels.map((_, i) => `M${x(i).toFixed(1)} ${y(i).toFixed(1)}h0`).join("");
    return html`<ch-figure .caption=${"Embeddings: every token in a plane"} .pending=${found.pending} .note=${"The two directions in which the vectors differ most; turned as little as may be from step to step. Tokens of the probes have their names."}>
      <svg class="plane" viewBox="0 0 520 360" role="img" aria-label=${`${labels.length} embeddings in a plane`}><path d=${dots}></path>
        ${labels.map((label, i) => (named.has(label) ? svg`<text x=${x(i)} y=${y(i)}>${label}</text>` : nothing))}</svg></ch-figure>`;
  });
}
