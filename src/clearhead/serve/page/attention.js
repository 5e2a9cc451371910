// Attention: the types a model has, activation paths, masks and patterns; <ch-attention-lines>;
// cross-attention as lines; and <ch-head-grid>, thumbnails of all heads.

import { html, nothing, svg } from "lit-html";
import {
	CanvasGrid,
	clampIndex,
	PageElement,
	pixelImage,
	reactive,
	resizeCanvas,
} from "ch/base-elements";
import { colorTable, themeColors } from "ch/colors";
import { formatNumber } from "ch/format";
import { range, truncate } from "ch/heatmap";
import { getArray, memoize } from "ch/requests";

/** Activation path of an attention layer. */
export const attentionPath = (part, layer) =>
	({
		attention: `blocks.${layer}.attn`,
		cross: `blocks.${layer}.cross_attn`,
		encoder: `encoder.blocks.${layer}.attn`,
	})[part];

/** The attention types of a model. */
export const attentionTypes = (card) =>
	card.architecture === "encoder-decoder" ? ["attention", "cross", "encoder"] : ["attention"];

/** Number of layers of an attention type. */
export const layerCount = (card, part) =>
	part === "encoder" ? card.encoder_layers : card.n_layers;

/** The tokens on both sides: [queries, keys]. @param {Run} run @param {string} part */
export function queriesAndKeys(run, part) {
	const queries = part === "encoder" ? run.source_tokens : run.tokens;
	const keys = part === "attention" ? run.tokens : run.source_tokens;
	return [queries, keys];
}

/** @param {Token[]} tokens */
export const tokenTexts = (tokens) => tokens.map(({ text }) => text);

/**
 * The mask of an attention type: a description, and whether a (query, key) cell is masked.
 * @param {Card} card @param {string} part
 * @returns {{ description: string, isMasked: ((query: number, key: number) => boolean) | null }}
 */
export function attentionMask(card, part) {
	const isCausal = part === "attention" && card.architecture !== "encoder";
	const window = part === "cross" ? 0 : card.sliding_window;
	const limit = window ? `, at most ${window - 1} tokens away` : "";
	if (isCausal)
		return {
			description: `causal mask: a token attends to itself and earlier tokens${limit}`,
			isMasked: (query, key) => key > query || (!!window && query - key >= window),
		};
	if (window)
		return {
			description: `sliding window: a token attends to tokens at most ${window - 1} tokens away`,
			isMasked: (query, key) => Math.abs(query - key) >= window,
		};
	return {
		description:
			part === "cross"
				? "no mask: target tokens attend to the whole source"
				: "no mask: every token attends to the whole text",
		isMasked: null,
	};
}

/** The selected attention type, layer and head, clamped to the model. @param {State} state @param {Card} card */
export function selectedHead(state, card) {
	const part = attentionTypes(card).includes(state.part) ? state.part : "attention";
	return {
		part,
		layer: clampIndex(state.layer, layerCount(card, part)),
		head: clampIndex(state.head, card.n_heads),
	};
}

/** Positions to compare, [[i, j], …]: all if the lengths match, else the common prefix and suffix. */
export function sharedPositions(a, b) {
	if (a.length === b.length) return a.map((_, i) => [i, i]);
	const isSame = (i, j) => i < a.length && j < b.length && a[i].text === b[j].text;
	const pairs = [];
	let first = 0;
	let last = 0;
	for (; isSame(first, first); first++) pairs.push([first, first]);
	const max = Math.min(a.length, b.length) - first;
	while (last < max && isSame(a.length - 1 - last, b.length - 1 - last)) last++;
	for (; last > 0; last--) pairs.push([a.length - last, b.length - last]);
	return pairs;
}

/**
 * second − first over pairs of query and key positions; memoized.
 * @param {Matrix} first @param {Matrix} second @param {number[][]} queries @param {number[][]} keys
 */
export function patternDifference(first, second, queries, keys = queries) {
	const subtract = () => {
		const data = new Float32Array(queries.length * keys.length);
		const weight = ({ data, shape }, query, key) => data[query * shape[1] + key];
		queries.forEach(([query1, query2], row) =>
			keys.forEach(([key1, key2], col) => {
				const difference = weight(second, query2, key2) - weight(first, query1, key1);
				data[row * keys.length + col] = difference;
			}),
		);
		const max = data.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
		return { shape: [queries.length, keys.length], data, max };
	};
	const bySecond = memoize(first, second, () => ({}));
	return memoize(bySecond, `${queries} ${keys}`, subtract);
}

/** One head's pattern in a run, as a resource. */
export function headPattern(runId, path, head, slot) {
	const url = `/api/runs/${runId}/tensor/${path}.pattern?head=${head}`;
	return getArray(url, slot);
}

/**
 * One head's pattern as a heat map: `name` and `run` of the activation, its head and label; more in
 * `options`. @param {Matrix | null} values @param {string[][]} labels @param {any} options
 */
export function patternHeatmap(values, [queries, keys], options) {
	const { name, run, head, label, max = 1, cursor = null, isMasked = null } = options;
	return html`<ch-heatmap
		.values=${values}
		.rowLabels=${queries}
		.colLabels=${keys}
		.max=${max}
		.isMasked=${isMasked}
		.name=${name}
		.run=${run}
		.toIndex=${(r, c) => [head, r, c]}
		.cursor=${cursor}
		.label=${label}
		.valueName=${"weight"}
		.axes=${["query", "key"]}
		@hover=${({ detail }) => options.hover?.(detail)}
		@pick=${({ detail }) => options.pick?.(detail)}></ch-heatmap>`;
}

// ---- <ch-attention-lines>
const ROW_HEIGHT = 21;
const MAX_TOKENS = 72; // per side
const MAX_LINES = 900;
const MIN_WEIGHT = 0.02;

export class AttentionLines extends PageElement {
	static redrawsOnResize = true;
	static properties = reactive("values", "rowLabels", "colLabels", "query", "label");

	constructor() {
		super();
		/** @type {Matrix | null} query × key */
		this.values = null;
		/** @type {string[]} */
		this.rowLabels = [];
		/** @type {string[]} */
		this.colLabels = [];
		this.query = -1; // the highlighted query
		this.label = "attention as lines";
	}

	shouldUpdate() {
		return !!this.values;
	}

	render() {
		const [rows, cols] = this.values.shape;
		const first = (size) =>
			Math.max(0, Math.min(size - MAX_TOKENS, Math.max(0, this.query) - MAX_TOKENS / 2));
		const row0 = first(rows);
		const col0 = rows === cols ? row0 : 0;
		const row1 = Math.min(rows, row0 + MAX_TOKENS);
		const col1 = Math.min(cols, col0 + MAX_TOKENS);
		const width = Math.min(560, Math.max(240, this.clientWidth || 420));
		const side = Math.min(130, width * 0.3); // width of the labels
		const height = ROW_HEIGHT * Math.max(row1 - row0, col1 - col0) + 4;
		const { edges, badge } = largestWeights(this.values, [row0, row1], [col0, col1]);
		const label = (text, i, x, anchor, kind) =>
			svg`<text x=${x} y=${lineY(i)} text-anchor=${anchor} dominant-baseline="middle"
				class=${kind} data-i=${i}>${truncate(text, side - 10)}</text>`;
		const edge = ([row, col, weight]) => {
			const y0 = lineY(row - row0);
			const y1 = lineY(col - col0);
			const curve = `M${side} ${y0} C${width / 2} ${y0} ${width / 2} ${y1} ${width - side} ${y1}`;
			const kind = this.query < 0 ? "" : this.query === row ? "strong" : "weak";
			return svg`<path d=${curve} class=${kind} .style=${`--weight:${weight}`}>
				<title>${this.rowLabels[row]} → ${this.colLabels[col]} ${formatNumber(weight)}</title></path>`;
		};
		const query = (row) =>
			svg`<g class=${row === this.query ? "query selected" : "query"}
				@click=${() => this.emit("pick", { row })}
				@pointerenter=${() => this.emit("hover", { row })}
				@pointerleave=${() => this.emit("hover", null)}>
				<rect x="0" y=${lineY(row - row0) - ROW_HEIGHT / 2} width=${side} height=${ROW_HEIGHT}></rect>
				${label(this.rowLabels[row], row - row0, side - 7, "end", "")}</g>`;
		return html`<svg
				viewBox="0 0 ${width} ${height}"
				width=${width}
				height=${height}
				role="img"
				aria-label=${this.label}>
				<g class="edges">${edges.map(edge)}</g>
				${range(row0, row1).map(query)}
				${range(col0, col1).map((col) => label(this.colLabels[col], col - col0, width - side + 7, "start", "key"))}
			</svg>
			${
				rows > MAX_TOKENS || cols > MAX_TOKENS
					? html`<p class="badge">
							tokens ${row0}–${row1 - 1} of ${rows}; the heat map shows all of them
						</p>`
					: nothing
			}${badge}`;
	}
}
customElements.define("ch-attention-lines", AttentionLines);

const lineY = (i) => i * ROW_HEIGHT + ROW_HEIGHT / 2 + 2;

/**
 * The largest weights, [[row, col, weight] …], and a badge that says what is omitted.
 * @param {Matrix} matrix @param {number[]} [rowRange] @param {number[]} [colRange]
 */
function largestWeights({ shape, data }, rowRange = [0, shape[0]], colRange = [0, shape[1]]) {
	const [row0, row1] = rowRange;
	const [col0, col1] = colRange;
	const cols = shape[1];
	const weights = [];
	for (let row = row0; row < row1; row++)
		for (let col = col0; col < col1; col++)
			if (data[row * cols + col] > 0) weights.push([row, col, data[row * cols + col]]);
	weights.sort((a, b) => b[2] - a[2]);
	const edges = weights.slice(0, MAX_LINES).filter(([, , weight]) => weight >= MIN_WEIGHT);
	const omitted = weights.slice(edges.length);
	const badge = omitted.length
		? html`<p class="badge">
				${omitted.length} weights of at most ${formatNumber(omitted[0][2])} are not drawn; the heat
				map shows all of them
			</p>`
		: nothing;
	return { edges, badge };
}

// ---- cross-attention (L3.8)
const EDGE_HEIGHT = 150;
const WORD_HEIGHT = 22;
const WORD_GAP = 10;
const WORD_FONT = "13px ui-monospace, monospace";
const textContext = document.createElement("canvas").getContext("2d");

/**
 * Cross-attention as lines. `above` and `below` are labels, `weights` a matrix [below, above] and
 * `selected` an index of `below` or −1.
 */
export function crossAttentionLines(above, below, weights, selected, { pick, hover, label }) {
	const top = layoutWords(above);
	const bottom = layoutWords(below);
	const width = Math.max(top.width, bottom.width);
	const topX = (width - top.width) / 2;
	const bottomX = (width - bottom.width) / 2;
	const height = EDGE_HEIGHT + 2 * WORD_HEIGHT;
	const { edges, badge } = largestWeights(weights);
	const edge = ([row, col, weight]) => {
		const from = bottomX + bottom.words[row].x + bottom.words[row].width / 2;
		const to = topX + top.words[col].x + top.words[col].width / 2;
		const middle = WORD_HEIGHT + EDGE_HEIGHT / 2;
		const curve = `M${from} ${WORD_HEIGHT + EDGE_HEIGHT} C${from} ${middle} ${to} ${middle} ${to} ${WORD_HEIGHT}`;
		const kind = selected < 0 ? "" : selected !== row ? "weak" : weight > 0.1 ? "strong" : "";
		return svg`<path d=${curve} class=${kind} .style=${`--weight:${weight}`}>
			<title>${below[row]} → ${above[col]} ${formatNumber(weight)}</title></path>`;
	};
	const word = (text, x, y, width) =>
		svg`<rect x=${x} y=${y} width=${width} height=${WORD_HEIGHT} rx="4"></rect>
			<text x=${x + width / 2} y=${y + WORD_HEIGHT / 2}>${text}</text>`;
	const source = (text, i) => {
		const { x, width } = top.words[i];
		return svg`<g class="above">${word(text, topX + x, 0, width)}</g>`;
	};
	const target = (text, i) => {
		const { x, width } = bottom.words[i];
		return svg`<g class=${i === selected ? "below selected" : "below"} @click=${() => pick(i)}
			@pointerenter=${() => hover(i)} @pointerleave=${() => hover(-1)}>
			${word(text, bottomX + x, WORD_HEIGHT + EDGE_HEIGHT, width)}</g>`;
	};
	return html`<div class="scroll">
			<svg
				class="cross-attention"
				viewBox="0 0 ${width} ${height}"
				width=${width}
				height=${height}
				role="img"
				aria-label=${label}>
				<g class="edges">${edges.map(edge)}</g>
				${above.map(source)}${below.map(target)}
			</svg>
		</div>
		${badge}`;
}

/** Place words side by side. */
function layoutWords(texts) {
	textContext.font = WORD_FONT;
	let x = 0;
	const words = texts.map((text) => {
		const width = Math.ceil(textContext.measureText(text).width) + 12;
		const word = { x, width };
		x += width + WORD_GAP;
		return word;
	});
	return { words, width: Math.max(1, x - WORD_GAP) };
}

// ---- <ch-head-grid>
const MAX_GRID_HEIGHT = 420;
const THUMBNAIL_GAP = 6;
/** Sort by the weight of the selected cell. */
export const BY_WEIGHT = "weight";

export class HeadGrid extends CanvasGrid {
	static roleDescription = "grid of heads";
	static properties = reactive(
		...["patterns", "scores", "sort", "layer", "head", "weightAt", "ablated", "autoscale"],
	);

	constructor() {
		super();
		/** @type {Matrix | null} layer × head × query × key, in bytes */
		this.patterns = null;
		/** @type {LensView | null} score × layer × head */
		this.scores = null;
		this.sort = "";
		this.layer = 0;
		this.head = 0;
		/** @type {Cell | null} [query, key] of the sort order BY_WEIGHT */
		this.weightAt = null;
		/** @type {number[]} ablated heads as layer × heads + head */
		this.ablated = [];
		this.autoscale = false; // scale colors to the largest weight of each head
		/** @type {number[]} the heads in the order of their thumbnails */
		this.order = [];
	}

	shouldUpdate() {
		return !!this.patterns;
	}

	willUpdate() {
		const [layers, heads, rows, cols] = this.patterns.shape;
		const all = Array.from({ length: layers * heads }, (_, i) => i);
		this.sortScores = this.#sortScores();
		const scores = this.sortScores;
		this.order = scores
			? all.filter((i) => !Number.isNaN(scores[i])).sort((a, b) => scores[b] - scores[a])
			: all;
		const available = Math.max(200, this.clientWidth || 600);
		const left = scores ? 0 : 26;
		const top = scores ? 0 : 18;
		const fitting =
			Math.floor((available - left) / (scores ? Math.min(heads, 8) : heads)) - THUMBNAIL_GAP;
		const byHeight = Math.max(44, Math.floor(MAX_GRID_HEIGHT / layers) - THUMBNAIL_GAP); // deep models scroll
		const width = Math.max(22, Math.min(104, fitting, byHeight));
		const height = Math.max(12, Math.round(width * Math.min(1.6, rows / cols)));
		const columns = scores ? Math.max(1, Math.floor(available / (width + THUMBNAIL_GAP))) : heads;
		this.layout = {
			...{ left, top, width, height, rows: Math.ceil(this.order.length / columns), cols: columns },
			cellWidth: width + THUMBNAIL_GAP,
			cellHeight: height + THUMBNAIL_GAP + (scores ? 16 : 0),
		};
		const label = `all heads, ${layers} layers of ${heads}. Arrow keys move, Enter selects.`;
		this.setAttribute("aria-label", label);
	}

	render() {
		return html`<div class="scroll"><canvas></canvas></div>
			<p class="description" aria-live="polite"></p>`;
	}

	updated() {
		const { left, top, width, height, cellWidth, cellHeight, rows, cols } = this.layout;
		const canvas = this.querySelector("canvas");
		const context = resizeCanvas(canvas, left + cols * cellWidth, top + rows * cellHeight);
		const colors = themeColors();
		const heads = this.patterns.shape[1];
		const scores = this.sortScores;
		context.font = "11px system-ui, sans-serif";
		context.textBaseline = "middle";
		this.order.forEach((head, n) => {
			const x = left + (n % cols) * cellWidth;
			const y = top + Math.floor(n / cols) * cellHeight;
			context.drawImage(this.#thumbnail(head), x, y, width, height);
			const isSelected = head === this.layer * heads + this.head;
			context.lineWidth = isSelected ? 2.5 : 1;
			context.strokeStyle = isSelected ? colors.ink : colors.line;
			context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
			if (this.ablated.includes(head)) crossOut(context, x, y, width, height);
			context.fillStyle = colors.quiet;
			context.textAlign = "left";
			if (scores) {
				const name = `${Math.floor(head / heads)}.${head % heads}`;
				context.fillText(`${name}  ${formatNumber(scores[head], 2)}`, x, y + height + 8);
				return;
			}
			if (head % heads === 0) context.fillText(String(head / heads), 4, y + height / 2);
			if (head < heads) context.fillText(String(head), x + width / 2 - 3, top / 2);
		});
	}

	#thumbnail(head) {
		const [, , rows, cols] = this.patterns.shape;
		const size = rows * cols;
		const weights = this.patterns.data.subarray(head * size, (head + 1) * size);
		const max = this.autoscale ? weights.reduce((a, b) => Math.max(a, b), 1) : 255;
		const table = colorTable(false);
		return pixelImage(rows, cols, (i) => table[Math.round((255 * weights[i]) / max)]);
	}

	/** The score of each head in the sort order; null: by layer and head. */
	#sortScores() {
		const { sort, scores, weightAt, patterns } = this;
		const [layers, heads, rows, cols] = patterns.shape;
		if (sort === BY_WEIGHT && weightAt) {
			const offset = weightAt[0] * cols + weightAt[1];
			const weight = (_, head) => patterns.data[head * rows * cols + offset] / 255;
			return Float32Array.from({ length: layers * heads }, weight);
		}
		const i = scores ? scores.axes[0].labels.indexOf(sort) : -1;
		if (i < 0) return null;
		const size = scores.shape[1] * scores.shape[2];
		return scores.values.subarray(i * size, (i + 1) * size);
	}

	#headAt([row, col]) {
		return this.order[Math.min(this.order.length - 1, row * this.layout.cols + col)];
	}

	/** @returns {Cell} */
	initialCell() {
		const i = this.order.indexOf(this.layer * this.patterns.shape[1] + this.head);
		return [Math.floor(i / this.layout.cols), i % this.layout.cols];
	}

	onHover(cell) {
		this.querySelector(".description").textContent = cell ? this.#describe(this.#headAt(cell)) : "";
	}

	onPick(cell) {
		const heads = this.patterns.shape[1];
		const head = this.#headAt(cell);
		this.emit("pick", { layer: Math.floor(head / heads), head: head % heads });
	}

	#describe(head) {
		const [layers, heads] = this.patterns.shape;
		const { scores } = this;
		const title = `layer ${Math.floor(head / heads)}, head ${head % heads}`;
		const values = (scores?.axes[0].labels ?? [])
			.map((name, i) => [name, scores.values[i * layers * heads + head]])
			.filter(([, value]) => !Number.isNaN(value))
			.map(([name, value]) => `${name} ${formatNumber(value, 2)}`);
		return [this.ablated.includes(head) ? `${title}, ablated` : title, ...values].join(" · ");
	}
}
customElements.define("ch-head-grid", HeadGrid);

/** Cross out an ablated head. */
function crossOut(context, x, y, width, height) {
	context.strokeStyle = "#d9691c";
	context.lineWidth = 2;
	context.beginPath();
	context.moveTo(x, y);
	context.lineTo(x + width, y + height);
	context.moveTo(x, y + height);
	context.lineTo(x + width, y);
	context.stroke();
}
