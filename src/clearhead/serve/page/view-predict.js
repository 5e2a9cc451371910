// Predict (L5): last hidden state × unembedding = logits; temperature, top-k, top-p, sampling.

import { html, nothing } from "lit-html";
import * as api from "ch/api";
import { slider } from "ch/choose";
import { told } from "ch/colors";
import { distribution, logprob, ranked } from "ch/drawing";
import { meeting } from "ch/meeting";
import { asked as requested, changes, got, home, reading } from "ch/run";
import { broken, count, shown } from "ch/shown";
import { changed, defaults, set as put, state as now } from "ch/state";
import * as writer from "ch/writer";

defaults({ open_token: -1 }, { inText: true });
const SHOWN = 16;
const FULL = [0.1, 0.25, 0.5, 1]; // probabilities that a full bar may stand for
let hovered = -1; // candidate under the pointer
let current = null; // target of keyboard shortcuts

function template(ctx) {
  const { card, run } = ctx;
  current = { card, run };
  if (!run) return html`<p class="hint">Nothing to continue yet. Type the beginning of a text above.</p>`;
  const ids = writer.written(run);
  const words = got(`${home(card.name)}/vocabulary`);
  const rules = got(`${home(card.name)}/sampling`);
  if (words.error || rules.error || !words.value || !rules.value) return shown(words.error || !words.value ? words : rules, () => nothing);
  const seen = paced(run, ids);
  const plain = (asking = { run, ids: seen, found: logits(ctx, seen, null, rules.value, "logits") }).found;
  const edited = changes() ? logits(ctx, seen, changes(), rules.value, "edited logits") : null;
  const room = card.context_length - run.tokens.length - ids.length;
  return html`
    ${text(ctx, ids, words.value, rules.value)}
    ${buttons(ctx, ids, rules.value)}
    ${sliders(ctx)}
    ${room > 0 ? nothing : html`<p class="hint">The context of ${count(card.context_length)} tokens is full. Undo some tokens or start over.</p>`}
    ${room < 0 ? nothing
      : shown(plain, (value) => next(ctx, seen, value, edited, words.value))}`;
}

let asking = null; // the logits that were requested last
/** The text whose next token is shown. While a slow model plays, one row of logits is requested at a time. */
function paced(run, ids) {
  return writer.playing() && asking?.found.pending && asking.run === run ? asking.ids : ids;
}

/** The sorted logits of the next token as a resource. */
function logits({ card, run, resource }, ids, edits, rules, slot) {
  const banned = ids.length ? rules.suppress_tokens : [...rules.suppress_tokens, ...rules.begin_suppress_tokens];
  return resource(`${slot} ${run.id} ${ids} ${JSON.stringify(edits)}`, async ({ signal }) => {
    const body = ids.length ? { model: card.name, ids: [...run.tokens.map((token) => token.id), ...ids], ...edits } : requested(card, edits ?? {});
    const made = !ids.length && !edits ? run : await api.json("POST", "/api/runs", body, { cached: true, signal });
    const row = await api.npy(`/api/runs/${made.id}/logits?token=-1`, { signal });
    return { run: made, ranks: ranked(row.data, { known: rules.vocab_size, banned }) };
  }, slot);
}

/** Prompt and generated tokens; each generated token opens its alternatives. */
function text(ctx, ids, words, rules) {
  const { card, run, state, set } = ctx;
  const missing = ids.length && ids.some((_, i) => !writer.alternatives(run, ids, i)) && !writer.playing();
  const recalled = missing ? ctx.resource(`recall ${run.id} ${ids} ${JSON.stringify(changes())}`, (how) => writer.recall(card, run, how), "recall") : null;
  const open = state.open_token < ids.length ? state.open_token : -1;
  return html`<div class="so-far" role="group" aria-label="the text">
      <span class="given">${run.tokens.map((token) => token.text).join("")}</span>${ids.map((id, i) => {
        const chosen = writer.alternatives(run, ids, i)?.top?.find(([other]) => other === id);
        return html`<button type="button" class="token new" aria-pressed=${i === open} aria-expanded=${i === open} title=${`generated token ${i}${chosen ? `, log-probability ${told(chosen[2])}` : ""}: show alternatives`}
          @click=${() => set({ open_token: i === open ? -1 : i })}>${words[id] ?? id}</button>`;
      })}<span class="caret" aria-hidden="true"></span></div>
    ${open >= 0 ? instead(ctx, ids, open, words, recalled) : nothing}
    ${writer.atEnd(run, rules.eos_tokens) ? html`<p class="hint">The model ended its text here with an end token. Undo to continue differently.</p>` : nothing}
    ${writer.sentence() ? html`<p class="problem" role="status">${writer.sentence()}</p>` : nothing}`;
}

function instead({ run, set }, ids, at, words, recalled) {
  const found = writer.alternatives(run, ids, at);
  if (!found) return recalled ? shown(recalled, () => nothing) : nothing;
  const top = found.id === ids[at] && !found.top.some(([id]) => id === found.id) ? [...found.top, [found.id, words[found.id], found.logprob]] : found.top;
  return html`<div class="instead" role="group" aria-label=${`alternatives of generated token ${at}`}>
    <p class="hint">The most likely tokens at this position with the model's probabilities. Choose one to continue from it.</p>
    ${top.map(([id, label, value]) => html`<button type="button" aria-pressed=${id === ids[at]} @click=${() => { writer.rewrite(run, [...ids.slice(0, at), id]); set({ open_token: -1 }); }}>
      <span class="word">${label}</span> <span class="hint">${value === null ? "0" : percent(Math.exp(value))}</span></button>`)}</div>`;
}

function buttons({ card, run, state, set }, ids, rules) {
  const end = !!api.snapshot || writer.atEnd(run, rules.eos_tokens) || run.tokens.length + ids.length >= card.context_length;
  const hint = (words) => (api.snapshot ? api.ONLY : words);
  return html`<div class="row">
    <button type="button" class="main" ?disabled=${end} @click=${() => writer.write(card, run, 1)} title=${hint("Sample one token (.)")}>Step</button>
    ${writer.playing() ? html`<button type="button" @click=${writer.halt} title="Stop after this token (Space)">Pause</button>`
      : html`<button type="button" ?disabled=${end} @click=${() => writer.write(card, run)} title=${hint("Sample token after token (Space)")}>Play</button>`}
    <button type="button" ?disabled=${!ids.length} @click=${() => { writer.halt(); writer.rewrite(run, ids.slice(0, -1)); }}>Undo</button>
    <button type="button" class="quiet" ?disabled=${!ids.length} @click=${() => { writer.halt(); writer.rewrite(run, []); }}>Start over</button>
    <button type="button" class="quiet" ?disabled=${!ids.length} @click=${() => adopt(card, run)} title="Use the longer text in all other views">Use as prompt</button>
    ${changes() ? html`<span class="hint">sampling from the edited model</span>` : nothing}
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
    ${slide("temperature", "temperature", 0, 2, 0.05, (v) => (v ? v.toFixed(2) : "0 (greedy)"), "Divides the logits; lower is more deterministic")}
    ${slide("top_k", "top-k", 0, 100, 1, (v) => v || "all", "Keep only the k most likely tokens")}
    ${slide("top_p", "top-p", 0.05, 1, 0.01, (v) => (v < 1 ? v.toFixed(2) : "all"), "Keep the smallest set of tokens whose probabilities sum to at least p")}</div>`;
}

/** The next token: entropy and the most likely candidates. */
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
  const wide = FULL.find((share) => share >= best) ?? 1; // probability of a full bar
  let before = 0;
  return html`
    <ch-figure .caption=${"The next token"} .note=${"Bars show the sampling probability with the temperature, top-k and top-p above; pale bars show it before top-k and top-p. Logits and log-probabilities are the model's own, at temperature 1. Click a bar to append that token."}>
      <p class="facts"><span><b data-fact="entropy" data-value=${spread.entropy}>${spread.entropy.toFixed(2)}</b> bits of entropy, as for ${told(2 ** spread.entropy)} equally likely tokens</span>
        <span><b data-fact="kept" data-value=${spread.kept}>${count(spread.kept)}</b> of ${count(ranks.order.length)} tokens kept</span>
        <span><b data-fact="mass" data-value=${spread.mass}>${percent(spread.mass)}</b> probability mass kept</span></p>
      ${edited?.error ? html`<p class="problem">${edited.error.message}</p>` : nothing}
      <table class="chances"><thead><tr><th>rank</th><th>token</th><th colspan="2">probability${other ? ", and edited" : ""}<span class="scale"> · full bar = ${100 * wide} %</span></th><th class="more" title="Cumulative probability of this token and all above it">cumulative</th><th class="more">logit</th><th class="more" title="At temperature 1, without top-k and top-p">log-prob</th></tr></thead>
      <tbody @pointerleave=${() => hover(-1, null, ctx)}>${top.map((id, rank) => {
        const share = rank < spread.kept ? spread.shares[rank] / spread.mass : 0;
        before += share;
        const changedTo = otherShare?.get(id) ?? 0;
        return html`<tr class=${rank < spread.kept ? "" : "out"} data-id=${id} @pointerenter=${() => hover(id, made, ctx)}>
          <td class="rank">${rank + 1}</td>
          <th scope="row"><button type="button" class="token" title="append this token" @click=${() => force(id)} @focus=${() => hover(id, made, ctx)}>${words[id] ?? id}</button></th>
          <td class="track ${other ? "two" : ""}" @click=${() => force(id)}><span class="ghost" .style=${`--share:${Math.min(1, spread.shares[rank] / wide)}`}></span><span class="fill" .style=${`--share:${share / wide}`}></span>
            ${other ? html`<span class="edited" .style=${`--share:${changedTo / wide}`}></span>` : nothing}</td>
          <td class="number">${percent(share)}${other ? html`<span class="after">${percent(changedTo)}</span>` : nothing}</td>
          <td class="number more">${percent(Math.min(1, before))}</td><td class="number more">${told(ranks.logits[id], 4)}</td><td class="number more">${told(logprob(ranks, id), 4)}</td></tr>`;
      })}</tbody></table>
      ${other ? movers(ranks, edited.value.ranks, words) : nothing}
    </ch-figure>
    ${meeting(ctx, made, words, ranks, hovered >= 0 && ranks.order.includes(hovered) ? hovered : top[0])}`;
}

/** The log-probabilities that the edits changed most, among the top tokens of either run. */
function movers(plain, edited, words) {
  const ids = [...new Set([...plain.order.subarray(0, 50), ...edited.order.subarray(0, 50)])];
  const moved = ids.map((id) => [id, logprob(edited, id) - logprob(plain, id)]).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, 8);
  return html`<h3 class="movers">Largest changes in log-probability</h3>
    <ch-bars .labels=${moved.map(([id]) => words[id] ?? String(id))} .values=${moved.map(([, by]) => by)} .signed=${true} .measure=${"change in log-probability"}></ch-bars>`;
}

/** Show how the logit of the candidate under the pointer is computed. */
function hover(id, run, { inspect }) {
  if (hovered === id) return;
  hovered = id;
  inspect(run && { run: run.id, name: "logits", index: [run.tokens.length - 1, id] });
  changed();
}

const percent = (share) => (share >= 0.9995 ? "100 %" : share === 0 ? "–" : share < 0.0001 ? "<0.01 %" : `${(100 * share).toFixed(share < 0.01 ? 2 : 1)} %`);

/** Space and "." arrive as window events; handling one prevents its default. */
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
  sentence: "The last hidden state times the unembedding gives logits; softmax turns them into probabilities, and one token is sampled.",
  template,
};
