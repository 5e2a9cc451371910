// Base classes of the page's custom elements: LitElement without shadow DOM, and a canvas with a grid
// of cells.

import { LitElement } from "lit-element";

/** Whether a property changed. Templates recreate arrays and functions on every render. */
function hasChanged(value, old) {
	if (value === old || (typeof value === "function" && typeof old === "function")) return false;
	if (Array.isArray(value) && Array.isArray(old))
		return value.length !== old.length || value.some((item, i) => item !== old[i]);
	return !(value?.data && value.data === old?.data && String(value.shape) === String(old.shape));
}

/** Declare properties that are set by templates. */
export const reactive = (...names) =>
	Object.fromEntries(names.map((name) => [name, { attribute: false, hasChanged }]));

/** Redraws when a property or the theme changes; with `redrawsOnResize`, also when its width does. */
export class PageElement extends LitElement {
	static redrawsOnResize = false;
	#redraw = () => this.requestUpdate();

	createRenderRoot() {
		return this;
	}

	connectedCallback() {
		super.connectedCallback();
		window.addEventListener("theme", this.#redraw);
		if (/** @type {any} */ (this.constructor).redrawsOnResize) resizeObserver.observe(this);
	}

	disconnectedCallback() {
		super.disconnectedCallback();
		window.removeEventListener("theme", this.#redraw);
		resizeObserver.unobserve(this);
	}

	/** Dispatch an event. */
	emit(name, detail, bubbles = false) {
		this.dispatchEvent(new CustomEvent(name, { detail, bubbles }));
	}
}

const widths = new WeakMap();
const resizeObserver = new ResizeObserver((entries) => {
	for (const { target, contentRect } of entries) {
		if (widths.get(target) === contentRect.width) continue; // heights follow from the content
		widths.set(target, contentRect.width);
		/** @type {PageElement} */ (target).requestUpdate();
	}
});

/** Title and note of the figure around an element. */
export function figureText(element) {
	const figure = element.closest("ch-figure");
	return { title: element.label || figure?.caption || "", note: figure?.note ?? "" };
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
	window.dispatchEvent(new Event("theme")),
);

const ARROW_STEPS = {
	ArrowUp: [-1, 0],
	ArrowDown: [1, 0],
	ArrowLeft: [0, -1],
	ArrowRight: [0, 1],
};

/**
 * A grid of cells with pointer and keyboard navigation. Subclasses set `layout` and implement
 * `onHover(cell)`, which returns a text for screen readers, and `onPick(cell, isAdding)`.
 */
export class CanvasGrid extends PageElement {
	static redrawsOnResize = true;
	static roleDescription = "";

	constructor() {
		super();
		/** @type {Cell | null} the cell under the pointer or keyboard cursor */
		this.activeCell = null;
		/** @type {any} GridLayout and more */
		this.layout = null;
		/** @type {number[] | null} rows and columns of the data, if cells are pooled */
		this.dataShape = null;
		this.showTable = false;
		this.addEventListener("pointermove", (event) => this.#moveTo(this.#cellAt(event)));
		this.addEventListener("pointerleave", () => this.#moveTo(null));
		this.addEventListener("blur", () => this.#moveTo(null));
		this.addEventListener("click", (event) => {
			const cell = this.#cellAt(event);
			if (cell) this.onPick(cell, event.shiftKey);
		});
		this.addEventListener("keydown", (event) => this.#handleKey(event));
	}

	connectedCallback() {
		this.tabIndex = 0;
		this.setAttribute("role", "group");
		const { roleDescription } = /** @type {typeof CanvasGrid} */ (this.constructor);
		this.setAttribute("aria-roledescription", roleDescription);
		super.connectedCallback();
	}

	/** @param {Cell | null} cell @returns {string | null | void} */
	onHover(cell) {}

	/** @param {Cell} cell @param {boolean} [isAdding] */
	onPick(cell, isAdding) {}

	/** Handle another key; returns whether it was handled. @param {KeyboardEvent} event */
	onKey(event) {
		return false;
	}

	/** The cell where keyboard navigation starts. @param {string} key @returns {Cell} */
	initialCell(key) {
		return [0, 0];
	}

	/** The data cell of a drawn cell. @returns {Cell} */
	dataCell(row, col) {
		return [row, col];
	}

	#cellAt({ clientX, clientY }) {
		const box = this.querySelector("canvas")?.getBoundingClientRect();
		if (!box || !this.layout) return null;
		const { left, top, cellWidth, cellHeight, rows, cols } = this.layout;
		const col = Math.floor((clientX - box.left - left) / cellWidth);
		const row = Math.floor((clientY - box.top - top) / cellHeight);
		return row < 0 || col < 0 || row >= rows || col >= cols ? null : this.dataCell(row, col);
	}

	#moveTo(cell, isKeyboard = false) {
		if (String(cell) === String(this.activeCell)) return;
		this.activeCell = cell;
		const text = this.onHover(cell);
		if (!isKeyboard) return;
		if (text) this.querySelector(".live-text").textContent = text;
		this.#scrollTo(cell);
	}

	#scrollTo([row, col]) {
		const box = this.querySelector(".scroll");
		if (!box) return;
		const { left, top, cellWidth, cellHeight, rows, cols } = this.layout;
		const [dataRows, dataCols] = this.dataShape ?? [rows, cols];
		const x = left + (col * cellWidth * cols) / dataCols;
		const y = top + (row * cellHeight * rows) / dataRows;
		if (x - left < box.scrollLeft || x + cellWidth > box.scrollLeft + box.clientWidth)
			box.scrollLeft = x - box.clientWidth / 2;
		if (y - top < box.scrollTop || y + cellHeight > box.scrollTop + box.clientHeight)
			box.scrollTop = y - box.clientHeight / 2;
	}

	#handleKey(event) {
		const step = ARROW_STEPS[event.key];
		if (step && this.layout && !this.showTable) {
			const [row, col] = this.activeCell ?? this.initialCell(event.key);
			const [rows, cols] = this.dataShape ?? [this.layout.rows, this.layout.cols];
			this.#moveTo([clampIndex(row + step[0], rows), clampIndex(col + step[1], cols)], true);
		} else if (event.target !== this) return;
		else if (event.key === "Enter" && this.activeCell) this.onPick(this.activeCell, event.shiftKey);
		else if (!this.onKey(event)) return;
		event.preventDefault();
		event.stopPropagation();
	}
}

/** Size a canvas in CSS pixels and return its scaled context. */
export function resizeCanvas(canvas, width, height) {
	const pixelRatio = Math.min(3, devicePixelRatio || 1);
	const context = canvas.getContext("2d");
	canvas.width = Math.round(width * pixelRatio);
	canvas.height = Math.round(height * pixelRatio);
	canvas.style.width = `${width}px`;
	canvas.style.height = `${height}px`;
	context.scale(pixelRatio, pixelRatio);
	context.imageSmoothingEnabled = false;
	return context;
}

/** An image with one 32-bit pixel per cell, to be scaled up. */
export function pixelImage(rows, cols, color) {
	const canvas = document.createElement("canvas");
	canvas.width = cols;
	canvas.height = rows;
	const context = canvas.getContext("2d");
	const image = context.createImageData(cols, rows);
	const pixels = new Uint32Array(image.data.buffer);
	for (let i = 0; i < pixels.length; i++) pixels[i] = color(i);
	context.putImageData(image, 0, 0);
	return canvas;
}

export const clampIndex = (index, size) => Math.max(0, Math.min(size - 1, Math.round(index)));
