// Asynchronous resources: the run of the current text and what views request. Old values stay visible while new ones load.

import * as api from "ch/api";
import { changed, state } from "ch/state";

const places = new Map(); // slot -> { key, value, error, pending, stop }
const MOST = 160;

/**
 * Load something once for its key and redraw when it arrives: { value, error, pending }.
 * The previous value of the same `slot` stays visible (with pending = true) while the next one loads.
 */
export function resource(key, loader, slot = key) {
  const before = places.get(slot);
  places.delete(slot); // most recently used last
  if (before?.key === key) {
    places.set(slot, before);
    return before;
  }
  before?.stop.abort();
  const stop = new AbortController();
  const place = { key, value: before?.value, error: null, pending: true, stop };
  places.set(slot, place);
  if (places.size > MOST) places.delete(places.keys().next().value);
  const here = () => places.get(slot) === place;
  Promise.resolve()
    .then(() => loader({ signal: stop.signal }))
    .then((value) => here() && Object.assign(place, { value, pending: false }))
    .catch((error) => here() && error.name === "AbortError" ? places.delete(slot) : Promise.reject(error)) // another slot aborted the shared request: retry
    .catch((error) => here() && Object.assign(place, { error, pending: false, value: error.status === 0 ? place.value : undefined }))
    .finally(() => (here() || !places.has(slot)) && changed());
  return place;
}

api.whenStale(() => { // never mix the numbers of two models on one screen
  for (const { stop } of places.values()) stop.abort();
  places.clear();
  changed();
});

/** Reload everything that is shown; old values stay visible meanwhile. */
export function again() {
  for (const place of places.values()) place.key = "";
  changed();
}

const same = (answer) => answer;
/** Responses as resources: GET JSON, POST JSON, an array; `then` transforms each response once. */
export const got = (url, slot = url, then = same) => resource(url, async (how) => then(await api.json("GET", url, undefined, how)), slot);
export const posted = (path, body, slot, then = same) => resource(`${path} ${JSON.stringify(body)}`, async (how) => then(await api.json("POST", `/api/${path}`, body, { ...how, cached: true })), slot);
export const array = (url, slot, then = same) => resource(url, async (how) => then(await api.npy(url, how)), slot);

/** The API path of a model. */
export const home = (name) => `/api/models/${encodeURIComponent(name)}`;

/** Whether anything is still loading. */
export const busy = () => [...places.values()].some(({ pending }) => pending);

/** Retry everything that failed. */
export function retry() {
  for (const [slot, place] of places) if (place.error) places.delete(slot);
  changed();
}

/** Whether a request failed because the server did not respond. */
export function lost() {
  return !api.snapshot && [...places.values()].some((place) => place.error?.status === 0);
}

/** The models of the server: names, and the cards of loaded models. */
export const known = () => got("/api/models");

/** The card of the current model. */
export function card() {
  const models = known();
  const name = state().model || models.value?.[0]?.name;
  if (!name) return models;
  return got(home(name), "card");
}

/** The input of the current model: as typed, or its example. */
export function reading(card) {
  const { text, source } = state();
  return { text: text ?? card.examples.text, source: card.architecture === "encoder-decoder" && card.reads_text ? source ?? card.examples.source : null };
}

let upload = {};
/** Set the uploaded image or audio (base64), which is too large for a URL. */
export function give(more) {
  upload = more;
  changed();
}

/** The upload, if the model reads its kind. */
const fitting = ({ reads_images, reads_audio }) => (reads_images && upload.image ? { image: upload.image } : reads_audio && upload.audio ? { audio: upload.audio } : null);

/** The request fields of the current edits; null without edits, or while a patch has no source text. */
export function changes() {
  const { edits, patch_from } = state();
  if (!edits.length || (!patch_from && edits.some(({ op }) => op === "patch"))) return null;
  return patch_from ? { edits, patch_from } : { edits };
}

/** The request for a run of the current text, or of another one; `more` may contain edits. */
export function asked(card, { text, ...more } = {}) {
  const reads = reading(card);
  const body = { model: card.name };
  if ((text ?? reads.text) !== null) body.text = text ?? reads.text; // without a text, an encoder-decoder generates its own target
  if (reads.source !== null) body.source = reads.source;
  return { ...body, ...fitting(card), ...more };
}

/** A run as a resource. */
export function run(body, slot) {
  return posted("runs", body, slot);
}

/** { run, edited, error, pending }: the run of the current text, without and with the edits. */
export function current(card) {
  if ((card.reads_images || card.reads_audio) && !fitting(card)) {
    return { run: null, edited: null, pending: false, error: null, empty: true };
  }
  const plain = run(asked(card), `the run of ${card.name}`); // a slot per model: no view gets the run of another model
  const other = changes() ? run(asked(card, changes()), `the edited run of ${card.name}`) : null;
  const fits = other && !other.error && plain.value && other.value?.tokens.length === plain.value.tokens.length;
  return {
    run: plain.value ?? null,
    edited: fits ? other.value : null,
    pending: plain.pending || !!other?.pending,
    error: plain.error ?? other?.error ?? null,
  };
}
