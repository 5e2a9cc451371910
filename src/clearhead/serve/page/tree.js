// The tree of a beam search: one column per step, most likely hypothesis on top.

import { html, nothing, svg } from "lit-html";
import { told } from "ch/colors";
import { shortened } from "ch/map";

const WIDE = 122, TALL = 25, PILL = 100;

const label = ({ text }) => shortened(text, PILL - 54);
const own = (node) => node.token_logprob.toFixed(2).replace("-", "−");

/** The path from the root to a node. */
export function pathTo(nodes, number) {
  const path = [];
  for (let at = number; at >= 0; at = nodes[at].parent) path.unshift(at);
  return path;
}

/** `best` is the winning path, `chosen` the selected one; steps after `upto` are hidden. */
export function beamTree(nodes, start, best, chosen, upto, choose) {
  const place = placed(nodes);
  const steps = Math.max(...nodes.map((node) => node.step)), rows = Math.max(...place.map(({ row }) => row)) + 1;
  const [width, height] = [(steps + 1) * WIDE, rows * TALL + 6];
  const whole = upto >= steps; // the winner is known at the end
  const won = new Set(best), looked = new Set(chosen);
  const x = (step) => step * WIDE + 2, y = (row) => row * TALL + TALL / 2 + 2;
  const edge = (node, i) => {
    const from = node.parent < 0 ? { x: x(0) + PILL - 20, y: y(0) } : { x: x(nodes[node.parent].step) + PILL, y: y(place[node.parent].row) };
    const to = { x: x(node.step), y: y(place[i].row) }, middle = (from.x + to.x) / 2;
    return svg`<path class="${node.status} ${won.has(i) && whole ? "best" : ""} ${looked.has(i) ? "looked" : ""}" d=${`M${from.x} ${from.y} C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`}></path>`;
  };
  const pill = (node, i) => svg`<g class="node ${node.status} ${won.has(i) && whole ? "best" : ""} ${looked.has(i) ? "looked" : ""}" tabindex="0" role="button" data-node=${i} data-score=${node.score ?? ""}
    aria-label=${`${label(node)} ${own(node)}: ${node.text}, step ${node.step}, ${node.status}, log-probability ${told(node.logprob)}`}
    @click=${() => choose(i)} @keydown=${(event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), choose(i))}>
    <title>${node.text}: ${told(node.token_logprob)} for this token, ${told(node.logprob)} in total; ${node.status}${node.score === null ? "" : `, score ${told(node.score)}`}</title>
    <rect x=${x(node.step)} y=${y(place[i].row) - 10} width=${PILL} height="20" rx=${node.status === "finished" ? 3 : 10}></rect>
    <text x=${x(node.step) + 8} y=${y(place[i].row)}>${label(node)}</text>
    <text class="own" x=${x(node.step) + PILL - 7} y=${y(place[i].row)} text-anchor="end">${own(node)}</text></g>`;
  return html`<div class="scroll"><svg class="beam-tree" viewBox="0 0 ${width} ${height}" width=${width} height=${height} role="group" aria-label="beam search">
    <text class="root" x="4" y=${y(0)}>${shortened(start, PILL - 26)}</text>${nodes.map((node, i) => (node.step <= upto ? edge(node, i) : nothing))}${nodes.map((node, i) => (node.step <= upto ? pill(node, i) : nothing))}</svg></div>`;
}

/** The row of each node within its step, most likely first. */
function placed(nodes) {
  const filled = new Map();
  return nodes.map(({ step }) => {
    const row = filled.get(step) ?? 0;
    filled.set(step, row + 1);
    return { row };
  });
}
