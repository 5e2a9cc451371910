// The one selection object. It is the URL's hash, so that a link shows what its sender saw; Back undoes a selection.

let known = {
  model: "", text: null, source: null, view: "machine", part: "attention",
  layer: 0, head: 0, query: -1, key: -1, step: 0, cell: "",
  temp: 1, topk: 0, topp: 1, seed: 0, edits: [], against: "", pins: [],
};
const REAL = ["temp", "topp", "penalty"]; // all other numbers are whole, and not below 0 or their default
const OPS = ["ablate", "mean", "scale", "swap"];
const OF_MODEL = ["text", "source", "edits", "against", "cell", "pins", "layer", "head", "part"]; // which another model begins anew with
const ofText = new Set(["query", "key", "step"]); // and another text
let now = null;
const listeners = new Set();

/** The state: frozen; every key has a value. `text` is null until someone types: then the model's example is read. */
export function state() {
  return (now ??= read(location.hash));
}

/**
 * Keys that a view needs, with their defaults; to be called when the module is loaded.
 * What is chosen in a text (`inText`) is forgotten with it.
 */
export function defaults(more, { inText = false } = {}) {
  const taken = Object.keys(more).find((key) => key in known);
  if (taken) throw new Error(`two views want the key ${taken} of the state`);
  known = { ...more, ...known };
  if (inText) Object.keys(more).forEach((key) => ofText.add(key));
  now = null;
}

/** A state with some keys changed: another model or text takes with it what was chosen in the one before. */
export function moved(from, patch) {
  const other = (...keys) => keys.some((key) => key in patch && patch[key] !== from[key]);
  const model = other("model"), gone = [...(model ? OF_MODEL : []), ...(model || other("text", "source") ? ofText : [])];
  return { ...from, ...Object.fromEntries(gone.map((key) => [key, known[key]])), ...patch };
}

/** A new state. Selections become steps of the history; sliders and typing `replace` the last one. */
export function set(patch, { replace = false } = {}) {
  const next = Object.freeze(moved(state(), patch));
  if (written(next) === written(state())) return;
  if (!replace) put(); // what a slider has left to write belongs to the step before
  now = next;
  if (!replace) put("pushState");
  else if (Date.now() - last > PACE) put();
  else timer ||= setTimeout(put, PACE);
  changed();
}

const PACE = 160; // milliseconds: browsers let the address change only so often
let timer = 0;
let last = 0;
function put(how = "replaceState") {
  clearTimeout(timer);
  timer = 0;
  last = Date.now();
  const hash = written(state());
  if (hash !== location.hash) history[how](null, "", hash || location.pathname + location.search);
}

/** Calls back after each change of the state, and whenever something arrived that was waited for. */
export function on(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Something other than the state is new: draw again. */
export function changed() {
  for (const listener of listeners) listener(state());
}

/** The link to the state, in full. */
export function link() {
  return location.href.split("#")[0] + written(state());
}

function read(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const found = {};
  for (const [key, value] of Object.entries(known)) found[key] = given.has(key) ? typed(given.get(key), value, REAL.includes(key)) : value;
  found.edits = found.edits.filter((edit) => typeof edit?.name === "string" && OPS.includes(edit.op)); // links are written by anyone
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
