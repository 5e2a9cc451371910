// <ch-patches>: a picture or a spectrogram cut into tokens, with what one token takes from each of them laid over it.

import { html } from "lit-html";
import { table, shade, theme, told } from "ch/colours";
import { define, Element, resized } from "ch/element";
import { csvOf, npyOf } from "ch/export";

const LEAST = 3; // pixels of the screen for one of the picture

export class Patches extends Element {
  static properties = {
    view: null, // what the model reads: colour × row × column, or band × frame
    rows: 0, columns: 0, first: false, // the grid, and whether a learned token stands before it
    weights: null, // one for each token
    most: null, chosen: -1, widest: 420, label: "patches",
  };

  connectedCallback() {
    this.tabIndex = 0;
    this.setAttribute("role", "group");
    this.setAttribute("aria-roledescription", "patches");
    this.addEventListener("pointermove", (event) => this.#over(this.#token(event)));
    this.addEventListener("pointerleave", () => this.#over(-1));
    this.addEventListener("click", (event) => this.#pick(this.#token(event)));
    this.addEventListener("keydown", (event) => this.#key(event));
    resized(this);
    super.connectedCallback();
  }

  draw() {
    if (!this.view) return;
    const [high, wide] = this.view.shape.slice(-2);
    const scale = Math.max(1, Math.min(this.widest, this.clientWidth || this.widest) / wide);
    const tall = this.view.shape.length === 3 ? scale : Math.max(scale, LEAST); // bands of a spectrogram are few
    this.size = { width: Math.round(wide * scale), height: Math.round(high * tall) };
    this.setAttribute("aria-label", `${this.label}: ${this.rows} × ${this.columns} patches. Arrows move, Enter keeps one.`);
    this.fill(html`<canvas></canvas><span class="heard" aria-live="polite"></span>`);
    const canvas = this.querySelector("canvas"), dots = Math.min(3, devicePixelRatio || 1);
    [canvas.width, canvas.height] = [this.size.width * dots, this.size.height * dots];
    canvas.style.width = `${this.size.width}px`;
    canvas.style.height = `${this.size.height}px`;
    const context = canvas.getContext("2d");
    context.scale(dots, dots);
    context.imageSmoothingEnabled = false;
    this.#paint(context);
  }

  #paint(context) {
    const { width, height } = this.size;
    context.drawImage(pictured(this.view, !!this.weights), 0, 0, width, height);
    const [w, h] = [width / this.columns, height / this.rows];
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
    for (const [token, colour] of [[this.at ?? -1, "#888"], [this.chosen, "#d9691c"]]) {
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

  #token(event) {
    const box = this.querySelector("canvas")?.getBoundingClientRect();
    if (!box) return -1;
    const x = Math.floor(((event.clientX - box.left) / box.width) * this.columns), y = Math.floor(((event.clientY - box.top) / box.height) * this.rows);
    return x < 0 || y < 0 || x >= this.columns || y >= this.rows ? -1 : y * this.columns + x + Number(this.first);
  }

  #over(token, heard = false) {
    if (token === this.at) return;
    this.at = token;
    this.draw();
    this.tell("hover", { index: token });
    if (heard) this.querySelector(".heard").textContent = `token ${token}${this.weights ? `, weight ${told(this.weights[token])}` : ""}`;
  }

  #pick(token) {
    if (token >= 0) this.tell("pick", { index: token });
  }

  #key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns }[event.key];
    const now = this.at >= 0 ? this.at : this.chosen;
    if (by) this.#over(Math.max(Number(this.first), Math.min(this.rows * this.columns - 1 + Number(this.first), now + by)), true);
    else if (event.key === "Enter") this.#pick(now);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
define("ch-patches", Patches);

const drawn = new WeakMap();
/** The picture at its own size, a pixel for each number or three. A spectrogram is blue, or grey where blue is weight. */
function pictured(view, grey) {
  const key = `${theme().ink} ${grey}`;
  if (!drawn.has(view)) drawn.set(view, new Map());
  if (drawn.get(view).has(key)) return drawn.get(view).get(key);
  const { shape, values } = view, [high, wide] = shape.slice(-2), size = high * wide;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [wide, high];
  const context = canvas.getContext("2d"), image = context.createImageData(wide, high);
  if (shape.length === 3) {
    for (let i = 0; i < size; i++) {
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = 255 * values[(shape[0] === 1 ? 0 : c) * size + i];
      image.data[4 * i + 3] = 255;
    }
  } else {
    const out = new Uint32Array(image.data.buffer), colours = grey ? greys() : table(false);
    const [least, most] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))]; // silence is paper
    for (let i = 0; i < size; i++) out[i] = colours[shade(values[i] - least, most - least || 1, false)];
  }
  context.putImageData(image, 0, 0);
  drawn.get(view).set(key, canvas);
  return canvas;
}

function greys() {
  const { paper } = theme();
  return Uint32Array.from({ length: 256 }, (_, i) => {
    const [r, g, b] = paper.map((zero) => Math.round(zero + ((128 - zero) * i) / 255));
    return (255 << 24) | (b << 16) | (g << 8) | r;
  });
}
