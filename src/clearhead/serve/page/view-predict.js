// Predict (L5): last hidden state × unembedding = logits; temperature, top-k, top-p, sampling.

import { html, nothing } from "lit-html";
import * as api from "ch/api";
import { button, slider } from "ch/controls";
import { formatCount, formatNumber, formatPercent } from "ch/format";
import * as generation from "ch/generation";
import {
	currentInput,
	editFields,
	getArray,
	getJson,
	memoize,
	modelUrl,
	nanMessage,
	renderError,
	renderResource,
	runRequest,
	viewMatrix,
} from "ch/requests";
import { softmaxFigure } from "ch/softmax";
import { notify, registerDefaults, set, state } from "ch/state";

registerDefaults({ open_token: -1 }, { inText: true });
const MAX_CANDIDATES = 16;
const BAR_SCALES = [0.1, 0.25, 0.5, 1]; // probabilities that a full bar may stand for
let hoveredId = -1; // candidate under the pointer
let shortcutTarget = null; // target of keyboard shortcuts

function template(context) {
	const { card, run } = context;
	shortcutTarget = { card, run };
	if (!run)
		return html`<p class="hint">Nothing to continue yet. Type the beginning of a text above.</p>`;
	const ids = generation.generatedIds(run);
	const vocabulary = getJson(`${modelUrl(card.name)}/vocabulary`);
	const settings = getJson(`${modelUrl(card.name)}/sampling`);
	const missing = [vocabulary, settings].find(({ value, error }) => error || !value);
	if (missing) return renderResource(missing, () => nothing);
	const words = vocabulary.value;
	const shownIds = displayedIds(run, ids);
	const plain = getLogits(context, shownIds, null, settings.value, "logits");
	requestedLogits = { run, ids: shownIds, resource: plain };
	const edits = editFields();
	const edited = edits
		? getLogits(context, shownIds, edits, settings.value, "edited logits")
		: null;
	const room = card.context_length - run.tokens.length - ids.length;
	return html`${generatedText(context, ids, words, settings.value)}
	${generationButtons(context, ids, settings.value)} ${samplingSliders(context)}
	${room > 0 ? nothing : html`<p class="hint">The context of ${formatCount(card.context_length)} tokens is full. Undo some tokens or start over.</p>`}
	${
		room < 0
			? nothing
			: renderResource(plain, (value) => nextTokenFigure(context, shownIds, value, edited, words))
	}
	${softmaxFigure(context, largestLogits(plain))}`;
}

const largestLogits = ({ value }) =>
	value ? Array.from(value.ranks.order.subarray(0, 5), (id) => value.ranks.logits[id]) : [];

let requestedLogits = null; // { run, ids, resource }

/**
 * The text whose next token is shown. While a slow model plays, one row of
 * logits is requested at a time.
 */
function displayedIds(run, ids) {
	return generation.isGenerating() &&
		requestedLogits?.resource.pending &&
		requestedLogits.run === run
		? requestedLogits.ids
		: ids;
}

/** The sorted logits of the next token as a resource. */
function getLogits({ card, run, resource }, ids, edits, settings, slot) {
	const suppressed = [...settings.suppress_tokens];
	if (!ids.length) suppressed.push(...settings.begin_suppress_tokens);
	const vocabSize = settings.vocab_size;
	return resource(
		`${slot} ${run.id} ${ids} ${JSON.stringify(edits)}`,
		async ({ signal }) => {
			const body = ids.length
				? { model: card.name, ids: [...run.tokens.map((token) => token.id), ...ids], ...edits }
				: runRequest(card, edits ?? {});
			const isKnown = !ids.length && !edits;
			const next = isKnown
				? run
				: await api.json("POST", "/api/runs", body, { cached: true, signal });
			const row = await api.npy(`/api/runs/${next.id}/logits?token=-1`, { signal });
			return { run: next, ranks: generation.rankLogits(row.data, { vocabSize, suppressed }) };
		},
		slot,
	);
}

/** Prompt and generated tokens; each generated token opens its alternatives. */
function generatedText(context, ids, words, settings) {
	const { card, run, state, set } = context;
	const isMissing =
		ids.length &&
		ids.some((_, i) => !generation.alternatives(run, ids, i)) &&
		!generation.isGenerating();
	const alternatives = isMissing
		? context.resource(
				`alternatives ${run.id} ${ids} ${JSON.stringify(editFields())}`,
				(options) => generation.fetchAlternatives(card, run, options),
				"alternatives",
			)
		: null;
	const open = state.open_token < ids.length ? state.open_token : -1;
	return html`<div class="so-far" role="group" aria-label="the text">
			<span class="prompt-text">${run.tokens.map((token) => token.text).join("")}</span>${ids.map(
				(id, i) => {
					const selected = generation
						.alternatives(run, ids, i)
						?.top?.find(([other]) => other === id);
					return html`<button
						type="button"
						class="token generated"
						aria-pressed=${i === open}
						aria-expanded=${i === open}
						title=${`generated token ${i}${selected ? `, log-probability ${formatNumber(selected[2])}` : ""}: show alternatives`}
						@click=${() => set({ open_token: i === open ? -1 : i })}>
						<span>${words[id] ?? id}</span>
					</button>`;
				},
			)}<span class="caret" aria-hidden="true"></span>
		</div>
		${open >= 0 ? alternativesList(context, ids, open, words, alternatives) : nothing}
		${generation.hasEnded(run, settings.eos_tokens) ? html`<p class="hint">The model ended its text here with an end token. Undo to continue differently.</p>` : nothing}
		${generation.generationError() ? html`<p class="problem" role="status">${generation.generationError()}</p>` : nothing}`;
}

function alternativesList({ run, set }, ids, position, words, resource) {
	const token = generation.alternatives(run, ids, position);
	if (!token) return resource ? renderResource(resource, () => nothing) : nothing;
	const isListed = token.top.some(([id]) => id === token.id);
	const isCurrent = token.id === ids[position];
	const top =
		isCurrent && !isListed ? [...token.top, [token.id, words[token.id], token.logprob]] : token.top;
	return html`<div
		class="alternatives"
		role="group"
		aria-label=${`alternatives of generated token ${position}`}>
		<p class="hint">
			The most likely tokens at this position with the model's probabilities. Choose one to continue
			from there.
		</p>
		${top.map(
			([id, label, value]) =>
				html`<button
					type="button"
					aria-pressed=${id === ids[position]}
					@click=${() => {
						generation.setGenerated(run, [...ids.slice(0, position), id]);
						set({ open_token: -1 });
					}}>
					<span class="word">${label}</span>
					<span class="hint">${formatPercent(value === null ? 0 : Math.exp(value))}</span>
				</button>`,
		)}
	</div>`;
}

function generationButtons({ card, run, state, set }, ids, settings) {
	const isEnd =
		!!api.snapshot ||
		generation.hasEnded(run, settings.eos_tokens) ||
		run.tokens.length + ids.length >= card.context_length;
	const hint = (label) => (api.snapshot ? api.LIVE_ONLY : label);
	const keep = (ids) => () => {
		generation.stopGenerating();
		generation.setGenerated(run, ids);
	};
	const isEmpty = !ids.length;
	return html`<div class="row">
		${button("Step", () => generation.generate(card, run, 1), { kind: "main", disabled: isEnd, title: hint("Sample one token (.)") })}
		${
			generation.isGenerating()
				? button("Pause", generation.stopGenerating, { title: "Stop after this token (Space)" })
				: button("Play", () => generation.generate(card, run), {
						disabled: isEnd,
						title: hint("Sample token after token (Space)"),
					})
		}
		${button("Undo", keep(ids.slice(0, -1)), { disabled: isEmpty })}
		${button("Start over", keep([]), { kind: "quiet", disabled: isEmpty })}
		${button("Use as prompt", () => useAsPrompt(card, run), { kind: "quiet", disabled: isEmpty, title: "Use the longer text in all other views" })}
		${editFields() ? html`<span class="hint">sampling from the edited model</span>` : nothing}
		<label
			>Seed
			<input
				type="number"
				min="0"
				max="4294967295"
				step="1"
				.value=${String(state.seed)}
				@change=${(event) => set({ seed: Math.max(0, Math.floor(Number(event.target.value)) || 0) })}
		/></label>
	</div>`;
}

async function useAsPrompt(card, run) {
	generation.stopGenerating();
	const { text } = await generation.fetchAlternatives(card, run);
	set({ text: currentInput(card).text + text });
}

function samplingSliders({ state, set }) {
	const slide = (key, label, min, max, step, format, hint) =>
		slider(label, { key, min, max, step, value: state[key], format, hint }, (value) =>
			set({ [key]: value }, { replace: true }),
		);
	return html`<div class="row sliders">
		${slide("temperature", "Temperature", 0, 2, 0.05, (v) => (v ? v.toFixed(2) : "0 (greedy)"), "Divides the logits; lower is more deterministic")}
		${slide("top_k", "Top-k", 0, 100, 1, (v) => v || "all", "Keep only the k most likely tokens")}
		${slide("top_p", "Top-p", 0.05, 1, 0.01, (v) => (v < 1 ? v.toFixed(2) : "all"), "Keep the smallest set of tokens whose probabilities sum to at least p")}
	</div>`;
}

/** The next token: entropy and the most likely candidates. */
function nextTokenFigure(context, ids, { run: shownRun, ranks }, edited, words) {
	const { state, run } = context;
	if (!ranks.order.length) return nanMessage();
	const sampling = generation.samplingDistribution(ranks, state);
	const editedRanks = edited && !edited.pending ? edited.value?.ranks : null;
	const editedProbabilities = editedRanks ? probabilitiesById(editedRanks, state) : null;
	const append = (id) => {
		generation.stopGenerating();
		const source = editedRanks ?? ranks;
		const candidate = (other) => [
			other,
			words[other] ?? String(other),
			generation.logprob(source, other),
		];
		const top = Array.from(source.order.subarray(0, 8), candidate);
		generation.cacheAlternatives(run, ids, { id, logprob: generation.logprob(source, id), top });
		generation.setGenerated(run, [...ids, id]);
	};
	const top = Array.from(ranks.order.subarray(0, MAX_CANDIDATES));
	const largest = Math.max(
		sampling.probabilities[0] / sampling.mass,
		...top.map((id) => editedProbabilities?.get(id) ?? 0),
	);
	const fullBar = BAR_SCALES.find((scale) => scale >= largest) ?? 1;
	let cumulative = 0;
	return html`<ch-figure
			.caption=${"The next token"}
			.note=${"Bars show the sampling probability with the temperature, top-k and top-p above; pale bars show it before top-k and top-p. Logits and log-probabilities are the model's own, at temperature 1. Click a bar to append that token."}>
			<p class="facts">
				<span
					><b data-fact="entropy" data-value=${sampling.entropy}>${sampling.entropy.toFixed(2)}</b>
					bits of entropy, as for ${formatNumber(2 ** sampling.entropy)} equally likely tokens</span
				>
				<span
					><b data-fact="kept" data-value=${sampling.kept}>${formatCount(sampling.kept)}</b> of
					${formatCount(ranks.order.length)} tokens kept</span
				>
				<span
					><b data-fact="mass" data-value=${sampling.mass}>${formatPercent(sampling.mass)}</b>
					probability mass kept</span
				>
			</p>
			${renderError(edited)}
			<table class="candidates">
				<thead>
					<tr>
						<th>rank</th>
						<th>token</th>
						<th colspan="2">
							probability${editedRanks ? ", and edited" : ""}<span class="scale">
								· full bar = ${100 * fullBar}%</span
							>
						</th>
						<th class="more" title="Cumulative probability of this token and all above it">
							cumulative
						</th>
						<th>logit</th>
						<th class="more" title="At temperature 1, without top-k and top-p">log-prob</th>
					</tr>
				</thead>
				<tbody @pointerleave=${() => hoverCandidate(-1, null, context)}>
					${top.map((id, rank) => {
						const isKept = rank < sampling.kept;
						const probability = isKept ? sampling.probabilities[rank] / sampling.mass : 0;
						cumulative += probability;
						const editedProbability = editedProbabilities?.get(id) ?? 0;
						return html`<tr
							class=${isKept ? "" : "excluded"}
							data-id=${id}
							@pointerenter=${() => hoverCandidate(id, shownRun, context)}>
							<td class="rank">${rank + 1}</td>
							<th scope="row">
								<button
									type="button"
									class="token"
									title="append this token"
									@click=${() => append(id)}
									@focus=${() => hoverCandidate(id, shownRun, context)}>
									<span>${words[id] ?? id}</span>
								</button>
							</th>
							<td class="track ${editedRanks ? "two" : ""}" @click=${() => append(id)}>
								<span
									class="untruncated"
									.style=${`--share:${Math.min(1, sampling.probabilities[rank] / fullBar)}`}></span
								><span class="fill" .style=${`--share:${probability / fullBar}`}></span>
								${editedRanks ? html`<span class="edited" .style=${`--share:${editedProbability / fullBar}`}></span>` : nothing}
							</td>
							<td class="number">
								${formatPercent(probability)}${editedRanks ? html`<span class="after">${formatPercent(editedProbability)}</span>` : nothing}
							</td>
							<td class="number more">${formatPercent(Math.min(1, cumulative))}</td>
							<td class="number">${formatNumber(ranks.logits[id], 4)}</td>
							<td class="number more">${formatNumber(generation.logprob(ranks, id), 4)}</td>
						</tr>`;
					})}
				</tbody>
			</table>
			${editedRanks ? largestChanges(ranks, editedRanks, words) : nothing}
		</ch-figure>
		${logitFigure(context, shownRun, words, ranks, ranks.order.includes(hoveredId) ? hoveredId : top[0])}`;
}

/** The sampling probability of the most likely tokens by id. */
function probabilitiesById(ranks, state) {
	const { probabilities, kept, mass } = generation.samplingDistribution(ranks, state);
	const entry = (id, rank) => [id, rank < kept ? probabilities[rank] / mass : 0];
	return new Map(Array.from(ranks.order.subarray(0, 4096), /** @type {any} */ (entry)));
}

/** The log-probabilities that the edits changed most, among the top tokens of either run. */
function largestChanges(plain, edited, words) {
	const ids = [...new Set([...plain.order.subarray(0, 50), ...edited.order.subarray(0, 50)])];
	const changes = ids
		.map((id) => [id, generation.logprob(edited, id) - generation.logprob(plain, id)])
		.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]))
		.slice(0, 8);
	return html`<h3 class="changes">Largest changes in log-probability</h3>
		<ch-bar-chart
			.labels=${changes.map(([id]) => words[id] ?? String(id))}
			.values=${changes.map(([, change]) => change)}
			.signed=${true}
			.valueName=${"change in log-probability"}></ch-bar-chart>`;
}

/** Show how the logit of the candidate under the pointer is computed. */
function hoverCandidate(id, run, { inspect }) {
	if (hoveredId === id) return;
	hoveredId = id;
	inspect(run && { run: run.id, name: "logits", index: [run.tokens.length - 1, id] });
	notify();
}

/** Space and "." arrive as window events; handling one prevents its default. */
function handleShortcut(event, action) {
	if (state().view !== "predict" || !shortcutTarget?.run) return;
	event.preventDefault();
	action(shortcutTarget);
}
window.addEventListener("play", (event) =>
	handleShortcut(event, ({ card, run }) =>
		generation.isGenerating() ? generation.stopGenerating() : generation.generate(card, run),
	),
);
window.addEventListener("step", (event) =>
	handleShortcut(event, ({ card, run }) => generation.generate(card, run, 1)),
);

export default {
	id: "predict",
	title: "Predict",
	sentence:
		"The last hidden state times the unembedding gives logits; softmax turns them into probabilities, and one token is sampled.",
	template,
};

// ---- the unembedding (L5.1)
// prettier-ignore
const SOFTMAX = html`<math><msub><mi>p</mi><mi>i</mi></msub><mo>=</mo><mfrac>
	<msup><mi>e</mi><mrow><msub><mi>u</mi><mi>i</mi></msub><mo>/</mo><mi>T</mi></mrow></msup>
	<mrow><munder><mo>∑</mo><mi>j</mi></munder>
		<msup><mi>e</mi><mrow><msub><mi>u</mi><mi>j</mi></msub><mo>/</mo><mi>T</mi></mrow></msup></mrow>
</mfrac></math>`;
const STRIP_AXES = ["", "dimension"];

/** h · E[token] for one candidate: both vectors, their product, and the sum. */
function logitFigure({ card }, run, words, ranks, id) {
	const last = run.tokens.length - 1;
	const hidden = getArray(
		`/api/runs/${run.id}/tensor/final_norm?rows=${last}:${last + 1}`,
		"last hidden state",
	);
	const row = getJson(
		`${modelUrl(card.name)}/embedding-rows?ids=${id}&unembedding=true`,
		"row of the unembedding",
	);
	return html`<ch-figure
		.caption=${"How a logit is computed"}
		.badge=${card.tie_embeddings ? "tied to the embedding matrix" : "separate unembedding matrix"}>
		${renderResource(hidden, (value) => (row.value ? logitStrips(value, row.value, run, words, ranks, id) : nothing))}</ch-figure
	>`;
}

function logitStrips(hidden, row, run, words, ranks, id) {
	const values = viewMatrix(row);
	if (values.shape[1] !== hidden.data.length) return nothing;
	const products = memoize(row, hidden, () => ({
		shape: values.shape,
		data: values.data.map((value, i) => value * hidden.data[i]),
	}));
	const sum = products.data.reduce((a, b) => a + b, 0);
	const logit = ranks.logits[id];
	const last = run.tokens.length - 1;
	const isEqual = Math.abs(logit - sum) <= 1e-3 * Math.max(1, Math.abs(logit));
	const strip = (label, value, name) =>
		html`<span>${label}</span
			><ch-heatmap
				.values=${value}
				.signed=${true}
				.maxCellSize=${12}
				.cellHeight=${14}
				.label=${label}
				.axes=${STRIP_AXES}
				.name=${name}
				.run=${name ? run.id : ""}
				.toIndex=${name ? (r, c) => [last, c] : null}></ch-heatmap>`;
	return html`<div class="logit-strips">
			${strip("last hidden state h", hidden, "final_norm")}<span class="sign" aria-hidden="true"
				>×</span
			>
			${strip(`row of ${words[id] ?? id}`, values, "")}<span class="sign" aria-hidden="true"
				>=</span
			>
			${strip("products", products, "")}<span></span>
		</div>
		<p>
			${
				isEqual
					? html`Their sum is <b>${formatNumber(sum, 6)}</b>, the logit of
							<code>${words[id] ?? id}</code>.`
					: html`Their sum is <b>${formatNumber(sum, 6)}</b>; with the head's scale or bias, the
							logit of <code>${words[id] ?? id}</code> is <b>${formatNumber(logit, 6)}</b>.`
			}
		</p>
		<p class="hint">
			Hover over another candidate to see its row; the inspector lists every term. Softmax:
			${SOFTMAX}
		</p>`;
}
