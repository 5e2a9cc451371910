// Chat (L5.5): a conversation is a longer prompt. Shows its exact tokens and who wrote them.

import { html, nothing } from "lit-html";
import * as api from "ch/api";
import { likeliest } from "ch/pair";
import { changes, posted, run } from "ch/run";
import { count, shown } from "ch/shown";
import { changed, defaults, state as now } from "ch/state";
import "ch/bars";
import "ch/figure";

const TURN = 1000003; // seed increment per answer, as in the library
defaults({ system: "You are an apple.", messages: [{ role: "user", content: "Hello! What are you?" }], other_system: "" });

const ROLES = ["system", "user", "assistant"];
let answer = null; // { to, text, stop, error } while generating

function template(ctx) {
  const { state } = ctx;
  const read = tokens(ctx, messages(state.system, state.messages), "conversation");
  return html`<div class="columns chat-columns"><div>${talk(ctx, read)}</div><div>
    ${shown(read, bands)}${likely(ctx, read)}</div></div>
    ${compare(ctx, read)}`;
}

/** Identifies the conversation an answer belongs to. */
const conversation = () => JSON.stringify([now().model, now().system, now().messages]);
const messages = (system, turns) => [...(system.trim() ? [{ role: "system", content: system }] : []), ...turns];

function tokens({ card }, said, slot) {
  const body = { model: card.name, messages: said };
  return posted("chat/tokens", body, slot, (found) => ({ ...found, said }));
}

/** The conversation as editable messages. */
function talk(ctx, read) {
  const { state, set } = ctx;
  const turns = (next) => set({ messages: next }, { replace: true });
  const box = (content, write, label) => html`<textarea rows=${Math.max(1, Math.ceil(content.length / 46))} aria-label=${label} spellcheck="false" .value=${content} @input=${(event) => write(event.target.value)}></textarea>`;
  const mine = answer?.to === conversation();
  return html`<section class="talk" aria-label="conversation">
    <div class="message system"><span class="role">system</span>${box(state.system, (system) => set({ system }, { replace: true }), "system prompt")}</div>
    ${state.messages.map((turn, i) => html`<div class="message ${turn.role}"><span class="role">${turn.role}</span>
      ${box(turn.content, (content) => turns(state.messages.map((other, j) => (i === j ? { ...turn, content } : other))), `${turn.role}, message ${i + 1}`)}
      <button type="button" class="quiet" title="Remove this message and all following" @click=${() => set({ messages: state.messages.slice(0, i) })}>×</button></div>`)}
    ${mine ? html`<div class="message assistant" aria-live="polite"><span class="role">assistant</span><p class="writing">${answer.text || "…"}</p></div>` : nothing}
    ${mine && answer.error ? html`<p class="problem">${answer.error}</p>` : nothing}
    <div class="row">
      ${mine && answer.stop ? html`<button type="button" class="main" @click=${() => answer.stop.abort()}>Stop</button>`
        : state.messages.at(-1)?.role === "user" ? html`<button type="button" class="main" ?disabled=${!!api.snapshot || !read.value || read.pending || full(ctx.card, read.value)} title=${api.snapshot ? api.ONLY : ""} @click=${() => write(ctx, read.value)}>Answer</button>`
        : html`<button type="button" class="main" @click=${() => set({ messages: [...state.messages, { role: "user", content: "" }] })}>Add a message</button>`}
      <span class="hint">Temperature ${state.temperature}, seed ${state.seed} (set in Predict).${changes() ? " Your edits apply to the answer." : ""}</span></div>
  </section>`;
}

/** Generate an answer after exactly these tokens and append it as a message. */
async function write({ card, state, set }, { ids }) {
  const stop = new AbortController();
  const here = (answer = { to: conversation(), text: "", stop, error: null });
  changed();
  const body = { model: card.name, ids, max_tokens: Math.max(1, Math.min(200, card.context_length - ids.length)), temperature: state.temperature, top_k: state.top_k, top_p: state.top_p, seed: state.seed + TURN * state.messages.filter(({ role }) => role === "assistant").length, ...changes() };
  try {
    await api.events("/api/generate", body, (event, data) => {
      if (here.to !== conversation()) stop.abort(); // the conversation changed
      if (event === "token") here.text += data.piece;
      if (event === "error") here.error = data.message;
      changed();
    }, stop.signal);
  } catch (error) {
    if (error.name !== "AbortError") here.error = error.message;
  }
  here.stop = null;
  if (answer !== here || here.error || here.to !== conversation()) return changed();
  answer = null;
  set({ messages: [...now().messages, { role: "assistant", content: here.text.trim() }] });
}

const full = (card, { ids }) => ids.length >= card.context_length;

/** The exact input: message tokens between tokens of the template. */
function bands({ tokens, spans_found: known, said }) {
  const typed = tokens.filter(({ message }) => message !== null).length;
  return html`<ch-figure .caption=${`Model input: ${count(tokens.length, "token")}`}
      .note=${known ? `${count(typed, "token")} belong to messages, the other ${count(tokens.length - typed)} to the template. The model continues after the last token.` : "This model's template rewrites messages, so tokens cannot be assigned to messages."}>
    <div class="bands">${runs(tokens).map(({ message, part }) => html`<span class="band ${message === null ? "template" : said[message].role}" title=${message === null ? "added by the template" : said[message].role}>${
      part.map((token) => html`<span class="piece-of ${token.special ? "special" : ""}" title=${`id ${token.id}`}>${lined(token)}</span>`)}</span>`)}</div>
    <p class="legend roles">${ROLES.filter((role) => said.some((one) => one.role === role)).map((role) => html`<span class="band ${role}">${role}</span>`)}<span class="band template">template</span></p>
  </ch-figure>`;
}

/** Break the line after a newline token. */
const lined = ({ text }) => (text.endsWith("↵") ? `${text}\n` : text);

function runs(tokens) {
  const found = [];
  for (const token of tokens) {
    if (found.at(-1)?.message === token.message && found.length) found.at(-1).part.push(token);
    else found.push({ message: token.message, part: [token] });
  }
  return found;
}

function likely({ card }, read) {
  if (!read.value || read.pending) return nothing;
  if (full(card, read.value)) return html`<p class="hint">The conversation fills the context of ${count(card.context_length)} tokens; no room for an answer.</p>`;
  const body = { model: card.name, ids: read.value.ids }, plain = run(body, "chat run"), next = changes() ? run({ ...body, ...changes() }, "edited chat run") : plain;
  const before = new Map(next === plain ? [] : plain.value?.top.map(({ id, prob }) => [id, prob]));
  return html`<ch-figure .caption=${"First token of the answer"} .pending=${next.pending} .note=${next === plain ? "" : "With your edits; dark lines are without edits, for tokens in the top 10."}>${shown(next, ({ top }) => html`
    <ch-bars .labels=${top.map(({ text }) => text)} .values=${top.map(({ prob }) => prob)} .before=${before.size ? top.map(({ id }) => before.get(id) ?? NaN) : null} .most=${1} .measure=${"probability"} .label=${"most likely first tokens"}></ch-bars>`)}</ch-figure>`;
}

/** The same conversation with another system prompt. */
function compare(ctx, read) {
  const { card, state, set } = ctx;
  const there = state.other_system.trim() ? tokens(ctx, messages(state.other_system, state.messages), "other conversation") : null;
  return html`<ch-figure .caption=${"Compare system prompts"} .note=${"Only the prompt differs; the model is the same."}>
    <label class="other">Other system prompt: <input type="text" .value=${state.other_system} placeholder="You are a pirate." @input=${(event) => set({ other_system: event.target.value }, { replace: true })}></label>
    ${there && read.value && !read.pending && !full(card, read.value) ? shown(there, (found) => {
      if (full(card, found)) return html`<p class="hint">With this system prompt, the conversation fills the context.</p>`;
      const [a, b] = [read.value, found].map(({ ids }, i) => run({ model: card.name, ids }, i ? "other chat run" : "chat run"));
      return html`<div class="bands">${difference(read.value.tokens, found.tokens).map(([kind, token]) => html`<span class="piece-of ${kind}" title=${{ gone: "only with the first prompt", came: "only with the other", same: "in both" }[kind]}>${lined(token)}</span>`)}</div>
        ${shown(b, () => shown(a, () => likeliest([a.value, b.value], [state.system, state.other_system].map(short))))}`;
    }) : html`<p class="hint">Enter another system prompt to compare.</p>`}
  </ch-figure>`;
}

const short = (text) => (text.trim() ? (text.length > 28 ? `${text.slice(0, 27)}…` : text) : "no system prompt");

/** Diff of two token lists by their common prefix and suffix. */
function difference(before, after) {
  const same = (a, b) => a && b && a.id === b.id;
  let first = 0, last = 0;
  while (same(before[first], after[first])) first++;
  while (last < Math.min(before.length, after.length) - first && same(before.at(-1 - last), after.at(-1 - last))) last++;
  return [...before.slice(0, first).map((t) => ["same", t]), ...before.slice(first, before.length - last).map((t) => ["gone", t]),
    ...after.slice(first, after.length - last).map((t) => ["came", t]), ...before.slice(before.length - last).map((t) => ["same", t])];
}

export default {
  id: "chat",
  title: "Chat",
  sentence: "A conversation is a longer prompt: its exact tokens and who wrote them.",
  free: true,
  template,
};
