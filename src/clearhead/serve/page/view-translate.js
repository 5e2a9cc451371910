// Translation (L6.2): encoder, decoder, cross-attention and beam search.

import { html, nothing, svg } from "lit-html";
import {
	attentionMask,
	attentionPath,
	crossAttentionLines,
	layerCount,
	patternHeatmap,
	tokenTexts,
} from "ch/attention";
import { buttonGroup, isPlaying, numberSelect, slider, togglePlay } from "ch/controls";
import "ch/edits";
import "ch/figure";
import { formatNumber } from "ch/format";
import { truncate } from "ch/heatmap";
import {
	currentInput,
	editFields,
	getArray,
	getRun,
	postJson,
	renderResource,
	runRequest,
} from "ch/requests";
import { notify, registerDefaults } from "ch/state";
import "ch/tokens";

registerDefaults({ num_beams: 4, length_penalty: 1, mean_heads: false, translate_part: "cross" });
registerDefaults({ beam_node: -1, beam_step: 0 }, { inText: true });

const ATTENTION_OPTIONS = [
	["cross", "cross", "Target tokens attend to the source"],
	["attention", "decoder", "Target tokens attend to the target"],
	["encoder", "encoder", "Source tokens attend to the source"],
];
let hoveredRow = -1; // the row under the pointer, not part of the URL

function template(context) {
	const { card, state, set } = context;
	const input = card.reads_audio
		? { audio: runRequest(card).audio }
		: { text: currentInput(card).source ?? "" };
	if (!(input.audio ?? input.text ?? "").trim())
		return html`<p class="hint">
			Nothing to translate yet.
			${card.reads_audio ? "Open an audio file in the Patches view." : "Type a sentence above."}
		</p>`;
	const { num_beams, length_penalty } = state;
	const search = getTranslation(context, input, { num_beams, length_penalty }, "translation");
	const setSearch = (patch) => set({ ...patch, beam_node: -1 }, { replace: true });
	return html`<div class="row">
			${slider("Beams", { min: 1, max: 8, value: state.num_beams }, (num_beams) => setSearch({ num_beams }))}
			${slider("Length penalty", { min: 0, max: 2, step: 0.1, value: state.length_penalty, format: (v) => v.toFixed(1) }, (length_penalty) => setSearch({ length_penalty }))}
		</div>
		${renderResource(search, (result) => translationFigures(context, result), "Translating…")}`;
}

/** A translation together with its input, which may be outdated while the next one loads. */
function getTranslation({ card }, input, options, slot) {
	const body = { model: card.name, ...input, ...options };
	return postJson("translate", body, slot, (result) => ({ ...result, input }));
}

function translationFigures(context, result) {
	const { state } = context;
	const { nodes, best, input } = result;
	const path = nodes[state.beam_node] ? pathToNode(nodes, state.beam_node) : best[0].path;
	const steps = path.map((number) => nodes[number]);
	return html`${resultsFigure(context, result, path, steps)} ${editedFigure(context, input)}
	${attentionFigure(context, result, steps)} ${beamFigure(context, result, path)}`;
}

/** The translations, and the log-probabilities of the selected one. */
function resultsFigure({ state, set }, { best }, path, steps) {
	const last = steps.at(-1);
	const length = steps.length;
	const selected = best.findIndex((one) => String(one.path) === String(path));
	return html`<ch-figure
		.caption=${"Translations"}
		.note=${"The log-probability of a translation is the sum over its tokens. Its score is the log-probability divided by length^penalty."}>
		<div class="scroll">
			<table class="translations">
				<thead>
					<tr>
						<th scope="col">text</th>
						<th scope="col">tokens</th>
						<th scope="col">log-probability</th>
						<th scope="col">score</th>
					</tr>
				</thead>
				<tbody>
					${best.map(
						(one, i) =>
							html`<tr
								class=${i === selected ? "selected" : ""}
								data-logprob=${one.logprob}
								data-score=${one.score}>
								<th scope="row">
									<button
										type="button"
										class="text"
										aria-pressed=${i === selected}
										@click=${() => set({ beam_node: i ? one.path.at(-1) : -1 })}>
										${one.text || "(empty)"}
									</button>
								</th>
								<td>${one.tokens.length}</td>
								<td>${formatNumber(one.logprob, 4)}</td>
								<td>${formatNumber(one.score, 4)}</td>
							</tr>`,
					)}
				</tbody>
			</table>
		</div>
		<p class="sum" data-logprob=${last.logprob}>
			${steps.map(
				(step, i) =>
					html`<span class="term" data-logprob=${step.token_logprob}
						><b class="word">${step.text}</b>
						<span
							>${i ? (step.token_logprob < 0 ? "− " : "+ ") : step.token_logprob < 0 ? "−" : ""}${Math.abs(step.token_logprob).toFixed(3)}</span
						></span
					>`,
			)}
			<span class="term total"><b>=</b><span>${formatNumber(last.logprob, 5)}</span></span>
			${
				last.score === null
					? html`<span class="hint"
							>This hypothesis was ${last.status === "dropped" ? "pruned" : "unfinished"} at this
							step.</span
						>`
					: html`<span class="term total"
							><b>÷ ${length}<sup>${state.length_penalty.toFixed(1)}</sup> =</b
							><span>${formatNumber(last.score, 4)}</span></span
						>`
			}
		</p>
	</ch-figure>`;
}

/** Greedy translation with and without the edits. */
function editedFigure(context, input) {
	if (!editFields()) return nothing;
	const plain = getTranslation(context, input, { num_beams: 1, length_penalty: 1 }, "greedy");
	const other = getTranslation(context, input, editFields(), "edited translation");
	return html`<ch-figure
		.caption=${"With your edits"}
		.note=${"Both greedy. The log-probability is shown below each token."}>
		${renderResource(plain, ({ best: [one], nodes }) =>
			scoredLine(
				"before",
				one,
				one.path.map((n) => nodes[n]),
			),
		)}
		${renderResource(other, (one) => scoredLine("after", one, one.steps))}</ch-figure
	>`;
}

function scoredLine(when, { text, logprob }, steps) {
	return html`<p class="scored-tokens" data-when=${when} data-text=${text}>
		<span class="when">${when}</span
		>${steps.map((step) => html`<span class="term"><b class="word">${step.text}</b><span>${formatNumber(step.token_logprob, 2)}</span></span>`)}
		<span class="term total"><b>=</b><span>${formatNumber(logprob, 4)}</span></span>
	</p>`;
}

function attentionFigure({ card, state, set }, result, steps) {
	const part = ATTENTION_OPTIONS.some(([option]) => option === state.translate_part)
		? state.translate_part
		: "cross";
	const layers = layerCount(card, part);
	const layer = Math.min(state.layer, layers - 1);
	const head = Math.min(state.head, card.n_heads - 1);
	const ids = [
		...result.decoder_start.map(({ id }) => id),
		...steps.slice(0, -1).map(({ id }) => id),
	];
	const { audio, text } = result.input;
	const body = {
		model: card.name,
		ids,
		...(audio ? { audio } : { source: text }),
		...editFields(),
	};
	const run = getRun(body, "translation run");
	const name = `${attentionPath(part, layer)}.pattern`;
	const url =
		run.value && !run.pending
			? `/api/runs/${run.value.id}/tensor/${name}${state.mean_heads ? "" : `?head=${head}`}`
			: null;
	const pattern = url
		? getArray(url, "cross pattern", state.mean_heads ? meanOverHeads : undefined)
		: run;
	const source = tokenTexts(result.source);
	const outputs = tokenTexts(steps);
	const inputs = tokenTexts([...result.decoder_start, ...steps.slice(0, -1)]);
	const [rows, cols] = {
		cross: [outputs, source],
		attention: [outputs, inputs],
		encoder: [source, source],
	}[part];
	const labels = part === "encoder" ? rows : inputs.map((text, i) => `${text} → ${outputs[i]}`);
	return html`<ch-figure
		.caption=${{ cross: "Cross-attention: source tokens that each target token attends to", attention: "Self-attention of the decoder", encoder: "Self-attention of the encoder (no mask)" }[part]}
		.pending=${pattern.pending}
		.note=${part === "encoder" ? "Rows sum to 1." : "Each row is labeled input token → predicted token. Rows sum to 1."}
		.badge=${editFields() ? "with your edits" : ""}>
		<div class="row">
			${buttonGroup("attention type", ATTENTION_OPTIONS, part, (translate_part) => set({ translate_part }))}
			${numberSelect("Layer", layers, layer, (layer) => set({ layer }))}
			${buttonGroup(
				"heads",
				[
					[false, "one head"],
					[true, "mean of all"],
				],
				state.mean_heads,
				(mean_heads) => set({ mean_heads }),
			)}
			${state.mean_heads ? nothing : numberSelect("Head", card.n_heads, head, (head) => set({ head }))}
			${state.mean_heads ? nothing : html`<ch-edit .name=${`${attentionPath(part, layer)}.z`} .head=${head} .label=${`head ${head}`}></ch-edit>`}
		</div>
		${renderResource(pattern, (values) =>
			values.shape?.length !== 2 || values.shape[0] !== rows.length
				? nothing
				: html`${crossAttentionLines(
						cols,
						rows,
						values,
						hoveredRow >= 0 ? hoveredRow : selectedRow(state, rows.length),
						{
							pick: (query) => set({ query }),
							hover: (row) => {
								hoveredRow = row;
								notify();
							},
							label: `${part}, layer ${layer}`,
						},
					)}
					${patternHeatmap(values, [labels, cols], {
						...{ name: state.mean_heads ? "" : name, run: run.value?.id ?? "", head },
						label: `${part}, layer ${layer}`,
						isMasked: attentionMask(card, part).isMasked,
						cursor: state.query >= 0 && state.key >= 0 ? [state.query, state.key] : null,
						pick: ({ row, col }) => set({ query: row, key: col }),
					})}`,
		)}
	</ch-figure>`;
}

const selectedRow = ({ query }, count) => (query >= 0 && query < count ? query : -1);

function meanOverHeads({ shape: [heads, rows, cols], data }) {
	const mean = new Float32Array(rows * cols);
	for (let h = 0; h < heads; h++)
		for (let i = 0; i < mean.length; i++) mean[i] += data[h * mean.length + i] / heads;
	return { shape: [rows, cols], data: mean };
}

function beamFigure({ state, set }, { nodes, best, decoder_start }, path) {
	const last = Math.max(...nodes.map(({ step }) => step));
	const lastShown = state.beam_step ? Math.min(state.beam_step, last) : last;
	const show = (step) => set({ beam_step: step === last ? 0 : step }, { replace: true });
	const shown = nodes.filter(({ step }) => step <= lastShown);
	const count = (status) => shown.filter((node) => node.status === status).length;
	return html`<ch-figure
		.caption=${"Beam search: all hypotheses"}
		.note=${"One column per step, most likely hypothesis on top. Round: continued; square: finished; dashed: pruned. Select one to see its log-probabilities and attention."}>
		<div class="row">
			<button type="button" class="play" @click=${() => togglePlay(1, last, show)}>
				${isPlaying() ? "Pause" : "Play"}
			</button>
			${slider("Step", { min: 1, max: last, value: lastShown, format: (v) => `${v} of ${last}` }, show)}
			<p class="legend">
				<span class="key best">best</span><span class="key">continued: ${count("kept")}</span
				><span class="key finished">finished: ${count("finished")}</span
				><span class="key dropped">pruned: ${count("dropped")}</span>
			</p>
		</div>
		${beamTree(nodes, tokenTexts(decoder_start).join(""), best[0].path, path, lastShown, (node) => set({ beam_node: node === state.beam_node ? -1 : node }))}
	</ch-figure>`;
}

export default {
	id: "translate",
	title: "Translate",
	sentence:
		"The encoder reads the source, the decoder generates the target with cross-attention; beam search keeps several hypotheses.",
	free: true, // makes its own runs
	template,
};

// ---- beam search
// One column per step, most likely hypothesis on top.
const COLUMN_WIDTH = 122;
const ROW_HEIGHT = 25;
const NODE_WIDTH = 100;

const nodeLabel = ({ text }) => truncate(text, NODE_WIDTH - 54);
const nodeLogprob = (node) => node.token_logprob.toFixed(2).replace("-", "−");

/** The path from the root to a node. */
function pathToNode(nodes, number) {
	const path = [];
	for (let at = number; at >= 0; at = nodes[at].parent) path.unshift(at);
	return path;
}

/** `best` is the winning path; steps after `lastShown` are hidden. */
function beamTree(nodes, start, best, selected, lastShown, onPick) {
	const rows = nodeRows(nodes);
	const steps = Math.max(...nodes.map((node) => node.step));
	const rowCount = Math.max(...rows) + 1;
	const width = (steps + 1) * COLUMN_WIDTH;
	const height = rowCount * ROW_HEIGHT + 6;
	const winners = new Set(lastShown >= steps ? best : []); // known at the end
	const selection = new Set(selected);
	const classes = (node, i) =>
		`${node.status} ${winners.has(i) ? "best" : ""} ${selection.has(i) ? "selected" : ""}`;
	const x = (step) => step * COLUMN_WIDTH + 2;
	const y = (row) => row * ROW_HEIGHT + ROW_HEIGHT / 2 + 2;
	const edge = (node, i) => {
		const from =
			node.parent < 0
				? { x: x(0) + NODE_WIDTH - 20, y: y(0) }
				: { x: x(nodes[node.parent].step) + NODE_WIDTH, y: y(rows[node.parent]) };
		const to = { x: x(node.step), y: y(rows[i]) };
		const middle = (from.x + to.x) / 2;
		return svg`<path class=${classes(node, i)} d=${`M${from.x} ${from.y} C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`}></path>`;
	};
	const nodeGroup = (
		node,
		i,
	) => svg`<g class=${`node ${classes(node, i)}`} tabindex="0" role="button" data-node=${i} data-score=${node.score ?? ""}
    aria-label=${`${nodeLabel(node)} ${nodeLogprob(node)}: ${node.text}, step ${node.step}, ${node.status}, log-probability ${formatNumber(node.logprob)}`}
    @click=${() => onPick(i)} @keydown=${(event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), onPick(i))}>
    <title>${node.text}: ${formatNumber(node.token_logprob)} for this token, ${formatNumber(node.logprob)} in total; ${node.status}${node.score === null ? "" : `, score ${formatNumber(node.score)}`}</title>
    <rect x=${x(node.step)} y=${y(rows[i]) - 10} width=${NODE_WIDTH} height="20" rx=${node.status === "finished" ? 3 : 10}></rect>
    <text x=${x(node.step) + 8} y=${y(rows[i])}>${nodeLabel(node)}</text>
    <text class="logprob" x=${x(node.step) + NODE_WIDTH - 7} y=${y(rows[i])} text-anchor="end">${nodeLogprob(node)}</text></g>`;
	return html`<div class="scroll">
		<svg
			class="beam-tree"
			viewBox="0 0 ${width} ${height}"
			width=${width}
			height=${height}
			role="group"
			aria-label="beam search">
			<text class="root" x="4" y=${y(0)}>${truncate(start, NODE_WIDTH - 26)}</text>
			${nodes.map((node, i) => (node.step <= lastShown ? edge(node, i) : nothing))}${nodes.map((node, i) => (node.step <= lastShown ? nodeGroup(node, i) : nothing))}
		</svg>
	</div>`;
}

/** The row of each node within its step, most likely first. */
function nodeRows(nodes) {
	const counts = new Map();
	return nodes.map(({ step }) => {
		const row = counts.get(step) ?? 0;
		counts.set(step, row + 1);
		return row;
	});
}
