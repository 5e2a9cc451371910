// Masked words (L6.3): hide a token, and an encoder, which sees both sides, says what stood there.

import { html, nothing } from "lit-html";
import { numbered, placeOf } from "ch/choose";
import { told } from "ch/colours";
import { texts } from "ch/paths";
import { array, changes, posted, run } from "ch/run";
import { count, shown } from "ch/shown";
import { defaults } from "ch/state";
import "ch/bars";
import "ch/edit";
import "ch/lines";
import "ch/map";
import "ch/tokens";

defaults({ hide: [] }, { inText: true });

function template(ctx) {
  const { card, state, text } = ctx;
  if (!text?.trim()) return html`<p class="hint">There is no text yet. Type a sentence above, with [MASK] where a word is missing, or hide its tokens here.</p>`;
  const most = ctx.run?.tokens.length ?? Infinity; // the text may have become shorter since
  const body = { model: card.name, text, hide: state.hide.filter((at) => at < most), top: 10 };
  const plain = posted("fill", body, "gaps");
  const edited = changes() ? posted("fill", { ...body, ...changes() }, "edited gaps") : null;
  return shown(plain, (found) => drawn(ctx, found, edited), "The model reads …");
}

function drawn(ctx, found, edited) {
  const { state, set } = ctx;
  const { tokens, gaps } = found;
  const gap = gaps.find(({ at }) => at === state.query) ?? gaps[0];
  const flip = (at) => (state.hide.includes(at) ? state.hide.filter((other) => other !== at) : [...state.hide, at].sort((a, b) => a - b));
  return html`
    <ch-figure .caption=${"Click a token to hide it"} .note=${"The model sees only the mask there, and all other tokens on both sides. Click a hidden token to show it again."}>
      <div class="hiding" role="group" aria-label="tokens">${tokens.map((token, at) => html`<button type="button" class="token ${gaps.some((one) => one.at === at) ? "gap" : ""} ${token.special ? "special" : ""}"
        aria-pressed=${state.hide.includes(at)} title=${`token ${at}`} @click=${() => set({ hide: flip(at), query: at })}>${wordAt(found, at)}</button>`)}</div>
      ${gaps.length > 1 ? html`<p class="row">Gaps: ${gaps.map(({ at }, i) => html`<button type="button" class="quiet" aria-pressed=${at === gap.at} @click=${() => set({ query: at })}>${i + 1}</button>`)}</p>` : nothing}
    </ch-figure>
    ${gap ? fillers(gap, edited) : html`<p class="hint">Nothing is hidden yet.</p>`}
    ${looks(ctx, found, gap)}`;
}

/** A hidden token keeps its word, struck out for people only. */
function wordAt({ tokens, gaps }, at) {
  const was = gaps.find((gap) => gap.at === at)?.was;
  return was ? html`<s>${was.text}</s>` : tokens[at].text;
}

function fillers(gap, edited) {
  const after = edited?.value?.gaps.find(({ at }) => at === gap.at);
  const { words, was } = after ?? gap;
  const first = new Map(gap.words.map(({ id, probability }) => [id, probability]));
  return html`<ch-figure .caption=${`What stood at token ${gap.at}?`} .pending=${!!edited?.pending}
      .note=${after ? "With your edits; the dark line marks the probability without them, where it was among the first." : "Softmax over all of the vocabulary; here are the first."}>
    ${edited?.error ? html`<p class="problem">${edited.error.message}</p>` : nothing}
    <ch-bars .labels=${words.map(({ text }) => text)} .values=${words.map(({ probability }) => probability)} .most=${1} .measure=${"probability"} .label=${"what stood there"}
      .before=${after ? words.map(({ id }) => first.get(id) ?? NaN) : null} .selected=${was ? words.findIndex(({ id }) => id === was.id) : -1}></ch-bars>
    ${was ? html`<p class="verdict">It was <b class="word">${was.text}</b>: probability <b>${told(was.probability)}</b>, ${was.rank === 1 ? "its first guess" : `guess number ${count(was.rank)}`}${
      after && gap.was ? html` <span class="hint">(without edits ${told(gap.was.probability)})</span>` : nothing}.</p>` : nothing}
  </ch-figure>`;
}

/** Attention of the masked text: no triangle, for every token sees all. */
function looks({ card, state, set, run: own, edited }, found, gap) {
  const layer = Math.min(state.layer, card.layers - 1), head = Math.min(state.head, card.heads - 1);
  const kept = changes() ? edited : own; // which has read the same, unless tokens are hidden here
  const read = kept?.tokens.map(({ id }) => id).join() === found.ids.join() ? { value: kept, pending: false } : run({ model: card.name, ids: found.ids, ...changes() }, "masked run");
  const name = `blocks.${layer}.attn.pattern`;
  const url = read.value && !read.pending ? `/api/runs/${read.value.id}/tensor/${name}?head=${head}` : null;
  const pattern = url ? array(url, "masked pattern") : read;
  const labels = texts(found.tokens), query = gap && state.query < 0 ? gap.at : placeOf(state.query, labels.length);
  return html`<ch-figure .caption=${"Where each token looks: both ways"} .pending=${pattern.pending} .note=${"An encoder has no causal mask: no cell is hatched. Each row adds up to 1."}>
    <div class="row">${numbered("Layer", card.layers, layer, (to) => set({ layer: to }))}${numbered("Head", card.heads, head, (to) => set({ head: to }))}
      <ch-edit .name=${`blocks.${layer}.attn.z`} .head=${head} .label=${`head ${head}`}></ch-edit></div>
    ${shown(pattern, (values) => values.shape?.length !== 2 || values.shape[0] !== labels.length ? nothing : html`<div class="columns">
      <ch-map .values=${values} .rows=${labels} .cols=${labels} .most=${1} .name=${name} .run=${read.value?.id ?? ""} .index=${(r, c) => [head, r, c]} .by=${["query", "key"]} .measure=${"pattern"}
        .label=${`attention, layer ${layer}, head ${head}`} .cursor=${state.key >= 0 ? [query, state.key] : null} @pick=${({ detail }) => set({ query: detail.row, key: detail.col })}></ch-map>
      <ch-lines .values=${values} .rows=${labels} .cols=${labels} .query=${query} @pick=${({ detail }) => set({ query: detail.row })}></ch-lines></div>`)}
  </ch-figure>`;
}

export default {
  id: "fill",
  title: "Fill",
  sentence: "Hide a token: the encoder, which sees both sides, says what stood there.",
  free: true, // the text may hold [MASK], which it reads by itself
  template,
};
