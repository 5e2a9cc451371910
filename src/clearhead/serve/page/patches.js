// <ch-patches>: an image or spectrogram split into patches, with attention weights as an overlay.

import { html } from "lit-html";
import { Picture, pixels, sheet } from "ch/canvas";
import { table, shade, theme, told } from "ch/colors";
import { define } from "ch/element";
import { csvOf, npyOf } from "ch/export";
import { once } from "ch/steady";

const LEAST = 3; // minimum screen pixels per spectrogram bin

export class Patches extends Picture {
  static what = "patches";
  static properties = {
    view: null, // the model's input: channel × row × column, or mel band × frame
    rows: 0, columns: 0, first: false, // the patch grid, and whether a class token precedes it
    weights: null, // one per token
    most: null, chosen: -1, widest: 420, label: "patches",
  };

  draw() {
    if (!this.view) return;
    const [high, wide] = this.view.shape.slice(-2);
    const scale = Math.max(1, Math.min(this.widest, this.clientWidth || this.widest) / wide);
    const tall = this.view.shape.length === 3 ? scale : Math.max(scale, LEAST); // spectrograms have few bands
    const [width, height] = [Math.round(wide * scale), Math.round(high * tall)];
    this.cells = { left: 0, top: 0, wide: width / this.columns, tall: height / this.rows, rows: this.rows, cols: this.columns };
    this.setAttribute("aria-label", `${this.label}: ${this.rows} × ${this.columns} patches. Arrow keys move, Enter selects.`);
    this.fill(html`<canvas></canvas><span class="heard" aria-live="polite"></span>`);
    this.#paint(sheet(this.querySelector("canvas"), width, height), width, height);
  }

  #paint(context, width, height) {
    context.drawImage(pictured(this.view, !!this.weights), 0, 0, width, height);
    const { wide: w, tall: h } = this.cells;
    if (this.weights) {
      const most = this.most ?? Math.max(1e-30, ...this.weights);
      context.fillStyle = `rgb(${theme().paper.join(" ")} / 0.68)`; // fade the image, so that blue means weight only
      context.fillRect(0, 0, width, height);
      this.#each((token, x, y) => {
        context.fillStyle = `rgb(43 131 216 / ${0.85 * Math.min(1, this.weights[token] / most)})`;
        context.fillRect(x * w, y * h, w, h);
      });
    }
    context.strokeStyle = "rgb(128 128 128 / 0.45)";
    context.lineWidth = 1;
    if (w > 7) this.#each((token, x, y) => context.strokeRect(Math.round(x * w) + 0.5, Math.round(y * h) + 0.5, w, h));
    for (const [token, color] of [[this.at ? this.#token(this.at) : -1, "#888"], [this.chosen, "#d9691c"]]) {
      const place = token - this.first;
      if (place < 0 || place >= this.rows * this.columns) continue;
      context.strokeStyle = color;
      context.lineWidth = 2.5;
      context.strokeRect((place % this.columns) * w + 1, Math.floor(place / this.columns) * h + 1, w - 2, h - 2);
    }
  }

  /** The weight of each token, for export. */
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

/** The image in its own resolution. A spectrogram is blue, or gray below attention weights. */
const pictured = (view, gray) => once(view, `${theme().ink} ${gray}`, () => {
  const { shape, values } = view, [high, wide] = shape.slice(-2), size = high * wide;
  if (shape.length === 3) {
    const light = (c, i) => Math.max(0, Math.min(255, Math.round(255 * values[(shape[0] === 1 ? 0 : c) * size + i])));
    return pixels(high, wide, (i) => (255 << 24) | (light(2, i) << 16) | (light(1, i) << 8) | light(0, i));
  }
  const [least, most] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))]; // silence is the background color
  const shades = gray ? grays() : table(false);
  return pixels(high, wide, (i) => shades[shade(values[i] - least, most - least || 1, false)]);
});

function grays() {
  const { paper } = theme();
  return Uint32Array.from({ length: 256 }, (_, i) => {
    const [r, g, b] = paper.map((zero) => Math.round(zero + ((128 - zero) * i) / 255));
    return (255 << 24) | (b << 16) | (g << 8) | r;
  });
}
