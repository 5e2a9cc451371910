// The tree of a beam search: a column for each step, the likeliest on top; what went on, what ended, what was dropped.

import { html, nothing, svg } from "lit-html";
import { told } from "ch/colours";
import { shortened } from "ch/map";

const WIDE = 122, TALL = 25, PILL = 100;

const label = ({ text }) => shortened(text, PILL - 54);
const own = (node) => node.own.toFixed(2).replace("-", "−");

/** The nodes from the root to one of them. */
export function pathTo(nodes, number) {
  const path = [];
  for (let at = number; at >= 0; at = nodes[at].parent) path.unshift(at);
  return path;
}

/** `best` is the path that won, `chosen` the one that is looked at; steps after `upto` are not there yet. */
export function beamTree(nodes, start, best, chosen, upto, choose) {
  const place = placed(nodes);
  const steps = Math.max(...nodes.map((node) => node.step)), rows = Math.max(...place.map(({ row }) => row)) + 1;
  const [width, height] = [(steps + 1) * WIDE, rows * TALL + 6];
  const whole = upto >= steps; // who wins is known at the end
  const won = new Set(best), looked = new Set(chosen);
  const x = (step) => step * WIDE + 2, y = (row) => row * TALL + TALL / 2 + 2;
  const edge = (node, i) => {
    const from = node.parent < 0 ? { x: x(0) + PILL - 20, y: y(0) } : { x: x(nodes[node.parent].step) + PILL, y: y(place[node.parent].row) };
    const to = { x: x(node.step), y: y(place[i].row) }, middle = (from.x + to.x) / 2;
    return svg`<path class="${node.fate} ${won.has(i) && whole ? "best" : ""} ${looked.has(i) ? "looked" : ""}" d=${`M${from.x} ${from.y} C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`}></path>`;
  };
  const pill = (node, i) => svg`<g class="node ${node.fate} ${won.has(i) && whole ? "best" : ""} ${looked.has(i) ? "looked" : ""}" tabindex="0" role="button" data-node=${i} data-score=${node.score ?? ""}
    aria-label=${`${label(node)} ${own(node)}: ${node.text}, step ${node.step}, ${node.fate}, log-probability ${told(node.logprob)}`}
    @click=${() => choose(i)} @keydown=${(event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), choose(i))}>
    <title>${node.text}: ${told(node.own)} here, ${told(node.logprob)} in all; ${node.fate}${node.score === null ? "" : `, score ${told(node.score)}`}</title>
    <rect x=${x(node.step)} y=${y(place[i].row) - 10} width=${PILL} height="20" rx=${node.fate === "finished" ? 3 : 10}></rect>
    <text x=${x(node.step) + 8} y=${y(place[i].row)}>${label(node)}</text>
    <text class="own" x=${x(node.step) + PILL - 7} y=${y(place[i].row)} text-anchor="end">${own(node)}</text></g>`;
  return html`<div class="scroll"><svg class="beam-tree" viewBox="0 0 ${width} ${height}" width=${width} height=${height} role="group" aria-label="beam search">
    <text class="root" x="4" y=${y(0)}>${shortened(start, PILL - 26)}</text>${nodes.map((node, i) => (node.step <= upto ? edge(node, i) : nothing))}${nodes.map((node, i) => (node.step <= upto ? pill(node, i) : nothing))}</svg></div>`;
}

/** The row of each node in the column of its step, in the order in which they came: the likeliest first. */
function placed(nodes) {
  const filled = new Map();
  return nodes.map(({ step }) => {
    const row = filled.get(step) ?? 0;
    filled.set(step, row + 1);
    return { row };
  });
}
