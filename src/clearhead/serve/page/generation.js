// Token-by-token generation and its sampling distribution. Generated ids are in the URL; their
// alternatives are cached here.

import * as api from "ch/api";
import { editFields } from "ch/requests";
import { notify, registerDefaults, set, state } from "ch/state";

registerDefaults({ generated: { after: "", ids: [] } }, { inText: true });
const TOKEN_DELAY = 180; // milliseconds between two tokens
const ALTERNATIVES = 8;
const MAX_PLAY_TOKENS = 200; // tokens of one Play
const MAX_CACHED = 5000; // positions whose alternatives are cached

let activeStream = null; // { stop } while generating
let errorMessage = "";
const alternativesCache = new Map(); // prefix -> { id, text, logprob, top }

export const isGenerating = () => !!activeStream;
export const generationError = () => errorMessage;

/** The tokens generated after the prompt of a run. */
export const generatedIds = (run) =>
	run && state().generated?.after === run.id && Array.isArray(state().generated.ids)
		? state().generated.ids
		: [];

/** Replace the generated tokens. */
export function setGenerated(run, ids, { replace = false } = {}) {
	errorMessage = "";
	set({ generated: { after: ids.length ? run.id : "", ids } }, { replace });
}

/**
 * The sampled token and its alternatives, if cached:
 * { id, logprob, top: [[id, text, logprob] …] }.
 */
export const alternatives = (run, ids, position) =>
	alternativesCache.get(cacheKey(run, ids.slice(0, position)));

/** Cache the alternatives of a token. */
export function cacheAlternatives(run, ids, token) {
	store(cacheKey(run, ids), token);
}

/**
 * Fetch the alternatives of all generated tokens, for a page opened from a link.
 * @param {Card} card @param {Run} run @param {{ signal?: AbortSignal }} [options] */
export async function fetchAlternatives(card, run, { signal } = {}) {
	const ids = generatedIds(run);
	let text = "";
	await api.events(
		"/api/generate",
		generateRequest(card, run, ids, ids.length),
		(event, data) => {
			if (event === "token") store(cacheKey(run, ids.slice(0, data.index)), data);
			if (event === "done") text = data.text;
			if (event === "error") throw new api.ApiError(data.message, 400);
		},
		signal,
	);
	return { text };
}

/** Whether the text ends with an end token. */
export const hasEnded = (run, eosTokens) => eosTokens.includes(generatedIds(run).at(-1));

/** Generate up to `maxTokens`; one is a step, more are played. */
export async function generate(card, run, maxTokens = MAX_PLAY_TOKENS) {
	stopGenerating();
	const start = generatedIds(run);
	const sampling = samplingKey();
	const prompt = promptKey();
	const self = { stop: new AbortController() };
	activeStream = self;
	const queue = []; // tokens that are not shown yet
	let isDone = false;
	errorMessage = "";
	notify();
	const onEvent = (event, data) => {
		if (event === "token" && data.index >= start.length) queue.push(data);
		if (event === "error") throw new api.ApiError(data.message, 400);
	};
	const room = card.context_length - run.tokens.length - start.length;
	const body = generateRequest(card, run, start, start.length + Math.min(maxTokens, room));
	const stream = api
		.events("/api/generate", body, onEvent, self.stop.signal)
		.catch((error) => error.name === "AbortError" || (errorMessage = error.message))
		.finally(() => (isDone = true));
	while (activeStream === self && !(isDone && !queue.length)) {
		if (!queue.length) await Promise.race([stream, delay(20)]);
		else {
			const token = queue.shift();
			const ids = generatedIds(run);
			if (promptKey() !== prompt) return stopGenerating(); // text, model or view changed
			if (samplingKey() !== sampling) return void generate(card, run, maxTokens); // a slider moved
			store(cacheKey(run, ids), token);
			setGenerated(run, [...ids, token.id], {
				replace: maxTokens > 1 && ids.length > start.length,
			});
			if (maxTokens > 1) await delay(TOKEN_DELAY);
		}
	}
	if (activeStream === self) stopGenerating();
}

/** Stop generating; tokens not shown yet are dropped. */
export function stopGenerating() {
	activeStream?.stop.abort();
	activeStream = null;
	notify();
}

const promptKey = () => JSON.stringify([state().view, state().model, state().text]);
const samplingKey = () =>
	JSON.stringify([state().temperature, state().top_k, state().top_p, state().seed, editFields()]);
const cacheKey = (run, ids) => `${run.id} ${JSON.stringify(editFields())} ${ids}`;
function store(name, token) {
	alternativesCache.set(name, token);
	if (alternativesCache.size > MAX_CACHED)
		alternativesCache.delete(alternativesCache.keys().next().value);
}

const delay = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

function generateRequest(card, run, forcedTokens, maxTokens) {
	const { temperature, top_k, top_p, seed } = state();
	return {
		model: card.name,
		ids: run.tokens.map((token) => token.id),
		forced_tokens: forcedTokens,
		max_tokens: maxTokens,
		...{ temperature, top_k, top_p, seed },
		logprobs: ALTERNATIVES,
		...editFields(),
	};
}

// ---- sampling distribution
// Over the full vocabulary, with the same steps as clearhead.generate.sampling: suppressed tokens,
// temperature, top-k, top-p.

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
