// Attention (L3): all heads, one head as heat map or lines, and its computation step by step.

import { html, nothing } from "lit-html";
import { decodeView } from "ch/api";
import {
	attentionMask,
	attentionPath,
	attentionTypes,
	BY_WEIGHT,
	headPattern,
	layerCount,
	patternDifference,
	patternHeatmap,
	queriesAndKeys,
	selectedHead,
	tokenTexts,
} from "ch/attention";
import { button, buttonGroup, numberSelect, selectBox } from "ch/controls";
import { formatNumber, formatPercent } from "ch/format";
import { lockedIndex } from "ch/inspector";
import { lookupFigure } from "ch/lookup";
import { CONTRASTS, contrastResult } from "ch/measurements";
import {
	getArray,
	getJson,
	getRun,
	memoize,
	renderError,
	runRequest,
	viewMatrix,
} from "ch/requests";
import { registerDefaults } from "ch/state";

registerDefaults({
	sort: "",
	lines: false,
	autoscale: false,
	scale_scores: true,
	anatomy: false,
	simplest: false,
	lookup: false,
	hypothesis: "",
	best_head: false, // select the head that is found for the hypothesis
	score_heads: false,
	compare_text: "",
});
// In encoder attention, `key` is the selected query, and this the selected key.
registerDefaults({ encoder_key: -1 }, { inText: true });

const MAX_AUTO_SCORED = 256; // texts up to this many tokens are scored automatically
const EDIT_NOTE =
	"An edit changes the output of a component, so patterns change only in later layers; an ablated head keeps its own pattern.";
const TYPE_NAMES = { attention: "decoder", cross: "cross", encoder: "encoder" };

export default {
	id: "attention",
	title: "Attention",
	sentence: "Which tokens each token attends to. Choose a head to see how its pattern is computed.",
	template(context) {
		const { state, card } = context;
		const selection = selectedHead(state, card);
		const { isMasked } = attentionMask(card, selection.part);
		context.highlight.viewStrip = selection.part === "encoder" ? "key" : "query";
		const figures = headFigures(context, selection, isMasked); // requested first: the main figure
		const toggle =
			(key) =>
			({ target: { open } }) =>
				open !== context.state[key] && context.set({ [key]: open }, { replace: true });
		return html`${presets(context)} ${hypothesisSection(context)}
			<div class="heads">
				${headsFigure(context, selection)}
				<div>${headControls(context, selection)}${figures}</div>
			</div>
			<details class="apart" ?open=${state.anatomy} @toggle=${toggle("anatomy")}>
				<summary><h2>How this head computes its pattern</h2></summary>
				${state.anatomy ? attentionSteps(context, selection, isMasked) : nothing}
			</details>
			<details class="apart simplest" ?open=${state.simplest} @toggle=${toggle("simplest")}>
				<summary><h2>The simplest attention, without queries, keys and values</h2></summary>
				${state.simplest ? simplestFigures(context, selection, isMasked) : nothing}
			</details>
			<details class="apart lookup-table" ?open=${state.lookup} @toggle=${toggle("lookup")}>
				<summary><h2>Queries, keys and values: a look-up, hard and soft</h2></summary>
				${state.lookup ? lookupFigure(context) : nothing}
			</details>`;
	},
};

const hasPresets = ({ card }) => card.reads_text && card.architecture !== "encoder-decoder";

function presets(context) {
	if (!hasPresets(context)) return nothing;
	const { card, state, set } = context;
	const { attention_text: attentionText, coreference, pronouns } = card.examples;
	const preset = (label, [text, comparison], hypothesis) =>
		text && text !== comparison
			? html`<button
					type="button"
					class="quiet"
					aria-pressed=${state.hypothesis === hypothesis}
					@click=${() => set({ text, compare_text: comparison, hypothesis, best_head: true, cell: "", pins: [] })}>
					${label}
				</button>`
			: nothing;
	return html`<div class="row presets">
		<span class="hint">Try</span>
		${preset("a fluffy blue creature", [attentionText, ""], "adjectives")}
		${preset("the chicken: tired / wide", coreference, "it")}
		${preset("he / she", pronouns, "pronouns")}
		${
			state.compare_text
				? html`<button type="button" class="chip" @click=${() => set({ compare_text: "" })}>
						compared with “${state.compare_text}” <span aria-hidden="true">×</span
						><span class="visually-hidden">, close</span>
					</button>`
				: nothing
		}
	</div>`;
}

/** Whether a head does what the sentence suggests, measured on many sentences with controls. */
function hypothesisSection(context) {
	const { card, state, set, text } = context;
	const { hypothesis, compare_text, best_head } = state;
	if (!hasPresets(context) || !Object.hasOwn(CONTRASTS, hypothesis)) return nothing;
	const select = (layer, head, replace) =>
		set({ part: "attention", layer, head, cell: "", best_head: false }, { replace });
	const open = ({ name }) => set({ model: name, text, compare_text, hypothesis, best_head: true });
	return html`<section class="hypothesis" aria-label="measured">
		${contrastResult(card, hypothesis, select, open, best_head)}
	</section>`;
}

function headsFigure({ run, card, state, set }, { part, layer, head }) {
	const patterns = getArray(`/api/runs/${run.id}/patterns?part=${part}`, "patterns");
	const isLoaded = patterns.value && !patterns.pending;
	const isScored = run.tokens.length <= MAX_AUTO_SCORED || state.sort || state.score_heads;
	const convert = ({ scores, view }) => ({ definitions: scores, view: decodeView(view) });
	const scores =
		isLoaded && isScored
			? getJson(`/api/runs/${run.id}/head-scores?part=${part}`, "scores", convert)
			: {};
	const pooled = patterns.value?.pooled;
	const [queries, keys] = queriesAndKeys(run, part).map(tokenTexts);
	const [query, key] = selectedCell(state, part);
	const weightAt = queries[query] && keys[key] && pooled === 1 ? [query, key] : null;
	const cellName = weightAt ? `${queries[query]} → ${keys[key]}` : "";
	return html`<ch-figure
		.caption=${`All ${layerCount(card, part)} × ${card.n_heads} heads`}
		.noExport=${true}
		.badge=${pooled > 1 ? `max-pooled ${pooled}×` : ""}
		.pending=${patterns.pending}
		.note=${orderNote(state.sort, scores.value, cellName)}>
		${patterns.value ? sortSelect(scores, state, set, cellName) : nothing} ${renderError(patterns)}
		<ch-head-grid
			.patterns=${patterns.value ?? null}
			.scores=${scores.value?.view ?? null}
			.sort=${state.sort}
			.weightAt=${weightAt}
			.autoscale=${state.autoscale}
			.layer=${layer}
			.head=${head}
			.ablated=${ablatedHeads(state, card, part)}
			@pick=${({ detail }) => set({ ...detail, cell: "" })}></ch-head-grid
	></ch-figure>`;
}

/** Explain the order of the heads. */
function orderNote(sort, scores, cellName) {
	if (sort === BY_WEIGHT && cellName)
		return `Sorted by the weight of ${cellName} in each head (resolution 1/255). Select another cell to change it.`;
	if (sort && sort !== BY_WEIGHT && scores)
		return `${sort}: ${scores.definitions[sort] ?? "does not apply to this text"}`;
	return "One thumbnail per head: queries are rows, keys are columns. Layers are rows, heads are columns.";
}

/** Ablated heads as layer × heads + head. */
function ablatedHeads({ edits }, card, part) {
	const outputs = Array.from(
		{ length: layerCount(card, part) },
		(_, layer) => `${attentionPath(part, layer)}.z`,
	);
	return edits
		.filter(({ op, name }) => op === "ablate" && outputs.includes(name))
		.map(({ name, head }) => outputs.indexOf(name) * card.n_heads + head);
}

/** The sort order of heads; scores of long texts are computed on request. */
function sortSelect(scores, state, set, cellName) {
	if (scores.error) return renderError(scores);
	if (!scores.value) {
		return html`<div class="row">
			${
				scores.pending
					? html`<span class="hint">Scoring heads…</span>`
					: button("Score heads", () => set({ score_heads: true }, { replace: true }), {
							kind: "quiet",
						})
			}
		</div>`;
	}
	const options = [
		["", "layer and head"],
		...Object.keys(scores.value.definitions).map((name) => [name, name]),
		...(cellName ? [[BY_WEIGHT, cellName]] : []),
	];
	return html`<div class="row">
		${selectBox("Sort by", options, state.sort, (sort) => set({ sort }))}
	</div>`;
}

function headControls({ card, state, set }, { part, layer, head }) {
	const types = attentionTypes(card);
	const reset = (patch) => set({ ...patch, cell: "" });
	return html`<div class="row">
		${
			types.length > 1
				? buttonGroup(
						"attention type",
						types.map((type) => [type, TYPE_NAMES[type]]),
						part,
						(part) => reset({ part }),
					)
				: nothing
		}
		${numberSelect("Layer", layerCount(card, part), layer, (layer) => reset({ layer }))}
		${numberSelect("Head", card.n_heads, head, (head) => reset({ head }))}
		${buttonGroup(
			"display",
			[
				[false, "heat map"],
				[true, "lines"],
			],
			state.lines,
			(lines) => set({ lines }),
		)}
		<label title="Scale colors to the largest weight of each head instead of 1"
			><input
				type="checkbox"
				.checked=${state.autoscale}
				@change=${({ target }) => set({ autoscale: target.checked })} />
			Autoscale colors</label
		>
		<ch-edit
			.name=${`${attentionPath(part, layer)}.z`}
			.head=${head}
			.label=${"this head"}></ch-edit>
		<span class="hint">${attentionMask(card, part).description}</span>
	</div>`;
}

/** One head of the run; next to it the same head with edits or with another text. */
function headFigures(context, selection, isMasked) {
	const { run, edited, card, state } = context;
	const text = state.compare_text;
	const compared = text ? getRun(runRequest(card, { text }), "compared run").value : null;
	const other = edited ?? compared;
	const first = patternOfHead(run, selection, "pattern");
	const figure = (run, pattern, title) =>
		patternFigure(context, selection, run, pattern, isMasked, title);
	if (!other) return figure(run, first, "");
	const second = patternOfHead(other, selection, "other pattern");
	const firstTitle = edited ? "without edits" : `“${context.text}”`;
	const secondTitle = edited ? "with the edits" : `“${text}”`;
	const isCausal = card.architecture !== "encoder" && selection.part === "attention";
	const position = run.tokens.findIndex(({ text }, i) => text !== other.tokens[i]?.text);
	const note = (isDifferent) => {
		if (edited) return isDifferent ? "" : EDIT_NOTE;
		return position > 0 && isCausal
			? `The texts differ from token ${position} on. With the causal mask, all rows above are identical.`
			: "";
	};
	return html`<div class="pair">
			${figure(run, first, firstTitle)} ${figure(other, second, secondTitle)}
		</div>
		${differenceFigure(run, selection, first, second, isMasked, note)}`;
}

const selectedCell = (state, part) =>
	part === "encoder" ? [state.key, state.encoder_key] : [state.query, state.key];
const patternOfHead = (run, { part, layer, head }, slot) =>
	headPattern(run.id, attentionPath(part, layer), head, slot);

function patternFigure(context, { part, layer, head }, run, result, isMasked, title) {
	const { state, set, hover, highlight } = context;
	const name = `${attentionPath(part, layer)}.pattern`;
	const [queries, keys] = queriesAndKeys(run, part).map(tokenTexts);
	const shape = result.value?.shape;
	const values = shape?.[0] === queries.length && shape[1] === keys.length ? result.value : null;
	const locked = lockedIndex(name);
	const type = part === "attention" ? "" : ` · ${TYPE_NAMES[part]}`;
	const caption = `Layer ${layer}, head ${head}${type}${title ? ` · ${title}` : ""}`;
	const strip = highlight.viewStrip;
	const cell = selectedCell(state, part);
	const isHighlighted = highlight.token >= 0 && highlight.strip === strip;
	const query = isHighlighted ? highlight.token : state[strip];
	const keyName = strip === "key" ? "encoder_key" : "key";
	const cursor = cell[0] >= 0 ? cell : null;
	return html`<ch-figure
		.caption=${caption}
		.pending=${result.pending}
		.note=${values ? patternNote(rowStatistics(values), state.autoscale) : ""}>
		${renderError(result)}
		${
			state.lines
				? html`<ch-attention-lines
						.values=${values}
						.rowLabels=${queries}
						.colLabels=${keys}
						.query=${query}
						.label=${`${caption}, as lines`}
						@pick=${({ detail }) => set({ [strip]: detail.row === state[strip] ? -1 : detail.row })}
						@hover=${({ detail }) => hover(detail ? detail.row : -1)}></ch-attention-lines>`
				: patternHeatmap(values, [queries, keys], {
						...{ name, run: run.id, head, label: caption, isMasked },
						max: state.autoscale ? null : 1,
						cursor: locked?.[0] === head ? locked.slice(1) : cursor,
						hover: (cell) => hover(cell ? cell.row : -1),
						pick: ({ row, col }) => set({ [strip]: row, [keyName]: col }, { replace: true }),
					})
		}</ch-figure
	>`;
}

function patternNote({ minSum, maxSum, max }, isAutoscaled) {
	const note = `The weight of each key (column) for each query (row). Rows sum to 1: smallest ${formatNumber(minSum, 7)}, largest ${formatNumber(maxSum, 7)}.`;
	return isAutoscaled ? `${note} Full color is ${formatNumber(max)}.` : note;
}

function differenceFigure(run, { part, layer, head }, first, second, isMasked, note) {
	if (!first.value || !second.value) return nothing;
	const [queries, keys] = queriesAndKeys(run, part).map(tokenTexts);
	const isInBoth = (side) => (_, i) =>
		i < Math.min(first.value.shape[side], second.value.shape[side]);
	const pairs = (labels, side) => labels.map((_, i) => [i, i]).filter(isInBoth(side));
	const { max, ...values } = patternDifference(
		first.value,
		second.value,
		pairs(queries, 0),
		pairs(keys, 1),
	);
	const scale = max ? `full color is ±${formatNumber(max)}` : "there is no difference";
	return html`<ch-figure
		.caption=${`Difference · layer ${layer}, head ${head}`}
		.note=${`Second minus first: blue is more weight, orange is less; ${scale}. ${note(max > 0)}`}>
		<ch-heatmap
			.values=${values}
			.rowLabels=${queries.filter(isInBoth(0))}
			.colLabels=${keys.filter(isInBoth(1))}
			.signed=${true}
			.isMasked=${isMasked}
			.label=${"difference"}
			.valueName=${"difference"}
			.axes=${["query", "key"]}></ch-heatmap
	></ch-figure>`;
}

/** x_i · x_j of the sentence above q_i · k_j of the selected head (L3.2). */
function simplestFigures({ run }, { part, layer, head }, isMasked) {
	if (part === "cross")
		return html`<p class="hint">It compares the vectors of one text: select a self-attention.</p>`;
	const simplest = getJson(`/api/runs/${run.id}/simple-attention?part=${part}`, "simplest");
	const path = attentionPath(part, layer);
	const load = (name) => getArray(`/api/runs/${run.id}/tensor/${path}.${name}?head=${head}`, name);
	const scores = load("masked_scores");
	const pattern = load("pattern");
	const error = [simplest, scores, pattern].find(({ error }) => error);
	if (error) return renderError(error);
	const labels = tokenTexts(queriesAndKeys(run, part)[0]);
	const isReady = simplest.value && pattern.value && scores.value?.shape[0] === labels.length;
	if (!isReady) return html`<p class="loading">Comparing all tokens…</p>`;
	const map = (values, isPattern, name) =>
		html`<ch-heatmap
			.values=${values}
			.rowLabels=${labels}
			.colLabels=${labels}
			.max=${isPattern ? 1 : null}
			.signed=${!isPattern}
			.isMasked=${isMasked}
			.name=${name}
			.run=${name ? run.id : ""}
			.toIndex=${name ? (r, c) => [head, r, c] : null}
			.label=${isPattern ? "weight" : "score"}
			.valueName=${isPattern ? "weight" : "score"}
			.axes=${["query", "key"]}
			.maxCellSize=${18}></ch-heatmap>`;
	const { scores: products, pattern: weights } = simplest.value;
	return html`<div class="anatomy">
		${stepSection("x · x", FORMULAS.simplest, "score: the embedding of each token times that of every other", map(viewMatrix(products), false, ""))}
		${stepSection("softmax", FORMULAS.simplestSum, `weights of the simplest attention: on average, ${formatPercent(diagonalMean(viewMatrix(weights)))} on the token itself, and ${formatPercent(diagonalMean(pattern.value))} in this head`, map(viewMatrix(weights), true, ""))}
		${stepSection("q · k", FORMULAS.scores, `score of layer ${layer}, head ${head}: learned queries and keys`, map(scores.value, false, `${path}.masked_scores`))}
		${stepSection("softmax", FORMULAS.pattern, `weights of layer ${layer}, head ${head}`, map(pattern.value, true, `${path}.pattern`))}
	</div>`;
}

/** @param {Matrix} square */
const diagonalMean = ({ shape: [size], data }) =>
	data.reduce((sum, weight, i) => sum + (i % (size + 1) ? 0 : weight), 0) / size;

// The computation of one attention head, step by step with its real numbers (L3.3 – L3.7).

const STEP_NAMES = ["rot_q", "rot_k", "v", "scores", "masked_scores", "pattern", "z"];

/** The steps of the selected head. */
function attentionSteps(context, { part, layer, head }, isMasked) {
	const { run, card, state, set, highlight } = context;
	const path = attentionPath(part, layer);
	const kvHead = Math.floor(head / (card.n_heads / card.n_kv_heads));
	const load = (name) => {
		const tensorHead = name === "rot_k" || name === "v" ? kvHead : head;
		const url = `/api/runs/${run.id}/tensor/${path}.${name}?head=${tensorHead}`;
		return getArray(url, `head ${name}`);
	};
	const resources = STEP_NAMES.map(load);
	const failed = resources.find(({ error }) => error);
	if (failed) return renderError(failed);
	/** @type {Record<string, Matrix>} */
	const tensors = Object.fromEntries(STEP_NAMES.map((name, i) => [name, resources[i].value]));
	const [queries, keys] = queriesAndKeys(run, part).map(tokenTexts);
	const isReady =
		Object.values(tensors).every(Boolean) && tensors.scores.shape[0] === queries.length;
	if (!isReady) return html`<p class="loading">Loading this head…</p>`;
	const isScaled = state.scale_scores || !card.scale_scores;
	const unscaled = () => computeUnscaled(tensors, card.d_head, isMasked);
	const steps = isScaled ? tensors : memoize(tensors.scores, "unscaled", unscaled);
	const statistics = rowStatistics(steps.pattern);
	const row = state[highlight.viewStrip];
	const isSelected = row >= 0 && row < queries.length;
	/** A tensor of the head as a heat map; `options` are properties of the element. */
	const map = (step, values, rowLabels, colLabels, options = {}) => {
		const { name = `${path}.${step}`, axes = ["token", "dimension"], tensorHead = head } = options;
		return html`<ch-heatmap
			.values=${values}
			.rowLabels=${rowLabels}
			.colLabels=${colLabels}
			.name=${name}
			.run=${run.id}
			.toIndex=${(r, c) => [tensorHead, r, c]}
			.axes=${axes}
			.label=${step}
			.valueName=${step}
			.signed=${options.signed ?? true}
			.max=${options.max ?? null}
			.isMasked=${options.isMasked ?? null}
			.cursor=${options.cursor ?? null}
			.maxCellSize=${18}></ch-heatmap>`;
	};
	const grid = (step, options = {}) => {
		const name = isScaled ? `${path}.${step}` : "";
		return map(step, steps[step], queries, keys, { name, axes: ["query", "key"], ...options });
	};
	const shared = { tensorHead: kvHead };
	const rotated = card.position === "rotary" && part !== "cross" ? ", rotated by its position" : "";
	const groups =
		card.n_kv_heads < card.n_heads ? `, shared by ${card.n_heads / card.n_kv_heads} heads` : "";
	const outCell = `${path}.out@${isSelected ? row : queries.length - 1},0`;
	const divide = card.scale_scores
		? html`<label class="switch"
				><input
					type="checkbox"
					.checked=${state.scale_scores}
					@change=${({ target }) => set({ scale_scores: target.checked })} />
				divided by √${card.d_head}</label
			>`
		: nothing;
	return html`<div class="anatomy">
		${stepSection("q", FORMULAS.q, `query of each token${rotated}`, map("rot_q", tensors.rot_q, queries, null))}
		${stepSection("k", FORMULAS.k, `key of each token${rotated}${groups}`, map("rot_k", tensors.rot_k, keys, null, shared))}
		${stepSection("v", FORMULAS.v, `value of each token${groups}`, map("v", tensors.v, keys, null, shared))}
		${stepSection(
			"scores",
			isScaled ? FORMULAS.scores : FORMULAS.raw,
			html`how well each key matches each query ${divide}
				<span class="kernel"
					>A bilinear form, or kernel, of two tokens: ${FORMULAS.bilinear}, with W_Q and W_K d ×
					d_k; with x a column of d, x_iᵀ W_Q W_Kᵀ
					x_j.${rotated ? " The rotations come between W_Q and W_Kᵀ." : ""}</span
				>`,
			grid("scores"),
		)}
		${stepSection("mask", FORMULAS.masked, isMasked ? "hatched cells are −∞: masked positions" : "no positions are masked", grid("masked_scores", { isMasked }))}
		${stepSection(
			"softmax",
			FORMULAS.pattern,
			html`each row sums to 1 (here ${formatNumber(statistics.minSum, 7)} to
			${formatNumber(statistics.maxSum, 7)}); its largest weight is
			${formatNumber(statistics.meanMax)} on
			average${isScaled ? "" : html` <b>without scaling</b>, ${formatNumber(rowStatistics(tensors.pattern).meanMax)} with it`}`,
			grid("pattern", { isMasked, max: 1, signed: false, cursor: isSelected ? [row, -1] : null }),
		)}
		${stepSection("z", FORMULAS.z, isScaled ? "weights times values: the output of the head" : "the model's own z (with scaling)", map("z", tensors.z, queries, null))}
		${stepSection(
			"out",
			FORMULAS.out,
			html`the concatenated heads times W_O are added to the residual stream; the inspector shows
				how much each head contributes to a value:
				<button type="button" class="quiet" @click=${() => set({ cell: outCell })}>
					${path}.out
				</button>`,
			nothing,
		)}
	</div>`;
}

function stepSection(name, formula, description, figure) {
	return html`<section>
		<h3>${name}</h3>
		<p class="math">${formula}</p>
		<p class="hint">${description}</p>
		${figure}
	</section>`;
}

/**
 * The head without dividing scores by √d_head, computed from its own q and k.
 * @param {Record<string, Matrix>} tensors
 */
function computeUnscaled({ scores: scaled, rot_q: q, rot_k: k }, dHead, isMasked) {
	const [rows, cols] = scaled.shape;
	const d = q.shape[1];
	const scale = Math.sqrt(dHead);
	const scores = new Float32Array(rows * cols);
	const masked = new Float32Array(rows * cols);
	const pattern = new Float32Array(rows * cols);
	for (let r = 0; r < rows; r++) {
		let max = -Infinity;
		let sum = 0;
		for (let c = 0; c < cols; c++) {
			let product = 0;
			for (let i = 0; i < d; i++) product += q.data[r * d + i] * k.data[c * d + i];
			const bias = scaled.data[r * cols + c] - product / scale;
			scores[r * cols + c] = product + bias;
			masked[r * cols + c] = isMasked?.(r, c) ? -Infinity : product + bias;
			max = Math.max(max, masked[r * cols + c]);
		}
		for (let c = 0; c < cols; c++)
			sum += pattern[r * cols + c] = Math.exp(masked[r * cols + c] - max);
		for (let c = 0; c < cols; c++) pattern[r * cols + c] /= sum;
	}
	const shape = [rows, cols];
	return {
		scores: { shape, data: scores },
		masked_scores: { shape, data: masked },
		pattern: { shape, data: pattern },
	};
}

/** Smallest and largest row sum, mean of the row maxima, and the overall maximum; memoized. */
const rowStatistics = (pattern) =>
	memoize(pattern, "statistics", () => computeRowStatistics(pattern));

/** @returns {{ minSum: number, maxSum: number, meanMax: number, max: number }} */
function computeRowStatistics({ shape: [rows, cols], data }) {
	let minSum = Infinity;
	let maxSum = -Infinity;
	let meanMax = 0;
	let max = 0;
	for (let r = 0, i = 0; r < rows; r++) {
		let sum = 0;
		let top = 0;
		for (let c = 0; c < cols; c++, i++) {
			sum += data[i];
			if (data[i] > top) top = data[i];
		}
		minSum = Math.min(minSum, sum);
		maxSum = Math.max(maxSum, sum);
		meanMax += top / rows;
		max = Math.max(max, top);
	}
	return { minSum, maxSum, meanMax, max };
}

// prettier-ignore
const FORMULAS = {
	q: html`<math><mi>Q</mi><mo>=</mo><mi>X</mi><msub><mi>W</mi><mi>Q</mi></msub></math>`,
	k: html`<math><mi>K</mi><mo>=</mo><mi>X</mi><msub><mi>W</mi><mi>K</mi></msub></math>`,
	v: html`<math><mi>V</mi><mo>=</mo><mi>X</mi><msub><mi>W</mi><mi>V</mi></msub></math>`,
	scores: html`<math><mi>S</mi><mo>=</mo><mi>Q</mi><msup><mi>K</mi><mi mathvariant="normal">T</mi></msup>
		<mo>/</mo><msqrt><msub><mi>d</mi><mi>k</mi></msub></msqrt></math>`,
	simplest: html`<math><msub><mi>s</mi><mrow><mi>i</mi><mi>j</mi></mrow></msub><mo>=</mo>
		<msub><mi>x</mi><mi>i</mi></msub><mo>·</mo><msub><mi>x</mi><mi>j</mi></msub></math>`,
	simplestSum: html`<math><mi>α</mi><mo>=</mo><mtext>softmax</mtext><mo>(</mo><mi>s</mi><mo>)</mo><mo>,</mo>
		<msub><mi>a</mi><mi>i</mi></msub><mo>=</mo><munder><mo>∑</mo><mi>j</mi></munder>
		<msub><mi>α</mi><mrow><mi>i</mi><mi>j</mi></mrow></msub><msub><mi>x</mi><mi>j</mi></msub></math>`,
	bilinear: html`<math><msub><mi>s</mi><mrow><mi>i</mi><mi>j</mi></mrow></msub><mo>∝</mo>
		<msub><mi>x</mi><mi>i</mi></msub><msub><mi>W</mi><mi>Q</mi></msub>
		<msubsup><mi>W</mi><mi>K</mi><mi mathvariant="normal">T</mi></msubsup>
		<msubsup><mi>x</mi><mi>j</mi><mi mathvariant="normal">T</mi></msubsup></math>`,
	raw: html`<math><mi>S</mi><mo>=</mo><mi>Q</mi><msup><mi>K</mi><mi mathvariant="normal">T</mi></msup></math>`,
	masked: html`<math><mi>S</mi><mo>+</mo><mi>M</mi></math>`,
	pattern: html`<math><mi>A</mi><mo>=</mo><mtext>softmax</mtext>
		<mo>(</mo><mi>S</mi><mo>+</mo><mi>M</mi><mo>)</mo></math>`,
	z: html`<math><mi>Z</mi><mo>=</mo><mi>A</mi><mi>V</mi></math>`,
	out: html`<math><mtext>concat</mtext><mo>(</mo><msub><mi>Z</mi><mn>1</mn></msub><mo>…</mo>
		<msub><mi>Z</mi><mi>h</mi></msub><mo>)</mo><msub><mi>W</mi><mi>O</mi></msub></math>`,
};
