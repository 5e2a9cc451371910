// <ch-atlas>: every head of a model at once, on one canvas, in the order of layers or of a score.

import { html } from "lit-html";
import { table, theme, told } from "ch/colours";
import { define, Element, resized } from "ch/element";

const HIGH = 420;

export class Atlas extends Element {
  static properties = {
    atlas: null, // { shape: [layer, head, query, key], data: bytes }
    scores: null, // a view: score × layer × head
    sort: "", layer: 0, head: 0,
    off: [], // heads that are switched off, counted through all layers
    stretch: false, // each head's largest weight has the full colour
  };

  connectedCallback() {
    this.tabIndex = 0;
    this.setAttribute("role", "group");
    this.setAttribute("aria-roledescription", "atlas of heads");
    this.addEventListener("pointermove", (event) => this.#over(this.#at(event)));
    this.addEventListener("pointerleave", () => this.#over(-1));
    this.addEventListener("click", (event) => this.#pick(this.#at(event)));
    this.addEventListener("keydown", (event) => this.#key(event));
    resized(this);
    this.soon();
  }

  draw() {
    if (!this.atlas) return;
    const [layers, heads, rows, cols] = this.atlas.shape;
    const places = Array.from({ length: layers * heads }, (_, i) => i);
    const score = this.#score();
    this.order = score ? places.filter((i) => !Number.isNaN(score[i])).sort((a, b) => score[b] - score[a]) : places;
    const width = Math.max(200, this.clientWidth || 600), left = score ? 0 : 26, gap = 6, under = score ? 16 : 0;
    const fits = Math.floor((width - left) / (score ? Math.min(heads, 8) : heads)) - gap;
    const wide = Math.max(22, Math.min(104, fits, Math.max(44, Math.floor(HIGH / layers) - gap))); // deep models are scrolled
    const across = score ? Math.max(1, Math.floor(width / (wide + gap))) : heads;
    const tall = Math.max(12, Math.round(wide * Math.min(1.6, rows / cols)));
    const top = score ? 0 : 18;
    this.plan = { left, top, gap, wide, tall, across, step: tall + gap + under };
    this.setAttribute("aria-label", `all heads, ${layers} layers of ${heads}. Arrows move, Enter opens.`);
    this.fill(html`<div class="scroll"><canvas></canvas></div><p class="said" aria-live="polite"></p>`);
    const canvas = this.querySelector("canvas"), dots = Math.min(2, devicePixelRatio || 1);
    const high = top + Math.ceil(this.order.length / across) * this.plan.step;
    const all = left + across * (wide + gap);
    [canvas.width, canvas.height] = [all * dots, high * dots];
    [canvas.style.width, canvas.style.height] = [`${all}px`, `${high}px`];
    this.#paint(canvas.getContext("2d"), dots, rows, cols, score);
  }

  #paint(context, dots, rows, cols, score) {
    const { top, wide, tall } = this.plan, colours = theme(), heads = this.atlas.shape[1];
    const small = document.createElement("canvas");
    [small.width, small.height] = [cols, rows];
    const image = small.getContext("2d").createImageData(cols, rows);
    const out = new Uint32Array(image.data.buffer), lut = table(false);
    context.setTransform(dots, 0, 0, dots, 0, 0);
    context.imageSmoothingEnabled = false;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.order.forEach((place, n) => {
      const [x, y] = this.#corner(n), from = place * rows * cols;
      const cells = this.atlas.data.subarray(from, from + out.length);
      const most = this.stretch ? cells.reduce((a, b) => Math.max(a, b), 1) : 255;
      for (let i = 0; i < out.length; i++) out[i] = lut[Math.round((255 * cells[i]) / most)];
      small.getContext("2d").putImageData(image, 0, 0);
      context.drawImage(small, x, y, wide, tall);
      const chosen = place === this.layer * heads + this.head;
      context.lineWidth = chosen ? 2.5 : 1;
      context.strokeStyle = chosen ? colours.ink : colours.line;
      context.strokeRect(x + 0.5, y + 0.5, wide - 1, tall - 1);
      if (this.off.includes(place)) crossed(context, x, y, wide, tall);
      context.fillStyle = colours.quiet;
      context.textAlign = "left";
      if (score) context.fillText(`${Math.floor(place / heads)}.${place % heads}  ${told(score[place], 2)}`, x, y + tall + 8);
      else if (place % heads === 0) context.fillText(String(place / heads), 4, y + tall / 2);
      if (!score && place < heads) context.fillText(String(place), x + wide / 2 - 3, top / 2);
    });
  }

  #corner(n) {
    const { left, top, gap, wide, across, step } = this.plan;
    return [left + (n % across) * (wide + gap), top + Math.floor(n / across) * step];
  }

  #score() {
    const { sort, scores } = this;
    const at = scores ? scores.axes[0].labels.indexOf(sort) : -1;
    if (at < 0) return null;
    const size = scores.shape[1] * scores.shape[2];
    return scores.values.subarray(at * size, (at + 1) * size);
  }

  #at(event) {
    if (!this.plan) return -1;
    const box = this.querySelector("canvas").getBoundingClientRect();
    const { left, top, gap, wide, across, step } = this.plan;
    const c = Math.floor((event.clientX - box.left - left) / (wide + gap)), r = Math.floor((event.clientY - box.top - top) / step);
    return c < 0 || c >= across || r < 0 ? -1 : this.order[r * across + c] ?? -1;
  }

  #over(place) {
    if (place === this.under) return;
    this.under = place;
    const said = this.querySelector(".said");
    if (said) said.textContent = place < 0 ? "" : this.#words(place);
  }

  #words(place) {
    const heads = this.atlas.shape[1], size = this.atlas.shape[0] * heads;
    const scores = this.scores ? this.scores.axes[0].labels.map((name, i) => [name, this.scores.values[i * size + place]]) : [];
    const told_ = scores.filter(([, value]) => !Number.isNaN(value)).map(([name, value]) => `${name} ${told(value, 2)}`);
    return [`layer ${Math.floor(place / heads)}, head ${place % heads}${this.off.includes(place) ? ", off" : ""}`, ...told_].join(" · ");
  }

  #pick(place) {
    if (place < 0) return;
    const heads = this.atlas.shape[1];
    this.tell("pick", { layer: Math.floor(place / heads), head: place % heads });
  }

  #key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.plan?.across, ArrowDown: this.plan?.across }[event.key];
    if (event.key === "Enter") this.#pick(this.under ?? -1);
    else if (step && this.order) {
      const now = this.order.indexOf(this.under >= 0 ? this.under : this.layer * this.atlas.shape[1] + this.head);
      this.#over(this.order[Math.max(0, Math.min(this.order.length - 1, now + step))]);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
define("ch-atlas", Atlas);

/** Switched off. */
function crossed(context, x, y, wide, tall) {
  context.strokeStyle = "#d9691c";
  context.lineWidth = 2;
  context.beginPath();
  context.moveTo(x, y), context.lineTo(x + wide, y + tall);
  context.moveTo(x, y + tall), context.lineTo(x + wide, y);
  context.stroke();
}
