// Masked language modeling (L6.3): mask a token and see what the encoder predicts.

import { html, nothing } from "lit-html";
import { numbered, placeOf } from "ch/choose";
import { told } from "ch/colors";
import { texts } from "ch/paths";
import { array, changes, posted, run } from "ch/run";
import { count, shown } from "ch/shown";
import { defaults } from "ch/state";
import "ch/bars";
import "ch/edit";
import "ch/lines";
import "ch/map";
import "ch/tokens";

defaults({ mask_positions: [] }, { inText: true });

function template(ctx) {
  const { card, state, text } = ctx;
  if (!text?.trim()) return html`<p class="hint">No text yet. Type a sentence above, with [MASK] for missing words, or mask its tokens here.</p>`;
  const most = ctx.run?.tokens.length ?? Infinity; // the text may be shorter by now
  const body = { model: card.name, text, mask_positions: state.mask_positions.filter((at) => at < most), top_k: 10 };
  const plain = posted("fill", body, "gaps");
  const edited = changes() ? posted("fill", { ...body, ...changes() }, "edited gaps") : null;
  return shown(plain, (found) => drawn(ctx, found, edited), "Running the model …");
}

function drawn(ctx, found, edited) {
  const { state, set } = ctx;
  const { tokens, masks: gaps } = found;
  const gap = gaps.find(({ token }) => token === state.query) ?? gaps[0];
  const flip = (at) => (state.mask_positions.includes(at) ? state.mask_positions.filter((other) => other !== at) : [...state.mask_positions, at].sort((a, b) => a - b));
  return html`
    <ch-figure .caption=${"Click a token to mask it"} .note=${"The model sees the mask token and all other tokens on both sides. Click a masked token to restore it."}>
      <div class="hiding" role="group" aria-label="tokens">${tokens.map((token, at) => html`<button type="button" class="token ${gaps.some((one) => one.token === at) ? "gap" : ""} ${token.special ? "special" : ""}"
        aria-pressed=${state.mask_positions.includes(at)} title=${`token ${at}`} @click=${() => set({ mask_positions: flip(at), query: at })}>${wordAt(found, at)}</button>`)}</div>
      ${gaps.length > 1 ? html`<p class="row">Masks: ${gaps.map(({ token: at }, i) => html`<button type="button" class="quiet" aria-pressed=${at === gap.token} @click=${() => set({ query: at })}>${i + 1}</button>`)}</p>` : nothing}
    </ch-figure>
    ${gap ? fillers(gap, edited) : html`<p class="hint">No token is masked yet.</p>`}
    ${looks(ctx, found, gap)}`;
}

/** A masked token is shown struck through. */
function wordAt({ tokens, masks }, at) {
  const was = masks.find((mask) => mask.token === at)?.original;
  return was ? html`<s>${was.text}</s>` : tokens[at].text;
}

function fillers(gap, edited) {
  const after = edited?.value?.masks.find(({ token }) => token === gap.token);
  const { answers: words, original: was } = after ?? gap;
  const first = new Map(gap.answers.map(({ id, probability }) => [id, probability]));
  return html`<ch-figure .caption=${`Predictions for token ${gap.token}`} .pending=${!!edited?.pending}
      .note=${after ? "With your edits. Dark lines mark probabilities without edits, for tokens in the top 10." : "Softmax over the whole vocabulary; the top predictions are shown."}>
    ${edited?.error ? html`<p class="problem">${edited.error.message}</p>` : nothing}
    <ch-bars .labels=${words.map(({ text }) => text)} .values=${words.map(({ probability }) => probability)} .most=${1} .measure=${"probability"} .label=${"predictions"}
      .before=${after ? words.map(({ id }) => first.get(id) ?? NaN) : null} .selected=${was ? words.findIndex(({ id }) => id === was.id) : -1}></ch-bars>
    ${was ? html`<p class="verdict">Original token <b class="word">${was.text}</b>: probability <b>${told(was.probability)}</b>, rank ${count(was.rank)}${
      after && gap.original ? html` <span class="hint">(without edits ${told(gap.original.probability)})</span>` : nothing}.</p>` : nothing}
  </ch-figure>`;
}

/** Bidirectional attention of the masked text. */
function looks({ card, state, set, run: own, edited }, found, gap) {
  const layer = Math.min(state.layer, card.n_layers - 1), head = Math.min(state.head, card.n_heads - 1);
  const kept = changes() ? edited : own; // reusable unless tokens are masked here
  const read = kept?.tokens.map(({ id }) => id).join() === found.ids.join() ? { value: kept, pending: false } : run({ model: card.name, ids: found.ids, ...changes() }, "masked run");
  const name = `blocks.${layer}.attn.pattern`;
  const url = read.value && !read.pending ? `/api/runs/${read.value.id}/tensor/${name}?head=${head}` : null;
  const pattern = url ? array(url, "masked pattern") : read;
  const labels = texts(found.tokens), query = gap && state.query < 0 ? gap.token : placeOf(state.query, labels.length);
  return html`<ch-figure .caption=${"Bidirectional attention"} .pending=${pattern.pending} .note=${"An encoder has no causal mask, so no cell is hatched. Rows sum to 1."}>
    <div class="row">${numbered("Layer", card.n_layers, layer, (to) => set({ layer: to }))}${numbered("Head", card.n_heads, head, (to) => set({ head: to }))}
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
  sentence: "Mask a token: the encoder predicts it from both sides.",
  free: true, // handles [MASK] in the text itself
  template,
};
