// Patches (L1.1, L6.4): images and audio are split into patches, which are tokens.

import { html, nothing } from "lit-html";
import { decodeView, snapshot } from "ch/api";
import { CanvasGrid, pixelImage, reactive, resizeCanvas } from "ch/base-elements";
import { colorIndex, colorTable, themeColors } from "ch/colors";
import { button, buttonGroup, numberSelect, slider, tokenIndex } from "ch/controls";
import { toCsv, toNpy } from "ch/download";
import "ch/edits";
import { formatNumber } from "ch/format";
import {
	currentDrawing,
	currentFile,
	currentFrequency,
	decodeStrokes,
	encodeStrokes,
	GRID_SIZE,
	openFile,
	paintStrokes,
	useDrawingOrTone,
	useExample,
} from "ch/media-input";
import { getArray, memoize, postJson, renderResource, runRequest } from "ch/requests";
import { set, state } from "ch/state";
import { classificationFigure } from "ch/view-classify";

function template(context) {
	const { card, state, run } = context;
	const { image, audio } = runRequest(card);
	const body = { model: card.name, ...(image ? { image } : { audio }) };
	if (!image && !audio) return inputFigure(card, state);
	const patches = postJson("patches", body, "patches", (result) => ({
		...result,
		view: decodeView(result.view),
	}));
	return html`<div class="columns">
			${inputFigure(card, state)}
			<div>${renderResource(patches, (value) => patchesFigure(context, value))}</div>
		</div>
		${classificationFigure(context, body)}${run && patches.value ? attentionFigures(context, patches.value) : nothing}`;
}

/** The input: the model's example, a drawing, a tone, or a file. */
function inputFigure(card, state) {
	const file = currentFile(card);
	const example = card.examples.file;
	const what = card.reads_images ? "image" : "audio file";
	const note =
		file && file === example
			? "Example bundled with the model."
			: file
				? "The file is not part of the link."
				: card.reads_images
					? "The drawing is part of the link."
					: "One second of a tone rising by an octave; it is part of the link.";
	return html`<ch-figure
		.caption=${file?.name ?? (card.reads_images ? "Draw something" : "A tone")}
		.note=${note}>
		${
			file
				? nothing
				: card.reads_images
					? html`<canvas
							class="pad"
							.strokes=${repaintPad(currentDrawing(state))}
							width="280"
							height="280"
							role="img"
							aria-label="drawing"
							tabindex="-1"
							@pointerdown=${startStroke}
							@pointermove=${extendStroke}
							@pointerup=${endStroke}
							@pointercancel=${endStroke}></canvas>`
					: slider(
							"From",
							{
								min: 110,
								max: 1760,
								step: 10,
								value: currentFrequency(state),
								format: (v) => `${v} Hz`,
							},
							(to) => set({ tone: to }, { replace: true }),
						)
		}
		${
			snapshot
				? nothing
				: html`<div class="row controls">
						${file ? button(card.reads_images ? "Draw instead" : "Use a tone", () => useDrawingOrTone(card)) : card.reads_images ? button("Clear", () => set({ drawing: "" })) : nothing}
						${example && file !== example ? button("Use the example", useExample) : nothing}
						<label class="file"
							><span>Open an ${what}…</span
							><input
								type="file"
								class="visually-hidden"
								accept=${card.reads_images ? "image/*" : "audio/*"}
								@change=${(event) => openFile(event.target.files[0] ?? null)}
						/></label>
					</div>`
		}
	</ch-figure>`;
}

let currentStroke = null; // while it is drawn

/** Repaint the pad when its strokes change. */
function repaintPad(text) {
	requestAnimationFrame(() => {
		const pad = document.querySelector("canvas.pad");
		if (pad && !currentStroke) paintStrokes(pad, decodeStrokes(text));
	});
	return text;
}

const gridPoint = (event) => {
	const box = event.currentTarget.getBoundingClientRect();
	return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height].map(
		(share) => Math.max(0, Math.min(GRID_SIZE - 1, Math.floor(share * GRID_SIZE))),
	);
};

function startStroke(event) {
	event.currentTarget.setPointerCapture(event.pointerId);
	currentStroke = [gridPoint(event)];
	paintStrokes(event.currentTarget, [...decodeStrokes(currentDrawing(state())), currentStroke]);
}

function extendStroke(event) {
	if (!currentStroke) return;
	const at = gridPoint(event);
	if (String(at) !== String(currentStroke.at(-1))) currentStroke.push(at);
	paintStrokes(event.currentTarget, [...decodeStrokes(currentDrawing(state())), currentStroke]);
}

function endStroke() {
	if (!currentStroke) return;
	const all = [...decodeStrokes(currentDrawing(state())), currentStroke];
	currentStroke = null;
	set({ drawing: encodeStrokes(all) });
}

/** The model's input, and the steps that lead to it. */
function patchesFigure(
	{ card, state, run },
	{ view, steps, rows, cols, cls_token: hasClassToken },
) {
	return html`<ch-figure
		.caption=${view.title[0].toUpperCase() + view.title.slice(1)}
		.note=${view.note}>
		<ch-patch-grid
			.input=${view}
			.rows=${rows}
			.cols=${cols}
			.hasClassToken=${hasClassToken}
			.selected=${run ? queryToken(card, state, hasClassToken, run) : -1}
			.maxWidth=${280}
			.label=${view.title}
			@pick=${({ detail }) => selectToken(card, detail.index)}></ch-patch-grid>
		<ol class="input-steps">
			${steps.map((step) => html`<li>${step}</li>`)}
		</ol>
		${hasClassToken ? html`<p class="hint">Token 0 is a learned class token before the patches; the head reads its output.</p>` : nothing}
	</ch-figure>`;
}

/** The query token: the selected one, or the one that the head reads. */
function queryToken(card, { query, key }, hasClassToken, { tokens, source_tokens: source }) {
	const isEncoder = card.architecture === "encoder-decoder";
	const selected = isEncoder ? key : query;
	if (selected < 0 && (hasClassToken || isEncoder)) return 0;
	return tokenIndex(selected, isEncoder ? source.length : tokens.length);
}

/** Patches are the model's input: of an encoder-decoder, its source. */
const selectToken = (card, token) =>
	set(card.architecture === "encoder-decoder" ? { key: token } : { query: token });

/** Attention weights of one token to all patches, for every head of a layer. */
function attentionFigures(context, { view, rows, cols, cls_token: hasClassToken }) {
	const { card, state, run, edited } = context;
	const shownRun = edited ?? run;
	const isEncoder = card.architecture === "encoder-decoder";
	const layers = isEncoder ? card.encoder_layers : card.n_layers;
	const layer = Math.min(state.layer, layers - 1);
	const head = Math.min(state.head, card.n_heads - 1);
	const token = queryToken(card, state, hasClassToken, run);
	const path = `${isEncoder ? "encoder." : ""}blocks.${layer}.attn`;
	const url = `/api/runs/${shownRun.id}/tensor/${path}.pattern?rows=${token}:${token + 1}`;
	const result = getArray(url, "patch pattern", ({ shape: [heads, , keys], data }) =>
		Array.from({ length: heads }, (_, h) => data.slice(h * keys, (h + 1) * keys)),
	);
	return html`<ch-figure
		.caption=${`Attention of token ${token} by head`}
		.pending=${result.pending}
		.note=${"Blue patches have large weights. The orange frame marks the query token; select another patch to change it."}>
		<div class="row">
			${numberSelect("Layer", layers, layer, (layer) => set({ layer }))}
			${
				hasClassToken
					? buttonGroup(
							"query token",
							[
								[true, "class token"],
								[false, "patch"],
							],
							token === 0,
							(isClassToken) =>
								selectToken(card, isClassToken ? 0 : Math.floor((rows * cols) / 2) + 1),
						)
					: nothing
			} <ch-edit .name=${`${path}.z`} .head=${head} .label=${`head ${head}`}></ch-edit>
		</div>
		${renderResource(
			result,
			(heads) =>
				html`<div class="head-patches">
					${heads.map(
						(weights, h) =>
							html`<div class=${h === head ? "selected" : ""}>
								<h3>
									<button
										type="button"
										class="quiet"
										aria-pressed=${h === head}
										@click=${() => set({ head: h })}>
										head ${h}
									</button>
								</h3>
								<ch-patch-grid
									.input=${view}
									.rows=${rows}
									.cols=${cols}
									.hasClassToken=${hasClassToken}
									.weights=${weights}
									.selected=${token}
									.maxWidth=${220}
									.label=${`head ${h}`}
									@pick=${({ detail }) => selectToken(card, detail.index)}></ch-patch-grid>
							</div>`,
					)}
				</div>`,
		)}
	</ch-figure>`;
}

export default {
	id: "patches",
	title: "Patches",
	sentence: "Images and audio are split into patches, which the model processes like word tokens.",
	free: true,
	template,
};

// ---- <ch-patch-grid>
const MIN_BIN_HEIGHT = 3; // screen pixels per spectrogram bin

/** An image or spectrogram split into patches, with attention weights as an overlay. */
export class PatchGrid extends CanvasGrid {
	static roleDescription = "patches";
	static properties = reactive(
		...[
			"input",
			"rows",
			"cols",
			"hasClassToken",
			"weights",
			"max",
			"selected",
			"maxWidth",
			"label",
		],
	);

	constructor() {
		super();
		/** @type {LensView | null} channel × row × column, or mel band × frame */
		this.input = null;
		this.rows = 0;
		this.cols = 0;
		this.hasClassToken = false; // a class token precedes the patches
		/** @type {Float32Array | null} attention to each token */
		this.weights = null;
		/** @type {number | null} weight of the full color */
		this.max = null;
		this.selected = -1;
		this.maxWidth = 420;
		this.label = "patches";
	}

	shouldUpdate() {
		return !!this.input;
	}

	willUpdate() {
		const [rows, cols] = this.input.shape.slice(-2);
		const available = Math.min(this.maxWidth, this.clientWidth || this.maxWidth);
		const scale = Math.max(1, available / cols);
		const isImage = this.input.shape.length === 3;
		const width = Math.round(cols * scale);
		const height = Math.round(rows * (isImage ? scale : Math.max(scale, MIN_BIN_HEIGHT))); // few bands
		const cells = { cellWidth: width / this.cols, cellHeight: height / this.rows };
		this.layout = { left: 0, top: 0, ...cells, rows: this.rows, cols: this.cols, width, height };
		const size = `${this.rows} × ${this.cols} patches`;
		this.setAttribute("aria-label", `${this.label}: ${size}. Arrow keys move, Enter selects.`);
	}

	render() {
		return html`<canvas></canvas><span class="live-text" aria-live="polite"></span>`;
	}

	updated() {
		const { cellWidth, cellHeight, width, height } = this.layout;
		const context = resizeCanvas(this.querySelector("canvas"), width, height);
		context.drawImage(inputImage(this.input, !!this.weights), 0, 0, width, height);
		if (this.weights) {
			const max = this.max ?? Math.max(1e-30, ...this.weights);
			context.fillStyle = `rgb(${themeColors().paper.join(" ")} / 0.68)`; // fade: blue means weight only
			context.fillRect(0, 0, width, height);
			this.#forEachPatch((token, x, y) => {
				const alpha = 0.85 * Math.min(1, this.weights[token] / max);
				context.fillStyle = `rgb(43 131 216 / ${alpha})`;
				context.fillRect(x * cellWidth, y * cellHeight, cellWidth, cellHeight);
			});
		}
		context.strokeStyle = "rgb(128 128 128 / 0.45)";
		context.lineWidth = 1;
		if (cellWidth > 7)
			this.#forEachPatch((token, x, y) => {
				const left = Math.round(x * cellWidth) + 0.5;
				context.strokeRect(left, Math.round(y * cellHeight) + 0.5, cellWidth, cellHeight);
			});
		this.#outline(context, this.activeCell ? this.#tokenAt(this.activeCell) : -1, "#888");
		this.#outline(context, this.selected, "#d9691c");
	}

	#outline(context, token, color) {
		const { cellWidth, cellHeight } = this.layout;
		const patch = token - Number(this.hasClassToken);
		if (patch < 0 || patch >= this.rows * this.cols) return;
		context.strokeStyle = color;
		context.lineWidth = 2.5;
		const left = (patch % this.cols) * cellWidth + 1;
		const top = Math.floor(patch / this.cols) * cellHeight + 1;
		context.strokeRect(left, top, cellWidth - 2, cellHeight - 2);
	}

	/** The numbers to export. */
	get values() {
		return this.weights;
	}

	toCsv() {
		const rows = [];
		this.#forEachPatch((token, x, y) => rows.push([token, y, x, this.weights[token]]));
		return toCsv([["token", "row", "column", "weight"], ...rows]);
	}

	toNpy() {
		return toNpy([this.weights.length], this.weights);
	}

	#forEachPatch(call) {
		for (let patch = 0; patch < this.rows * this.cols; patch++)
			call(patch + Number(this.hasClassToken), patch % this.cols, Math.floor(patch / this.cols));
	}

	#tokenAt([row, col]) {
		return row * this.cols + col + Number(this.hasClassToken);
	}

	/** @returns {Cell} */
	initialCell() {
		const patch = Math.max(0, this.selected - Number(this.hasClassToken));
		return [Math.floor(patch / this.cols), patch % this.cols];
	}

	onHover(cell) {
		const token = cell ? this.#tokenAt(cell) : -1;
		this.requestUpdate();
		this.emit("hover", { index: token });
		if (!cell) return null;
		return `token ${token}${this.weights ? `, weight ${formatNumber(this.weights[token])}` : ""}`;
	}

	onPick(cell) {
		this.emit("pick", { index: this.#tokenAt(cell) });
	}
}
customElements.define("ch-patch-grid", PatchGrid);

/** The image in its own resolution. A spectrogram is blue, or gray below attention weights. */
const inputImage = (view, isGray) =>
	memoize(view, `${themeColors().ink} ${isGray}`, () => {
		const { shape, values } = view;
		const [height, width] = shape.slice(-2);
		const size = height * width;
		if (shape.length === 3) {
			const light = (c, i) =>
				Math.max(0, Math.min(255, Math.round(255 * values[(shape[0] === 1 ? 0 : c) * size + i])));
			return pixelImage(
				height,
				width,
				(i) => (255 << 24) | (light(2, i) << 16) | (light(1, i) << 8) | light(0, i),
			);
		}
		const min = values.reduce((a, b) => Math.min(a, b));
		const max = values.reduce((a, b) => Math.max(a, b)); // silence is the background color
		const table = isGray ? grayTable() : colorTable(false);
		return pixelImage(
			height,
			width,
			(i) => table[colorIndex(values[i] - min, max - min || 1, false)],
		);
	});

function grayTable() {
	const { paper } = themeColors();
	return Uint32Array.from({ length: 256 }, (_, i) => {
		const [r, g, b] = paper.map((zero) => Math.round(zero + ((128 - zero) * i) / 255));
		return (255 << 24) | (b << 16) | (g << 8) | r;
	});
}
