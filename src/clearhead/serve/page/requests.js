// What the page loads: resources by slot, the current model, its input and its runs; and how a
// resource is rendered.

import { html, nothing } from "lit-html";
import * as api from "ch/api";
import { notify, state } from "ch/state";

const MAX_SLOTS = 160;
/** @type {Map<string, Resource>} */
const slots = new Map();

/**
 * Load something once for its key and redraw when it arrives. The previous value of the same `slot`
 * stays visible (with `pending`) while the next one loads.
 * @type {<T>(key: string, loader: Loader<T>, slot?: string) => Resource<T>}
 */
export function resource(key, loader, slot = key) {
	const previous = slots.get(slot);
	slots.delete(slot); // most recently used last
	if (previous?.key === key) {
		slots.set(slot, previous);
		return previous;
	}
	previous?.stop.abort();
	const stop = new AbortController();
	const entry = { key, value: previous?.value, error: null, pending: true, stop };
	slots.set(slot, entry);
	if (slots.size > MAX_SLOTS) slots.delete(slots.keys().next().value);
	const isCurrent = () => slots.get(slot) === entry;
	const fail = (error) => {
		if (!isCurrent()) return;
		if (error.name === "AbortError") {
			slots.delete(slot); // another slot aborted the shared request: retry
			return;
		}
		const value = error.status === 0 ? entry.value : undefined;
		Object.assign(entry, { error, pending: false, value });
	};
	Promise.resolve()
		.then(() => loader({ signal: stop.signal }))
		.then((value) => isCurrent() && Object.assign(entry, { value, pending: false }))
		.catch(fail)
		.finally(() => (isCurrent() || !slots.has(slot)) && notify());
	return entry;
}

api.whenStale(() => {
	// never mix the numbers of two models on one screen
	for (const { stop } of slots.values()) stop.abort();
	slots.clear();
	notify();
});

/** Reload everything that is shown; old values stay visible meanwhile. */
export function reloadAll() {
	for (const entry of slots.values()) entry.key = "";
	notify();
}

/** Load a GET resource again; its old value stays visible meanwhile. */
export function invalidate(url) {
	api.forget("GET", url);
	if (slots.has(url)) slots.get(url).key = "";
	notify();
}

const identity = (value) => value;

/** GET JSON as a resource; `convert` transforms the response once. @returns {Resource} */
export const getJson = (url, slot = url, convert = identity) =>
	resource(url, async (options) => convert(await api.json("GET", url, undefined, options)), slot);

/** POST JSON as a resource. @returns {Resource} */
export const postJson = (path, body, slot, convert = identity) =>
	resource(
		`${path} ${JSON.stringify(body)}`,
		async (options) =>
			convert(await api.json("POST", `/api/${path}`, body, { ...options, cached: true })),
		slot,
	);

/** GET an array as a resource. @returns {Resource} */
export const getArray = (url, slot, convert = identity) =>
	resource(url, async (options) => convert(await api.npy(url, options)), slot);

/** The API path of a model. */
export const modelUrl = (name) => `/api/models/${encodeURIComponent(name)}`;

/** Whether anything is still loading. */
export const isLoading = () => [...slots.values()].some(({ pending }) => pending);

/** Retry everything that failed. */
export function retryFailed() {
	for (const [slot, { error }] of slots) if (error) slots.delete(slot);
	notify();
}

/** Whether a request failed because the server did not respond. */
export function isDisconnected() {
	return !api.snapshot && [...slots.values()].some(({ error }) => error?.status === 0);
}

/** The models of the server: names, and the cards of loaded models. */
export const serverModels = () => getJson("/api/models");

/** The card of the current model. @returns {Resource<Card>} */
export function currentCard() {
	const models = serverModels();
	const name = state().model || models.value?.[0]?.name;
	return name ? getJson(modelUrl(name), "card") : models;
}

/** The input texts of the current model: as typed, or its example. @param {Card} card */
export function currentInput(card) {
	const { text, source } = state();
	const hasSource = card.architecture === "encoder-decoder" && card.reads_text;
	return {
		text: text ?? card.examples.text,
		source: hasSource ? (source ?? card.examples.source) : null,
	};
}

/** @type {{ image?: string, audio?: string }} */
let upload = {};

/** Set the uploaded image or audio (base64), which is too large for a URL. */
export function setUpload(input) {
	upload = input;
	notify();
}

/** The upload, if the model reads its kind. @param {Card} card */
function matchingUpload({ reads_images, reads_audio }) {
	if (reads_images && upload.image) return { image: upload.image };
	return reads_audio && upload.audio ? { audio: upload.audio } : null;
}

/**
 * The request fields of the current edits; null without edits, or while a patch has no source text.
 * @returns {EditFields | null}
 */
export function editFields() {
	const { edits, patch_from } = state();
	const hasPatch = edits.some(({ op }) => op === "patch");
	if (!edits.length || (hasPatch && !patch_from)) return null;
	return patch_from ? { edits, patch_from } : { edits };
}

/**
 * The request for a run of the current text, or of another one; `more` may contain edits.
 * @param {Card} card @param {{ text?: string } & Partial<EditFields>} [more] @returns {any}
 */
export function runRequest(card, { text, ...more } = {}) {
	const input = currentInput(card);
	/** @type {any} */
	const body = { model: card.name };
	// Without a text, an encoder-decoder generates its own target.
	if ((text ?? input.text) !== null) body.text = text ?? input.text;
	if (input.source !== null) body.source = input.source;
	return { ...body, ...matchingUpload(card), ...more };
}

/** A run as a resource. @returns {Resource<Run>} */
export const getRun = (body, slot) => postJson("runs", body, slot);

/** The run of the current text, without and with the edits. @param {Card} card */
export function currentRuns(card) {
	if ((card.reads_images || card.reads_audio) && !matchingUpload(card))
		return { run: null, edited: null, pending: false, error: null, isEmpty: true };
	// A slot per model: no view gets the run of another model.
	const plain = getRun(runRequest(card), `run of ${card.name}`);
	const edits = editFields();
	const edited = edits ? getRun(runRequest(card, edits), `edited run of ${card.name}`) : null;
	const isMatching =
		!edited?.error && plain.value && edited?.value?.tokens.length === plain.value.tokens.length;
	return {
		run: plain.value ?? null,
		edited: isMatching ? edited.value : null,
		pending: plain.pending || !!edited?.pending,
		error: plain.error ?? edited?.error ?? null,
		isEmpty: false,
	};
}

/** Whether to show an error; a lost connection is reported once by the page. */
export const isReportable = (error) => !!error && (error.status !== 0 || !!api.snapshot);

/**
 * Render a resource: its value (dimmed while reloading), its error, or a waiting message.
 * @param {Resource} resource @param {(value: any) => unknown} template
 */
export function renderResource(resource, template, waiting = "Running the model…") {
	if (isReportable(resource.error)) return renderError(resource);
	if (resource.value === undefined || resource.value === null)
		return html`<p class="hint" role="status">${waiting}</p>`;
	return html`<div
		class="${resource.pending ? "stale" : ""}"
		aria-busy=${resource.pending ? "true" : "false"}>
		${template(resource.value)}
	</div>`;
}

/** The error of a resource, if any. @param {Resource | null} resource */
export const renderError = (resource) =>
	resource?.error ? html`<p class="problem" role="status">${resource.error.message}</p>` : nothing;

/** Message for results that are not numbers. */
export const nanMessage = () =>
	html`<p class="problem" role="status">Not a number: the weights of the model may be corrupt.</p>`;

const memos = new WeakMap(); // source -> key -> value

/**
 * Memoize `make` for a source object and a key: elements redraw only when a property is a new object.
 * @type {<T>(source: object, key: any, make: () => T) => T}
 */
export function memoize(source, key, make) {
	if (!memos.has(source)) memos.set(source, new Map());
	const values = memos.get(source);
	if (!values.has(key)) values.set(key, make());
	return values.get(key);
}

/** Decode a lens view for <ch-tensor-view>. @param {LensView} view @returns {LensView} */
export const decodedView = (view) => memoize(view, "decoded", () => api.decodeView(view));

/** The same for <ch-heatmap>. @param {LensView} view @returns {Matrix} */
export const viewMatrix = (view) =>
	memoize(view, "matrix", () => ({ shape: view.shape, data: decodedView(view).values }));

/** A small matrix with its numbers written in the cells. @param {LensView} view */
export function viewWithNumbers(view) {
	const decoded = decodedView(view);
	const [rows, cols] = decoded.shape;
	if (rows > 12 || cols > 12) return decoded;
	const text = (row, col) => decoded.values[row * cols + col].toFixed(2).replace("-", "−");
	const line = (row) => Array.from({ length: cols }, (_, col) => text(row, col));
	const words = () => Array.from({ length: rows }, (_, row) => line(row));
	return memoize(view, "numbers", () => ({ ...decoded, words: words() }));
}
