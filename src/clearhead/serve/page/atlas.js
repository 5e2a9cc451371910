// <ch-atlas>: thumbnails of all heads on one canvas, ordered by layer or by a score.

import { html } from "lit-html";
import { Picture, pixels, sheet } from "ch/canvas";
import { table, theme, told } from "ch/colors";
import { define } from "ch/element";

const HIGH = 420;
/** Sort by the weight of the selected cell. */
export const LOOK = "look";

export class Atlas extends Picture {
  static what = "atlas of heads";
  static properties = {
    atlas: null, // { shape: [layer, head, query, key], data: bytes }
    scores: null, // a view: score × layer × head
    sort: "", layer: 0, head: 0,
    look: null, // [query, key] of the sort order "look"
    off: [], // ablated heads as layer × heads + head
    stretch: false, // scale colors to the largest weight of each head
  };

  draw() {
    if (!this.atlas) return;
    const [layers, heads, rows, cols] = this.atlas.shape;
    const places = Array.from({ length: layers * heads }, (_, i) => i);
    const score = this.#score();
    this.order = score ? places.filter((i) => !Number.isNaN(score[i])).sort((a, b) => score[b] - score[a]) : places;
    const width = Math.max(200, this.clientWidth || 600), left = score ? 0 : 26, gap = 6, under = score ? 16 : 0;
    const fits = Math.floor((width - left) / (score ? Math.min(heads, 8) : heads)) - gap;
    const wide = Math.max(22, Math.min(104, fits, Math.max(44, Math.floor(HIGH / layers) - gap))); // deep models scroll
    const across = score ? Math.max(1, Math.floor(width / (wide + gap))) : heads;
    const tall = Math.max(12, Math.round(wide * Math.min(1.6, rows / cols)));
    const top = score ? 0 : 18;
    const down = Math.ceil(this.order.length / across);
    this.cells = { left, top, wide: wide + gap, tall: tall + gap + under, rows: down, cols: across };
    this.setAttribute("aria-label", `all heads, ${layers} layers of ${heads}. Arrows move, Enter opens.`);
    this.fill(html`<div class="scroll"><canvas></canvas></div><p class="said" aria-live="polite"></p>`);
    this.#paint(sheet(this.querySelector("canvas"), left + across * (wide + gap), top + down * this.cells.tall), wide, tall, score);
  }

  #paint(context, wide, tall, score) {
    const { left, top } = this.cells, colors = theme(), [, heads, rows, cols] = this.atlas.shape, size = rows * cols, shades = table(false);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.order.forEach((place, n) => {
      const x = left + (n % this.cells.cols) * this.cells.wide, y = top + Math.floor(n / this.cells.cols) * this.cells.tall;
      const weights = this.atlas.data.subarray(place * size, (place + 1) * size);
      const most = this.stretch ? weights.reduce((a, b) => Math.max(a, b), 1) : 255;
      context.drawImage(pixels(rows, cols, (i) => shades[Math.round((255 * weights[i]) / most)]), x, y, wide, tall);
      const chosen = place === this.layer * heads + this.head;
      context.lineWidth = chosen ? 2.5 : 1;
      context.strokeStyle = chosen ? colors.ink : colors.line;
      context.strokeRect(x + 0.5, y + 0.5, wide - 1, tall - 1);
      if (this.off.includes(place)) crossed(context, x, y, wide, tall);
      context.fillStyle = colors.quiet;
      context.textAlign = "left";
      if (score) context.fillText(`${Math.floor(place / heads)}.${place % heads}  ${told(score[place], 2)}`, x, y + tall + 8);
      else if (place % heads === 0) context.fillText(String(place / heads), 4, y + tall / 2);
      if (!score && place < heads) context.fillText(String(place), x + wide / 2 - 3, top / 2);
    });
  }

  #score() {
    const { sort, scores, look } = this, [layers, heads, rows, cols] = this.atlas.shape;
    if (sort === LOOK && look) return Float32Array.from({ length: layers * heads }, (_, i) => this.atlas.data[(i * rows + look[0]) * cols + look[1]] / 255);
    const at = scores ? scores.axes[0].labels.indexOf(sort) : -1;
    if (at < 0) return null;
    const size = scores.shape[1] * scores.shape[2];
    return scores.values.subarray(at * size, (at + 1) * size);
  }

  #place([r, c]) {
    return this.order[Math.min(this.order.length - 1, r * this.cells.cols + c)];
  }

  start() {
    const at = this.order.indexOf(this.layer * this.atlas.shape[1] + this.head);
    return [Math.floor(at / this.cells.cols), at % this.cells.cols];
  }

  over(cell) {
    this.querySelector(".said").textContent = cell ? this.#words(this.#place(cell)) : "";
  }

  pick(cell) {
    const heads = this.atlas.shape[1], place = this.#place(cell);
    this.tell("pick", { layer: Math.floor(place / heads), head: place % heads });
  }

  #words(place) {
    const heads = this.atlas.shape[1], size = this.atlas.shape[0] * heads;
    const scores = this.scores ? this.scores.axes[0].labels.map((name, i) => [name, this.scores.values[i * size + place]]) : [];
    const told_ = scores.filter(([, value]) => !Number.isNaN(value)).map(([name, value]) => `${name} ${told(value, 2)}`);
    return [`layer ${Math.floor(place / heads)}, head ${place % heads}${this.off.includes(place) ? ", ablated" : ""}`, ...told_].join(" · ");
  }
}
define("ch-atlas", Atlas);

/** Cross out an ablated head. */
function crossed(context, x, y, wide, tall) {
  context.strokeStyle = "#d9691c";
  context.lineWidth = 2;
  context.beginPath();
  context.moveTo(x, y), context.lineTo(x + wide, y + tall);
  context.moveTo(x, y + tall), context.lineTo(x + wide, y);
  context.stroke();
}
