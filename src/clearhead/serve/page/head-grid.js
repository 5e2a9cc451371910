// <ch-head-grid>: thumbnails of all heads on one canvas, ordered by layer or by a score.

import { html } from "lit-html";
import { CanvasGrid, pixelImage, resizeCanvas } from "ch/canvas";
import { colorTable, formatNumber, themeColors } from "ch/colors";
import { reactive } from "ch/element";

const MAX_HEIGHT = 420;
const GAP = 6;
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
		const fitting = Math.floor((available - left) / (scores ? Math.min(heads, 8) : heads)) - GAP;
		const byHeight = Math.max(44, Math.floor(MAX_HEIGHT / layers) - GAP); // deep models scroll
		const width = Math.max(22, Math.min(104, fitting, byHeight));
		const height = Math.max(12, Math.round(width * Math.min(1.6, rows / cols)));
		const columns = scores ? Math.max(1, Math.floor(available / (width + GAP))) : heads;
		this.layout = {
			...{ left, top, width, height, rows: Math.ceil(this.order.length / columns), cols: columns },
			cellWidth: width + GAP,
			cellHeight: height + GAP + (scores ? 16 : 0),
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
