// Export figures as PNG, SVG, CSV and .npy.

import { themeColors } from "ch/colors";

/** Format rows as CSV. */
export function toCsv(rows) {
	const quoted = (cell) =>
		/[",\n\r]/.test(String(cell)) ? `"${String(cell).replaceAll('"', '""')}"` : String(cell);
	return `${rows.map((row) => row.map(quoted).join(",")).join("\n")}\n`;
}

/** Encode numbers as a float32 .npy file. */
export function toNpy(shape, data) {
	const size = shape.length === 1 ? `${shape[0]},` : shape.join(", ");
	let header = `{'descr': '<f4', 'fortran_order': False, 'shape': (${size}), }`;
	header = `${header.padEnd(Math.ceil((header.length + 11) / 64) * 64 - 11)}\n`;
	const bytes = new Uint8Array(10 + header.length + 4 * data.length);
	bytes.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, header.length & 255, header.length >> 8]);
	bytes.set(new TextEncoder().encode(header), 10);
	bytes.set(new Uint8Array(Float32Array.from(data).buffer), 10 + header.length);
	return bytes;
}

/** A <ch-heatmap> as CSV with one line per cell. @param {import("ch/heatmap").Heatmap} map */
export function heatmapCsv(map) {
	const [rows, cols] = map.dataShape;
	const { axes, cellTexts, rowLabels, colLabels } = map;
	/** @type {(string | number)[][]} */
	const lines = [[...axes, ...(cellTexts ? ["text"] : []), map.valueName || "value"]];
	for (let row = 0; row < rows; row++) {
		for (let col = 0; col < cols; col++) {
			const labels = [rowLabels?.[row] ?? row, colLabels?.[col] ?? col];
			const text = cellTexts ? [cellTexts[row][col]] : [];
			const value = map.isMasked?.(row, col) ? "masked" : map.value(row, col);
			lines.push([...labels, ...text, value]);
		}
	}
	return toCsv(lines);
}

/** A <ch-heatmap> as canvas at 2×; `cellsOnly` omits labels and background. */
export function heatmapCanvas(map, cellsOnly = false) {
	const canvas = document.createElement("canvas");
	const { width, height } = map.layout;
	canvas.width = 2 * width;
	canvas.height = 2 * height;
	const context = canvas.getContext("2d");
	context.scale(2, 2);
	context.imageSmoothingEnabled = false;
	if (!cellsOnly) {
		context.fillStyle = `rgb(${themeColors().paper.join(" ")})`;
		context.fillRect(0, 0, width, height);
	}
	map.draw(context, cellsOnly);
	return canvas;
}

/** A <ch-heatmap> as SVG: cells as image, labels as text. */
export function heatmapSvg(map) {
	const { width, height, left, top, cellWidth, cellHeight, factor, grid } = map.layout;
	const { ink, paper } = themeColors();
	const escaped = (text) =>
		String(text).replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`);
	const label = (x, y, degrees, anchor, text) => {
		const move = `translate(${x.toFixed(1)} ${y.toFixed(1)})`;
		const turn = degrees ? ` rotate(${degrees})` : "";
		const align = `text-anchor="${anchor}" dominant-baseline="middle"`;
		return `<text transform="${move}${turn}" ${align}>${escaped(text)}</text>`;
	};
	const labels = [];
	const rowStep = Math.max(1, Math.ceil(14 / cellHeight));
	const colStep = Math.max(1, Math.ceil(14 / cellWidth));
	for (let row = 0; map.rowLabels && row < grid.rows; row += rowStep) {
		const y = top + (row + 0.5) * cellHeight;
		labels.push(label(left - 5, y, 0, "end", map.rowLabels[row * factor]));
	}
	for (let col = 0; map.colLabels && col < grid.cols; col += colStep) {
		const x = left + (col + 0.5) * cellWidth;
		labels.push(label(x, top - 6, -53, "start", map.colLabels[col * factor]));
	}
	const size = `width="${width}" height="${height}"`;
	const font = 'font-family="system-ui, sans-serif" font-size="12"';
	const cells = heatmapCanvas(map, true).toDataURL();
	return `<svg xmlns="http://www.w3.org/2000/svg" ${size} viewBox="0 0 ${width} ${height}" ${font} fill="${ink}">
<rect width="100%" height="100%" fill="rgb(${paper.join(",")})"/>
<image ${size} href="${cells}" image-rendering="pixelated"/>
${labels.join("\n")}
</svg>`;
}

/** An HTML table as CSV. */
export function tableCsv(table) {
	return toCsv(
		[...table.rows].map((row) =>
			[...row.cells].map((cell) => cell.textContent.trim().replace(/\s+/g, " ")),
		),
	);
}

const STYLE_PROPERTIES = [
	...["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity"],
	...["font-size", "font-family", "text-anchor", "dominant-baseline"],
];

/** An SVG drawing with inlined styles and background. @param {SVGSVGElement} drawing */
export function standaloneSvg(drawing) {
	const copy = /** @type {SVGSVGElement} */ (drawing.cloneNode(true));
	const copies = [copy, ...copy.querySelectorAll("*")];
	[drawing, ...drawing.querySelectorAll("*")].forEach((element, i) => {
		const style = getComputedStyle(element);
		for (const name of STYLE_PROPERTIES) copies[i].setAttribute(name, style.getPropertyValue(name));
		copies[i].removeAttribute("class");
	});
	const { x, y, width, height } = drawing.viewBox.baseVal;
	const fill = `rgb(${themeColors().paper.join(",")})`;
	const background = document.createElementNS("http://www.w3.org/2000/svg", "rect");
	for (const [name, value] of Object.entries({ x, y, width, height, fill }))
		background.setAttribute(name, String(value));
	copy.prepend(background);
	copy.setAttribute("width", String(width));
	copy.setAttribute("height", String(height));
	return new XMLSerializer().serializeToString(copy);
}

/** Download a file. @param {string} name @param {any} content @param {string} [type] */
export function downloadFile(name, content, type) {
	const link = document.createElement("a");
	link.href = URL.createObjectURL(
		content instanceof Blob ? content : new Blob([content], { type }),
	);
	link.download = name;
	link.click();
	setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Turn a title into a file name. */
export const toFileName = (title) =>
	(title || "clearhead")
		.toLowerCase()
		.replace(/[^a-z0-9.]+/g, "-")
		.replace(/^-|-$/g, "")
		.slice(0, 60) || "clearhead";
