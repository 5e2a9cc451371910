// Cross-attention as lines between target and source tokens (L3.8).

import { html, svg } from "lit-html";
import { told } from "ch/colors";
import { heaviest } from "ch/lines";

const FONT = "13px ui-monospace, monospace";
const TALL = 150, GAP = 10, TEXT = 22;
const ruler = document.createElement("canvas").getContext("2d");

/** `above` and `below` are labels; `weights` is { shape: [below, above], data }; `chosen` is an index of `below` or −1. */
export function between(above, below, weights, chosen, { pick, hover, label }) {
  const top = placed(above), bottom = placed(below);
  const width = Math.max(top.width, bottom.width), [dx, dy] = [(width - top.width) / 2, (width - bottom.width) / 2];
  const height = TALL + 2 * TEXT;
  const { edges, badge } = heaviest(weights);
  const word = (text, { x, wide }, shift, y, r, kind) => svg`<g class="${kind} ${r === chosen && kind === "below" ? "picked" : ""}" @click=${() => kind === "below" && pick(r)}
    @pointerenter=${() => kind === "below" && hover(r)} @pointerleave=${() => kind === "below" && hover(-1)}>
    <rect x=${shift + x} y=${y} width=${wide} height=${TEXT} rx="4"></rect><text x=${shift + x + wide / 2} y=${y + TEXT / 2}>${text}</text></g>`;
  return html`<div class="scroll"><svg class="between" viewBox="0 0 ${width} ${height}" width=${width} height=${height} role="img" aria-label=${label}>
    <g class="edges">${edges.map(([r, c, weight]) => {
      const [from, to] = [dy + bottom[r].x + bottom[r].wide / 2, dx + top[c].x + top[c].wide / 2];
      const middle = TEXT + TALL / 2;
      return svg`<path d=${`M${from} ${TEXT + TALL} C${from} ${middle} ${to} ${middle} ${to} ${TEXT}`} class=${chosen < 0 ? "" : chosen !== r ? "weak" : weight > 0.1 ? "flows" : ""}
        .style=${`--weight:${weight}`}><title>${below[r]} → ${above[c]} ${told(weight)}</title></path>`;
    })}</g>
    ${above.map((text, c) => word(text, top[c], dx, 0, c, "above"))}${below.map((text, r) => word(text, bottom[r], dy, TEXT + TALL, r, "below"))}
  </svg></div>${badge}`;
}

function placed(words) {
  ruler.font = FONT;
  let x = 0;
  const found = words.map((word) => {
    const wide = Math.ceil(ruler.measureText(word).width) + 12, at = { x, wide };
    x += wide + GAP;
    return at;
  });
  return Object.assign(found, { width: Math.max(1, x - GAP) });
}
