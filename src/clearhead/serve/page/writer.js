// Token-by-token generation. Generated ids are in the URL; their alternatives are cached here.

import * as api from "ch/api";
import { changes } from "ch/run";
import { changed, defaults, set, state } from "ch/state";

defaults({ generated: { after: "", ids: [] } }, { inText: true });
const PACE = 180; // milliseconds between two tokens
const ALTERNATIVES = 8;
const MOST = 200; // tokens of one Play
const MANY = 5000; // positions whose alternatives are cached

let player = null; // { stop } while generating
let trouble = "";
const kept = new Map(); // prefix -> { id, text, logprob, top }

export const playing = () => !!player;
export const sentence = () => trouble;

/** The tokens generated after the prompt of a run. */
export const written = (run) => (run && state().generated?.after === run.id && Array.isArray(state().generated.ids) ? state().generated.ids : []);

/** Replace the generated tokens. */
export function rewrite(run, ids, { replace = false } = {}) {
  trouble = "";
  set({ generated: { after: ids.length ? run.id : "", ids } }, { replace });
}

/** The sampled token and its alternatives: { id, logprob, top: [[id, text, logprob] …] }, if cached. */
export const alternatives = (run, ids, at) => kept.get(before(run, ids.slice(0, at)));

/** Cache the alternatives of a token. */
export function remember(run, ids, token) {
  keep(before(run, ids), token);
}

/** Fetch the alternatives of all generated tokens, for a page opened from a link. */
export async function recall(card, run, { signal }) {
  const ids = written(run);
  let text = "";
  await api.events("/api/generate", asked(card, run, ids, ids.length), (event, data) => {
    if (event === "token") keep(before(run, ids.slice(0, data.index)), data);
    if (event === "done") text = data.text;
    if (event === "error") throw new api.Problem(data.message, 400);
  }, signal);
  return { text };
}

/** Whether the text ends with an end token. */
export const atEnd = (run, stop) => stop.includes(written(run).at(-1));

/** Generate up to `many` tokens; one is a step, more are played. */
export async function write(card, run, many = MOST) {
  halt();
  const start = written(run), how = settings(), here = place();
  const me = (player = { stop: new AbortController() });
  const waiting = [];
  let over = false;
  trouble = "";
  changed();
  const arrived = (event, data) => {
    if (event === "token" && data.index >= start.length) waiting.push(data);
    if (event === "error") throw new api.Problem(data.message, 400);
  };
  const room = card.context_length - run.tokens.length - start.length;
  const stream = api.events("/api/generate", asked(card, run, start, start.length + Math.min(many, room)), arrived, me.stop.signal)
    .catch((error) => error.name === "AbortError" || (trouble = error.message))
    .finally(() => (over = true));
  while (player === me && !(over && !waiting.length)) {
    if (!waiting.length) await Promise.race([stream, later(20)]);
    else {
      const token = waiting.shift(), ids = written(run);
      if (place() !== here) return halt(); // text, model or view changed
      if (settings() !== how) return void write(card, run, many); // a slider moved: continue with the new settings
      keep(before(run, ids), token);
      rewrite(run, [...ids, token.id], { replace: many > 1 && ids.length > start.length });
      if (many > 1) await later(PACE);
    }
  }
  if (player === me) halt();
}

/** Stop generating; tokens not shown yet are dropped. */
export function halt() {
  player?.stop.abort();
  player = null;
  changed();
}

const place = () => JSON.stringify([state().view, state().model, state().text]);
const settings = () => JSON.stringify([state().temperature, state().top_k, state().top_p, state().seed, changes()]);
const before = (run, ids) => `${run.id} ${JSON.stringify(changes())} ${ids}`;
function keep(name, token) {
  kept.set(name, token);
  if (kept.size > MANY) kept.delete(kept.keys().next().value);
}

const later = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

function asked(card, run, forced, most) {
  const { temperature, top_k, top_p, seed } = state();
  const how = { temperature, top_k, top_p, seed, logprobs: ALTERNATIVES };
  return { model: card.name, ids: run.tokens.map((token) => token.id), forced_tokens: forced, max_tokens: most, ...how, ...changes() };
}
