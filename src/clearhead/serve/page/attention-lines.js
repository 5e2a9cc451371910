// Attention weights as lines: <ch-attention-lines>, from queries (left) to keys (right); and
// cross-attention between target and source tokens (L3.8).

import { html, nothing, svg } from "lit-html";
import { formatNumber } from "ch/colors";
import { PageElement, reactive } from "ch/element";
import { truncate } from "ch/heatmap";

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
					? html`<p class="badge">tokens ${row0}–${row1 - 1} of ${rows}; the heat map shows all</p>`
					: nothing
			}${badge}`;
	}
}
customElements.define("ch-attention-lines", AttentionLines);

const lineY = (i) => i * ROW_HEIGHT + ROW_HEIGHT / 2 + 2;
const range = (from, to) => Array.from({ length: Math.max(0, to - from) }, (_, i) => from + i);

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
				map shows all
			</p>`
		: nothing;
	return { edges, badge };
}

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
