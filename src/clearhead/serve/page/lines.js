// <ch-lines>: attention weights as lines from queries (left) to keys (right).

import { html, nothing, svg } from "lit-html";
import { told } from "ch/colors";
import { define, Element, resized } from "ch/element";
import { shortened } from "ch/map";

const TALL = 21;
const WINDOW = 72; // tokens per side
const MOST = 900; // maximum number of lines
const LEAST = 0.02; // minimum weight of a line

export class Lines extends Element {
  static properties = {
    values: null, // { shape: [queries, keys], data }
    rows: [], cols: [],
    query: -1, // highlighted query
    label: "attention as lines",
  };

  connectedCallback() {
    resized(this);
    super.connectedCallback();
  }

  draw() {
    if (!this.values) return;
    const [rows, cols] = this.values.shape;
    const start = (size) => Math.max(0, Math.min(size - WINDOW, Math.max(0, this.query) - WINDOW / 2));
    const [r0, c0] = [start(rows), rows === cols ? start(rows) : 0];
    const [r1, c1] = [Math.min(rows, r0 + WINDOW), Math.min(cols, c0 + WINDOW)];
    const width = Math.min(560, Math.max(240, this.clientWidth || 420)), side = Math.min(130, width * 0.3);
    const height = TALL * Math.max(r1 - r0, c1 - c0) + 4;
    const y = (i) => i * TALL + TALL / 2 + 2;
    const name = (text, i, x, anchor, what) => svg`<text x=${x} y=${y(i)} text-anchor=${anchor} dominant-baseline="middle"
      class=${what} data-i=${i}>${shortened(text, side - 10)}</text>`;
    const { edges, badge } = heaviest(this.values, [r0, r1], [c0, c1]);
    this.fill(html`<svg viewBox="0 0 ${width} ${height}" width=${width} height=${height} role="img" aria-label=${this.label}>
      <g class="edges">${edges.map(([r, c, weight]) => svg`<path d=${`M${side} ${y(r - r0)} C${width / 2} ${y(r - r0)} ${width / 2} ${y(c - c0)} ${width - side} ${y(c - c0)}`}
        class=${this.query < 0 ? "" : this.query === r ? "strong" : "weak"} .style=${`--weight:${weight}`}><title>${this.rows[r]} → ${this.cols[c]} ${told(weight)}</title></path>`)}</g>
      ${range(r0, r1).map((r) => svg`<g class=${r === this.query ? "query chosen" : "query"} @click=${() => this.tell("pick", { row: r })}
        @pointerenter=${() => this.tell("hover", { row: r })} @pointerleave=${() => this.tell("hover", null)}>
        <rect x="0" y=${y(r - r0) - TALL / 2} width=${side} height=${TALL}></rect>${name(this.rows[r], r - r0, side - 7, "end", "")}</g>`)}
      ${range(c0, c1).map((c) => name(this.cols[c], c - c0, width - side + 7, "start", "key"))}
    </svg>${rows > WINDOW || cols > WINDOW ? html`<p class="badge">tokens ${r0}–${r1 - 1} of ${rows}; the heat map shows all</p>` : nothing}${badge}`);
  }
}
define("ch-lines", Lines);

/** The largest weights of a window, [[row, col, weight] …], and a badge naming what is omitted. */
export function heaviest({ shape: [rows, cols], data }, [r0, r1] = [0, rows], [c0, c1] = [0, cols]) {
  const found = [];
  for (let r = r0; r < r1; r++) for (let c = c0; c < c1; c++) if (data[r * cols + c] > 0) found.push([r, c, data[r * cols + c]]);
  const edges = found.sort((a, b) => b[2] - a[2]).slice(0, MOST).filter(([, , weight]) => weight >= LEAST), left = found.slice(edges.length);
  return { edges, badge: left.length ? html`<p class="badge">${left.length} weights of at most ${told(left[0][2])} are not drawn; the heat map shows all</p>` : nothing };
}

const range = (from, to) => Array.from({ length: Math.max(0, to - from) }, (_, i) => from + i);
