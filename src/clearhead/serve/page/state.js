// The selection: one frozen object, stored in the URL hash, so that links reproduce it and Back undoes a step.

let known = {
  model: "", text: null, source: null, view: "machine", part: "attention",
  layer: 0, head: 0, query: -1, key: -1, step: 0, cell: "",
  temperature: 1, top_k: 0, top_p: 1, seed: 0, edits: [], patch_from: "", pins: [],
};
const REAL = ["temperature", "top_p", "length_penalty"]; // all other numbers are non-negative integers (or their default)
const OPS = ["ablate", "mean_ablate", "scale", "patch"];
const OF_MODEL = ["text", "source", "edits", "patch_from", "cell", "pins", "layer", "head", "part"]; // reset when the model changes
const ofText = new Set(["query", "key", "step"]); // reset when the text changes
let now = null;
const listeners = new Set();

/** The frozen state with a value for every key. `text` is null until the user types; then the model's example is shown. */
export function state() {
  return (now ??= read(location.hash));
}

/**
 * Register the state keys of a view with their defaults, at import time.
 * Keys that belong to a text (`inText`) are reset with it.
 */
export function defaults(more, { inText = false } = {}) {
  const taken = Object.keys(more).find((key) => key in known);
  if (taken) throw new Error(`two views define the state key ${taken}`);
  known = { ...more, ...known };
  if (inText) Object.keys(more).forEach((key) => ofText.add(key));
  now = null;
}

/** A copy of a state with some keys changed; a new model or text resets what was selected in the previous one. */
export function moved(from, patch) {
  const other = (...keys) => keys.some((key) => key in patch && patch[key] !== from[key]);
  const model = other("model"), gone = [...(model ? OF_MODEL : []), ...(model || other("text", "source") ? ofText : [])];
  return { ...from, ...Object.fromEntries(gone.map((key) => [key, known[key]])), ...patch };
}

/** Change the state. Selections add a history entry; sliders and typing `replace` the last one. */
export function set(patch, { replace = false } = {}) {
  const next = Object.freeze(moved(state(), patch));
  if (written(next) === written(state())) return;
  if (!replace) put(); // flush a pending slider value into the previous entry
  now = next;
  if (!replace) put("pushState");
  else if (Date.now() - last > PACE) put();
  else timer ||= setTimeout(put, PACE);
  changed();
}

const PACE = 160; // milliseconds; browsers limit how often the address may change
let timer = 0;
let last = 0;
function put(how = "replaceState") {
  clearTimeout(timer);
  timer = 0;
  last = Date.now();
  const hash = written(state());
  if (hash !== location.hash) history[how](null, "", hash || location.pathname + location.search);
}

/** Subscribe to state changes and to arriving data. */
export function on(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Notify listeners that something other than the state changed. */
export function changed() {
  for (const listener of listeners) listener(state());
}

/** The full URL of the current state. */
export function link() {
  return location.href.split("#")[0] + written(state());
}

function read(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const found = {};
  for (const [key, value] of Object.entries(known)) found[key] = given.has(key) ? typed(given.get(key), value, REAL.includes(key)) : value;
  found.edits = found.edits.filter((edit) => typeof edit?.name === "string" && OPS.includes(edit.op)); // links are untrusted input
  found.pins = found.pins.filter((pin) => typeof pin === "string");
  return Object.freeze(found);
}

function typed(text, like, real) {
  if (typeof like === "number") return !Number.isFinite(Number(text)) ? like : real ? Number(text) : Math.max(Math.min(0, like), Math.trunc(Number(text)));
  if (typeof like === "boolean") return text === "true";
  if (like === null || typeof like === "string") return text;
  try {
    const value = JSON.parse(text);
    return Array.isArray(value) === Array.isArray(like) ? value : like;
  } catch {
    return like;
  }
}

function written(values) {
  const pairs = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) {
    const text = typeof value === "object" && value !== null ? JSON.stringify(value) : value;
    const usual = typeof known[key] === "object" && known[key] !== null ? JSON.stringify(known[key]) : known[key];
    if (text !== usual && text !== null && text !== undefined) pairs.set(key, text);
  }
  const hash = pairs.toString();
  return hash ? `#${hash}` : "";
}

window.addEventListener("popstate", () => {
  now = null;
  changed();
});
window.clearhead = { get state() { return state(); }, set };
