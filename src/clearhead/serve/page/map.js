// <ch-map>: a heat map. Cells are drawn once on a canvas; the cursor moves on an overlay canvas.

import { html, nothing } from "lit-html";
import { clamp, Picture, pixels, sheet } from "ch/canvas";
import { ink, shade, table, theme, told } from "ch/colors";
import { define, framed } from "ch/element";
import { pooled } from "ch/pool";

const FONT = "12px system-ui, sans-serif";
const LEAN = 0.61; // horizontal extent of a slanted label relative to its length
const WINDOW = 64; // rows and columns of the table
const measure = document.createElement("canvas").getContext("2d");

export class HeatMap extends Picture {
  static what = "heat map";
  static properties = {
    values: null, // { shape: [rows, cols], data }
    rows: null, cols: null, // labels
    words: null, // text in the cells
    signed: false, most: null,
    masked: null, // (row, col) -> whether the cell is hatched
    name: "", run: "", // activation name and run id, for the inspector
    index: null, // (row, col) -> indices of the activation
    cursor: null, // [row, col] of the selected cell
    label: "", measure: "", by: ["row", "column"],
    plain: false, // without colors
    tabled: false, // shown as a table
    most_cell: 28,
    tall: 0, // height of a cell if not square
  };

  draw() {
    if (!this.values) return;
    const [rows, cols] = (this.size = shapeOf(this.values));
    this.setAttribute("aria-label", `${this.label || this.name || "values"}, ${rows} × ${cols}. Arrow keys move, Enter locks a cell, T shows a table.`);
    this.classList.toggle("tabled", this.tabled);
    if (this.tabled) {
      this.fill(this.#table());
      return;
    }
    this.plan = planned(this, rows, cols);
    this.fill(html`<div class="scroll"><div class="layers"><canvas class="base"></canvas><canvas class="over"></canvas></div></div>
      ${this.plan.factor > 1 ? html`<p class="badge">max-pooled ${this.plan.factor}×; hover for exact cells</p>` : nothing}
      <span class="heard" aria-live="polite"></span>`);
    const { left, top, cell, tall, grid, width, height } = this.plan;
    this.cells = { left, top, wide: cell, tall, rows: grid.rows, cols: grid.cols };
    const [base] = Array.from(this.querySelectorAll("canvas"), (canvas) => sheet(canvas, width, height));
    this.picture(base);
    this.#mark();
    this.#reveal();
    this.querySelector(".scroll").onscroll = () => this.#mark();
  }

  /** Scroll the selected cell into view, once. */
  #reveal() {
    const box = this.querySelector(".scroll"), { left, cell, width } = this.plan;
    if (!this.words || !this.cursor || this.revealed === this.cursor[1] || width <= box.clientWidth) return;
    this.revealed = this.cursor[1];
    if (left + (this.cursor[1] + 1) * cell > box.clientWidth) box.scrollLeft = left + (this.cursor[1] + 0.5) * cell - box.clientWidth / 2;
  }

  /** Draw everything onto a context in CSS pixels. */
  picture(context, cellsOnly = false) {
    const plan = this.plan, { left, top, cell, tall, grid } = plan;
    const colors = theme(), shades = table(this.signed);
    const wide = grid.cols * cell, high = grid.rows * tall;
    if (!this.plain) context.drawImage(pixels(grid.rows, grid.cols, (i) => shades[shade(grid.data[i], plan.most, this.signed)]), left, top, wide, high);
    if (grid.hatched) context.drawImage(hatched(grid, wide, high, colors.line), left, top, wide, high);
    context.strokeStyle = colors.line;
    context.lineWidth = 1;
    context.strokeRect(left + 0.5, top + 0.5, wide - 1, high - 1);
    if (this.words) this.#write(context);
    if (!cellsOnly) labels(context, this, plan, colors);
  }

  #write(context) {
    const { left, top, cell, tall, most } = this.plan;
    context.font = FONT;
    context.textAlign = "center";
    context.textBaseline = "middle";
    this.words.forEach((line, r) => line.forEach((word, c) => {
      const share = this.plain ? 0 : this.value(r, c) / most;
      context.fillStyle = this.plain ? theme().ink : ink(share);
      context.fillText(shortened(word, cell - 6), left + (c + 0.5) * cell, top + (r + 0.5) * tall + 0.5);
    }));
  }

  value(r, c) {
    const [, cols] = this.size;
    return this.values.data[r * cols + c];
  }

  /** The exact cell behind a pooled block. */
  exact(r, c) {
    return this.plan.factor === 1 ? [r, c] : this.plan.grid.largest(r, c);
  }

  start(key) {
    return this.cursor ?? [0, -1 * (key === "ArrowRight")];
  }

  over(cell) {
    this.#mark();
    this.tell("hover", cell && this.#detail(cell));
    this.tell("inspect", cell && { ...this.#detail(cell), how: "hover" }, true);
    return cell && this.#said(cell);
  }

  pick(cell, more = false) {
    this.tell("inspect", { ...this.#detail(cell), how: more && this.name ? "pin" : "lock" }, true);
    this.tell("pick", { ...this.#detail(cell), more });
  }

  key(event) {
    if (event.key.toLowerCase() !== "t" || event.ctrlKey || event.metaKey) return false;
    return (this.tabled = !this.tabled), true;
  }

  #detail([row, col]) {
    const found = { row, col, value: this.value(row, col), name: this.name, run: this.run, index: null };
    if (this.name) return { ...found, index: (this.index ?? ((r, c) => [r, c]))(row, col) };
    const word = this.words?.[row]?.[col], [down, across] = this.by;
    const where = [`${down} ${this.#row(row)}`, `${across} ${this.#col(col)}`, ...(word && Number.isNaN(Number(word.replace("−", "-"))) ? [`“${word}”`] : [])];
    return { ...found, where, ...framed(this), measure: this.masked?.(row, col) ? "masked" : this.measure };
  }

  #said([r, c]) {
    const [, cols] = this.size;
    const value = this.value(r, c);
    if (this.masked?.(r, c)) return `${this.#row(r)} → ${this.#col(c)}: masked`;
    const line = Array.from(this.values.data.subarray(r * cols, (r + 1) * cols)).filter((v, k) => !this.masked?.(r, k));
    const rank = 1 + line.filter((other) => other > value).length;
    const word = this.words ? `${this.words[r][c]}, ` : "";
    return `${this.#row(r)} → ${this.#col(c)} ${word}${told(value)}, rank ${rank} of ${line.length}`;
  }

  #row = (r) => this.rows?.[r] ?? String(r);
  #col = (c) => this.cols?.[c] ?? String(c);

  #mark() {
    const canvas = this.querySelector("canvas.over");
    if (!canvas || !this.plan) return;
    const context = canvas.getContext("2d"), { left, top, cell, tall, factor, grid } = this.plan;
    context.clearRect(0, 0, this.plan.width, this.plan.height);
    const colors = theme();
    const outline = ([r, c], width, color) => {
      context.strokeStyle = color;
      context.lineWidth = width;
      const x = left + Math.floor(c / factor) * cell, y = top + Math.floor(r / factor) * tall;
      context.strokeRect(x, y, Math.max(2, cell), Math.max(2, tall));
    };
    if (this.at) {
      context.fillStyle = colors.ink;
      context.globalAlpha = 0.07;
      context.fillRect(left, top + Math.floor(this.at[0] / factor) * tall, grid.cols * cell, tall);
      context.fillRect(left + Math.floor(this.at[1] / factor) * cell, top, cell, grid.rows * tall);
      context.globalAlpha = 1;
      outline(this.at, 1.5, colors.ink);
    }
    const [r, c] = this.cursor ?? [-1, -1];
    if (r >= 0 && c >= 0 && r < this.size[0] && c < this.size[1]) outline(this.cursor, 2.5, colors.ink);
    const moved = canvas.closest(".scroll").scrollLeft;
    if (!moved || !this.rows) return;
    context.fillStyle = getComputedStyle(document.body).backgroundColor; // keep row labels visible
    context.fillRect(moved, 0, left, this.plan.height);
    context.translate(moved, 0);
    rowLabels(context, this, this.plan, colors);
    context.translate(-moved, 0);
  }

  #table() {
    const [rows, cols] = this.size;
    const [r0, c0] = (this.cursor ?? [0, 0]).map((at, i) => clamp(at - WINDOW / 2, Math.max(1, [rows, cols][i] - WINDOW + 1)));
    const rs = range(r0, Math.min(rows, r0 + WINDOW)), cs = range(c0, Math.min(cols, c0 + WINDOW));
    const cut = rows > WINDOW || cols > WINDOW;
    return html`<div class="scroll"><table class="numbers">
      ${cut ? html`<caption>rows ${r0}–${rs.at(-1)}, columns ${c0}–${cs.at(-1)}, of ${rows} × ${cols}</caption>` : nothing}
      <thead><tr><td></td>${cs.map((c) => html`<th scope="col">${this.#col(c)}</th>`)}</tr></thead>
      <tbody>${rs.map((r) => html`<tr><th scope="row">${this.#row(r)}</th>${cs.map((c) =>
        html`<td>${this.masked?.(r, c) ? "masked" : told(this.value(r, c))}${this.words ? html` <b>${this.words[r][c]}</b>` : nothing}</td>`)}</tr>`)}</tbody>
    </table></div>`;
  }
}
define("ch-map", HeatMap);

function planned(map, rows, cols) {
  measure.font = FONT;
  const width = Math.max(120, map.clientWidth || 600);
  const longest = (names, most) => Math.min(most, Math.max(0, ...(names ?? []).slice(0, 400).map((name) => measure.measureText(name).width)));
  const left = Math.ceil(longest(map.rows, Math.min(120, width * 0.25))) + (map.rows ? 8 : 1);
  const slanted = longest(map.cols, 120);
  const about = map.words ? 44 : Math.min(map.most_cell, Math.max(1, (width - left) / cols));
  const last = (map.cols ?? []).slice(-100);
  const lean = (name, i) => LEAN * Math.min(118, measure.measureText(name).width) - (last.length - 0.5 - i) * about;
  const over = Math.max(0, ...last.map(lean)); // slanted labels extend beyond the edge
  const room = width - left - 2 - over;
  let cell = Math.min(map.most_cell, room / cols);
  let factor = 1;
  const worded = (room) => Math.max(44, Math.min(96, room / cols));
  if (map.words) cell = slanted <= worded(room + over) - 4 ? worded(room + over) : worded(room);
  else if (cell < 1) factor = Math.ceil(1 / cell);
  const grid = pooled(map.values, rows, cols, factor, map.signed, map.masked);
  if (factor > 1) cell = Math.max(1, Math.floor((room / grid.cols) * 4) / 4);
  else if (cell > 3) cell = Math.floor(cell);
  const flat = slanted <= cell - 4;
  const tall = map.tall || (map.words ? 24 : factor > 1 ? cell : Math.max(cell, rows <= 40 ? Math.min(16, 480 / rows) : cell));
  const top = map.cols ? (flat ? 20 : Math.ceil(slanted * 0.8) + 12) : 1;
  const whole = Math.ceil(left + grid.cols * cell + 2);
  return {
    left, top, cell, tall, factor, grid, flat,
    most: map.most ?? (Math.max(grid.most, 0) || 1),
    width: Math.ceil(whole + (flat ? 0 : over)),
    height: Math.ceil(top + grid.rows * tall + 2),
  };
}

/** Hatching of masked cells: drawn everywhere, then clipped. */
function hatched(grid, wide, high, color) {
  const canvas = document.createElement("canvas"), context = sheet(canvas, wide, high);
  context.strokeStyle = color;
  context.beginPath();
  for (let x = -high; x < wide; x += 6) {
    context.moveTo(x, high);
    context.lineTo(x + high, 0);
  }
  context.stroke();
  context.globalCompositeOperation = "destination-in";
  context.drawImage(pixels(grid.rows, grid.cols, (i) => (grid.hatched[i] ? 255 << 24 : 0)), 0, 0, wide, high);
  return canvas;
}

function rowLabels(context, map, { left, top, tall, factor, grid }, colors) {
  context.font = FONT;
  context.fillStyle = colors.quiet;
  context.textBaseline = "middle";
  context.textAlign = "right";
  const every = Math.max(1, Math.ceil(14 / tall));
  for (let r = 0; r < grid.rows; r += every) {
    context.fillText(shortened(map.rows[r * factor] ?? "", left - 8), left - 5, top + (r + 0.5) * tall);
  }
}

function labels(context, map, plan, colors) {
  const { left, top, cell, factor, grid, flat } = plan;
  if (map.rows) rowLabels(context, map, plan, colors);
  if (!map.cols) return;
  context.font = FONT;
  context.fillStyle = colors.quiet;
  context.textBaseline = "middle";
  const across = Math.max(1, Math.ceil((flat ? 1 : 14) / cell));
  for (let c = 0; c < grid.cols; c += across) {
    const name = shortened(map.cols[c * factor] ?? "", 118);
    context.save();
    context.translate(left + (c + 0.5) * cell, top - 6);
    if (flat) context.textAlign = "center";
    else {
      context.rotate(-Math.PI / 3.4);
      context.textAlign = "left";
    }
    context.fillText(name, 0, flat ? -4 : 0);
    context.restore();
  }
}

/** Truncate a label to a width. */
export function shortened(text, room) {
  measure.font = FONT;
  if (measure.measureText(text).width <= room) return text;
  let end = text.length;
  while (end > 1 && measure.measureText(`${text.slice(0, end)}…`).width > room) end--;
  return `${text.slice(0, end)}…`;
}

const shapeOf = ({ shape }) => (shape.length === 1 ? [1, shape[0]] : shape);
const range = (from, to) => Array.from({ length: Math.max(0, to - from) }, (_, i) => from + i);
