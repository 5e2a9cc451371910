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

/** The card of the current model. */
export function card() {
  const models = resource("models", () => api.json("GET", "/api/models"));
  const name = state().model || models.value?.[0]?.name;
  if (!name) return models;
  return resource(`card ${name}`, () => api.json("GET", `/api/models/${encodeURIComponent(name)}`), "card");
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

/** The request of a run of the current text, or of another one. */
export function asked(card, { edits = [], text, against = "" } = {}) {
  const reads = reading(card);
  const body = { model: card.name };
  if ((text ?? reads.text) !== null) body.text = text ?? reads.text; // without one, an encoder-decoder writes its own
  if (reads.source !== null) body.source = reads.source;
  if (edits.length) body.edits = edits;
  if (against) body.against = against;
  return { ...body, ...upload };
}

/** A run as a resource. */
export function run(body, slot) {
  return resource(`run ${JSON.stringify(body)}`, ({ signal }) => api.json("POST", "/api/runs", body, { cached: true, signal }), slot);
}

/** { run, edited, error, pending }: the run of the current text, and the same with the edits, if there are any. */
export function current(card) {
  if ((card.pictures || card.sound) && !upload.picture && !upload.sound) {
    return { run: null, edited: null, pending: false, error: null, empty: true };
  }
  const plain = run(asked(card), `the run of ${card.name}`); // no view gets a run of another model
  const { edits, against } = state();
  const complete = edits.length && (against || edits.every(({ op }) => op !== "swap"));
  const other = complete ? run(asked(card, { edits, against }), `the edited run of ${card.name}`) : null;
  const fits = other && !other.error && plain.value && other.value?.tokens.length === plain.value.tokens.length;
  return {
    run: plain.value ?? null,
    edited: fits ? other.value : null,
    pending: plain.pending || !!other?.pending,
    error: plain.error ?? other?.error ?? null,
  };
}
