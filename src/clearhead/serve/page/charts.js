// <ch-bar-chart> and <ch-line-chart>.

import { html, nothing, svg } from "lit-html";
import { figureText, PageElement, reactive } from "ch/base-elements";
import { toCsv, toNpy } from "ch/download";
import { formatNumber } from "ch/format";

export class BarChart extends PageElement {
	static properties = reactive(
		...["labels", "values", "notes", "signed", "max", "valueName", "baseline", "selected", "label"],
	);

	constructor() {
		super();
		/** @type {string[]} */
		this.labels = [];
		/** @type {ArrayLike<number>} */
		this.values = [];
		/** @type {string[] | null} a note next to each value */
		this.notes = null;
		this.signed = false;
		/** @type {number | null} value of a full bar; null: the largest value */
		this.max = null;
		this.valueName = "value";
		/** @type {ArrayLike<number> | null} values without edits, drawn as lines */
		this.baseline = null;
		this.selected = -1;
		this.label = "";
	}

	willUpdate() {
		this.classList.toggle("signed", this.signed);
		this.setAttribute("role", "group");
		if (this.label) this.setAttribute("aria-label", this.label);
	}

	render() {
		const values = Array.from(this.values);
		const magnitudes = [...values, ...Array.from(this.baseline ?? [])].map((v) => Math.abs(v) || 0);
		const max = this.max ?? Math.max(1e-30, ...magnitudes);
		const share = (value) =>
			Math.min(1, (this.signed ? Math.abs(value) : Math.max(0, value)) / max || 0);
		const baseline = (value) =>
			value === undefined || Number.isNaN(value)
				? nothing
				: html`<span
						class="baseline"
						.style=${`--share:${share(value)}`}
						title=${`without edits ${formatNumber(value)}`}></span>`;
		return values.map(
			(value, i) =>
				html`<button
					type="button"
					class="bar ${value < 0 ? "negative" : ""}"
					data-i=${i}
					aria-pressed=${this.selected === i}
					@click=${(event) => {
						this.#inspect(i, "lock");
						this.emit("pick", { index: i, value, isAdding: event.shiftKey });
					}}
					@pointerenter=${() => {
						this.#inspect(i);
						this.emit("hover", { index: i, value });
					}}
					@pointerleave=${() => {
						this.#inspect(-1);
						this.emit("hover", null);
					}}>
					<span class="name">${this.labels[i]}</span>
					<span class="track" .style=${`--share:${share(value)}`}
						><span class="fill"></span>${baseline(this.baseline?.[i])}</span
					>
					<span class="number">${formatNumber(value)}</span>
					${this.notes ? html`<span class="note">${this.notes[i]}</span>` : nothing}
				</button>`,
		);
	}

	/** Show a bar in the inspector; −1: none. */
	#inspect(i, mode = "hover") {
		const where = [this.labels[i]];
		const cell = {
			...figureText(this),
			where,
			measure: this.valueName,
			value: this.values[i],
			mode,
		};
		this.emit("inspect", i < 0 ? null : cell, true);
	}

	toCsv() {
		const rows = Array.from(this.values, (value, i) => [this.labels[i], value]);
		return toCsv([["name", this.valueName], ...rows]);
	}

	toNpy() {
		return toNpy([this.values.length], this.values);
	}
}
customElements.define("ch-bar-chart", BarChart);

const LEFT = 46;
const TOP = 10;
const BOTTOM = 40;
const LETTER_WIDTH = 6.4;

export class LineChart extends PageElement {
	static redrawsOnResize = true;
	static properties = reactive(
		...["series", "tickNames", "xName", "valueName", "label", "yMin", "yMax", "markX", "height"],
	);

	constructor() {
		super();
		/** @type {{ label: string, points: number[][], kind?: string }[]} `kind` is a CSS class */
		this.series = [];
		/** @type {string[] | null} labels of x = 0, 1, 2 … instead of numbers */
		this.tickNames = null;
		this.xName = "step";
		this.valueName = "";
		this.label = "line chart";
		/** @type {number | null} */
		this.yMin = null; // the least extent of the y axis
		/** @type {number | null} */
		this.yMax = null;
		/** @type {number | null} x of a vertical line */
		this.markX = null;
		this.height = 210;
		/** @type {{ x: number, y: number, label: string } | null} the point under the pointer */
		this.activePoint = null;
	}

	shouldUpdate() {
		return this.series.some(({ points }) => points.some(([, y]) => Number.isFinite(y)));
	}

	render() {
		const series = this.series.map((line) => ({
			...line,
			points: line.points.filter(([, y]) => Number.isFinite(y)),
		}));
		const points = series.flatMap(({ label, points }) => points.map(([x, y]) => ({ x, y, label })));
		const [x0, x1] = extent(points.map(({ x }) => x));
		const limits = [this.yMin, this.yMax].filter((limit) => limit !== null);
		const [y0, y1] = extent([...points.map(({ y }) => y), ...limits]);
		const width = Math.max(240, this.clientWidth || 560);
		const labelWidth = LETTER_WIDTH * Math.max(...series.map(({ label }) => label.length));
		const right = width - 12 - labelWidth;
		const bottom = this.height - BOTTOM;
		const x = (value) => LEFT + ((value - x0) / (x1 - x0 || 1)) * (right - LEFT);
		const y = (value) => bottom - ((value - y0) / (y1 - y0 || 1)) * (bottom - TOP);
		const nearest = ({ offsetX, offsetY }) => {
			const distance = (point) => Math.hypot(3 * (x(point.x) - offsetX), y(point.y) - offsetY); // x counts more
			return points.reduce((best, point) => (distance(point) < distance(best) ? point : best));
		};
		const ends = series.map(({ points }) => y(points.at(-1)?.[1] ?? y0));
		const labelY = spreadLabels(ends, 14);
		const path = (points) =>
			points.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
		return html`<svg
			viewBox="0 0 ${width} ${this.height}"
			width=${width}
			height=${this.height}
			role="img"
			aria-label=${this.label}
			@pointermove=${(event) => this.#inspect(nearest(event))}
			@pointerleave=${() => this.#inspect(null)}
			@click=${(event) => {
				this.#inspect(nearest(event), "lock");
				this.emit("pick", { x: nearest(event).x });
			}}>
			${ticks(y0, y1, 4).map(
				(value) =>
					svg`<line class="axis" x1=${LEFT} x2=${right} y1=${y(value)} y2=${y(value)}></line>
						<text x=${LEFT - 8} y=${y(value) + 4} text-anchor="end">${formatTick(value)}</text>`,
			)}
			${this.#xTicks(x0, x1, right - LEFT).map(
				(value) =>
					svg`<text x=${x(value)} y=${bottom + 17} text-anchor="middle">${this.#xLabel(value)}</text>`,
			)}
			<text x=${(LEFT + right) / 2} y=${this.height - 4} text-anchor="middle">${this.xName}</text>
			${this.markX === null ? nothing : svg`<line class="mark" x1=${x(this.markX)} x2=${x(this.markX)} y1=${TOP} y2=${bottom}></line>`}
			${series.map(
				({ label, kind, points }, i) =>
					svg`<path class=${kind ?? ""} d=${path(points)}></path>
						<text class="name" x=${right + 8} y=${labelY[i] + 4}>${label}</text>`,
			)}
			${this.activePoint ? svg`<circle cx=${x(this.activePoint.x)} cy=${y(this.activePoint.y)} r="4"></circle>` : nothing}
		</svg>`;
	}

	#xTicks(x0, x1, width) {
		if (!this.tickNames) return ticks(x0, x1, Math.min(8, width / 70));
		const step = Math.ceil(this.tickNames.length / 12);
		return [...this.tickNames.keys()].filter((i) => i % step === 0);
	}

	#xLabel(x) {
		return this.tickNames?.[x] ?? formatTick(x);
	}

	#inspect(point, mode = "hover") {
		const { activePoint } = this;
		if (mode === "hover" && point?.x === activePoint?.x && point?.y === activePoint?.y) return;
		this.activePoint = point;
		this.requestUpdate();
		const where = point && [`${this.xName} ${this.#xLabel(point.x)}`, point.label].filter(Boolean);
		const measure = this.valueName;
		this.emit(
			"inspect",
			point && { ...figureText(this), where, measure, value: point.y, mode },
			true,
		);
	}
}
customElements.define("ch-line-chart", LineChart);

const formatTick = (value) =>
	value.toLocaleString("en", { maximumSignificantDigits: 6 }).replace("-", "−");

const extent = (values) =>
	values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);

/** About `count` round numbers between two values. */
function ticks(low, high, count) {
	const raw = (high - low) / count || 1;
	const power = 10 ** Math.floor(Math.log10(raw));
	const step = [1, 2, 5, 10].map((n) => n * power).find((size) => size >= 0.999 * raw);
	const first = Math.ceil(low / step - 1e-9);
	const length = Math.max(1, Math.floor(high / step + 1e-9) - first + 1);
	return Array.from({ length }, (_, i) => (first + i) * step);
}

/** Move labels apart vertically so that they do not overlap. */
function spreadLabels(positions, distance) {
	const order = positions.map((_, i) => i).sort((a, b) => positions[a] - positions[b]);
	const result = [...positions];
	order.forEach((label, i) => {
		if (i) result[label] = Math.max(result[label], result[order[i - 1]] + distance);
	});
	return result;
}
