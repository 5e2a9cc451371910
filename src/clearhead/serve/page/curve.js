// <ch-curve>: a line chart with labels at the line ends. Hovering inspects the nearest point, a click selects its x.

import { html, nothing, svg } from "lit-html";
import { define, Element, framed, resized } from "ch/element";

const LEFT = 46, TOP = 10, BOTTOM = 40, LETTER = 6.4;

export class Curve extends Element {
  static properties = {
    lines: [], // { label, points: [[x, y], …], kind: a class }
    names: null, // tick labels of x = 0, 1, 2 … instead of numbers
    by: "step", measure: "", label: "curve",
    least: null, most: null, // minimum extent of the y axis
    mark: null, // x position of a vertical line
    high: 210,
  };

  connectedCallback() {
    resized(this);
    super.connectedCallback();
  }

  draw() {
    const lines = this.lines.map((line) => ({ ...line, points: line.points.filter(([, y]) => Number.isFinite(y)) }));
    const points = lines.flatMap((line) => line.points.map(([x, y]) => ({ x, y, label: line.label })));
    if (!points.length) return;
    const ends = (values, more) => [...values, ...more.filter((value) => value !== null)].reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
    const [x0, x1] = ends(points.map(({ x }) => x), []), [y0, y1] = ends(points.map(({ y }) => y), [this.least, this.most]);
    const wide = Math.max(240, this.clientWidth || 560), right = wide - 12 - LETTER * Math.max(...lines.map(({ label }) => label.length)), low = this.high - BOTTOM;
    const x = (value) => LEFT + ((value - x0) / (x1 - x0 || 1)) * (right - LEFT), y = (value) => low - ((value - y0) / (y1 - y0 || 1)) * (low - TOP);
    const nearest = ({ offsetX, offsetY }) => {
      const away = (point) => Math.hypot(3 * (x(point.x) - offsetX), y(point.y) - offsetY); // horizontal distance counts more
      return points.reduce((best, point) => (away(point) < away(best) ? point : best));
    };
    const shown = this.names ? this.names.map((_, i) => i).filter((i) => i % Math.ceil(this.names.length / 12) === 0) : ticks(x0, x1, Math.min(8, (right - LEFT) / 70));
    const heights = apart(lines.map(({ points: own }) => y(own.at(-1)?.[1] ?? y0)), 14);
    this.fill(html`<svg viewBox="0 0 ${wide} ${this.high}" width=${wide} height=${this.high} role="img" aria-label=${this.label}
        @pointermove=${(event) => this.#show(nearest(event))} @pointerleave=${() => this.#show(null)}
        @click=${(event) => { this.#show(nearest(event), "lock"); this.tell("pick", { x: nearest(event).x }); }}>
      ${ticks(y0, y1, 4).map((value) => svg`<line class="axis" x1=${LEFT} x2=${right} y1=${y(value)} y2=${y(value)}></line><text x=${LEFT - 8} y=${y(value) + 4} text-anchor="end">${plain(value)}</text>`)}
      ${shown.map((value) => svg`<text x=${x(value)} y=${low + 17} text-anchor="middle">${this.names?.[value] ?? plain(value)}</text>`)}
      <text x=${(LEFT + right) / 2} y=${this.high - 4} text-anchor="middle">${this.by}</text>
      ${this.mark === null ? nothing : svg`<line class="mark" x1=${x(this.mark)} x2=${x(this.mark)} y1=${TOP} y2=${low}></line>`}
      ${lines.map(({ label, kind, points: own }, i) => svg`<path class=${kind ?? ""} d=${own.map(([a, b], n) => `${n ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("")}></path>
        <text class="name" x=${right + 8} y=${heights[i] + 4}>${label}</text>`)}
      ${this.at ? svg`<circle cx=${x(this.at.x)} cy=${y(this.at.y)} r="4"></circle>` : nothing}</svg>`);
  }

  #show(point, how = "hover") {
    if (how === "hover" && point?.x === this.at?.x && point?.y === this.at?.y) return;
    this.at = point;
    this.draw();
    const where = point && [`${this.by} ${this.names?.[point.x] ?? plain(point.x)}`, point.label].filter(Boolean);
    this.tell("inspect", point && { ...framed(this), where, measure: this.measure, value: point.y, how }, true);
  }
}
define("ch-curve", Curve);

const plain = (value) => value.toLocaleString("en", { maximumSignificantDigits: 6 }).replace("-", "−");

/** About `many` round numbers between two values. */
function ticks(low, high, many) {
  const rough = (high - low) / many || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((size) => size >= 0.999 * rough), first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.max(1, Math.floor(high / step + 1e-9) - first + 1) }, (_, i) => (first + i) * step);
}

/** Move labels apart vertically so that they do not overlap. */
function apart(heights, least) {
  const order = heights.map((_, i) => i).sort((a, b) => heights[a] - heights[b]), found = [...heights];
  order.forEach((i, n) => n && (found[i] = Math.max(found[i], found[order[n - 1]] + least)));
  return found;
}
