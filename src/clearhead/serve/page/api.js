// HTTP client of the page with a response cache. A page saved as one file reads the responses that
// are embedded in it instead.

/** An error message for users with its HTTP status; 0 if the server did not respond. */
export class ApiError extends Error {
	constructor(message, status) {
		super(message);
		this.status = status;
	}
}

const MAX_CACHE_BYTES = 120e6; // bytes of cached responses
const MAX_REQUEST_BYTES = 32e6; // bytes of cached run requests
const cache = new Map(); // "METHOD url body" -> { value: Promise, content, type, bytes }
const runRequests = new Map(); // run id -> { content: the request that recreates it, bytes }
const fingerprints = new Map(); // model name -> fingerprint of its weights when its card was loaded
/** Shown while the server does not respond. */
export const DISCONNECTED =
	"The server is not responding. Restart it; this page reconnects automatically.";
const RUN_URL = /api\/runs\/([0-9a-f]+)\//;
let recordedKeys = null; // keys requested while a page is being saved
const snapshotElement = document.getElementById("snapshot");
export const snapshot = snapshotElement ? JSON.parse(snapshotElement.textContent) : null;
/** Tooltip of controls that a saved page cannot serve. */
export const LIVE_ONLY = "This is a saved page. Run clearhead explore for the live model.";
let pendingCount = 0;
let onSettled = () => {};
let onStale = () => {};

/** Number of pending requests; `whenSettled` is called whenever it drops to zero. */
export const pendingRequests = () => pendingCount;
export const whenSettled = (call) => (onSettled = call);
/** Called when a model was reloaded with other weights; all its cached responses are dropped. */
export const whenStale = (call) => (onStale = call);

/**
 * Fetch JSON. GET requests are cached; so are POST requests with `cached`.
 * @param {string} method @param {string} url @param {any} [body]
 * @param {{ signal?: AbortSignal, cached?: boolean }} [options] @returns {Promise<any>}
 */
export async function json(method, url, body, { signal, cached = method === "GET" } = {}) {
	return request(method, url, body, { signal, cached, type: "json" });
}

/**
 * Fetch a .npy file.
 * @param {string} url @param {{ signal?: AbortSignal }} [options] @returns {Promise<Matrix>}
 */
export async function npy(url, { signal } = {}) {
	return request("GET", url, undefined, { signal, cached: true, type: "npy" });
}

/** Decode the base64 `values` of a serialized view; anything else is returned unchanged. */
export function decodeView(view) {
	if (!view || typeof view.values !== "string") return view;
	return { ...view, values: new Float32Array(fromBase64(view.values)) };
}

/** Server-sent events of a POST: onEvent(name, data) for each, until `done`. */
export async function events(url, body, onEvent, signal) {
	const name = cacheKey("POST", url, body);
	if (snapshot) {
		for (const [event, data] of snapshotEntry(name).content) onEvent(event, data);
		return;
	}
	recordedKeys?.add(name);
	countPending(1);
	const received = [];
	try {
		const response = await fetchResponse("POST", url, body, signal);
		if (!response.ok) throw await toApiError(response);
		await readEvents(response.body, (event, data) => {
			received.push([event, data]);
			onEvent(event, data);
		});
		cacheEntry(name, { type: "events", content: received, bytes: 100 * received.length });
	} finally {
		countPending(-1);
	}
}

/** Start recording which responses are requested. */
export const startRecording = () => (recordedKeys = new Set());

/** The recorded responses and everything cached about their runs, to be saved with the page. */
export async function recordedResponses() {
	const responses = {};
	const keys = recordedKeys;
	const runs = [...keys].map((name) => cache.get(name)?.content?.id).filter(Boolean);
	recordedKeys = null;
	for (const [name, entry] of cache) {
		if (!keys.has(name) && !runs.includes(RUN_URL.exec(name)?.[1])) continue;
		await entry.value?.catch(() => null);
		if (entry.content === undefined) continue;
		const packed =
			entry.type === "npy"
				? { headers: entry.headers, content: toBase64(entry.content) }
				: { content: entry.content };
		responses[name] = { type: entry.type, ...packed };
	}
	return responses;
}

/** The page as one HTML file with a placeholder for its data. */
export async function standalonePage() {
	return (await fetchResponse("GET", "/api/standalone")).text();
}

/** Whether the server responds again, so that failed requests can be retried. */
export async function isAlive() {
	try {
		return (await fetch("api/models", { cache: "no-store" })).ok;
	} catch {
		return false;
	}
}

/** Drop a cached response. */
export const forget = (method, url) => cache.delete(cacheKey(method, url));

function cacheKey(method, url, body = undefined) {
	return `${method} ${url.replace(/^\//, "")}${body === undefined ? "" : ` ${JSON.stringify(body)}`}`;
}

async function request(method, url, body, { signal, cached, type }) {
	const name = cacheKey(method, url, body);
	if (snapshot) return entryValue(snapshotEntry(name));
	recordedKeys?.add(name);
	const known = cache.get(name);
	if (known && cached) {
		cache.delete(name);
		cache.set(name, known); // most recently used last
		return known.value;
	}
	countPending(1);
	/** @type {any} */
	const entry = { type };
	entry.value = send(method, url, body, signal, entry).finally(() => countPending(-1));
	if (cached) {
		cacheEntry(name, entry);
		entry.value.then(
			() => evict(cache, MAX_CACHE_BYTES),
			() => cache.get(name) === entry && cache.delete(name),
		);
	}
	return entry.value;
}

async function send(method, url, body, signal, entry, canRetry = true) {
	const response = await fetchResponse(method, url, body, signal);
	const run = RUN_URL.exec(url);
	if (response.status === 410 && canRetry && run && runRequests.has(run[1])) {
		await fetchResponse("POST", "/api/runs", runRequests.get(run[1]).content, signal);
		return send(method, url, body, signal, entry, false);
	}
	if (!response.ok) throw await toApiError(response);
	if (entry.type === "npy") {
		entry.content = await response.arrayBuffer();
		entry.headers = { pooled: Number(response.headers.get("X-Pooled") ?? 1) };
		entry.bytes = entry.content.byteLength;
	} else {
		const text = await response.text();
		entry.content = JSON.parse(text);
		entry.bytes = 2 * text.length;
		if (method === "POST" && /api\/runs$/.test(url)) {
			const repeatable = { content: body, bytes: JSON.stringify(body).length };
			cacheEntry(entry.content.id, repeatable, runRequests, MAX_REQUEST_BYTES);
		}
		if (entry.content.fingerprint) fingerprints.set(entry.content.name, entry.content.fingerprint);
	}
	return entryValue(entry);
}

/** @param {string} method @param {string} url @param {any} [body] @param {AbortSignal} [signal] */
async function fetchResponse(method, url, body, signal) {
	/** @type {Record<string, string>} */
	const headers = body === undefined ? {} : { "Content-Type": "application/json" };
	const model = body?.model ?? decodeURIComponent(/api\/models\/([^/]+)\/./.exec(url)?.[1] ?? "");
	const fingerprint = fingerprints.get(model);
	if (fingerprint) headers["X-Model-Fingerprint"] = fingerprint; // 410 if the weights changed
	const content = body === undefined ? undefined : JSON.stringify(body);
	const path = url.replace(/^\//, "");
	let response;
	try {
		response = await fetch(path, { method, headers, body: content, signal, cache: "no-store" });
	} catch (error) {
		if (error.name === "AbortError") throw error;
		throw new ApiError(DISCONNECTED, 0);
	}
	if (response.status === 410 && headers["X-Model-Fingerprint"]) clearCache();
	return response;
}

function clearCache() {
	for (const map of [cache, runRequests, fingerprints]) map.clear();
	onStale();
}

async function toApiError(response) {
	let message = `The server responded with status ${response.status}.`;
	try {
		const { error } = await response.json();
		if (typeof error?.message === "string") message = error.message;
	} catch {
		/* no message in the body: show the status */
	}
	const capitalize = (word) => word[0].toUpperCase() + word.slice(1);
	return new ApiError(message.replace(/^[a-z]+(?=[ ,'’])/, capitalize), response.status);
}

function entryValue(entry) {
	return entry.type === "npy" ? { ...parseNpy(entry.content), ...entry.headers } : entry.content;
}

function snapshotEntry(name) {
	const entry = snapshot[name];
	if (!entry) throw new ApiError("This needs the live model. Run clearhead explore.", 0);
	if (entry.type === "npy" && typeof entry.content === "string")
		entry.content = fromBase64(entry.content);
	return entry;
}

/** A .npy file of float32 or bytes. */
export function parseNpy(buffer) {
	const length = new DataView(buffer).getUint16(8, true);
	const header = new TextDecoder().decode(new Uint8Array(buffer, 10, length));
	const shape = [.../\(([^)]*)\)/.exec(header)[1].matchAll(/\d+/g)].map(Number);
	const isBytes = /'descr': '.u1'/.test(header);
	return { shape, data: new (isBytes ? Uint8Array : Float32Array)(buffer, 10 + length) };
}

async function readEvents(stream, onEvent) {
	const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
	let rest = ""; // an event may span several chunks
	for (;;) {
		const { value, done } = await reader.read();
		if (done) return;
		rest += value;
		for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
			const lines = rest.slice(0, end).split("\n");
			const field = (name) =>
				lines
					.filter((line) => line.startsWith(`${name}:`))
					.map((line) => line.slice(name.length + 1).trim());
			const data = field("data").join("\n");
			if (data) onEvent(field("event")[0] ?? "message", JSON.parse(data));
		}
	}
}

function cacheEntry(name, entry, map = cache, maxBytes = MAX_CACHE_BYTES) {
	map.delete(name);
	map.set(name, entry);
	evict(map, maxBytes);
}

/** Evict the least recently used entries until all keys and contents fit into `maxBytes`. */
function evict(map, maxBytes) {
	const size = ([name, entry]) => name.length + (entry.bytes ?? 0);
	let total = 0;
	for (const pair of map) total += size(pair);
	for (const pair of map) {
		if (total <= maxBytes) return;
		if (pair[1].content === undefined) continue; // still loading
		total -= size(pair);
		map.delete(pair[0]);
	}
}

/** @param {string} text @returns {ArrayBuffer} */
const fromBase64 = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;

function toBase64(buffer) {
	const bytes = new Uint8Array(buffer);
	let letters = "";
	for (let i = 0; i < bytes.length; i += 32768)
		letters += String.fromCharCode(...bytes.subarray(i, i + 32768));
	return btoa(letters);
}

function countPending(change) {
	pendingCount += change;
	delete document.body.dataset.ready;
	if (!pendingCount) setTimeout(() => pendingCount || onSettled(), 0);
}
