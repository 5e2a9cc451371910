// Logit lens, attribution, and words in context (L3.1).

import { html, nothing } from "lit-html";
import { listed } from "ch/choose";
import { told } from "ch/colors";
import { context } from "ch/context";
import { got } from "ch/run";
import { lensed, shown } from "ch/shown";
import { defaults } from "ch/state";
import { once } from "ch/steady";

defaults({ answer: -1, contrast: -1 }, { inText: true });
const FEW = 16; // maximum number of bars

function template(ctx) {
  const { run, edited } = ctx;
  const own = edited ?? run;
  return html`
    ${run ? html`${grid(ctx, own, edited ? "with the edits" : "")}${edited ? grid(ctx, run, "without edits") : nothing}
      ${made(ctx, own)}` : html`<p class="hint">Nothing to analyze yet. Type a text above.</p>`}
    ${ctx.card.reads_text ? context(ctx) : nothing}`;
}

const cursor = (row, col) => once(cursor, `${row} ${col}`, () => [row, col]);

/** Layer × position: the top prediction of each. Click a column for details. */
function grid({ state, set }, run, which) {
  const at = Math.min(state.query, run.tokens.length - 1);
  const url = `/api/runs/${run.id}/lens?token=${at}`;
  const found = got(url, `lens ${which}`);
  return shown(found, (value) => html`
    <ch-view .view=${lensed(value.view)} .pending=${found.pending} .caption=${`Prediction after each layer${which ? `, ${which}` : ""}`}
      .cursor=${cursor(Math.min(value.layers.length - 1, state.layer + 1), value.token)} @pick=${({ detail }) => set({ query: value.start + detail.col, layer: Math.max(0, detail.row - 1) })}></ch-view>
    ${value.view.shape[1] < value.num_tokens && value.view.shape[1] > 1 ? html`<p class="badge">tokens ${value.start} to ${value.start + value.view.shape[1] - 1} of ${value.num_tokens}; select a token below to see its surroundings</p>` : nothing}
    ${which === "without edits" ? nothing : rising(value, run.answer_token === null ? "After" : "At")}`, "Running the logit lens …");
}

/** The top predictions of every layer at one token. */
function rising({ view, layers, token: at }, where) {
  const names = view.axes[0].labels, last = layers.at(-1)[0][0];
  const number = view.value_name !== "probability", most = Math.min(6, layers[0].length);
  return html`<ch-figure .caption=${`${where} “${view.axes[1].labels[at]}”, layer by layer`} .note=${"The residual stream after each layer through the final norm and the head. The final prediction of the model is highlighted."}>
    <div class="scroll"><table class="rising"><tbody>${layers.map((best, layer) => html`<tr><th scope="row">${layer ? `layer ${names[layer]}` : "start"}</th>
      ${best.slice(0, most).map(([word, share]) => html`<td class=${word === last ? "answer" : ""} data-value=${share}><span class="share" .style=${`--share:${number ? 0 : share ?? 0}`}></span><span class="word">${word}</span> <span class="hint">${number ? told(share) : percent(share)}</span></td>`)}</tr>`)}</tbody></table></div></ch-figure>`;
}

/** Attribution of a logit to components. */
function made({ state, set }, run) {
  if (!run.top?.length || run.top[0].prob === null) return nothing;
  const pick = (value, first, words, key) => {
    const known = [...first, ...run.top.map(({ id, text }) => [id, text])];
    return listed(words, known.some(([id]) => id === value) ? known : [[value, `token ${value}`], ...known], value, (id) => set({ [key]: id }));
  };
  const wanted = state.answer >= 0 ? state.answer : run.top[0].id;
  const url = `/api/runs/${run.id}/attribution?answer=${wanted}${state.contrast >= 0 && state.contrast !== wanted ? `&contrast=${state.contrast}` : ""}`;
  const found = got(url, "attribution");
  return html`<section><h2>Attribution of the prediction</h2>
    <div class="row">${pick(wanted, [], "answer", "answer")} ${pick(state.contrast, [[-1, "nothing"]], "contrast with", "contrast")}</div>
    ${shown(found, ({ view, heads, total }) => html`<div class="columns">
      ${parts(view, total, found.pending)}
      ${Object.entries(heads).map(([part, map]) => html`<div><ch-view .view=${lensed(map)} .pending=${found.pending} .caption=${`Contribution of heads: ${part}`}
        .cursor=${cursor(state.layer, state.head)} @pick=${({ detail }) => set({ layer: detail.row, head: detail.col })}></ch-view>
        ${part === "attention" ? html`<p class="hint">Layer ${state.layer}, head ${state.head}: <ch-edit .name=${`blocks.${state.layer}.attn.z`} .head=${state.head}></ch-edit></p>
          <p class="hint">Layer ${state.layer}, feed-forward: <ch-edit .name=${`blocks.${state.layer}.ffn.out`}></ch-edit></p>` : nothing}</div>`)}</div>`)}
  </section>`;
}

/** The largest contributions and the sum of all others; they add up to the logit. */
function parts(view, total, pending) {
  const { values, axes, note } = lensed(view);
  let order = Array.from(values, (_, i) => i);
  if (values.length > FEW) order = order.sort((a, b) => Math.abs(values[b]) - Math.abs(values[a])).slice(0, FEW - 1);
  const rest = total - order.reduce((sum, i) => sum + values[i], 0), cut = values.length - order.length;
  return html`<ch-figure .caption=${`Contributions to the logit ${told(total, 5)}`} .note=${note} .pending=${pending}>
    <ch-bars .labels=${[...order.map((i) => axes[0].labels[i]), ...(cut ? [`${cut} others`] : [])]} .values=${[...order.map((i) => values[i]), ...(cut ? [rest] : [])]} .signed=${true} .measure=${"logit"}></ch-bars></ch-figure>`;
}

const percent = (share) => (share === null ? "NaN" : share < 0.001 ? "<0.1 %" : `${(100 * share).toFixed(1)} %`);

export default {
  id: "lens",
  title: "Lens & context",
  sentence: "Predictions after each layer, attribution, and how a word's vector depends on its context.",
  free: true,
  template,
};
