// Things that arrive: the run of the current text, and whatever a view asks for. What was there stays until then.

import * as api from "ch/api";
import { changed, state } from "ch/state";

const places = new Map(); // slot -> { key, value, error, pending, stop }
const MOST = 160;

/**
 * { value, error, pending } of something that is loaded once for its key, and drawn when it arrives.
 * With a `slot`, the value before it stays visible (pending is true) while the next one is on its way.
 */
export function resource(key, loader, slot = key) {
  const before = places.get(slot);
  places.delete(slot); // what was looked at last stands last
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
    .catch((error) => here() && error.name === "AbortError" ? places.delete(slot) : Promise.reject(error)) // another slot gave up what both wanted: ask anew
    .catch((error) => here() && Object.assign(place, { error, pending: false, value: error.status === 0 ? place.value : undefined }))
    .finally(() => (here() || !places.has(slot)) && changed());
  return place;
}

api.whenStale(() => { // two models' numbers never stand on one screen
  for (const { stop } of places.values()) stop.abort();
  places.clear();
  changed();
});

/** All that is shown is asked for again, and stays until then. */
export function again() {
  for (const place of places.values()) place.key = "";
  changed();
}

const same = (answer) => answer;
/** Answers as resources: JSON that is got, JSON to a question, an array; `then` makes something of it, once. */
export const got = (url, slot = url, then = same) => resource(url, async (how) => then(await api.json("GET", url, undefined, how)), slot);
export const posted = (path, body, slot, then = same) => resource(`${path} ${JSON.stringify(body)}`, async (how) => then(await api.json("POST", `/api/${path}`, body, { ...how, cached: true })), slot);
export const array = (url, slot, then = same) => resource(url, async (how) => then(await api.npy(url, how)), slot);

/** Where questions about a model go. */
export const home = (name) => `/api/models/${encodeURIComponent(name)}`;

/** Whether anything is still on its way. */
export const busy = () => [...places.values()].some(({ pending }) => pending);

/** What could not be had is asked for again when it is next drawn. */
export function retry() {
  for (const [slot, place] of places) if (place.error) places.delete(slot);
  changed();
}

/** Whether something failed because nobody answered. */
export function lost() {
  return !api.snapshot && [...places.values()].some((place) => place.error?.status === 0);
}

/** The models that are here: names, and the cards of those that are loaded. */
export const known = () => got("/api/models");

/** The card of the current model. */
export function card() {
  const models = known();
  const name = state().model || models.value?.[0]?.name;
  if (!name) return models;
  return got(home(name), "card");
}

/** What the current model reads: as typed, or the example that suits it. */
export function reading(card) {
  const { text, source } = state();
  return { text: text ?? card.examples.text, source: card.kind === "encoder-decoder" && card.text ? source ?? card.examples.source : null };
}

let upload = {};
/** A picture or a sound in base64, which is read beside the text from now on; too large for a URL. */
export function give(more) {
  upload = more;
  changed();
}

/** Of what was given, that which a model reads: it may have been given to another. */
const fitting = ({ pictures, sound }) => (pictures && upload.picture ? { picture: upload.picture } : sound && upload.sound ? { sound: upload.sound } : null);

/** What a question about the edited model says besides; null without edits, or while a swap waits for its other text. */
export function changes() {
  const { edits, against } = state();
  if (!edits.length || (!against && edits.some(({ op }) => op === "swap"))) return null;
  return against ? { edits, against } : { edits };
}

/** The request of a run of the current text, or of another one; `more` may be edits. */
export function asked(card, { text, ...more } = {}) {
  const reads = reading(card);
  const body = { model: card.name };
  if ((text ?? reads.text) !== null) body.text = text ?? reads.text; // without one, an encoder-decoder writes its own
  if (reads.source !== null) body.source = reads.source;
  return { ...body, ...fitting(card), ...more };
}

/** A run as a resource. */
export function run(body, slot) {
  return posted("runs", body, slot);
}

/** { run, edited, error, pending }: the run of the current text, and the same with the edits, if there are any. */
export function current(card) {
  if ((card.pictures || card.sound) && !fitting(card)) {
    return { run: null, edited: null, pending: false, error: null, empty: true };
  }
  const plain = run(asked(card), `the run of ${card.name}`); // no view gets a run of another model
  const other = changes() ? run(asked(card, changes()), `the edited run of ${card.name}`) : null;
  const fits = other && !other.error && plain.value && other.value?.tokens.length === plain.value.tokens.length;
  return {
    run: plain.value ?? null,
    edited: fits ? other.value : null,
    pending: plain.pending || !!other?.pending,
    error: plain.error ?? other?.error ?? null,
  };
}
