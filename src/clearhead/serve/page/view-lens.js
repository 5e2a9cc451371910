// Lens and context: what the model would answer if it stopped early, and how a word gets its meaning on the way (L3.1).

import { html, nothing } from "lit-html";
import { listed } from "ch/choose";
import { told } from "ch/colours";
import { context } from "ch/context";
import { got } from "ch/run";
import { lensed, shown } from "ch/shown";
import { defaults } from "ch/state";
import { once } from "ch/steady";

defaults({ wanted: -1, rival: -1 }, { inText: true });
const FEW = 16; // bars

function template(ctx) {
  const { run, edited } = ctx;
  const own = edited ?? run;
  return html`
    ${run ? html`${grid(ctx, own, edited ? "with the edits" : "")}${edited ? grid(ctx, run, "without them") : nothing}
      ${made(ctx, own)}` : html`<p class="hint">There is no text to look into yet. Type one above.</p>`}
    ${ctx.card.text ? context(ctx) : nothing}`;
}

const cursor = (row, col) => once(cursor, `${row} ${col}`, () => [row, col]);

/** Layer × position: the first answer of each. Click a column to see more of it. */
function grid({ state, set }, run, which) {
  const at = Math.min(state.query, run.tokens.length - 1);
  const url = `/api/runs/${run.id}/lens?at=${at}`;
  const found = got(url, `lens ${which}`);
  return shown(found, (value) => html`
    <ch-view .view=${lensed(value.view)} .pending=${found.pending} .caption=${`If it stopped after each layer${which ? `, ${which}` : ""}`}
      .cursor=${cursor(Math.min(value.layers.length - 1, state.layer + 1), value.at)} @pick=${({ detail }) => set({ query: value.start + detail.col, layer: Math.max(0, detail.row - 1) })}></ch-view>
    ${value.view.shape[1] < value.count && value.view.shape[1] > 1 ? html`<p class="badge">tokens ${value.start} to ${value.start + value.view.shape[1] - 1} of ${value.count}; choose one below to see those around it</p>` : nothing}
    ${which === "without them" ? nothing : rising(value, run.gap === null ? "After" : "At")}`, "Every layer is being asked …");
}

/** At one token: the likeliest answers of every layer, from the first to the last. */
function rising({ view, layers, at }, where) {
  const names = view.axes[0].labels, last = layers.at(-1)[0][0];
  const number = view.measure !== "probability", most = Math.min(6, layers[0].length);
  return html`<ch-figure .caption=${`${where} “${view.axes[1].labels[at]}”, layer by layer`} .note=${"The stream after each layer, put through the last norm and the head as if it were the end. Wherever the whole model's answer shows up it is marked."}>
    <div class="scroll"><table class="rising"><tbody>${layers.map((best, layer) => html`<tr><th scope="row">${layer ? `layer ${names[layer]}` : "start"}</th>
      ${best.slice(0, most).map(([word, share]) => html`<td class=${word === last ? "answer" : ""} data-value=${share}><span class="share" .style=${`--share:${number ? 0 : share ?? 0}`}></span><span class="word">${word}</span> <span class="hint">${number ? told(share) : percent(share)}</span></td>`)}</tr>`)}</tbody></table></div></ch-figure>`;
}

/** What a logit is made of. */
function made({ state, set }, run) {
  if (!run.top?.length || run.top[0].prob === null) return nothing;
  const pick = (value, first, words, key) => {
    const known = [...first, ...run.top.map(({ id, text }) => [id, text])];
    return listed(words, known.some(([id]) => id === value) ? known : [[value, `token ${value}`], ...known], value, (id) => set({ [key]: id }));
  };
  const wanted = state.wanted >= 0 ? state.wanted : run.top[0].id;
  const url = `/api/runs/${run.id}/attribution?token=${wanted}${state.rival >= 0 && state.rival !== wanted ? `&against=${state.rival}` : ""}`;
  const found = got(url, "attribution");
  return html`<section><h2>What the answer is made of</h2>
    <div class="row">${pick(wanted, [], "answer", "wanted")} ${pick(state.rival, [[-1, "nothing"]], "rather than", "rival")}</div>
    ${shown(found, ({ view, heads, total }) => html`<div class="columns">
      ${parts(view, total, found.pending)}
      ${Object.entries(heads).map(([part, map]) => html`<div><ch-view .view=${lensed(map)} .pending=${found.pending} .caption=${`The heads' share: ${part}`}
        .cursor=${cursor(state.layer, state.head)} @pick=${({ detail }) => set({ layer: detail.row, head: detail.col })}></ch-view>
        ${part === "attention" ? html`<p class="hint">Layer ${state.layer}, head ${state.head}: <ch-edit .name=${`blocks.${state.layer}.attn.z`} .head=${state.head}></ch-edit></p>
          <p class="hint">Layer ${state.layer}, feed-forward: <ch-edit .name=${`blocks.${state.layer}.ffn.out`}></ch-edit></p>` : nothing}</div>`)}</div>`)}
  </section>`;
}

/** The largest parts, and all others together; they add up to the logit. */
function parts(view, total, pending) {
  const { values, axes, note } = lensed(view);
  let order = Array.from(values, (_, i) => i);
  if (values.length > FEW) order = order.sort((a, b) => Math.abs(values[b]) - Math.abs(values[a])).slice(0, FEW - 1);
  const rest = total - order.reduce((sum, i) => sum + values[i], 0), cut = values.length - order.length;
  return html`<ch-figure .caption=${`Each part's share of the logit, ${told(total, 5)}`} .note=${note} .pending=${pending}>
    <ch-bars .labels=${[...order.map((i) => axes[0].labels[i]), ...(cut ? [`${cut} others`] : [])]} .values=${[...order.map((i) => values[i]), ...(cut ? [rest] : [])]} .signed=${true} .measure=${"logit"}></ch-bars></ch-figure>`;
}

const percent = (share) => (share === null ? "no number" : share < 0.001 ? "<0.1 %" : `${(100 * share).toFixed(1)} %`);

export default {
  id: "lens",
  title: "Lens & context",
  sentence: "What the model would answer if it stopped after each layer, and how a word becomes what it means here.",
  free: true,
  template,
};
