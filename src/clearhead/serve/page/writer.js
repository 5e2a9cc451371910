// Writing on, token by token: what was written is in the URL; what could have come instead is kept beside it.

import * as api from "ch/api";
import { changes } from "ch/run";
import { changed, defaults, set, state } from "ch/state";

defaults({ written: { after: "", ids: [] } }, { inText: true });
const PACE = 180; // milliseconds between two tokens, so that eyes can follow
const ALTERNATIVES = 8;
const MOST = 200; // tokens of one Play
const MANY = 5000; // places whose alternatives are kept

let player = null; // { stop } while it writes
let trouble = "";
const kept = new Map(); // what came before -> { id, text, logprob, top }

export const playing = () => !!player;
export const sentence = () => trouble;

/** The tokens written after the prompt of a run. */
export const written = (run) => (run && state().written?.after === run.id && Array.isArray(state().written.ids) ? state().written.ids : []);

/** Write other tokens there. */
export function rewrite(run, ids, { replace = false } = {}) {
  trouble = "";
  set({ written: { after: ids.length ? run.id : "", ids } }, { replace });
}

/** What came at a place and what could have: { id, logprob, top: [[id, text, logprob] …] }, if anyone has asked yet. */
export const alternatives = (run, ids, at) => kept.get(before(run, ids.slice(0, at)));

/** Remember that, where it is known already. */
export function remember(run, ids, token) {
  keep(before(run, ids), token);
}

/** Ask for the alternatives of all tokens that are written; for a page that was opened by its link. */
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

/** Whether the text has come to its end, by the model's own token. */
export const atEnd = (run, stop) => stop.includes(written(run).at(-1));

/** Go on by so many tokens; one is a step, more are played. */
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
  const room = card.context - run.tokens.length - start.length;
  const stream = api.events("/api/generate", asked(card, run, start, start.length + Math.min(many, room)), arrived, me.stop.signal)
    .catch((error) => error.name === "AbortError" || (trouble = error.message))
    .finally(() => (over = true));
  while (player === me && !(over && !waiting.length)) {
    if (!waiting.length) await Promise.race([stream, later(20)]);
    else {
      const token = waiting.shift(), ids = written(run);
      if (place() !== here) return halt(); // another text, model or view
      if (settings() !== how) return void write(card, run, many); // a slider moved: go on from here with it
      keep(before(run, ids), token);
      rewrite(run, [...ids, token.id], { replace: many > 1 && ids.length > start.length });
      if (many > 1) await later(PACE);
    }
  }
  if (player === me) halt();
}

/** Stop within the token under way; what was not shown yet is dropped. */
export function halt() {
  player?.stop.abort();
  player = null;
  changed();
}

const place = () => JSON.stringify([state().view, state().model, state().text]);
const settings = () => JSON.stringify([state().temp, state().topk, state().topp, state().seed, changes()]);
const before = (run, ids) => `${run.id} ${JSON.stringify(changes())} ${ids}`;
function keep(name, token) {
  kept.set(name, token);
  if (kept.size > MANY) kept.delete(kept.keys().next().value);
}

const later = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

function asked(card, run, forced, most) {
  const { temp, topk, topp, seed } = state();
  const how = { temperature: temp, top_k: topk, top_p: topp, seed, top: ALTERNATIVES };
  return { model: card.name, ids: run.tokens.map((token) => token.id), forced, max_tokens: most, ...how, ...changes() };
}
