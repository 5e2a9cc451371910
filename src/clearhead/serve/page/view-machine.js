// The whole model drawn from its configuration: the residual stream and the components that add to it (L4.1, L4.4, L6).

import { html, nothing, svg } from "lit-html";
import { decoded } from "ch/api";
import { told } from "ch/colors";
import { got } from "ch/run";
import { defaults } from "ch/state";

defaults({ expanded: false });

const TRUNK = 20; // width of the residual stream; branches are drawn in proportion to what they add
const SHOWN = 6; // blocks drawn before the middle ones are folded
const HIGH = 132, CROSS = 74, SIDE = 150, WIDE = 116;

export default {
  id: "machine", title: "Machine",
  sentence: "One residual stream per token runs upward; every component reads from it and adds to it. Branch widths show how much is added.",
  template(context) {
    const { run, edited, card, state } = context;
    const both = card.architecture === "encoder-decoder";
    const lengths = (encoder, { id } = run, slot = "") => {
      const url = `/api/runs/${id}/residual${encoder ? "?encoder=true" : ""}`;
      return got(url, `residual ${encoder}${slot}`, decoded);
    };
    const own = lengths(false), other = both ? lengths(true) : null;
    const after = (encoder, token) => {
      const found = edited && lengths(encoder, edited, " edited").value;
      return found ? shares(found, token) : null;
    };
    const trouble = own.error ?? other?.error;
    if (trouble) return html`<p class="problem">${trouble.message}</p>`;
    if (!own.value || (both && !other.value)) return html`<p class="loading">Measuring components …</p>`;
    const token = Math.min(state.query, run.tokens.length - 1);
    const about = token >= 0 ? html`at <b>${run.tokens[token].text}</b> (token ${token})` : "on average over all tokens; select a token in the strip below";
    return html`<p class="hint">Widths are the norm of each component's output relative to the residual stream after it, ${about}.</p>
      <div class="machines"><div class=${both ? "stacks two" : "stacks"}>
        ${both ? stack(context, { encoder: true, share: shares(other.value, -1), now: after(true, -1) }) : nothing}
        ${stack(context, { encoder: false, share: shares(own.value, token), now: after(false, token) })}</div>
      ${chosen(context)}</div>`;
  },
};

/** Norm of each component's output relative to the stream after it, at a token or on average. */
function shares({ axes, values, shape }, token) {
  const [, parts, tokens] = shape;
  return Object.fromEntries(axes[1].labels.map((name, p) => {
    let sum = 0, count = 0;
    for (let t = 0; t < tokens; t++) {
      if (token >= 0 && t !== token) continue;
      sum += values[p * tokens + t] / values[(parts + p) * tokens + t];
      count++;
    }
    return [name, sum / count];
  }));
}

function stack(context, { encoder, share, now }) {
  const { card, state, set, run } = context;
  const both = card.architecture === "encoder-decoder", cross = both && !encoder;
  const [layers, tokens] = encoder ? [card.encoder_layers, run.source_tokens] : [card.n_layers, run.tokens];
  const title = both ? (encoder ? "encoder" : "decoder") : "";
  const folded = layers > SHOWN + 1 && !state.expanded;
  const shown = folded ? [0, 1, 2, -1, layers - 2, layers - 1] : Array.from({ length: layers }, (_, i) => i);
  const block = HIGH + (cross ? CROSS : 0);
  const sizes = shown.map((layer) => (layer < 0 ? 54 : block));
  const height = 210 + sizes.reduce((a, b) => a + b, 0), width = 2 * SIDE + WIDE + 48, middle = width / 2;
  let y = height - 92;
  const blocks = shown.map((layer, i) => {
    const bottom = y;
    y -= sizes[i];
    if (layer < 0) return fold(middle, bottom, layers - 5, () => set({ expanded: true }));
    return drawn(context, { layer, bottom, middle, share, now, cross, encoder });
  });
  const open = { view: "tokens" };
  return html`<figure class="stack">${title ? html`<figcaption>${title}</figcaption>` : nothing}
    <svg viewBox="0 0 ${width} ${height}" role="group" aria-label=${`${title || "model"}: ${layers} blocks`}>
      <line class="trunk" x1=${middle} x2=${middle} y1=${height - 62} y2="76" stroke-width=${TRUNK}></line>
      ${svg`<circle class="rising" data-run=${run.id} cx=${middle} cy="0" r="5" .style=${`--from:${height - 66}px;--to:80px`}></circle>`}
      ${blocks}
      ${box(middle, height - 42, 190, "token embeddings", `${tokens.length} × ${card.d_model}`, () => set(open))}
      ${"positions" in share ? svg`<text class="number" x=${middle + 104} y=${height - 38}>positions ${told(share.positions, 2)}</text>` : nothing}
      ${encoder ? box(middle, 52, 170, card.norm_position === "pre" ? "norm" : "encoder output", "read by cross-attention →", null) : end(context, middle)}
    </svg>${state.expanded && layers > SHOWN + 1 ? html`<button type="button" class="quiet" @click=${() => set({ expanded: false })}>collapse the middle blocks</button>` : nothing}</figure>`;
}

function end(context, middle) {
  const { card, set, run } = context, view = card.views.includes("predict") ? "predict" : "lens";
  return svg`${card.norm_position === "pre" ? svg`<text class="small" x=${middle + 20} y="92">norm</text>` : nothing}
    ${box(middle, 44, 216, run.answer_token === null ? ends[card.head] ?? "output" : "masked token", answer(context), () => set({ view }))}`;
}

const ends = { lm: "unembedding: next token", mlm: "masked tokens", classification: "classes", regression: "a number", none: "hidden states" };
const answer = ({ run }) => (run.top[0] ? `“${run.top[0].text}”${run.top[0].prob === null ? "" : ` ${(100 * run.top[0].prob).toFixed(1)} %`}` : "");

function drawn({ card, state, set, run }, { layer, bottom, middle, share, now, cross, encoder }) {
  const at = `${encoder ? "encoder." : ""}blocks.${layer}`;
  const part = encoder ? "encoder" : "attention";
  const active = state.layer === layer && (state.part === "encoder") === encoder;
  const rise = cross ? CROSS : 0;
  const much = (part) => [share[`${layer} ${part}`], now?.[`${layer} ${part}`]];
  const where = encoder || state.query < 0 ? "mean over all tokens" : `${run.tokens[Math.min(state.query, run.tokens.length - 1)].text} (token ${state.query})`;
  const names = (part, stream) => [`${at}.${part}`, `${at}.${stream}`, where];
  const go = (patch) => () => set({ layer, part, ...patch });
  return svg`<g class=${active ? "block active" : "block"}>
    <rect class="frame" x="4" y=${bottom - HIGH - rise + 8} width=${2 * middle - 8} height=${HIGH + rise - 14} rx="12" @click=${go({})}></rect>
    <text class="small" x="16" y=${bottom - HIGH - rise + 28}>block ${layer}</text>
    ${branch(middle, bottom - 12, -1, much("attention"), off(state, `${at}.attn`), "attention", `${card.n_heads} heads`, card.norm_position, go({ view: "attention" }), names("attn.out", "resid_mid"))}
    ${cross ? branch(middle, bottom - 12 - CROSS, -1, much("cross"), off(state, `${at}.cross_attn`), "cross-attention", "to the source", card.norm_position, go({ view: "attention", part: "cross" }), names("cross_attn.out", "resid_cross")) : nothing}
    ${branch(middle, bottom - 66 - rise, 1, much("feed-forward"), off(state, `${at}.ffn`), "feed-forward", `${card.d_ff} neurons`, card.norm_position, go({ view: "block" }), names("ffn.out", "resid_post"))}
  </g>`;
}

const off = (state, at) => state.edits.some(({ name }) => name.startsWith(at));

/** A branch out of the stream, through a component, and back. */
function branch(middle, y, side, [share, now], edited, name, words, wiring, go, [part, stream, where]) {
  const x = middle + side * SIDE, wide = Math.max(1, Math.min(2 * TRUNK, TRUNK * (now ?? share) || 0)), up = y - 44;
  const changed = now !== undefined && told(now, 2) !== told(share, 2);
  return svg`<g class=${edited ? "branch edited" : "branch"}>
    <path d=${`M${middle} ${y} C${middle + side * 60} ${y} ${x} ${y + 6} ${x} ${y - 10}`} stroke-width=${2}></path>
    <path class="back" d=${`M${x} ${y - 34} C${x} ${up - 8} ${middle + side * 60} ${up} ${middle + side * 10} ${up}`} stroke-width=${wide}></path>
    <circle class="plus" cx=${middle} cy=${up} r="9"></circle><text class="sign" x=${middle} y=${up + 4.5}>+</text>
    ${box(x, y - 22, WIDE + 24, name, words, go)}
    <text class="number" x=${middle + side * 66} y=${up - 6 - wide / 2} text-anchor="middle" data-what=${`relative norm of ${part}`} data-where=${where}
      data-value=${now ?? share} data-formula=${`‖${part}‖ ÷ ‖${stream}‖: norm of the output relative to the residual stream after it`}>${told(share, 2)}${changed ? ` → ${told(now, 2)}` : ""}</text>
    ${wiring === "pre" ? svg`<text class="small" x=${middle + side * 34} y=${y + 13} text-anchor="middle">norm</text>`
      : svg`<text class="small" x=${middle - side * 14} y=${up - 8} text-anchor=${side > 0 ? "end" : "start"}>norm</text>`}
  </g>`;
}

function box(x, y, width, name, words, go) {
  const key = (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), go());
  return svg`<g class=${go ? "part open" : "part"} tabindex=${go ? 0 : nothing} role=${go ? "button" : "img"} aria-label=${`${name} ${words}`.trim()} @click=${go ?? nothing} @keydown=${go ? key : nothing}>
    <rect x=${x - width / 2} y=${y - 19} width=${width} height="38" rx="8"></rect>
    <text class="name" x=${x} y=${y - 2}>${name}</text> <text class="words" x=${x} y=${y + 13}>${words}</text></g>`;
}

function fold(x, y, count, go) {
  return svg`<g class="part open" tabindex="0" role="button" aria-label=${`${count} more blocks`} @click=${go} @keydown=${(event) => event.key === "Enter" && go()}>
    <rect x=${x - 80} y=${y - 42} width="160" height="30" rx="15"></rect><text class="name" x=${x} y=${y - 23}>${count} more blocks</text></g>`;
}

/** Edits and facts of the selected block. */
function chosen({ card, run, state, set }) {
  const token = Math.min(state.query, run.tokens.length - 1);
  const encoder = state.part === "encoder" && card.architecture === "encoder-decoder";
  const layer = Math.min(state.layer, (encoder ? card.encoder_layers : card.n_layers) - 1);
  const at = `${encoder ? "encoder." : ""}blocks.${layer}`;
  const line = (label, name) => html`<p><ch-edit .name=${`${at}.${name}`} .label=${label}></ch-edit></p>`;
  return html`<section class="chosen"><h2>${encoder ? "Encoder block" : "Block"} ${layer}</h2>
    <p class="hint">Ablate or scale a component to see how the prediction changes.</p>
    ${line("attention", "attn.out")}${card.architecture === "encoder-decoder" && !encoder ? line("cross-attention", "cross_attn.out") : nothing}${line("feed-forward", "ffn.out")}
    ${token >= 0 && !encoder ? html`<p><ch-edit .name=${"embed"} .token=${token} .label=${`the token ${run.tokens[token].text}`}></ch-edit></p>` : nothing}
    <p><button type="button" @click=${() => set({ view: "attention", layer })}>Attention heads</button> <button type="button" @click=${() => set({ view: "block", layer })}>Neurons and norms</button></p>
    <dl><dt>d_model</dt><dd>${card.d_model}</dd>
      <dt>heads</dt><dd>${card.n_heads}, d_head ${card.d_head}${card.n_kv_heads < card.n_heads ? `; ${card.n_kv_heads} key/value heads` : ""}</dd>
      <dt>neurons</dt><dd>${card.d_ff}, ${card.activation}</dd><dt>norm</dt><dd>${card.norm === "rmsnorm" ? "RMSNorm" : "LayerNorm"}, ${card.norm_position === "pre" ? "pre-norm" : "post-norm"}</dd>
      <dt>positions</dt><dd>${card.position}</dd></dl></section>`;
}
