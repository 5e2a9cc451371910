// Predict (L5): the last state meets every row of the unembedding; logits, temperature, top-k and top-p, a draw.

import { html, nothing } from "lit-html";
import * as api from "ch/api";
import { slider } from "ch/choose";
import { told } from "ch/colours";
import { distribution, logprob, ranked } from "ch/drawing";
import { meeting } from "ch/meeting";
import { asked as requested, changes, got, home, reading } from "ch/run";
import { broken, count, shown } from "ch/shown";
import { changed, defaults, set as put, state as now } from "ch/state";
import * as writer from "ch/writer";

defaults({ opened: -1 }, { inText: true });
const SHOWN = 16;
const FULL = [0.1, 0.25, 0.5, 1]; // what a full bar may be
let hovered = -1; // the candidate under the pointer
let current = null; // what keys act on

function template(ctx) {
  const { card, run } = ctx;
  current = { card, run };
  if (!run) return html`<p class="hint">There is nothing to go on from yet. Type the beginning of a text above.</p>`;
  const ids = writer.written(run);
  const words = got(`${home(card.name)}/vocabulary`);
  const rules = got(`${home(card.name)}/drawing`);
  if (words.error || rules.error || !words.value || !rules.value) return shown(words.error || !words.value ? words : rules, () => nothing);
  const seen = paced(run, ids);
  const plain = (asking = { run, ids: seen, found: logits(ctx, seen, null, rules.value, "logits") }).found;
  const edited = changes() ? logits(ctx, seen, changes(), rules.value, "edited logits") : null;
  const room = card.context - run.tokens.length - ids.length;
  return html`
    ${text(ctx, ids, words.value, rules.value)}
    ${buttons(ctx, ids, rules.value)}
    ${sliders(ctx)}
    ${room > 0 ? nothing : html`<p class="hint">The context of ${count(card.context)} tokens is full; undo some, or begin anew.</p>`}
    ${room < 0 ? nothing
      : shown(plain, (value) => next(ctx, seen, value, edited, words.value))}`;
}

let asking = null; // the row of logits that was asked for last
/** The text whose next token is shown. While a slow model plays, one row is asked for at a time, and some are left out. */
function paced(run, ids) {
  return writer.playing() && asking?.found.pending && asking.run === run ? asking.ids : ids;
}

/** The logits of the next token as a resource: the run of all that is there, and its last row, sorted once. */
function logits({ card, run, resource }, ids, edits, rules, slot) {
  const banned = ids.length ? rules.never : [...rules.never, ...rules.never_first];
  return resource(`${slot} ${run.id} ${ids} ${JSON.stringify(edits)}`, async ({ signal }) => {
    const body = ids.length ? { model: card.name, ids: [...run.tokens.map((token) => token.id), ...ids], ...edits } : requested(card, edits ?? {});
    const made = !ids.length && !edits ? run : await api.json("POST", "/api/runs", body, { cached: true, signal });
    const row = await api.npy(`/api/runs/${made.id}/logits?at=-1`, { signal });
    return { run: made, ranks: ranked(row.data, { known: rules.known, banned }) };
  }, slot);
}

/** Prompt and what was written; each written token opens what could have come instead. */
function text(ctx, ids, words, rules) {
  const { card, run, state, set } = ctx;
  const missing = ids.length && ids.some((_, i) => !writer.alternatives(run, ids, i)) && !writer.playing();
  const recalled = missing ? ctx.resource(`recall ${run.id} ${ids} ${JSON.stringify(changes())}`, (how) => writer.recall(card, run, how), "recall") : null;
  const open = state.opened < ids.length ? state.opened : -1;
  return html`<div class="so-far" role="group" aria-label="the text">
      <span class="given">${run.tokens.map((token) => token.text).join("")}</span>${ids.map((id, i) => {
        const chosen = writer.alternatives(run, ids, i)?.top?.find(([other]) => other === id);
        return html`<button type="button" class="token new" aria-pressed=${i === open} aria-expanded=${i === open} title=${`written token ${i}${chosen ? `, log-probability ${told(chosen[2])}` : ""}: what could have come instead`}
          @click=${() => set({ opened: i === open ? -1 : i })}>${words[id] ?? id}</button>`;
      })}<span class="caret" aria-hidden="true"></span></div>
    ${open >= 0 ? instead(ctx, ids, open, words, recalled) : nothing}
    ${writer.atEnd(run, rules.stop) ? html`<p class="hint">Here the model has ended its text, by its own token. Undo to go on otherwise.</p>` : nothing}
    ${writer.sentence() ? html`<p class="problem" role="status">${writer.sentence()}</p>` : nothing}`;
}

function instead({ run, set }, ids, at, words, recalled) {
  const found = writer.alternatives(run, ids, at);
  if (!found) return recalled ? shown(recalled, () => nothing) : nothing;
  const top = found.id === ids[at] && !found.top.some(([id]) => id === found.id) ? [...found.top, [found.id, words[found.id], found.logprob]] : found.top;
  return html`<div class="instead" role="group" aria-label=${`alternatives of written token ${at}`}>
    <p class="hint">The likeliest at this place, and the model's own chance of each. Choose one, and the text goes on from it.</p>
    ${top.map(([id, label, value]) => html`<button type="button" aria-pressed=${id === ids[at]} @click=${() => { writer.rewrite(run, [...ids.slice(0, at), id]); set({ opened: -1 }); }}>
      <span class="word">${label}</span> <span class="hint">${value === null ? "0" : percent(Math.exp(value))}</span></button>`)}</div>`;
}

function buttons({ card, run, state, set }, ids, rules) {
  const end = !!api.snapshot || writer.atEnd(run, rules.stop) || run.tokens.length + ids.length >= card.context;
  const hint = (words) => (api.snapshot ? api.ONLY : words);
  return html`<div class="row">
    <button type="button" class="main" ?disabled=${end} @click=${() => writer.write(card, run, 1)} title=${hint("Draw one token (.)")}>Step</button>
    ${writer.playing() ? html`<button type="button" @click=${writer.halt} title="Stop within this token (Space)">Pause</button>`
      : html`<button type="button" ?disabled=${end} @click=${() => writer.write(card, run)} title=${hint("Draw token after token (Space)")}>Play</button>`}
    <button type="button" ?disabled=${!ids.length} @click=${() => { writer.halt(); writer.rewrite(run, ids.slice(0, -1)); }}>Undo</button>
    <button type="button" class="quiet" ?disabled=${!ids.length} @click=${() => { writer.halt(); writer.rewrite(run, []); }}>Begin anew</button>
    <button type="button" class="quiet" ?disabled=${!ids.length} @click=${() => adopt(card, run)} title="All other views then show the longer text">Make it the prompt</button>
    ${changes() ? html`<span class="hint">the edited model draws</span>` : nothing}
    <label>seed <input type="number" min="0" max="4294967295" step="1" .value=${String(state.seed)} @change=${(event) => set({ seed: Math.max(0, Math.floor(Number(event.target.value)) || 0) })}></label></div>`;
}

async function adopt(card, run) {
  writer.halt();
  const { text } = await writer.recall(card, run, {});
  put({ text: reading(card).text + text });
}

function sliders({ state, set }) {
  const slide = (key, label, min, max, step, told, hint) => slider(label, { key, min, max, step, value: state[key], told, hint }, (to) => set({ [key]: to }, { replace: true }));
  return html`<div class="row sliders">
    ${slide("temp", "temperature", 0, 2, 0.05, (v) => (v ? v.toFixed(2) : "0: the likeliest"), "Divides the logits: low is sure, high is bold")}
    ${slide("topk", "top-k", 0, 100, 1, (v) => v || "all", "Only so many of the likeliest")}
    ${slide("topp", "top-p", 0.05, 1, 0.01, (v) => (v < 1 ? v.toFixed(2) : "all"), "Only the likeliest that have this share together")}</div>`;
}

/** The next token: how sure the model is, and the likeliest candidates. */
function next(ctx, ids, { run: made, ranks }, edited, words) {
  const { state, run } = ctx;
  if (!ranks.order.length) return broken();
  const spread = distribution(ranks, state);
  const other = edited?.value && !edited.pending ? distribution(edited.value.ranks, state) : null;
  const otherShare = other ? new Map(Array.from(edited.value.ranks.order.subarray(0, 4096), (id, rank) => [id, rank < other.kept ? other.shares[rank] / other.mass : 0])) : null;
  const force = (id) => {
    writer.halt();
    const from = edited?.value?.ranks ?? ranks, told = (i) => [i, words[i] ?? String(i), logprob(from, i)];
    writer.remember(run, ids, { id, logprob: logprob(from, id), top: Array.from(from.order.subarray(0, 8), told) });
    writer.rewrite(run, [...ids, id]);
  };
  const top = Array.from(ranks.order.subarray(0, SHOWN));
  const best = Math.max(spread.shares[0] / spread.mass, ...(otherShare ? top.map((id) => otherShare.get(id) ?? 0) : [0]));
  const wide = FULL.find((share) => share >= best) ?? 1; // of a bar that fills its place
  let before = 0;
  return html`
    <ch-figure .caption=${"The next token"} .note=${"The bar is the chance to be drawn now, with the temperature, top-k and top-p above; the pale one is what it was before top-k and top-p cut the rest off. Logits and log-probabilities are the model's own, at temperature 1, whatever the sliders say. Click a bar to write that token."}>
      <p class="facts"><span><b data-fact="entropy" data-value=${spread.entropy}>${spread.entropy.toFixed(2)}</b> bits of doubt in what can be drawn: as between ${told(2 ** spread.entropy)} equal tokens</span>
        <span><b data-fact="kept" data-value=${spread.kept}>${count(spread.kept)}</b> of ${count(ranks.order.length)} can be drawn</span>
        <span><b data-fact="mass" data-value=${spread.mass}>${percent(spread.mass)}</b> of the chance before the cut</span></p>
      ${edited?.error ? html`<p class="problem">${edited.error.message}</p>` : nothing}
      <table class="chances"><thead><tr><th>rank</th><th>token</th><th colspan="2">chance now${other ? ", and edited" : ""}<span class="scale"> · a full bar is ${100 * wide} %</span></th><th class="more" title="The chance now of this one and all above it">together</th><th class="more">logit</th><th class="more" title="The model's own, at temperature 1 and with nothing cut off">log-prob</th></tr></thead>
      <tbody @pointerleave=${() => hover(-1, null, ctx)}>${top.map((id, rank) => {
        const share = rank < spread.kept ? spread.shares[rank] / spread.mass : 0;
        before += share;
        const changedTo = otherShare?.get(id) ?? 0;
        return html`<tr class=${rank < spread.kept ? "" : "out"} data-id=${id} @pointerenter=${() => hover(id, made, ctx)}>
          <td class="rank">${rank + 1}</td>
          <th scope="row"><button type="button" class="token" title="write this token" @click=${() => force(id)} @focus=${() => hover(id, made, ctx)}>${words[id] ?? id}</button></th>
          <td class="track ${other ? "two" : ""}" @click=${() => force(id)}><span class="ghost" .style=${`--share:${Math.min(1, spread.shares[rank] / wide)}`}></span><span class="fill" .style=${`--share:${share / wide}`}></span>
            ${other ? html`<span class="edited" .style=${`--share:${changedTo / wide}`}></span>` : nothing}</td>
          <td class="number">${percent(share)}${other ? html`<span class="after">${percent(changedTo)}</span>` : nothing}</td>
          <td class="number more">${percent(Math.min(1, before))}</td><td class="number more">${told(ranks.logits[id], 4)}</td><td class="number more">${told(logprob(ranks, id), 4)}</td></tr>`;
      })}</tbody></table>
      ${other ? movers(ranks, edited.value.ranks, words) : nothing}
    </ch-figure>
    ${meeting(ctx, made, words, ranks, hovered >= 0 && ranks.order.includes(hovered) ? hovered : top[0])}`;
}

/** Which log-probabilities the edits have moved most, among the likeliest of either. */
function movers(plain, edited, words) {
  const ids = [...new Set([...plain.order.subarray(0, 50), ...edited.order.subarray(0, 50)])];
  const moved = ids.map((id) => [id, logprob(edited, id) - logprob(plain, id)]).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, 8);
  return html`<h3 class="movers">What the edits change most, in log-probability</h3>
    <ch-bars .labels=${moved.map(([id]) => words[id] ?? String(id))} .values=${moved.map(([, by]) => by)} .signed=${true} .measure=${"change of log-probability"}></ch-bars>`;
}

/** The candidate under the pointer: its row meets the state below, and the inspector tells how its logit came about. */
function hover(id, run, { inspect }) {
  if (hovered === id) return;
  hovered = id;
  inspect(run && { run: run.id, name: "logits", index: [run.tokens.length - 1, id] });
  changed();
}

const percent = (share) => (share >= 0.9995 ? "100 %" : share === 0 ? "–" : share < 0.0001 ? "<0.01 %" : `${(100 * share).toFixed(share < 0.01 ? 2 : 1)} %`);

/** Space and "." come as events of the window; who takes one prevents its default. */
function take(event, act) {
  if (now().view !== "predict" || !current?.run) return;
  event.preventDefault();
  act(current);
}
window.addEventListener("play", (event) => take(event, ({ card, run }) => (writer.playing() ? writer.halt() : writer.write(card, run))));
window.addEventListener("step", (event) => take(event, ({ card, run }) => writer.write(card, run, 1)));

export default {
  id: "predict",
  title: "Predict",
  sentence: "The last state meets the row of every token; softmax makes chances of the scores, and one token is drawn.",
  template,
};
