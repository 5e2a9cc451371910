// Base class of canvas elements with a grid of cells, pointer and keyboard navigation.

import { Element, resized } from "ch/element";

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** Subclasses set `cells` { left, top, wide, tall, rows, cols } and implement `over` and `pick` with [row, col] or null. */
export class Picture extends Element {
  connectedCallback() {
    this.at ??= null; // current cell
    this.tabIndex = 0;
    this.setAttribute("role", "group");
    this.setAttribute("aria-roledescription", this.constructor.what);
    this.addEventListener("pointermove", (event) => this.#move(this.#cell(event)));
    this.addEventListener("pointerleave", () => this.#move(null));
    this.addEventListener("blur", () => this.#move(null));
    this.addEventListener("click", (event) => this.#pick(this.#cell(event), event.shiftKey));
    this.addEventListener("keydown", (event) => this.#key(event));
    resized(this);
    super.connectedCallback();
  }

  #cell({ clientX, clientY }) {
    const box = this.querySelector("canvas")?.getBoundingClientRect();
    if (!box || !this.cells) return null;
    const { left, top, wide, tall, rows, cols } = this.cells;
    const c = Math.floor((clientX - box.left - left) / wide), r = Math.floor((clientY - box.top - top) / tall);
    return r < 0 || c < 0 || r >= rows || c >= cols ? null : this.exact(r, c);
  }

  /** The data cell of a drawn cell. */
  exact(r, c) {
    return [r, c];
  }

  #move(cell, heard = false) {
    if (String(cell) === String(this.at)) return;
    this.at = cell;
    const words = this.over(cell);
    if (!heard) return;
    if (words) this.querySelector(".heard").textContent = words;
    const { left, top, wide, tall, rows, cols } = this.cells, [high, broad] = this.size ?? [rows, cols], box = this.querySelector(".scroll");
    const x = left + (cell[1] * wide * cols) / broad, y = top + (cell[0] * tall * rows) / high; // drawn cells may be pooled
    if (!box) return;
    if (x - left < box.scrollLeft || x + wide > box.scrollLeft + box.clientWidth) box.scrollLeft = x - box.clientWidth / 2;
    if (y - top < box.scrollTop || y + tall > box.scrollTop + box.clientHeight) box.scrollTop = y - box.clientHeight / 2;
  }

  #pick(cell, more) {
    if (cell) this.pick(cell, more);
  }

  #key(event) {
    const move = MOVES[event.key];
    if (move && this.cells && !this.tabled) {
      const [r, c] = this.at ?? this.start(event.key), [rows, cols] = this.size ?? [this.cells.rows, this.cells.cols];
      this.#move([clamp(r + move[0], rows), clamp(c + move[1], cols)], true);
    } else if (event.target !== this) return;
    else if (event.key === "Enter" && this.at) this.pick(this.at, event.shiftKey);
    else if (!this.key?.(event)) return;
    event.preventDefault();
    event.stopPropagation();
  }
}

/** Size a canvas in CSS pixels and return its scaled context. */
export function sheet(canvas, width, height) {
  const dots = Math.min(3, devicePixelRatio || 1), context = canvas.getContext("2d");
  [canvas.width, canvas.height] = [Math.round(width * dots), Math.round(height * dots)];
  [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
  context.scale(dots, dots);
  context.imageSmoothingEnabled = false;
  return context;
}

/** An image with one 32-bit pixel per cell, to be scaled up. */
export function pixels(rows, cols, color) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [cols, rows];
  const context = canvas.getContext("2d"), image = context.createImageData(cols, rows), out = new Uint32Array(image.data.buffer);
  for (let i = 0; i < out.length; i++) out[i] = color(i);
  context.putImageData(image, 0, 0);
  return canvas;
}

export const clamp = (at, size) => Math.max(0, Math.min(size - 1, Math.round(at)));
