// HTTP client of the page with a response cache. A page saved as one file answers from its embedded snapshot instead.

/** An error message for users with its HTTP status; 0 if the server did not respond. */
export class Problem extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const MOST = 120e6; // bytes of cached responses
const ASKED = 32e6; // bytes of cached run requests
const kept = new Map(); // "METHOD url body" -> { answer: Promise, content, type, bytes }
const bodies = new Map(); // run id -> { content: the request that recreates it, bytes }
const weights = new Map(); // model name -> fingerprint of its weights when its card was loaded
const RUN = /api\/runs\/([0-9a-f]+)\//;
let used = null; // keys requested while a page is being saved
const stored = document.getElementById("snapshot");
export const snapshot = stored ? JSON.parse(stored.textContent) : null;
/** Tooltip of controls that a saved page cannot serve. */
export const ONLY = "This is a saved page. Run clearhead explore for the live model.";
let waiting = 0;
let settled = () => {};
let stale = () => {};

/** Number of pending requests; `whenSettled` is called whenever it drops to zero. */
export const pending = () => waiting;
export const whenSettled = (call) => (settled = call);
/** Called when a model was reloaded with other weights; all its cached responses are dropped. */
export const whenStale = (call) => (stale = call);

/** Fetch JSON. GET requests are cached; so are POST requests with `cached`. */
export async function json(method, url, body, { signal, cached = method === "GET" } = {}) {
  return ask(method, url, body, { signal, cached, type: "json" });
}

/** Fetch a .npy file: { shape, data, pooled }. */
export async function npy(url, { signal } = {}) {
  return ask("GET", url, undefined, { signal, cached: true, type: "npy" });
}

/** Decode the base64 `values` of a serialized view; anything else is returned unchanged. */
export function decoded(found) {
  if (!found || typeof found.values !== "string") return found;
  const bytes = Uint8Array.from(atob(found.values), (letter) => letter.charCodeAt(0));
  return { ...found, values: new Float32Array(bytes.buffer) };
}

/** Server-sent events of a POST: onEvent(name, data) for each, until `done`. */
export async function events(url, body, onEvent, signal) {
  const name = keyOf("POST", url, body);
  if (snapshot) {
    for (const [event, data] of fromSnapshot(name).content) onEvent(event, data);
    return;
  }
  used?.add(name);
  count(1);
  const seen = [];
  try {
    const response = await fetched("POST", url, body, signal);
    if (!response.ok) throw await problem(response);
    await eachEvent(response.body, (event, data) => {
      seen.push([event, data]);
      onEvent(event, data);
    });
    remember(name, { type: "events", content: seen, bytes: 100 * seen.length });
  } finally {
    count(-1);
  }
}

/** Start recording which responses are requested. */
export const note = () => (used = new Set());

/** The recorded responses and everything cached about their runs, to be saved with the page. */
export async function everything() {
  const found = {}, asked = used, runs = [...asked].map((name) => kept.get(name)?.content?.id).filter(Boolean);
  used = null;
  for (const [name, entry] of kept) {
    if (!asked.has(name) && !runs.includes(RUN.exec(name)?.[1])) continue;
    await entry.answer?.catch(() => null);
    if (entry.content === undefined) continue;
    const packed = entry.type === "npy" ? { headers: entry.headers, content: base64(entry.content) } : { content: entry.content };
    found[name] = { type: entry.type, ...packed };
  }
  return found;
}

/** The page as one HTML file with a placeholder for its data. */
export async function shell() {
  return (await fetched("GET", "/api/standalone")).text();
}

/** Whether the server responds again, so that failed requests can be retried. */
export async function alive() {
  try {
    return (await fetch("api/models", { cache: "no-store" })).ok;
  } catch {
    return false;
  }
}

function keyOf(method, url, body) {
  return `${method} ${url.replace(/^\//, "")}${body === undefined ? "" : ` ${JSON.stringify(body)}`}`;
}

async function ask(method, url, body, { signal, cached, type }) {
  const name = keyOf(method, url, body);
  if (snapshot) return opened(fromSnapshot(name));
  used?.add(name);
  const found = kept.get(name);
  if (found && cached) {
    kept.delete(name);
    kept.set(name, found); // most recently used last
    return found.answer;
  }
  count(1);
  const entry = { type };
  entry.answer = once(method, url, body, signal, entry).finally(() => count(-1));
  if (cached) {
    remember(name, entry);
    entry.answer.then(() => trim(kept, MOST), () => kept.get(name) === entry && kept.delete(name));
  }
  return entry.answer;
}

async function once(method, url, body, signal, entry, again = true) {
  const response = await fetched(method, url, body, signal);
  const run = RUN.exec(url);
  if (response.status === 410 && again && run && bodies.has(run[1])) {
    await fetched("POST", "/api/runs", bodies.get(run[1]).content, signal);
    return once(method, url, body, signal, entry, false);
  }
  if (!response.ok) throw await problem(response);
  if (entry.type === "npy") {
    entry.content = await response.arrayBuffer();
    entry.headers = { pooled: Number(response.headers.get("X-Pooled") ?? 1) };
    entry.bytes = entry.content.byteLength;
  } else {
    const text = await response.text();
    entry.content = JSON.parse(text);
    entry.bytes = 2 * text.length;
    if (method === "POST" && /api\/runs$/.test(url)) remember(entry.content.id, { content: body, bytes: JSON.stringify(body).length }, bodies, ASKED);
    if (entry.content.fingerprint) weights.set(entry.content.name, entry.content.fingerprint);
  }
  return opened(entry);
}

async function fetched(method, url, body, signal) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  const about = body?.model ?? decodeURIComponent(/api\/models\/([^/]+)\/./.exec(url)?.[1] ?? "");
  if (weights.has(about)) headers["X-Model-Fingerprint"] = weights.get(about); // the server responds 410 if they changed
  const sent = body === undefined ? undefined : JSON.stringify(body);
  let response;
  try {
    response = await fetch(url.replace(/^\//, ""), { method, headers, body: sent, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not respond. Restart it; this page reconnects automatically.", 0);
  }
  if (response.status === 410 && headers["X-Model-Fingerprint"]) forget();
  return response;
}

function forget() {
  for (const known of [kept, bodies, weights]) known.clear();
  stale();
}

async function problem(response) {
  let message = `The server responded with status ${response.status}.`;
  try {
    const told = await response.json();
    if (typeof told.error?.message === "string") message = told.error.message;
  } catch { /* no message in the body: show the status */ }
  return new Problem(message.replace(/^[a-z]+(?=[ ,'’])/, (word) => word[0].toUpperCase() + word.slice(1)), response.status);
}

function opened(entry) {
  return entry.type === "npy" ? { ...parsed(entry.content), ...entry.headers } : entry.content;
}

function fromSnapshot(name) {
  const found = snapshot[name];
  if (!found) throw new Problem("This needs the live model. Run clearhead explore.", 0);
  if (found.type === "npy" && typeof found.content === "string") {
    found.content = Uint8Array.from(atob(found.content), (letter) => letter.charCodeAt(0)).buffer;
  }
  return found;
}

/** A .npy file of float32 or bytes. */
export function parsed(buffer) {
  const length = new DataView(buffer).getUint16(8, true);
  const header = new TextDecoder().decode(new Uint8Array(buffer, 10, length));
  const shape = [.../\(([^)]*)\)/.exec(header)[1].matchAll(/\d+/g)].map(Number);
  const bytes = /'descr': '.u1'/.test(header);
  return { shape, data: new (bytes ? Uint8Array : Float32Array)(buffer, 10 + length) };
}

async function eachEvent(stream, onEvent) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = ""; // an event may span several chunks
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
      const lines = rest.slice(0, end).split("\n");
      const name = lines.find((line) => line.startsWith("event:"))?.slice(6).trim() ?? "message";
      const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
      if (data) onEvent(name, JSON.parse(data));
    }
  }
}

function remember(name, entry, known = kept, most = MOST) {
  known.delete(name);
  known.set(name, entry);
  trim(known, most);
}

/** Evict the least recently used entries until all keys and contents fit into `most` bytes. */
function trim(known, most) {
  const size = ([name, entry]) => name.length + (entry.bytes ?? 0);
  let held = 0;
  for (const pair of known) held += size(pair);
  for (const pair of known) {
    if (held <= most) return;
    if (pair[1].content === undefined) continue;
    held -= size(pair);
    known.delete(pair[0]);
  }
}

function base64(buffer) {
  const bytes = new Uint8Array(buffer);
  let letters = "";
  for (let i = 0; i < bytes.length; i += 32768) letters += String.fromCharCode(...bytes.subarray(i, i + 32768));
  return btoa(letters);
}

function count(by) {
  waiting += by;
  delete document.body.dataset.ready;
  if (!waiting) setTimeout(() => waiting || settled(), 0);
}
