// Export figures as PNG, SVG, CSV and .npy.

import { theme } from "ch/colors";

/** Format rows as CSV. */
export function csvOf(rows) {
  const quoted = (cell) => (/[",\n\r]/.test(String(cell)) ? `"${String(cell).replaceAll('"', '""')}"` : String(cell));
  return `${rows.map((row) => row.map(quoted).join(",")).join("\n")}\n`;
}

/** Encode numbers as a float32 .npy file. */
export function npyOf(shape, data) {
  const size = shape.length === 1 ? `${shape[0]},` : shape.join(", ");
  let header = `{'descr': '<f4', 'fortran_order': False, 'shape': (${size}), }`;
  header = `${header.padEnd(Math.ceil((header.length + 11) / 64) * 64 - 11)}\n`;
  const bytes = new Uint8Array(10 + header.length + 4 * data.length);
  bytes.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, header.length & 255, header.length >> 8]);
  bytes.set(new TextEncoder().encode(header), 10);
  bytes.set(new Uint8Array(Float32Array.from(data).buffer), 10 + header.length);
  return bytes;
}

/** A <ch-map> as CSV with one line per cell. */
export function mapCsv(map) {
  const [rows, cols] = map.size;
  const lines = [[...map.by, ...(map.words ? ["word"] : []), map.measure || "value"]];
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < cols; c++) {
      const word = map.words ? [map.words[r][c]] : [];
      lines.push([map.rows?.[r] ?? r, map.cols?.[c] ?? c, ...word, map.masked?.(r, c) ? "masked" : map.value(r, c)]);
    }
  }
  return csvOf(lines);
}

/** A <ch-map> as canvas at 2×; cellsOnly omits labels and background. */
export function mapPicture(map, cellsOnly = false) {
  const canvas = document.createElement("canvas"), { width, height } = map.plan;
  [canvas.width, canvas.height] = [2 * width, 2 * height];
  const context = canvas.getContext("2d");
  context.scale(2, 2);
  context.imageSmoothingEnabled = false;
  if (!cellsOnly) {
    context.fillStyle = `rgb(${theme().paper.join(" ")})`;
    context.fillRect(0, 0, width, height);
  }
  map.picture(context, cellsOnly);
  return canvas;
}

/** A <ch-map> as SVG: cells as image, labels as text. */
export function mapSvg(map) {
  const { width, height, left, top, cell, tall, factor, grid } = map.plan;
  const escaped = (text) => String(text).replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`);
  const text = (x, y, turn, anchor, words) =>
    `<text transform="translate(${x.toFixed(1)} ${y.toFixed(1)})${turn ? ` rotate(${turn})` : ""}" text-anchor="${anchor}" dominant-baseline="middle">${escaped(words)}</text>`;
  const names = [];
  const every = Math.max(1, Math.ceil(14 / tall)), across = Math.max(1, Math.ceil(14 / cell));
  if (map.rows) for (let r = 0; r < grid.rows; r += every) names.push(text(left - 5, top + (r + 0.5) * tall, 0, "end", map.rows[r * factor]));
  if (map.cols) for (let c = 0; c < grid.cols; c += across) names.push(text(left + (c + 0.5) * cell, top - 6, -53, "start", map.cols[c * factor]));
  const { ink, paper } = theme();
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif" font-size="12" fill="${ink}">
<rect width="100%" height="100%" fill="rgb(${paper.join(",")})"/><image width="${width}" height="${height}" href="${mapPicture(map, true).toDataURL()}" image-rendering="pixelated"/>
${names.join("\n")}
</svg>`;
}

/** An HTML table as CSV. */
export function tableCsv(table) {
  return csvOf([...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim().replace(/\s+/g, " "))));
}

const LOOKS = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family", "text-anchor", "dominant-baseline"];
/** An SVG drawing with inlined styles and background. */
export function drawingSvg(drawing) {
  const copy = drawing.cloneNode(true), [from, to] = [drawing, copy].map((root) => [root, ...root.querySelectorAll("*")]);
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const look of LOOKS) to[i].setAttribute(look, style.getPropertyValue(look));
    to[i].removeAttribute("class");
  });
  const [x, y, width, height] = [drawing.viewBox.baseVal.x, drawing.viewBox.baseVal.y, drawing.viewBox.baseVal.width, drawing.viewBox.baseVal.height];
  const paper = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of Object.entries({ x, y, width, height, fill: `rgb(${theme().paper.join(",")})` })) paper.setAttribute(name, value);
  copy.prepend(paper);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  return new XMLSerializer().serializeToString(copy);
}

/** Download a file. */
export function save(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Turn a title into a file name. */
export const fileName = (title) => (title || "clearhead").toLowerCase().replace(/[^a-z0-9.]+/g, "-").replace(/^-|-$/g, "").slice(0, 60) || "clearhead";
