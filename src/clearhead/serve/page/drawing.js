// From logits to what can be drawn, as src/clearhead/generate/draw.py does it and in its order:
// never-written tokens out, ÷ temperature, top-k, top-p. All of the vocabulary takes part.

/** Logits by falling size. Temperature keeps their order, so they are sorted once and every slider only counts. */
export function ranked(logits, { known = logits.length, banned = [] } = {}) {
  const out = new Set(banned);
  const order = new Uint32Array(known);
  let count = 0;
  for (let id = 0; id < known; id++) if (!out.has(id) && logits[id] > -Infinity) order[count++] = id;
  const kept = order.subarray(0, count);
  kept.sort((a, b) => logits[b] - logits[a] || a - b);
  let sum = 0;
  const most = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  for (const logit of logits) sum += Math.exp(logit - most);
  return { logits, order: kept, all: most + Math.log(sum) };
}

/** The log-probability under the model itself, whatever the sliders say. */
export const logprob = (ranks, id) => ranks.logits[id] - ranks.all;

/**
 * { shares, kept, mass, entropy }: the chance of each rank at this temperature before anything is cut off, how many
 * ranks are left after top-k and top-p, the chance they have together, and the bits of doubt among them.
 */
export function distribution({ logits, order }, { temp, topk, topp }) {
  const count = order.length;
  const shares = new Float64Array(count);
  if (!count) return { shares, kept: 0, mass: 0, entropy: 0 };
  if (temp <= 0) {
    shares[0] = 1;
    return { shares, kept: 1, mass: 1, entropy: 0 };
  }
  const most = logits[order[0]];
  let sum = 0;
  for (let rank = 0; rank < count; rank++) sum += shares[rank] = Math.exp((logits[order[rank]] - most) / temp);
  for (let rank = 0; rank < count; rank++) shares[rank] /= sum;
  let kept = count;
  if (topk > 0 && topk < count) {
    kept = topk;
    while (kept < count && logits[order[kept]] === logits[order[topk - 1]]) kept++; // as likely as the last
  }
  let mass = total(shares, kept);
  if (topp < 1) {
    const goal = topp * mass; // a share of what top-k has left
    let inside = 0;
    let before = 0;
    while (inside < kept && before < goal) before += shares[inside++];
    while (inside < kept && shares[inside] === shares[inside - 1]) before += shares[inside++];
    [kept, mass] = [inside, before];
  }
  let entropy = 0;
  for (let rank = 0; rank < kept; rank++) {
    const share = shares[rank] / mass;
    if (share > 0) entropy -= share * Math.log2(share);
  }
  return { shares, kept, mass, entropy };
}

function total(shares, count) {
  let sum = 0;
  for (let rank = 0; rank < count; rank++) sum += shares[rank];
  return sum;
}
