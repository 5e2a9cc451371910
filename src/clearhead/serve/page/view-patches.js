// Patches (L1.1, L6.4): a picture or a sound is cut into tokens, and from there on there is one code path.

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
  const { picture, sound } = asked(card);
  const body = { model: card.name, ...(picture ? { picture } : { sound }) };
  if (!picture && !sound) return giving(card, state);
  const cut = posted("patches", body, "patches", (found) => ({ ...found, view: decoded(found.view) }));
  return html`<div class="columns">${giving(card, state)}<div>${shown(cut, (found) => seen(ctx, found))}</div></div>
    ${verdict(ctx, body)}${run && cut.value ? looks(ctx, cut.value) : nothing}`;
}

/** Where it comes from: the model's own example, drawn here, made here, or a file. */
function giving(card, state) {
  const file = fileOf(card), own = card.examples.file;
  const what = card.pictures ? "picture" : "sound";
  const note = file === own && own ? "An example that came with the model."
    : file ? "A file stays on this computer; the link does not carry it."
    : card.pictures ? "The drawing is part of the link." : "One second of a pitch that rises by an octave, made here; it is part of the link.";
  return html`<ch-figure .caption=${file?.name ?? (card.pictures ? "Draw something" : "A tone")} .note=${note}>
    ${file ? nothing : card.pictures ? html`<canvas class="pad" .strokes=${drawn(drawingOf(state))} width="280" height="280" role="img" aria-label="drawing" tabindex="-1" @pointerdown=${begin} @pointermove=${go} @pointerup=${end} @pointercancel=${end}></canvas>`
      : slider("From", { min: 110, max: 1760, step: 10, value: toneOf(state), told: (v) => `${v} Hz` }, (to) => set({ tone: to }, { replace: true }))}
    ${snapshot ? nothing : html`<div class="row controls">
      ${file ? html`<button type="button" @click=${() => make(card)}>${card.pictures ? "Draw instead" : "A tone instead"}</button>` : card.pictures ? html`<button type="button" @click=${() => set({ drawing: "" })}>Clear</button>` : nothing}
      ${own && file !== own ? html`<button type="button" @click=${example}>The example</button>` : nothing}
      <label class="file"><span>Open a ${what} …</span><input type="file" class="unseen" accept=${card.pictures ? "image/*" : "audio/*"} @change=${(event) => open(event.target.files[0] ?? null)}></label></div>`}
  </ch-figure>`;
}

let stroke = null;
/** The pad draws itself when its strokes are new. */
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

/** What the model reads of it, and how that came to be. */
function seen({ card, state, run }, { view, steps, rows, columns, first }) {
  return html`<ch-figure .caption=${view.title[0].toUpperCase() + view.title.slice(1)} .note=${view.note}>
    <ch-patches .view=${view} .rows=${rows} .columns=${columns} .first=${first} .chosen=${run ? asking(card, state, first, run) : -1} .widest=${280} .label=${view.title}
      @pick=${({ detail }) => choose(card, detail.index)}></ch-patches>
    <ol class="becomes">${steps.map((step) => html`<li>${step}</li>`)}</ol>
    ${first ? html`<p class="hint">Token 0 is a learned one that stands before the patches, for the head to read.</p>` : nothing}
  </ch-figure>`;
}

/** The token that looks: the one that was chosen, or the one that the head reads. */
function asking(card, { query, key }, first, { tokens, source }) {
  const both = card.kind === "encoder-decoder", chosen = both ? key : query;
  return chosen < 0 && (first || both) ? 0 : placeOf(chosen, both ? source.length : tokens.length);
}

/** Patches are what the model reads: of an encoder-decoder, its source. */
const choose = (card, token) => set(card.kind === "encoder-decoder" ? { key: token } : { query: token });

/** What one token takes from each patch, in every head of a layer. */
function looks(ctx, { view, rows, columns, first }) {
  const { card, state, run, edited } = ctx;
  const here = edited ?? run, both = card.kind === "encoder-decoder";
  const layers = both ? card.encoder_layers : card.layers, layer = Math.min(state.layer, layers - 1), head = Math.min(state.head, card.heads - 1);
  const at = asking(card, state, first, run);
  const path = `${both ? "encoder." : ""}blocks.${layer}.attn`;
  const url = `/api/runs/${here.id}/tensor/${path}.pattern?rows=${at}:${at + 1}`;
  const found = array(url, "patch pattern", ({ shape: [heads, , keys], data }) => Array.from({ length: heads }, (_, h) => data.slice(h * keys, (h + 1) * keys)));
  return html`<ch-figure .caption=${`Where token ${at} looks, head by head`} .pending=${found.pending}
      .note=${"The bluer a patch, the more weight that head gives it. The orange frame is the token that looks; choose another patch to ask it."}>
    <div class="row">${numbered("Layer", layers, layer, (to) => set({ layer: to }))}
      ${first ? oneOf("which token looks", [[true, "the learned token"], [false, "a patch"]], at === 0, (own) => choose(card, own ? 0 : Math.floor((rows * columns) / 2) + 1)) : nothing}
      <ch-edit .name=${`${path}.z`} .head=${head} .label=${`head ${head}`}></ch-edit></div>
    ${shown(found, (heads) => html`<div class="looks">${heads.map((weights, h) => html`<div class=${h === head ? "picked" : ""}>
      <h3><button type="button" class="quiet" aria-pressed=${h === head} @click=${() => set({ head: h })}>head ${h}</button></h3>
      <ch-patches .view=${view} .rows=${rows} .columns=${columns} .first=${first} .weights=${weights} .chosen=${at} .widest=${220} .label=${`head ${h}`} @pick=${({ detail }) => choose(card, detail.index)}></ch-patches></div>`)}</div>`)}
  </ch-figure>`;
}

export default {
  id: "patches",
  title: "Patches",
  sentence: "A picture or a sound is cut into tokens, and from there on all is as with words.",
  free: true,
  template,
};
