// Sampling distribution over the full vocabulary, with the same steps as clearhead.generate.sampling:
// suppressed tokens, temperature, top-k, top-p.

/** Sort logits in descending order, once; temperature does not change the order. */
export function rankLogits(logits, { vocabSize = logits.length, suppressed = [] } = {}) {
	const excluded = new Set(suppressed);
	const order = new Uint32Array(vocabSize);
	let count = 0;
	for (let id = 0; id < vocabSize; id++)
		if (!excluded.has(id) && logits[id] > -Infinity) order[count++] = id;
	const ranked = order.subarray(0, count);
	ranked.sort((a, b) => logits[b] - logits[a] || a - b);
	let sum = 0;
	const max = logits.reduce((a, b) => Math.max(a, b), -Infinity);
	for (const logit of logits) sum += Math.exp(logit - max);
	return { logits, order: ranked, logSumExp: max + Math.log(sum) };
}

/** The log-probability under the model, at temperature 1. */
export const logprob = (ranks, id) => ranks.logits[id] - ranks.logSumExp;

/**
 * { probabilities, kept, mass, entropy }: the probability of each rank at this temperature, the number
 * of ranks kept by top-k and top-p, their total probability, and the entropy of the distribution over
 * them in bits.
 */
export function samplingDistribution(
	{ logits, order },
	{ temperature: temp, top_k: topK, top_p: topP },
) {
	const count = order.length;
	const probabilities = new Float64Array(count);
	if (!count) return { probabilities, kept: 0, mass: 0, entropy: 0 };
	if (temp <= 0) {
		probabilities[0] = 1;
		return { probabilities, kept: 1, mass: 1, entropy: 0 };
	}
	const max = logits[order[0]];
	let sum = 0;
	for (let rank = 0; rank < count; rank++)
		sum += probabilities[rank] = Math.exp((logits[order[rank]] - max) / temp);
	for (let rank = 0; rank < count; rank++) probabilities[rank] /= sum;
	let kept = count;
	if (topK > 0 && topK < count) {
		kept = topK;
		while (kept < count && logits[order[kept]] === logits[order[topK - 1]]) kept++; // ties with the last one
	}
	let mass = sumFirst(probabilities, kept);
	if (topP < 1) {
		const target = topP * mass; // relative to the mass left by top-k
		let size = 0;
		let sum = 0;
		while (size < kept && sum < target) sum += probabilities[size++];
		while (size < kept && probabilities[size] === probabilities[size - 1])
			sum += probabilities[size++];
		kept = size;
		mass = sum;
	}
	let entropy = 0;
	for (let rank = 0; rank < kept; rank++) {
		const p = probabilities[rank] / mass;
		if (p > 0) entropy -= p * Math.log2(p);
	}
	return { probabilities, kept, mass, entropy };
}

function sumFirst(probabilities, count) {
	let sum = 0;
	for (let rank = 0; rank < count; rank++) sum += probabilities[rank];
	return sum;
}
