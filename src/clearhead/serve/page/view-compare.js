// Compare: two prompts, heads or models side by side with their difference; and a model over its
// training, from the recorded training trace.

import { html, nothing, svg } from "lit-html";
import { decodeView } from "ch/api";
import {
	attentionMask,
	attentionPath,
	headPattern,
	layerCount,
	patternDifference,
	patternHeatmap,
	queriesAndKeys,
	sharedPositions,
	tokenTexts,
} from "ch/attention";
import "ch/charts";
import {
	button,
	buttonGroup,
	isPlaying,
	numberSelect,
	selectBox,
	textInput,
	togglePlay,
} from "ch/controls";
import "ch/figure";
import { formatCount, formatNumber, formatPercent } from "ch/format";
import "ch/heatmap";
import {
	getArray,
	getJson,
	getRun,
	memoize,
	modelUrl,
	renderError,
	renderResource,
	runRequest,
	serverModels,
} from "ch/requests";
import { registerDefaults, set, state } from "ch/state";
import "ch/tensor-view";

registerDefaults({ compare: "prompts", second_text: null, layer2: 0, head2: 1, model2: "" });

const MODES = [
	["prompts", "two prompts"],
	["heads", "two heads"],
	["models", "two models"],
	["training", "training"],
];
const TEMPLATES = {
	prompts: comparePrompts,
	heads: compareHeads,
	models: compareModels,
	training: trainingTrace,
};

function template(context) {
	const { card, state, set } = context;
	const modes = card.reads_text ? MODES : MODES.filter(([mode]) => mode !== "prompts");
	const mode = modes.some(([each]) => each === state.compare) ? state.compare : modes[0][0];
	return html`<div class="row">
			${buttonGroup("what to compare", modes, mode, (compare) => set({ compare }))}
		</div>
		${TEMPLATES[mode](context)}`;
}

function comparePrompts(context) {
	const { card, state, set } = context;
	const hasSource = card.architecture === "encoder-decoder";
	const [tired, wide] = card.examples.coreference;
	const key = hasSource ? "source" : "text";
	const example = hasSource || state.text !== null ? "" : card.examples.comparison;
	const text = state.second_text ?? example;
	const second = text ? getRun({ ...runRequest(card), [key]: text }, "second text") : null;
	const compare = (run) => runComparison(context, [context.run, run], [context[key], text]);
	return html`<div class="row">
			${textInput("Second text", text, (second_text) => set({ second_text }), { placeholder: "second text" })}
			${!hasSource && tired ? button("The chicken: tired or wide?", () => set({ text: tired, second_text: wide })) : nothing}
		</div>
		${second ? renderResource(second, compare) : html`<p class="hint">Enter a second text to compare.</p>`}`;
}

function compareModels(context) {
	const { card, state, set, run } = context;
	const others = (serverModels().value ?? [])
		.map(({ name }) => name)
		.filter((name) => name !== card.name);
	if (!others.length)
		return html`<p class="hint">
			Only one model is loaded. Open two to compare them:
			<code>clearhead explore first second</code>. Two checkpoints of a run work too.
		</p>`;
	const name = others.includes(state.model2) ? state.model2 : "";
	const second = name && getRun({ ...runRequest(card), model: name }, "second model");
	const isSameHead = name && getJson(modelUrl(name)).value?.head === card.head;
	const models = isSameHead ? [card.name, name] : null;
	const compare = (other) => runComparison(context, [run, other], [card.name, name], models);
	const options = [["", "select a model"], ...others.map((other) => [other, other])];
	return html`<div class="row">
			${selectBox("Second model", options, name, (model2) => set({ model2 }))}
		</div>
		${run && second ? renderResource(second, compare) : nothing}`;
}

/**
 * Two runs: one head of each, their difference over shared tokens, and the next-token probabilities
 * (`models` null: not comparable).
 */
function runComparison(context, runs, names, models = []) {
	const { card, state, set } = context;
	if (!runs[0]) return nothing;
	const count = layerCount(card, comparedPart(card));
	const layer = Math.min(state.layer, count - 1);
	const head = Math.min(state.head, card.n_heads - 1);
	const path = attentionPath(comparedPart(card), layer);
	const [first, second] = runs.map((run) => comparedTokens(card, run));
	if (!first || !second)
		return html`<p class="hint">The two models have different input types.</p>`;
	const pairs = sharedPositions(first, second);
	const hasHead = runs.every((run) => run.activations[`${path}.pattern`]?.shape[0] > head);
	const hasProbabilities = runs.every(({ top }) => top.length && top[0].prob !== null);
	const isComparable = card.head === "lm" && models && hasProbabilities;
	const sides = runs.map((run, i) => ({ run, path, head, name: names[i] }));
	return html`<div class="row">
			${numberSelect("Layer", count, layer, (layer) => set({ layer }))}
			${numberSelect("Head", card.n_heads, head, (head) => set({ head }))}
			<p class="hint">
				${first.length === second.length ? "Both have the same number of tokens and are compared position by position." : `They share ${formatCount(pairs.length, "token")} at the beginning and end; the difference covers those.`}
			</p>
		</div>
		${
			hasHead
				? sideBySide(context, sides, pairs)
				: html`<p class="hint">The second model has no layer ${layer}, head ${head}.</p>`
		}
		${
			isComparable
				? html`<ch-figure
						.caption=${"Next token"}
						.note=${"The top tokens of either run, with their probabilities in both."}
						>${nextTokenTable(runs, names.map(shortName), models)}</ch-figure
					>`
				: nothing
		}`;
}

/** Encoder-decoders are compared in the encoder, where their inputs differ. */
const comparedPart = ({ architecture }) =>
	architecture === "encoder-decoder" ? "encoder" : "attention";
const comparedTokens = (card, run) => queriesAndKeys(run, comparedPart(card))[0];

function compareHeads(context) {
	const { card, state, set, run } = context;
	if (!run) return html`<p class="hint">Enter an input first.</p>`;
	const count = layerCount(card, comparedPart(card));
	const layers = [state.layer, state.layer2].map((layer) => Math.min(layer, count - 1));
	const heads = [state.head, state.head2].map((head) => Math.min(head, card.n_heads - 1));
	const pairs = comparedTokens(card, run).map((_, i) => [i, i]);
	const sides = [0, 1].map((i) => ({
		run,
		path: attentionPath(comparedPart(card), layers[i]),
		head: heads[i],
		name: `layer ${layers[i]}, head ${heads[i]}`,
	}));
	return html`<div class="row">
			${numberSelect("Layer", count, layers[0], (layer) => set({ layer }))}
			${numberSelect("Head", card.n_heads, heads[0], (head) => set({ head }))}
			<span class="hint">and</span>
			${numberSelect("Layer", count, layers[1], (layer2) => set({ layer2 }))}
			${numberSelect("Head", card.n_heads, heads[1], (head2) => set({ head2 }))}
		</div>
		${sideBySide(context, sides, pairs)}`;
}

/** Two patterns and their difference. */
function sideBySide(context, sides, pairs) {
	const { card } = context;
	const patterns = sides.map(({ run, path, head }, i) =>
		headPattern(run.id, path, head, `side ${i}`),
	);
	const failed = patterns.find(({ error }) => error);
	if (failed) return renderError(failed);
	if (!patterns.every(({ value }) => value)) return html`<p class="hint">Running the model…</p>`;
	const { isMasked } = attentionMask(card, comparedPart(card));
	const labels = sides.map(({ run }) => tokenTexts(comparedTokens(card, run)));
	const isCurrent = patterns.every(({ value }, i) => value.shape[0] === labels[i].length);
	const pairLabels = pairs.map(([i, j]) =>
		labels[0][i] === labels[1][j] ? labels[0][i] : `${labels[0][i]} / ${labels[1][j]}`,
	);
	const [first, second] = patterns.map(({ value }) => value);
	const difference = isCurrent && pairs.length ? patternDifference(first, second, pairs) : null;
	const isDifferent = difference?.max >= 1e-6;
	const scale = isDifferent ? ` Full color is ±${formatNumber(difference.max)}.` : "";
	return html`<ch-figure
		.caption=${"Side by side"}
		.pending=${patterns.some(({ pending }) => pending)}
		.note=${`In the difference, blue means more weight in the second, orange in the first.${scale}`}>
		<div class="triple">
			${sides.map(
				({ run: { id }, path, head, name }, i) =>
					html`<div>
						<h3>${shortName(name)}</h3>
						${patternHeatmap(patterns[i].value, [labels[i], labels[i]], { name: `${path}.pattern`, run: id, head, label: name, isMasked })}
					</div>`,
			)}
			${
				difference
					? html`<div>
							<h3>second minus first</h3>
							<ch-heatmap
								.values=${difference}
								.signed=${true}
								.rowLabels=${pairLabels}
								.colLabels=${pairLabels}
								.isMasked=${isMasked}
								.max=${isDifferent ? null : 1}
								.axes=${["query", "key"]}
								.valueName=${"difference"}
								.label=${"difference"}></ch-heatmap>
							${isDifferent ? nothing : html`<p class="note">No difference${isMasked ? ": with a causal mask, later tokens do not affect earlier ones" : ""}.</p>`}
						</div>`
					: html`<p class="hint">They share no tokens.</p>`
			}
		</div>
	</ch-figure>`;
}

/** The probability of every token after the last one of a run, as a resource. */
const nextTokenProbabilities = (runId, slot) =>
	getArray(`/api/runs/${runId}/logits?token=-1`, slot, ({ data }) => softmax(data));

function softmax(logits) {
	const max = logits.reduce((a, b) => Math.max(a, b), -Infinity);
	const exponentials = Float64Array.from(logits, (logit) => Math.exp(logit - max));
	const sum = exponentials.reduce((a, b) => a + b, 0);
	return exponentials.map((value) => value / sum);
}

/**
 * The top next tokens of two runs with their probabilities in both; of two models, matched by text.
 * @param {Run[]} runs @param {string[]} names @param {string[]} [models]
 */
export function nextTokenTable(runs, names, models = []) {
	const probabilities = runs.map(({ id }, i) => nextTokenProbabilities(id, `next token ${i}`));
	const vocabularies = models.map((name) => getJson(`${modelUrl(name)}/vocabulary`));
	if ([...probabilities, ...vocabularies].some(({ value, pending }) => !value || pending))
		return html`<p class="hint">Running the model…</p>`;
	const top = runs.flatMap(({ top }) => top.slice(0, 7));
	const tokens = new Map(
		top.map(({ id, text }) => [models.length ? text : String(id), { id, text }]),
	);
	const probability = (run, { id, text }) => {
		const index = models.length ? vocabularies[run].value.indexOf(text) : id;
		return probabilities[run].value[index];
	};
	const cell = (value) =>
		html`<td>${value === undefined ? "not in vocabulary" : formatNumber(value)}</td>`;
	const difference = (change) =>
		html`<td class=${change < 0 ? "negative" : "positive"}>
			${change < 0 ? "−" : "+"}${formatNumber(Math.abs(change))}
		</td>`;
	const row = (token) => {
		const first = probability(0, token);
		const second = probability(1, token);
		return html`<tr>
			<th scope="row" class="word">${token.text}</th>
			${cell(first)}${cell(second)}
			${first === undefined || second === undefined ? html`<td></td>` : difference(second - first)}
		</tr>`;
	};
	return html`<div class="scroll">
		<table class="numbers changes">
			<thead>
				<tr>
					<th scope="col">next</th>
					${names.map((name) => html`<th scope="col">${name}</th>`)}
					<th scope="col">difference</th>
				</tr>
			</thead>
			<tbody>
				${[...tokens.values()].map(row)}
			</tbody>
		</table>
	</div>`;
}

const shortName = (text) => (text.length > 44 ? `${text.slice(0, 20)}…${text.slice(-22)}` : text);

export default {
	id: "compare",
	title: "Compare",
	sentence:
		"Two prompts, heads or models side by side with their difference, or a model over its training.",
	free: true,
	template,
};

// ---- training
registerDefaults({ trace_part: "", trace_index: -1, probe: 0, trace_difference: false });

const ATTENTION_TITLES = {
	attention: "attention",
	cross: "cross-attention",
	encoder: "the encoder's attention",
};

/** Attention, logit lens and embeddings at recorded steps, and the loss curve. */
function trainingTrace({ card }) {
	const url = `${modelUrl(card.name)}/training`;
	const training = getJson(url, "training", (result) => ({
		...result,
		lines: lossLines(result.curve),
	}));
	return renderResource(training, ({ trace, lines, curve }) => {
		if (!trace)
			return html`${lossFigure(lines, curve, null, () => {})}
				<p class="hint">
					No activations were recorded; use <code>clearhead train … --record-activations</code>.
				</p>`;
		const last = trace.steps.length - 1;
		const index = state().trace_index < 0 ? last : Math.min(state().trace_index, last);
		const selectStep = (step) => set({ trace_index: nearestStep(trace.steps, step) });
		const probe = Math.min(state().probe, trace.probes.length - 1);
		return html`${stepSlider(trace, index, last)}
		${lossFigure(lines, curve, trace.steps[index], selectStep)}
		${
			trace.probes.length > 1
				? selectBox(
						"Probe",
						trace.probes.map(({ text }, i) => [i, text.slice(0, 80)]),
						probe,
						(probe) => set({ probe }),
					)
				: html`<p class="hint probe">Probe: <q>${trace.probes[probe].text}</q></p>`
		}
		${headsFigure(url, trace, index, probe)} ${lensFigure(url, trace, index, probe)}
		${trace.embeddings.length ? embeddingsFigure(url, trace, index) : nothing}`;
	});
}

/** The index of the recorded step that is nearest to a step. */
function nearestStep(steps, step) {
	const distances = steps.map((recorded) => Math.abs(recorded - step));
	return distances.indexOf(Math.min(...distances));
}

function lossLines({ loss, valid_loss }) {
	return [
		{ label: "training", points: loss },
		{ label: "validation", points: valid_loss, kind: "secondary" },
	].filter(({ points }) => points.length);
}

function stepSlider(trace, index, last) {
	const loss = trace.losses[index];
	const show = (trace_index) => set({ trace_index }, { replace: true });
	return html`<div class="step-slider">
		<button
			type="button"
			class="main play"
			@click=${() => togglePlay(index === last ? 0 : index, last, show)}>
			${isPlaying() ? "Pause" : "Play"}
		</button>
		<input
			type="range"
			min="0"
			max=${last}
			.value=${String(index)}
			aria-label="step"
			aria-valuetext=${`step ${trace.steps[index]}`}
			@input=${(event) => show(Number(event.target.value))} />
		<output
			>step
			<b>${trace.steps[index].toLocaleString("en")}</b
			>${loss === null ? nothing : html` · loss ${formatNumber(loss)}`}</output
		>
	</div>`;
}

function lossFigure(lines, { accuracy }, markX, selectStep) {
	if (!lines.length) return nothing;
	const final = accuracy.length ? ` Final accuracy ${formatPercent(accuracy.at(-1)[1])}.` : "";
	return html`<ch-figure
		.caption=${"Loss"}
		.note=${`From the log of the run.${markX === null ? "" : " The line marks the selected step; click to select another."}${final}`}>
		<ch-line-chart
			.series=${lines}
			.markX=${markX}
			.valueName=${"loss"}
			.label=${"loss by step"}
			@pick=${({ detail }) => selectStep(detail.x)}></ch-line-chart
	></ch-figure>`;
}

/** All heads at this step and the selected head enlarged, or its difference from the final step. */
function headsFigure(url, trace, index, probe) {
	const defaultPart = trace.parts.includes("cross") ? "cross" : trace.parts[0];
	const part = trace.parts.includes(state().trace_part) ? state().trace_part : defaultPart;
	const load = (step, slot) =>
		getJson(`${url}/attention?step=${step}&probe=${probe}&part=${part}`, slot, (view) =>
			splitHeads(decodeView(view)),
		);
	const current = load(trace.steps[index], "trace attention");
	const final = load(trace.steps.at(-1), "final trace attention");
	const scale = formatNumber(fullColor(current.value?.cols.length ?? 1));
	return html`<ch-figure
		.caption=${`Attention during training: ${ATTENTION_TITLES[part]}`}
		.pending=${current.pending}
		.note=${`All heads at this step; rows are queries and sum to 1. Full color is ${scale}. Select a head to enlarge it.`}>
		<div class="row">
			${
				trace.parts.length > 1
					? buttonGroup(
							"attention type",
							trace.parts.map((part) => [part, ATTENTION_TITLES[part]]),
							part,
							(trace_part) => set({ trace_part }),
						)
					: nothing
			}
			${buttonGroup(
				"what is shown",
				[
					[false, "the pattern"],
					[true, "minus the final pattern"],
				],
				state().trace_difference,
				(trace_difference) => set({ trace_difference }),
			)}
		</div>
		${renderResource(current, ({ heads, rows, cols, patterns }) => {
			const [layers, headCount] = patterns.shape;
			const layer = Math.min(state().layer, layers - 1);
			const head = Math.min(state().head, headCount - 1);
			const number = layer * headCount + head;
			const difference =
				state().trace_difference && final.value
					? subtractPattern(heads[number], final.value.heads[number])
					: null;
			return html`<div class="trace-heads">
				<ch-head-grid
					.patterns=${patterns}
					.layer=${layer}
					.head=${head}
					@pick=${({ detail }) => set(detail)}></ch-head-grid>
				<div>
					<h3>Layer ${layer}, head ${head}</h3>
					<ch-heatmap
						.values=${difference ?? heads[number]}
						.signed=${!!difference}
						.rowLabels=${rows}
						.colLabels=${cols}
						.max=${fullColor(cols.length)}
						.axes=${["query", "key"]}
						.valueName=${difference ? "difference" : "pattern"}
						.label=${`layer ${layer}, head ${head}, step ${trace.steps[index]}`}></ch-heatmap>
				</div>
			</div>`;
		})}</ch-figure
	>`;
}

/** Full color at eight times the uniform weight, so that early patterns are visible. */
const fullColor = (keys) => Math.min(1, 8 / keys);

function splitHeads(view) {
	const [layers, count, rows, cols] = view.shape;
	const size = rows * cols;
	const heads = Array.from({ length: layers * count }, (_, i) => ({
		shape: [rows, cols],
		data: view.values.subarray(i * size, (i + 1) * size),
	}));
	const patterns = {
		shape: view.shape,
		data: Uint8Array.from(view.values, (weight) => Math.min(255, (255 * weight) / fullColor(cols))),
	};
	return { patterns, heads, rows: view.axes[2].labels, cols: view.axes[3].labels };
}

const subtractPattern = (current, final) =>
	memoize(current, final, () => ({
		shape: current.shape,
		data: current.data.map((value, i) => value - final.data[i]),
	}));

function lensFigure(url, trace, index, probe) {
	const result = getJson(
		`${url}/lens?step=${trace.steps[index]}&probe=${probe}`,
		"trace lens",
		decodeView,
	);
	return renderResource(
		result,
		(view) =>
			html`<ch-tensor-view
				.view=${view}
				.pending=${result.pending}
				.caption=${"Predictions by layer at this step"}></ch-tensor-view>`,
	);
}

/** All token embeddings in a plane; tokens of the probe texts are labeled. */
function embeddingsFigure(url, trace, index) {
	const result = getJson(
		`${url}/embeddings?step=${trace.steps[index]}`,
		"trace embeddings",
		decodeView,
	);
	const labeled = new Set(trace.probes.flatMap(({ tokens }) => tokens));
	return renderResource(result, ({ values, axes: [{ labels }] }) => {
		const max = values.reduce((a, b) => Math.max(a, Math.abs(b)), 1e-30);
		const x = (i) => 260 + (240 * values[2 * i]) / max;
		const y = (i) => 180 - (165 * values[2 * i + 1]) / max;
		const dots = labels.map((_, i) => `M${x(i).toFixed(1)} ${y(i).toFixed(1)}h0`).join("");
		return html`<ch-figure
			.caption=${"Embeddings of all tokens"}
			.pending=${result.pending}
			.note=${"First two principal components, aligned between steps. Tokens of the probe texts are labeled."}>
			<svg
				class="embedding-plot"
				viewBox="0 0 520 360"
				role="img"
				aria-label=${`${labels.length} embeddings in a plane`}>
				<path d=${dots}></path>
				${labels.map((label, i) => (labeled.has(label) ? svg`<text x=${x(i)} y=${y(i)}>${label}</text>` : nothing))}
			</svg></ch-figure
		>`;
	});
}
