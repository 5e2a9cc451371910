// The selection: one frozen object, stored in the URL hash, so that links reproduce it and Back undoes
// a step.

let defaultValues = {
	model: "",
	text: null,
	source: null,
	view: "machine",
	part: "attention",
	layer: 0,
	head: 0,
	query: -1,
	key: -1,
	step: 0,
	cell: "",
	temperature: 1,
	top_k: 0,
	top_p: 1,
	seed: 0,
	edits: [],
	patch_from: "",
	pins: [],
};
const FLOAT_KEYS = [
	"temperature",
	"top_p",
	"length_penalty",
	"typed_temperature",
	"lookup_sharpness",
]; // other numbers are natural or their default
const EDIT_OPS = ["ablate", "mean_ablate", "scale", "patch"];
// Keys that are reset when the model changes, and when the text changes:
const modelKeys = [
	"text",
	"source",
	"edits",
	"patch_from",
	"cell",
	"pins",
	"layer",
	"head",
	"part",
];
const textKeys = new Set(["query", "key", "step"]);
const HISTORY_INTERVAL = 160; // milliseconds; browsers limit how often the address may change

/** @type {Readonly<State> | null} */
let currentState = null;
let historyTimer = 0;
let lastWrite = 0;
const listeners = new Set();

/**
 * The frozen state with a value for every key. `text` is null until the user types; then the model's
 * example is shown.
 */
export function state() {
	return (currentState ??= parseHash(location.hash));
}

/**
 * Register the state keys of a view with their defaults, at import time. Keys that belong to a text
 * (`inText`) are reset with it.
 */
export function registerDefaults(values, { inText = false } = {}) {
	const duplicate = Object.keys(values).find((key) => key in defaultValues);
	if (duplicate) throw new Error(`two views define the state key ${duplicate}`);
	defaultValues = { ...values, ...defaultValues };
	if (inText) for (const key of Object.keys(values)) textKeys.add(key);
	currentState = null;
}

/**
 * A copy of a state with some keys changed; a new model or text resets what was selected in the
 * previous one.
 * @param {State} from @param {Partial<State>} patch @returns {State}
 */
export function withChanges(from, patch) {
	const isChanged = (key) => key in patch && patch[key] !== from[key];
	const keys = [];
	if (isChanged("model")) keys.push(...modelKeys);
	if (["model", "text", "source"].some(isChanged)) keys.push(...textKeys);
	const defaults = Object.fromEntries(keys.map((key) => [key, defaultValues[key]]));
	return { ...from, ...defaults, ...patch };
}

/**
 * Change the state. Selections add a history entry; sliders and typing `replace` the last one.
 * @type {SetState}
 */
export function set(patch, { replace = false } = {}) {
	const next = Object.freeze(withChanges(state(), patch));
	if (formatHash(next) === formatHash(state())) return;
	if (!replace) writeHistory(); // flush a pending slider value into the previous entry
	currentState = next;
	if (!replace) writeHistory("pushState");
	else if (Date.now() - lastWrite > HISTORY_INTERVAL) writeHistory();
	else historyTimer ||= window.setTimeout(writeHistory, HISTORY_INTERVAL);
	notify();
}

function writeHistory(method = "replaceState") {
	clearTimeout(historyTimer);
	historyTimer = 0;
	lastWrite = Date.now();
	const hash = formatHash(state());
	if (hash === location.hash) return;
	history[method](null, "", hash || location.pathname + location.search);
}

/** Subscribe to state changes and to arriving data; returns the function that unsubscribes. */
export function subscribe(listener) {
	listeners.add(listener);
	return () => listeners.delete(listener);
}

/** Notify listeners that something other than the state changed. */
export function notify() {
	for (const listener of listeners) listener(state());
}

/** The full URL of the current state. */
export function stateUrl() {
	return location.href.split("#")[0] + formatHash(state());
}

/** @returns {Readonly<State>} */
function parseHash(hash) {
	const params = new URLSearchParams(hash.replace(/^#/, ""));
	const values = /** @type {State} */ ({ ...defaultValues });
	for (const [key, value] of Object.entries(defaultValues))
		if (params.has(key)) values[key] = parseValue(params.get(key), value, FLOAT_KEYS.includes(key));
	const isEdit = (edit) => typeof edit?.name === "string" && EDIT_OPS.includes(edit.op);
	values.edits = values.edits.filter(isEdit); // links are untrusted input
	values.pins = values.pins.filter((pin) => typeof pin === "string");
	return Object.freeze(values);
}

/** Parse a value to the type of its default. */
function parseValue(text, defaultValue, isFloat) {
	if (typeof defaultValue === "number") {
		const number = Number(text);
		if (!Number.isFinite(number)) return defaultValue;
		return isFloat ? number : Math.max(Math.min(0, defaultValue), Math.trunc(number));
	}
	if (typeof defaultValue === "boolean") return text === "true";
	if (defaultValue === null || typeof defaultValue === "string") return text;
	try {
		const value = JSON.parse(text);
		return Array.isArray(value) === Array.isArray(defaultValue) ? value : defaultValue;
	} catch {
		return defaultValue;
	}
}

function formatHash(values) {
	const format = (value) =>
		typeof value === "object" && value !== null ? JSON.stringify(value) : value;
	const params = new URLSearchParams();
	for (const [key, value] of Object.entries(values)) {
		const text = format(value);
		if (text !== format(defaultValues[key]) && text !== null && text !== undefined)
			params.set(key, text);
	}
	const hash = params.toString();
	return hash ? `#${hash}` : "";
}

window.addEventListener("popstate", () => {
	currentState = null;
	notify();
});
window.clearhead = {
	get state() {
		return state();
	},
	set,
};
