// <ch-patches>: a picture or a spectrogram cut into tokens, with what one token takes from each of them laid over it.

import { html } from "lit-html";
import { Picture, pixels, sheet } from "ch/canvas";
import { table, shade, theme, told } from "ch/colours";
import { define } from "ch/element";
import { csvOf, npyOf } from "ch/export";
import { once } from "ch/steady";

const LEAST = 3; // pixels of the screen for one of the picture

export class Patches extends Picture {
  static what = "patches";
  static properties = {
    view: null, // what the model reads: colour × row × column, or band × frame
    rows: 0, columns: 0, first: false, // the grid, and whether a learned token stands before it
    weights: null, // one for each token
    most: null, chosen: -1, widest: 420, label: "patches",
  };

  draw() {
    if (!this.view) return;
    const [high, wide] = this.view.shape.slice(-2);
    const scale = Math.max(1, Math.min(this.widest, this.clientWidth || this.widest) / wide);
    const tall = this.view.shape.length === 3 ? scale : Math.max(scale, LEAST); // bands of a spectrogram are few
    const [width, height] = [Math.round(wide * scale), Math.round(high * tall)];
    this.cells = { left: 0, top: 0, wide: width / this.columns, tall: height / this.rows, rows: this.rows, cols: this.columns };
    this.setAttribute("aria-label", `${this.label}: ${this.rows} × ${this.columns} patches. Arrows move, Enter keeps one.`);
    this.fill(html`<canvas></canvas><span class="heard" aria-live="polite"></span>`);
    this.#paint(sheet(this.querySelector("canvas"), width, height), width, height);
  }

  #paint(context, width, height) {
    context.drawImage(pictured(this.view, !!this.weights), 0, 0, width, height);
    const { wide: w, tall: h } = this.cells;
    if (this.weights) {
      const most = this.most ?? Math.max(1e-30, ...this.weights);
      context.fillStyle = `rgb(${theme().paper.join(" ")} / 0.68)`; // the picture fades, so that blue is weight alone
      context.fillRect(0, 0, width, height);
      this.#each((token, x, y) => {
        context.fillStyle = `rgb(43 131 216 / ${0.85 * Math.min(1, this.weights[token] / most)})`;
        context.fillRect(x * w, y * h, w, h);
      });
    }
    context.strokeStyle = "rgb(128 128 128 / 0.45)";
    context.lineWidth = 1;
    if (w > 7) this.#each((token, x, y) => context.strokeRect(Math.round(x * w) + 0.5, Math.round(y * h) + 0.5, w, h));
    for (const [token, colour] of [[this.at ? this.#token(this.at) : -1, "#888"], [this.chosen, "#d9691c"]]) {
      const place = token - this.first;
      if (place < 0 || place >= this.rows * this.columns) continue;
      context.strokeStyle = colour;
      context.lineWidth = 2.5;
      context.strokeRect((place % this.columns) * w + 1, Math.floor(place / this.columns) * h + 1, w - 2, h - 2);
    }
  }

  /** What can be saved: the weight of each token. */
  get values() {
    return this.weights;
  }

  csv() {
    const rows = [];
    this.#each((token, x, y) => rows.push([token, y, x, this.weights[token]]));
    return csvOf([["token", "row", "column", "weight"], ...rows]);
  }

  npy() {
    return npyOf([this.weights.length], this.weights);
  }

  #each(act) {
    for (let place = 0; place < this.rows * this.columns; place++) act(place + Number(this.first), place % this.columns, Math.floor(place / this.columns));
  }

  #token([r, c]) {
    return r * this.columns + c + Number(this.first);
  }

  start() {
    const place = Math.max(0, this.chosen - this.first);
    return [Math.floor(place / this.columns), place % this.columns];
  }

  over(cell) {
    const token = cell ? this.#token(cell) : -1;
    this.draw();
    this.tell("hover", { index: token });
    return cell && `token ${token}${this.weights ? `, weight ${told(this.weights[token])}` : ""}`;
  }

  pick(cell) {
    this.tell("pick", { index: this.#token(cell) });
  }
}
define("ch-patches", Patches);

/** The picture at its own size, a pixel for each number or three. A spectrogram is blue, or grey where blue is weight. */
const pictured = (view, grey) => once(view, `${theme().ink} ${grey}`, () => {
  const { shape, values } = view, [high, wide] = shape.slice(-2), size = high * wide;
  if (shape.length === 3) {
    const light = (c, i) => Math.max(0, Math.min(255, Math.round(255 * values[(shape[0] === 1 ? 0 : c) * size + i])));
    return pixels(high, wide, (i) => (255 << 24) | (light(2, i) << 16) | (light(1, i) << 8) | light(0, i));
  }
  const [least, most] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))]; // silence is paper
  const shades = grey ? greys() : table(false);
  return pixels(high, wide, (i) => shades[shade(values[i] - least, most - least || 1, false)]);
});

function greys() {
  const { paper } = theme();
  return Uint32Array.from({ length: 256 }, (_, i) => {
    const [r, g, b] = paper.map((zero) => Math.round(zero + ((128 - zero) * i) / 255));
    return (255 << 24) | (b << 16) | (g << 8) | r;
  });
}
