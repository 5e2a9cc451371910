// Sampling distribution over the full vocabulary, with the same steps as clearhead.generate.sampling:
// suppressed tokens, temperature, top-k, top-p.

/** Sort logits in descending order, once; temperature does not change the order. */
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

/** The log-probability under the model, at temperature 1. */
export const logprob = (ranks, id) => ranks.logits[id] - ranks.all;

/**
 * { shares, kept, mass, entropy }: probability of each rank at this temperature before truncation, number of ranks
 * kept by top-k and top-p, their total probability, and the entropy of the kept distribution in bits.
 */
export function distribution({ logits, order }, { temperature: temp, top_k: topk, top_p: topp }) {
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
    while (kept < count && logits[order[kept]] === logits[order[topk - 1]]) kept++; // ties with the last one
  }
  let mass = total(shares, kept);
  if (topp < 1) {
    const goal = topp * mass; // relative to the mass left by top-k
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
