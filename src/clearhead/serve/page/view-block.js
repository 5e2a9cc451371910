// The block (L4): residual stream, norms and neurons of one token.

import { html, nothing, svg } from "lit-html";
import { decoded } from "ch/api";
import { numbered, oneOf, placeOf } from "ch/choose";
import { told } from "ch/colors";
import { got } from "ch/run";
import { shown } from "ch/shown";
import "ch/bars";
import "ch/edit";
import "ch/view";

const PARTS = { attn: "attention", cross_attn: "cross-attention", ffn: "feed-forward" };

function template(ctx) {
  const { card, state, set, run } = ctx;
  const encoder = card.architecture === "encoder-decoder" && state.part === "encoder";
  const layers = encoder ? card.encoder_layers : card.n_layers;
  const tokens = encoder ? run.source_tokens : run.tokens;
  const own = (ctx.marks.own = encoder ? "key" : "query"), chosen = state[own];
  const layer = Math.min(state.layer, layers - 1), at = placeOf(chosen < 0 && !encoder ? run.answer_token ?? -1 : chosen, tokens.length);
  const block = of(run, layer, at, encoder, "block");
  const edited = ctx.edited && of(ctx.edited, layer, at, encoder, "edited block");
  return html`
    <div class="row">
      ${card.architecture === "encoder-decoder" ? oneOf("which stack", [["encoder", "encoder"], ["attention", "decoder"]], encoder ? "encoder" : "attention", (part) => set({ part })) : nothing}
      ${numbered("Layer", layers, layer, (to) => set({ layer: to }))}
      <p class="hint">Token ${at}: <b class="word">${tokens[at].text}</b>. Select another one in the token strip.</p>
    </div>
    ${shown(block, (inside) => html`
      ${stream(run, inside, card, tokens[at].text, edited?.value)}
      ${inside.norms.map((norm) => normed(run, inside, norm, card))}
      ${neurons(ctx, run, inside, card)}`)}
    ${lengths(ctx, run, encoder)}`;
}

function of(run, layer, token, encoder, slot) {
  const url = `/api/runs/${run.id}/block?layer=${layer}&token=${token}&encoder=${encoder}`;
  return got(url, slot, (found) => (
    { ...found, residual: rows(found.residual), norms: found.norms.map((norm) => ({ ...norm, ...rows(norm.view) })), neurons: { ...found.neurons, ...rows(found.neurons.view) } }));
}

/** A view as vectors by name, each wrapped into a few lines, with a common color limit. */
function rows(view) {
  const { values, shape: [, size], axes } = decoded(view);
  const line = folded(size), found = {};
  axes[0].labels.forEach((name, i) => (found[name] = { shape: [Math.ceil(size / line), line], data: values.slice(i * size, (i + 1) * size) }));
  return { rows: found, most: usual(values) };
}

/** Numbers per line: the largest divisor of the size up to 128. */
function folded(size) {
  for (let line = Math.min(128, size); line > 24; line--) if (size % line === 0) return line;
  return size;
}

/** Color limit: the 99th percentile, as a few outlier dimensions would leave all others pale. */
function usual(values) {
  const sizes = Float32Array.from(values, Math.abs).sort();
  return sizes[Math.floor(0.99 * (sizes.length - 1))] || sizes.at(-1) || 1;
}

const length = ({ data }) => Math.sqrt(data.reduce((sum, value) => sum + value * value, 0));

/** One vector: name, heat map, norm. */
function strip(label, values, most, { name = "", run = "", token = 0, hint = "", kind = "", side = length(values) }) {
  return html`<div class="strip-row ${kind}"><span class="label" title=${hint}>${label}</span>
    <ch-map .values=${values} .signed=${true} .most=${most} .most_cell=${7} .tall=${values.shape[0] > 1 ? 6 : 16} .name=${name} .run=${run} .index=${(r, c) => [token, r * values.shape[1] + c]}
      .label=${label} .by=${["line", "dimension"]}></ch-map>
    <span class="number">${typeof side === "number" ? told(side) : side}</span></div>`;
}

function stream(run, { path, token, residual: { rows, most } }, card, word, edited) {
  const post = card.norm_position === "post";
  const sum = post ? "= norm of the sum" : "= sum";
  const labels = { resid_pre: "x, block input", resid_mid: sum, resid_cross: sum, resid_post: `${sum}, block output` };
  const added = (name) => name.endsWith(".out");
  return html`<ch-figure .caption=${`Residual stream of “${word}” and what is added to it`}
      .note=${`Each strip is one vector on a common color scale: blue is positive, orange is negative, full color is ${told(most)}. The number is its norm. Only attention moves information between tokens.`}>
    <div class="strips">
      ${Object.entries(rows).map(([name, values]) => strip(added(name) ? `+ ${PARTS[name.split(".")[0]]}` : labels[name], values, most, {
        name: `${path}.${name}`, run: run.id, token, kind: added(name) ? "added" : "", hint: `${path}.${name}`,
        side: edited ? html`${told(length(values))} → <b>${told(length(edited.residual.rows[name]))}</b>` : length(values),
      }))}
    </div>
    <div class="row controls">${Object.keys(rows).filter(added).map((name) => html`<ch-edit .name=${`${path}.${name}`} .label=${PARTS[name.split(".")[0]]}></ch-edit>`)}</div>
  </ch-figure>`;
}

function normed(run, { path, token }, norm, card) {
  const { rows, mean, std, centered } = norm;
  const most = Math.max(...["x", "(x − μ) / σ", "out"].map((name) => usual(rows[name].data)));
  const before = card.norm_position === "pre" ? `before ${PARTS[norm.part]}` : `after ${PARTS[norm.part]}`;
  const words = { x: `x = ${norm.input}`, "(x − μ) / σ": centered ? "(x − μ) / σ" : "x / σ", γ: "γ, learned", β: "β, learned", out: "output" };
  return html`<ch-figure .caption=${`Norm ${before}`} .note=${centered
      ? "Per token: subtract the mean, divide by the standard deviation, then scale and shift each dimension."
      : "Per token: divide by the root mean square, then scale each dimension."}>
    <p class="formula-line">${centered ? html`<math display="block"><mrow><mi>γ</mi><mo>⊙</mo><mfrac><mrow><mi>x</mi><mo>−</mo><mi>μ</mi></mrow><mi>σ</mi></mfrac><mo>+</mo><mi>β</mi></mrow></math>`
      : html`<math display="block"><mrow><mi>γ</mi><mo>⊙</mo><mfrac><mi>x</mi><mi>σ</mi></mfrac></mrow></math>`}
      <span>${centered ? html`μ = <b>${told(mean, 4)}</b>, ` : nothing}σ = <b>${told(std, 4)}</b>
        <span class="quiet">(${centered ? "√(variance + ε)" : "√(mean of squares + ε)"}, ε = ${told(norm.eps, 1)})</span></span></p>
    <div class="strips">${Object.entries(rows).map(([name, values]) => strip(words[name], values, "γβ".includes(name) ? usual(values.data) : most, {
      name: name === "out" ? `${path}.${norm.name}` : "", run: run.id, token, kind: "γβ".includes(name) ? "learned" : "", hint: name === "out" ? `${path}.${norm.name}` : "",
    }))}</div>
  </ch-figure>`;
}

function neurons(ctx, run, { path, token, neurons: { rows, most, top, active_fraction, positive_fraction } }, card) {
  const relu = card.activation.startsWith("relu");
  const share = relu ? `${(100 * active_fraction).toFixed(0)} % of ${rows.post.data.length} neurons are active; the others are exactly 0.`
    : `${(100 * positive_fraction).toFixed(0)} % of ${rows.post.data.length} neurons are positive before the activation.`;
  const labels = top.map(({ neuron }) => `neuron ${neuron}`);
  const notes = top.some(({ words }) => words.length) ? top.map(({ words }) => words.join("  ")) : null;
  return html`<ch-figure .caption=${"Feed-forward: neuron activations"} .note=${share}>
    <div class="two">
      <div><h3>All neurons: input (x axis, histogram in gray) and output of ${card.activation} (y axis)</h3>${scatter((rows.gate ?? rows.up).data, rows.post.data, card.is_gated)}</div>
      <div><h3>Neurons with the largest output</h3>
        <ch-bars .labels=${labels} .values=${top.map(({ norm }) => norm)} .notes=${notes} .measure=${"norm"} .label=${"neurons with the largest output"}
          @pick=${(event) => ctx.inspect({ run: run.id, name: `${path}.ffn.post`, index: [token, top[event.detail.index].neuron], value: top[event.detail.index].value }, "lock")}></ch-bars>
        <p class="note">Norm of each neuron's output: |activation| × ‖its row of W₂‖.${notes ? " Next to it the tokens whose logits it raises most." : ""}</p></div>
    </div>
    <div class="strips">${Object.entries(rows).map(([name, values]) => strip({ gate: "gate", up: card.is_gated ? "up" : "before", post: "after" }[name], values, most, { name: `${path}.ffn.${name}`, run: run.id, token, hint: `${path}.ffn.${name}` }))}</div>
  </ch-figure>`;
}

/** Scatter plot of neurons before and after their activation, with a histogram behind it. */
function scatter(before, after, gated) {
  const [wide, high, room] = [300, 190, 26];
  const [x0, x1, y0, y1] = [Math.min(...before, 0), Math.max(...before, 0), Math.min(...after, 0), Math.max(...after, 0)];
  const x = (v) => room + ((v - x0) / (x1 - x0 || 1)) * (wide - 2 * room), y = (v) => high - room - ((v - y0) / (y1 - y0 || 1)) * (high - 2 * room);
  const bins = new Array(32).fill(0);
  for (const v of before) bins[Math.min(31, Math.floor((32 * (v - x0)) / (x1 - x0 || 1)))]++;
  const most = Math.max(...bins), step = (wide - 2 * room) / 32;
  const dots = Array.from(before, (v, i) => `M${x(v).toFixed(1)} ${y(after[i]).toFixed(1)}h0`).join("");
  const tick = (v, at) => svg`<text x=${at === "x" ? x(v) : x(0) - 5} y=${at === "x" ? y(0) + 12 : y(v)} text-anchor=${at === "x" ? "middle" : "end"} dominant-baseline="middle">${told(v, 2)}</text>`;
  return html`<svg class="scatter" viewBox="0 0 ${wide} ${high}" role="img" aria-label="${before.length} neurons before and after their activation">
    ${bins.map((n, i) => svg`<rect x=${room + i * step} y=${high - room - (0.5 * (high - 2 * room) * n) / most} width=${step - 1} height=${(0.5 * (high - 2 * room) * n) / most}><title>${n} neurons</title></rect>`)}
    <line x1=${room / 2} x2=${wide - room / 2} y1=${y(0)} y2=${y(0)}></line><line x1=${x(0)} x2=${x(0)} y1=${room / 2} y2=${high - room / 2}></line>
    <path class="dots" d=${dots}></path>${[x0, x1].filter(Boolean).map((v) => tick(v, "x"))}${[y0, y1].filter(Boolean).map((v) => tick(v, "y"))}
    </svg>${gated ? html`<p class="note">Multiplied by the gate, so the dots do not lie on the activation function.</p>` : nothing}`;
}

/** Norms of the residual stream and of what each component adds, for all tokens. */
function lengths({ set, marks: { own } }, run, encoder) {
  const url = `/api/runs/${run.id}/residual?encoder=${encoder}`;
  const found = got(url, "residual", decoded);
  const long = run.tokens.length > 256 ? "The first tokens often have the largest norm." : "";
  return shown(found, (view) => html`<ch-view .view=${view} .pending=${found.pending} .caption=${`Norms of the residual stream and of each component's output, by layer. ${long}`}
    @pick=${(event) => {
      const [part] = view.axes[1].labels[event.detail.row].split(" ");
      set({ [own]: event.detail.col, ...(/^\d+$/.test(part) ? { layer: Number(part) } : {}) });
    }}></ch-view>`);
}

export default {
  id: "block",
  title: "Block",
  sentence: "Residual stream, norms and neurons of one token in one block.",
  template,
};
