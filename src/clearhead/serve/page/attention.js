// Attention: the types a model has, activation paths, masks and patterns; and what two runs share.

import { getArray, memoize } from "ch/requests";

/** Activation path of an attention layer. */
export const attentionPath = (part, layer) =>
	({
		attention: `blocks.${layer}.attn`,
		cross: `blocks.${layer}.cross_attn`,
		encoder: `encoder.blocks.${layer}.attn`,
	})[part];

/** The attention types of a model. */
export const attentionTypes = (card) =>
	card.architecture === "encoder-decoder" ? ["attention", "cross", "encoder"] : ["attention"];

/** Number of layers of an attention type. */
export const layerCount = (card, part) =>
	part === "encoder" ? card.encoder_layers : card.n_layers;

/** The tokens on both sides: [queries, keys]. @param {Run} run @param {string} part */
export function queriesAndKeys(run, part) {
	const queries = part === "encoder" ? run.source_tokens : run.tokens;
	const keys = part === "attention" ? run.tokens : run.source_tokens;
	return [queries, keys];
}

/** @param {Token[]} tokens */
export const tokenTexts = (tokens) => tokens.map(({ text }) => text);

/**
 * The mask of an attention type: a description, and whether a (query, key) cell is masked.
 * @param {Card} card @param {string} part
 * @returns {{ description: string, isMasked: ((query: number, key: number) => boolean) | null }}
 */
export function attentionMask(card, part) {
	const isCausal = part === "attention" && card.architecture !== "encoder";
	const window = part === "cross" ? 0 : card.sliding_window;
	const limit = window ? `, at most ${window - 1} tokens away` : "";
	if (isCausal)
		return {
			description: `causal mask: a token attends to itself and earlier tokens${limit}`,
			isMasked: (query, key) => key > query || (!!window && query - key >= window),
		};
	if (window)
		return {
			description: `sliding window: a token attends to tokens at most ${window - 1} tokens away`,
			isMasked: (query, key) => Math.abs(query - key) >= window,
		};
	return {
		description:
			part === "cross"
				? "no mask: target tokens attend to the whole source"
				: "no mask: every token attends to the whole text",
		isMasked: null,
	};
}

/** The selected attention type, layer and head, clamped to the model. @param {State} state @param {Card} card */
export function selectedHead(state, card) {
	const part = attentionTypes(card).includes(state.part) ? state.part : "attention";
	const clamp = (index, count) => Math.max(0, Math.min(count - 1, Math.floor(index)));
	return {
		part,
		layer: clamp(state.layer, layerCount(card, part)),
		head: clamp(state.head, card.n_heads),
	};
}

/** Positions to compare, [[i, j], …]: all if the lengths match, else the common prefix and suffix. */
export function sharedPositions(a, b) {
	if (a.length === b.length) return a.map((_, i) => [i, i]);
	const isSame = (i, j) => i < a.length && j < b.length && a[i].text === b[j].text;
	const pairs = [];
	let first = 0;
	let last = 0;
	for (; isSame(first, first); first++) pairs.push([first, first]);
	const max = Math.min(a.length, b.length) - first;
	while (last < max && isSame(a.length - 1 - last, b.length - 1 - last)) last++;
	for (; last > 0; last--) pairs.push([a.length - last, b.length - last]);
	return pairs;
}

/**
 * second − first over pairs of query and key positions; memoized.
 * @param {Matrix} first @param {Matrix} second @param {number[][]} queries @param {number[][]} keys
 */
export function patternDifference(first, second, queries, keys = queries) {
	const subtract = () => {
		const data = new Float32Array(queries.length * keys.length);
		const weight = ({ data, shape }, query, key) => data[query * shape[1] + key];
		queries.forEach(([query1, query2], row) =>
			keys.forEach(([key1, key2], col) => {
				const difference = weight(second, query2, key2) - weight(first, query1, key1);
				data[row * keys.length + col] = difference;
			}),
		);
		const max = data.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
		return { shape: [queries.length, keys.length], data, max };
	};
	const bySecond = memoize(first, second, () => ({}));
	return memoize(bySecond, `${queries} ${keys}`, subtract);
}

/** One head's pattern in a run, as a resource. */
export function headPattern(runId, path, head, slot) {
	const url = `/api/runs/${runId}/tensor/${path}.pattern?head=${head}`;
	return getArray(url, slot);
}
