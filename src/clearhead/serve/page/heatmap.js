// <ch-heatmap>: a heat map. Cells are drawn once on a canvas; the cursor moves on an overlay canvas.

import { html, nothing } from "lit-html";
import {
	CanvasGrid,
	clampIndex,
	figureText,
	pixelImage,
	reactive,
	resizeCanvas,
} from "ch/base-elements";
import { colorIndex, colorTable, textColor, themeColors } from "ch/colors";
import { heatmapCanvas, heatmapCsv, heatmapSvg, toNpy } from "ch/download";
import { formatNumber } from "ch/format";

const FONT = "12px system-ui, sans-serif";
const SLANT = 0.61; // horizontal extent of a slanted label relative to its length
const TABLE_SIZE = 64; // maximum rows and columns of the table
const MIN_TEXT_CELL = 44; // width of a cell with text
const textContext = document.createElement("canvas").getContext("2d");

export class Heatmap extends CanvasGrid {
	static roleDescription = "heat map";
	static properties = reactive(
		...[
			"values",
			"rowLabels",
			"colLabels",
			"cellTexts",
			"signed",
			"max",
			"isMasked",
			"name",
			"run",
		],
		...["toIndex", "cursor", "label", "valueName", "axes", "hasColors", "showTable"],
		...["maxCellSize", "cellHeight"],
	);

	constructor() {
		super();
		/** @type {Matrix | null} */
		this.values = null;
		/** @type {string[] | null} */
		this.rowLabels = null;
		/** @type {string[] | null} */
		this.colLabels = null;
		/** @type {string[][] | null} texts in the cells */
		this.cellTexts = null;
		this.signed = false;
		/** @type {number | null} value of the full color; null: the largest value */
		this.max = null;
		/** @type {((row: number, col: number) => boolean) | null} whether a cell is hatched */
		this.isMasked = null;
		this.name = ""; // activation name and run id, for the inspector
		this.run = "";
		/** @type {((row: number, col: number) => number[]) | null} indices into the activation */
		this.toIndex = null;
		/** @type {Cell | null} the selected cell */
		this.cursor = null;
		this.label = "";
		this.valueName = "";
		this.axes = ["row", "column"];
		this.hasColors = true;
		this.maxCellSize = 28;
		this.cellHeight = 0; // if cells are not square
	}

	shouldUpdate() {
		return !!this.values;
	}

	willUpdate() {
		const [rows, cols] = (this.dataShape = matrixShape(this.values));
		const label = `${this.label || this.name || "values"}, ${rows} × ${cols}.`;
		this.setAttribute(
			"aria-label",
			`${label} Arrow keys move, Enter locks a cell, T shows a table.`,
		);
		this.classList.toggle("as-table", this.showTable);
		if (!this.showTable) this.layout = computeLayout(this, rows, cols);
	}

	render() {
		if (this.showTable) return this.#table();
		const { factor } = this.layout;
		return html`<div class="scroll" @scroll=${() => this.#drawCursor()}>
				<div class="layers"><canvas class="base"></canvas><canvas class="overlay"></canvas></div>
			</div>
			${factor > 1 ? html`<p class="badge">max-pooled ${factor}×; hover for exact cells</p>` : nothing}
			<span class="live-text" aria-live="polite"></span>`;
	}

	updated() {
		if (this.showTable) return;
		const { width, height } = this.layout;
		const [base] = Array.from(this.querySelectorAll("canvas"), (canvas) =>
			resizeCanvas(canvas, width, height),
		);
		this.draw(base);
		this.#drawCursor();
		this.#scrollToCursor();
	}

	/** Scroll the selected cell into view, once. */
	#scrollToCursor() {
		const box = this.querySelector(".scroll");
		const { left, cellWidth, width } = this.layout;
		if (!this.cellTexts || !this.cursor || width <= box.clientWidth) return;
		const [, col] = this.cursor;
		if (this.scrolledTo === col) return;
		this.scrolledTo = col;
		if (left + (col + 1) * cellWidth > box.clientWidth)
			box.scrollLeft = left + (col + 0.5) * cellWidth - box.clientWidth / 2;
	}

	/** Draw the heat map onto a context in CSS pixels. */
	draw(context, cellsOnly = false) {
		const { layout, signed } = this;
		const { left, top, cellWidth, cellHeight, grid } = layout;
		const colors = themeColors();
		const table = colorTable(signed);
		const width = grid.cols * cellWidth;
		const height = grid.rows * cellHeight;
		if (this.hasColors) {
			const pixel = (i) => table[colorIndex(grid.data[i], layout.max, signed)];
			context.drawImage(pixelImage(grid.rows, grid.cols, pixel), left, top, width, height);
		}
		if (grid.masked)
			context.drawImage(hatching(grid, width, height, colors.line), left, top, width, height);
		context.strokeStyle = colors.line;
		context.lineWidth = 1;
		context.strokeRect(left + 0.5, top + 0.5, width - 1, height - 1);
		if (this.cellTexts) this.#drawTexts(context);
		if (cellsOnly) return;
		if (this.rowLabels) drawRowLabels(context, this, layout, colors);
		if (this.colLabels) drawColLabels(context, this, layout, colors);
	}

	#drawTexts(context) {
		const { left, top, cellWidth, cellHeight, max } = this.layout;
		context.font = FONT;
		context.textAlign = "center";
		context.textBaseline = "middle";
		this.cellTexts.forEach((line, row) =>
			line.forEach((text, col) => {
				const share = this.value(row, col) / max;
				context.fillStyle = this.hasColors ? textColor(share) : themeColors().ink;
				const x = left + (col + 0.5) * cellWidth;
				context.fillText(truncate(text, cellWidth - 6), x, top + (row + 0.5) * cellHeight + 0.5);
			}),
		);
	}

	/** The value of a cell. */
	value(row, col) {
		return this.values.data[row * this.dataShape[1] + col];
	}

	/** The exact cell behind a pooled block. */
	dataCell(row, col) {
		return this.layout.factor === 1 ? [row, col] : this.layout.grid.largestCell(row, col);
	}

	initialCell(key) {
		return this.cursor ?? [0, key === "ArrowRight" ? -1 : 0];
	}

	onHover(cell) {
		this.#drawCursor();
		const detail = cell && this.#detail(cell);
		this.emit("hover", detail);
		this.emit("inspect", detail && { ...detail, mode: "hover" }, true);
		return cell && this.#describe(cell);
	}

	onPick(cell, isAdding = false) {
		const detail = this.#detail(cell);
		this.emit("inspect", { ...detail, mode: isAdding && this.name ? "pin" : "lock" }, true);
		this.emit("pick", { ...detail, isAdding });
	}

	onKey(event) {
		if (event.key.toLowerCase() !== "t" || event.ctrlKey || event.metaKey) return false;
		this.showTable = !this.showTable;
		return true;
	}

	#detail([row, col]) {
		const { name, run } = this;
		const detail = { row, col, value: this.value(row, col), name, run, index: null };
		if (name) return { ...detail, index: this.toIndex ? this.toIndex(row, col) : [row, col] };
		const where = [
			`${this.axes[0]} ${this.#rowLabel(row)}`,
			`${this.axes[1]} ${this.#colLabel(col)}`,
		];
		const text = this.cellTexts?.[row]?.[col];
		if (text && Number.isNaN(Number(text.replace("−", "-")))) where.push(`“${text}”`);
		const measure = this.isMasked?.(row, col) ? "masked" : this.valueName;
		return { ...detail, where, ...figureText(this), measure };
	}

	#describe([row, col]) {
		const place = `${this.#rowLabel(row)} → ${this.#colLabel(col)}`;
		if (this.isMasked?.(row, col)) return `${place}: masked`;
		const cols = this.dataShape[1];
		const value = this.value(row, col);
		const visible = Array.from(this.values.data.subarray(row * cols, (row + 1) * cols)).filter(
			(_, c) => !this.isMasked?.(row, c),
		);
		const rank = 1 + visible.filter((other) => other > value).length;
		const text = this.cellTexts ? `${this.cellTexts[row][col]}, ` : "";
		return `${place} ${text}${formatNumber(value)}, rank ${rank} of ${visible.length}`;
	}

	#rowLabel = (row) => this.rowLabels?.[row] ?? String(row);
	#colLabel = (col) => this.colLabels?.[col] ?? String(col);

	/** Draw the active and the selected cell on the overlay. */
	#drawCursor() {
		const canvas = /** @type {HTMLCanvasElement} */ (this.querySelector("canvas.overlay"));
		if (!canvas || !this.layout) return;
		const context = canvas.getContext("2d");
		const { left, top, cellWidth, cellHeight, factor, grid, width, height } = this.layout;
		const colors = themeColors();
		context.clearRect(0, 0, width, height);
		const x = (col) => left + Math.floor(col / factor) * cellWidth;
		const y = (row) => top + Math.floor(row / factor) * cellHeight;
		const outline = ([row, col], lineWidth) => {
			context.strokeStyle = colors.ink;
			context.lineWidth = lineWidth;
			context.strokeRect(x(col), y(row), Math.max(2, cellWidth), Math.max(2, cellHeight));
		};
		if (this.activeCell) {
			const [row, col] = this.activeCell;
			context.fillStyle = colors.ink;
			context.globalAlpha = 0.07;
			context.fillRect(left, y(row), grid.cols * cellWidth, cellHeight);
			context.fillRect(x(col), top, cellWidth, grid.rows * cellHeight);
			context.globalAlpha = 1;
			outline(this.activeCell, 1.5);
		}
		const [row, col] = this.cursor ?? [-1, -1];
		if (row >= 0 && col >= 0 && row < this.dataShape[0] && col < this.dataShape[1])
			outline(this.cursor, 2.5);
		const { scrollLeft } = canvas.closest(".scroll");
		if (!scrollLeft || !this.rowLabels) return;
		context.fillStyle = getComputedStyle(document.body).backgroundColor; // keep row labels visible
		context.fillRect(scrollLeft, 0, left, height);
		context.translate(scrollLeft, 0);
		drawRowLabels(context, this, this.layout, colors);
		context.translate(-scrollLeft, 0);
	}

	#table() {
		const [rows, cols] = this.dataShape;
		const first = (size, center) =>
			clampIndex(center - TABLE_SIZE / 2, Math.max(1, size - TABLE_SIZE + 1));
		const [row, col] = this.cursor ?? [0, 0];
		const shownRows = range(first(rows, row), Math.min(rows, first(rows, row) + TABLE_SIZE));
		const shownCols = range(first(cols, col), Math.min(cols, first(cols, col) + TABLE_SIZE));
		const cell = (r, c) =>
			html`<td>
				${this.isMasked?.(r, c) ? "masked" : formatNumber(this.value(r, c))}${this.cellTexts ? html` <b>${this.cellTexts[r][c]}</b>` : nothing}
			</td>`;
		return html`<div class="scroll">
			<table class="numbers">
				${
					rows > TABLE_SIZE || cols > TABLE_SIZE
						? html`<caption>
								rows ${shownRows[0]}–${shownRows.at(-1)}, columns
								${shownCols[0]}–${shownCols.at(-1)}, of ${rows} × ${cols}
							</caption>`
						: nothing
				}
				<thead>
					<tr>
						<td></td>
						${shownCols.map((c) => html`<th scope="col">${this.#colLabel(c)}</th>`)}
					</tr>
				</thead>
				<tbody>
					${shownRows.map(
						(r) =>
							html`<tr>
								<th scope="row">${this.#rowLabel(r)}</th>
								${shownCols.map((c) => cell(r, c))}
							</tr>`,
					)}
				</tbody>
			</table>
		</div>`;
	}

	toCsv() {
		return heatmapCsv(this);
	}

	toNpy() {
		return toNpy(this.values.shape, this.values.data);
	}

	toCanvas() {
		return heatmapCanvas(this);
	}

	toSvg() {
		return heatmapSvg(this);
	}
}
customElements.define("ch-heatmap", Heatmap);

/** Cell sizes, pooling and the room for labels. */
function computeLayout(map, rows, cols) {
	textContext.font = FONT;
	const width = Math.max(120, map.clientWidth || 600);
	const textWidth = (text) => textContext.measureText(text).width;
	const longest = (labels, max) =>
		Math.min(max, Math.max(0, ...(labels ?? []).slice(0, 400).map(textWidth)));
	const left =
		Math.ceil(longest(map.rowLabels, Math.min(120, width * 0.25))) + (map.rowLabels ? 8 : 1);
	const labelLength = longest(map.colLabels, 120);
	const estimate = map.cellTexts
		? MIN_TEXT_CELL
		: Math.min(map.maxCellSize, Math.max(1, (width - left) / cols));
	const last = (map.colLabels ?? []).slice(-100);
	const overhang = Math.max(
		0, // slanted labels extend beyond the right edge
		...last.map(
			(label, i) => SLANT * Math.min(118, textWidth(label)) - (last.length - 0.5 - i) * estimate,
		),
	);
	const room = width - left - 2 - overhang;
	const textCell = (available) => Math.max(MIN_TEXT_CELL, Math.min(96, available / cols));
	let cellWidth = Math.min(map.maxCellSize, room / cols);
	let factor = 1;
	if (map.cellTexts) {
		const unslanted = textCell(room + overhang);
		cellWidth = labelLength <= unslanted - 4 ? unslanted : textCell(room);
	} else if (cellWidth < 1) factor = Math.ceil(1 / cellWidth);
	const grid = maxPool(map.values, rows, cols, factor, map.signed, map.isMasked);
	if (factor > 1) cellWidth = Math.max(1, Math.floor((room / grid.cols) * 4) / 4);
	else if (cellWidth > 3) cellWidth = Math.floor(cellWidth);
	const isFlat = labelLength <= cellWidth - 4; // column labels are horizontal
	let cellHeight = map.cellHeight;
	if (!cellHeight && map.cellTexts) cellHeight = 24;
	else if (!cellHeight && (factor > 1 || rows > 40)) cellHeight = cellWidth;
	else if (!cellHeight) cellHeight = Math.max(cellWidth, Math.min(16, 480 / rows));
	const top = map.colLabels ? (isFlat ? 20 : Math.ceil(labelLength * 0.8) + 12) : 1;
	const gridWidth = Math.ceil(left + grid.cols * cellWidth + 2);
	return {
		...{ left, top, cellWidth, cellHeight, rows: grid.rows, cols: grid.cols, factor, grid, isFlat },
		max: map.max ?? (Math.max(grid.max, 0) || 1),
		width: Math.ceil(gridWidth + (isFlat ? 0 : overhang)),
		height: Math.ceil(top + grid.rows * cellHeight + 2),
	};
}

/** Hatching of masked cells: lines everywhere, then clipped. */
function hatching(grid, width, height, color) {
	const canvas = document.createElement("canvas");
	const context = resizeCanvas(canvas, width, height);
	context.strokeStyle = color;
	context.beginPath();
	for (let x = -height; x < width; x += 6) {
		context.moveTo(x, height);
		context.lineTo(x + height, 0);
	}
	context.stroke();
	context.globalCompositeOperation = "destination-in";
	const mask = pixelImage(grid.rows, grid.cols, (i) => (grid.masked[i] ? 255 << 24 : 0));
	context.drawImage(mask, 0, 0, width, height);
	return canvas;
}

function drawRowLabels(context, map, { left, top, cellHeight, factor, grid }, colors) {
	context.font = FONT;
	context.fillStyle = colors.quiet;
	context.textBaseline = "middle";
	context.textAlign = "right";
	const step = Math.max(1, Math.ceil(14 / cellHeight));
	for (let row = 0; row < grid.rows; row += step) {
		const label = truncate(map.rowLabels[row * factor] ?? "", left - 8);
		context.fillText(label, left - 5, top + (row + 0.5) * cellHeight);
	}
}

function drawColLabels(context, map, { left, top, cellWidth, factor, grid, isFlat }, colors) {
	context.font = FONT;
	context.fillStyle = colors.quiet;
	context.textBaseline = "middle";
	const step = Math.max(1, Math.ceil((isFlat ? 1 : 14) / cellWidth));
	for (let col = 0; col < grid.cols; col += step) {
		context.save();
		context.translate(left + (col + 0.5) * cellWidth, top - 6);
		if (isFlat) context.textAlign = "center";
		else {
			context.rotate(-Math.PI / 3.4);
			context.textAlign = "left";
		}
		context.fillText(truncate(map.colLabels[col * factor] ?? "", 118), 0, isFlat ? -4 : 0);
		context.restore();
	}
}

/** Truncate a label to a width. */
export function truncate(text, width) {
	textContext.font = FONT;
	if (textContext.measureText(text).width <= width) return text;
	let end = text.length;
	while (end > 1 && textContext.measureText(`${text.slice(0, end)}…`).width > width) end--;
	return `${text.slice(0, end)}…`;
}

/**
 * Max-pool a matrix: the finite value of largest magnitude in each block, with its sign. With factor 1
 * the matrix itself. { rows, cols, data, masked, max, largestCell(row, col) }
 */
export function maxPool({ data: values }, rows, cols, factor, signed, isMasked) {
	const height = Math.ceil(rows / factor);
	const width = Math.ceil(cols / factor);
	const isPooled = factor > 1;
	const data = isPooled ? new Float32Array(height * width).fill(NaN) : values;
	const origin = isPooled ? new Uint32Array(height * width) : null; // index of each block's value
	const masked = isMasked ? new Uint8Array(height * width).fill(1) : null;
	let max = 0;
	for (let row = 0, i = 0; row < rows; row++) {
		let block = Math.floor(row / factor) * width;
		for (let col = 0, left = factor; col < cols; col++, i++) {
			const value = values[i];
			const magnitude = Math.abs(value);
			if (magnitude > max && magnitude < Infinity) max = magnitude;
			const best = data[block];
			if (origin && isBetter(value, magnitude, best, signed)) {
				data[block] = value;
				origin[block] = i;
			}
			if (masked?.[block] && !isMasked(row, col)) masked[block] = 0;
			if (--left === 0) {
				left = factor;
				block++;
			}
		}
	}
	const largestCell = (row, col) => {
		if (!origin) return [row, col];
		const i = origin[row * width + col];
		return [Math.floor(i / cols), i % cols];
	};
	return {
		rows: height,
		cols: width,
		data,
		masked: masked?.some(Boolean) ? masked : null,
		max,
		largestCell,
	};
}

/** Whether a value replaces the best one of its block; any number replaces NaN, a finite one infinity. */
function isBetter(value, magnitude, best, signed) {
	if (!(magnitude < Infinity)) return Number.isNaN(best);
	return !Number.isFinite(best) || (signed ? magnitude > Math.abs(best) : value > best);
}

const matrixShape = ({ shape }) => (shape.length === 1 ? [1, shape[0]] : shape);
/** The integers from `from` to before `to`. */
export const range = (from, to) =>
	Array.from({ length: Math.max(0, to - from) }, (_, i) => from + i);
