// Patches (L1.1, L6.4): images and audio are split into patches, which are tokens.

import { html, nothing } from "lit-html";
import { decoded, snapshot } from "ch/api";
import { numbered, oneOf, placeOf, slider } from "ch/choose";
import { drawingOf, example, fileOf, GRID, make, open, paint, strokesOf, toneOf, written } from "ch/given";
import { array, asked, posted } from "ch/run";
import { shown } from "ch/shown";
import { set, state } from "ch/state";
import { verdict } from "ch/verdict";
import "ch/edit";
import "ch/patches";

function template(ctx) {
  const { card, state, run } = ctx;
  const { image, audio } = asked(card);
  const body = { model: card.name, ...(image ? { image } : { audio }) };
  if (!image && !audio) return giving(card, state);
  const cut = posted("patches", body, "patches", (found) => ({ ...found, view: decoded(found.view) }));
  return html`<div class="columns">${giving(card, state)}<div>${shown(cut, (found) => seen(ctx, found))}</div></div>
    ${verdict(ctx, body)}${run && cut.value ? looks(ctx, cut.value) : nothing}`;
}

/** The input: the model's example, a drawing, a tone, or a file. */
function giving(card, state) {
  const file = fileOf(card), own = card.examples.file;
  const what = card.reads_images ? "image" : "audio file";
  const note = file === own && own ? "Example bundled with the model."
    : file ? "The file is not part of the link."
    : card.reads_images ? "The drawing is part of the link." : "One second of a tone rising by an octave; it is part of the link.";
  return html`<ch-figure .caption=${file?.name ?? (card.reads_images ? "Draw something" : "A tone")} .note=${note}>
    ${file ? nothing : card.reads_images ? html`<canvas class="pad" .strokes=${drawn(drawingOf(state))} width="280" height="280" role="img" aria-label="drawing" tabindex="-1" @pointerdown=${begin} @pointermove=${go} @pointerup=${end} @pointercancel=${end}></canvas>`
      : slider("From", { min: 110, max: 1760, step: 10, value: toneOf(state), told: (v) => `${v} Hz` }, (to) => set({ tone: to }, { replace: true }))}
    ${snapshot ? nothing : html`<div class="row controls">
      ${file ? html`<button type="button" @click=${() => make(card)}>${card.reads_images ? "Draw instead" : "Use a tone"}</button>` : card.reads_images ? html`<button type="button" @click=${() => set({ drawing: "" })}>Clear</button>` : nothing}
      ${own && file !== own ? html`<button type="button" @click=${example}>Use the example</button>` : nothing}
      <label class="file"><span>Open an ${what} …</span><input type="file" class="unseen" accept=${card.reads_images ? "image/*" : "audio/*"} @change=${(event) => open(event.target.files[0] ?? null)}></label></div>`}
  </ch-figure>`;
}

let stroke = null;
/** Repaint the pad when its strokes change. */
function drawn(text) {
  requestAnimationFrame(() => {
    const pad = document.querySelector("canvas.pad");
    if (pad && !stroke) paint(pad, strokesOf(text));
  });
  return text;
}

const place = (event) => {
  const box = event.currentTarget.getBoundingClientRect();
  return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height].map((share) => Math.max(0, Math.min(GRID - 1, Math.floor(share * GRID))));
};

function begin(event) {
  event.currentTarget.setPointerCapture(event.pointerId);
  stroke = [place(event)];
  paint(event.currentTarget, [...strokesOf(drawingOf(state())), stroke]);
}

function go(event) {
  if (!stroke) return;
  const at = place(event);
  if (String(at) !== String(stroke.at(-1))) stroke.push(at);
  paint(event.currentTarget, [...strokesOf(drawingOf(state())), stroke]);
}

function end() {
  if (!stroke) return;
  const all = [...strokesOf(drawingOf(state())), stroke];
  stroke = null;
  set({ drawing: written(all) });
}

/** The preprocessed input and its preprocessing steps. */
function seen({ card, state, run }, { view, steps, rows, cols: columns, cls_token: first }) {
  return html`<ch-figure .caption=${view.title[0].toUpperCase() + view.title.slice(1)} .note=${view.note}>
    <ch-patches .view=${view} .rows=${rows} .columns=${columns} .first=${first} .chosen=${run ? asking(card, state, first, run) : -1} .widest=${280} .label=${view.title}
      @pick=${({ detail }) => choose(card, detail.index)}></ch-patches>
    <ol class="becomes">${steps.map((step) => html`<li>${step}</li>`)}</ol>
    ${first ? html`<p class="hint">Token 0 is a learned class token before the patches, read by the head.</p>` : nothing}
  </ch-figure>`;
}

/** The query token: the selected one, or the one that the head reads. */
function asking(card, { query, key }, first, { tokens, source_tokens: source }) {
  const both = card.architecture === "encoder-decoder", chosen = both ? key : query;
  return chosen < 0 && (first || both) ? 0 : placeOf(chosen, both ? source.length : tokens.length);
}

/** Patches are the model's input: of an encoder-decoder, its source. */
const choose = (card, token) => set(card.architecture === "encoder-decoder" ? { key: token } : { query: token });

/** Attention weights of one token to all patches, for every head of a layer. */
function looks(ctx, { view, rows, cols: columns, cls_token: first }) {
  const { card, state, run, edited } = ctx;
  const here = edited ?? run, both = card.architecture === "encoder-decoder";
  const layers = both ? card.encoder_layers : card.n_layers, layer = Math.min(state.layer, layers - 1), head = Math.min(state.head, card.n_heads - 1);
  const at = asking(card, state, first, run);
  const path = `${both ? "encoder." : ""}blocks.${layer}.attn`;
  const url = `/api/runs/${here.id}/tensor/${path}.pattern?rows=${at}:${at + 1}`;
  const found = array(url, "patch pattern", ({ shape: [heads, , keys], data }) => Array.from({ length: heads }, (_, h) => data.slice(h * keys, (h + 1) * keys)));
  return html`<ch-figure .caption=${`Attention of token ${at} by head`} .pending=${found.pending}
      .note=${"Blue patches have large weights. The orange frame marks the query token; select another patch to change it."}>
    <div class="row">${numbered("Layer", layers, layer, (to) => set({ layer: to }))}
      ${first ? oneOf("query token", [[true, "class token"], [false, "patch"]], at === 0, (own) => choose(card, own ? 0 : Math.floor((rows * columns) / 2) + 1)) : nothing}
      <ch-edit .name=${`${path}.z`} .head=${head} .label=${`head ${head}`}></ch-edit></div>
    ${shown(found, (heads) => html`<div class="looks">${heads.map((weights, h) => html`<div class=${h === head ? "picked" : ""}>
      <h3><button type="button" class="quiet" aria-pressed=${h === head} @click=${() => set({ head: h })}>head ${h}</button></h3>
      <ch-patches .view=${view} .rows=${rows} .columns=${columns} .first=${first} .weights=${weights} .chosen=${at} .widest=${220} .label=${`head ${h}`} @pick=${({ detail }) => choose(card, detail.index)}></ch-patches></div>`)}</div>`)}
  </ch-figure>`;
}

export default {
  id: "patches",
  title: "Patches",
  sentence: "Images and audio are split into patches, which the model processes like word tokens.",
  free: true,
  template,
};
