// <ch-curve>: lines over steps, by uPlot, with a mark that can be dragged along them.

/* global uPlot */
import { theme } from "ch/colours";
import { define, Element, resized } from "ch/element";

const HIGH = 210;

export class Curve extends Element {
  static properties = {
    lines: [], // { label, points: [[step, value], …], colour }
    mark: null, // a step
    measure: "", label: "curve",
  };

  connectedCallback() {
    this.setAttribute("role", "img");
    resized(this);
    super.connectedCallback();
  }

  disconnectedCallback() {
    this.plot?.destroy();
    this.plot = this.drawn = null;
  }

  draw() {
    this.setAttribute("aria-label", this.label);
    const width = Math.max(220, this.clientWidth), key = `${width} ${theme().ink}`;
    if (this.drawn !== this.lines || this.key !== key) {
      this.plot?.destroy();
      this.replaceChildren();
      this.plot = new uPlot(this.#options(width), this.#data(), this);
      [this.drawn, this.key] = [this.lines, key];
    } else this.plot.redraw(false);
  }

  #options(width) {
    const { ink, line, quiet } = theme();
    const axis = { stroke: quiet, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    return {
      width, height: HIGH, padding: [10, 14, 0, 0], cursor: { points: { size: 6 }, drag: { x: false, y: false } },
      scales: { x: { time: false } },
      axes: [{ ...axis, values: (_, steps) => steps.map((step) => step.toLocaleString("en")) }, { ...axis, size: 52 }],
      series: [{ label: "step" }, ...this.lines.map(({ label, colour, points }) => ({ label, stroke: colour, width: 2, spanGaps: true, points: { show: points.length < 25, size: 5, fill: colour } }))],
      hooks: {
        draw: [(plot) => {
          if (this.mark === null) return;
          const x = Math.round(plot.valToPos(this.mark, "x", true)), { top, height } = plot.bbox;
          Object.assign(plot.ctx, { strokeStyle: ink, lineWidth: devicePixelRatio });
          plot.ctx.beginPath();
          plot.ctx.moveTo(x, top);
          plot.ctx.lineTo(x, top + height);
          plot.ctx.stroke();
        }],
        ready: [(plot) => plot.over.addEventListener("click", (event) => this.tell("pick", { step: plot.posToVal(event.offsetX, "x") }))],
      },
    };
  }

  /** All steps that any line has; a line without a point there has a gap. */
  #data() {
    const steps = [...new Set(this.lines.flatMap(({ points }) => points.map(([step]) => step)))].sort((a, b) => a - b);
    return [steps, ...this.lines.map(({ points }) => {
      const known = new Map(points);
      return steps.map((step) => known.get(step) ?? null);
    })];
  }
}
define("ch-curve", Curve);
