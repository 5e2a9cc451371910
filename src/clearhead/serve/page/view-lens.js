// Logit lens, attribution, and words in context (L3.1).

import { html, nothing } from "lit-html";
import "ch/charts";
import { button, numberSelect, selectBox, textInput } from "ch/controls";
import { formatNumber, formatPercent } from "ch/format";
import { contrastResult, sensesResult } from "ch/measurements";
import {
	decodedView,
	getJson,
	memoize,
	nanMessage,
	postJson,
	renderResource,
	viewWithNumbers,
} from "ch/requests";
import { registerDefaults } from "ch/state";

registerDefaults({ answer: -1, contrast: -1 }, { inText: true });
const MAX_BARS = 16;

function template(context) {
	const { run, edited } = context;
	const shownRun = edited ?? run;
	const hasHead = context.card.head !== "none";
	return html`${
		!hasHead
			? html`<p class="hint">This model has no head, so its layers predict nothing.</p>`
			: run
				? html`${lensGrid(context, shownRun, edited ? "with the edits" : "")}${edited ? lensGrid(context, run, "without edits") : nothing}
					${attributionSection(context, shownRun)}`
				: html`<p class="hint">Nothing to analyze yet. Type a text above.</p>`
	}
	${context.card.reads_text ? wordInContext(context) : nothing}`;
}

const cursorCell = (row, col) => memoize(cursorCell, `${row} ${col}`, () => [row, col]);

/** Layer × position: the top prediction of each. Click a column for details. */
function lensGrid({ state, set }, run, variant) {
	const token = Math.min(state.query, run.tokens.length - 1);
	const url = `/api/runs/${run.id}/lens?token=${token}`;
	const result = getJson(url, `lens ${variant}`);
	return renderResource(
		result,
		(value) =>
			html`<ch-tensor-view
					.view=${decodedView(value.view)}
					.pending=${result.pending}
					.caption=${`Prediction after each layer${variant ? `, ${variant}` : ""}`}
					.cursor=${cursorCell(Math.min(value.layers.length - 1, state.layer + 1), value.token)}
					@pick=${({ detail }) => set({ query: value.start + detail.col, layer: Math.max(0, detail.row - 1) })}></ch-tensor-view>
				${value.view.shape[1] < value.num_tokens && value.view.shape[1] > 1 ? html`<p class="badge">tokens ${value.start} to ${value.start + value.view.shape[1] - 1} of ${value.num_tokens}; select a token below to see its surroundings</p>` : nothing}
				${variant === "without edits" ? nothing : predictionsByLayer(value, run.answer_token === null ? "After" : "At")}`,
		"Running the logit lens…",
	);
}

/** The top predictions of every layer at one token. */
function predictionsByLayer({ view, layers, token, is_pooled: isPooled }, preposition) {
	const names = view.axes[0].labels;
	const last = layers.at(-1)[0][0];
	const isProbability = view.value_name === "probability";
	const count = Math.min(6, layers[0].length);
	const prediction = ([word, value]) =>
		html`<td class=${word === last ? "answer" : ""} data-value=${value}>
			<span class="share" .style=${`--share:${isProbability ? (value ?? 0) : 0}`}></span
			><span class="word">${word}</span>
			<span class="hint">${isProbability ? formatPercent(value) : formatNumber(value)}</span>
		</td>`;
	return html`<ch-figure
		.caption=${isPooled ? "Prediction, layer by layer" : `${preposition} “${view.axes[1].labels[token]}”, layer by layer`}
		.note=${"The residual stream after each layer through the final norm and the head. The final prediction of the model is highlighted."}>
		<div class="scroll">
			<table class="predictions">
				<tbody>
					${layers.map(
						(best, layer) =>
							html`<tr>
								<th scope="row">${layer ? `layer ${names[layer]}` : "start"}</th>
								${best.slice(0, count).map(prediction)}
							</tr>`,
					)}
				</tbody>
			</table>
		</div></ch-figure
	>`;
}

/** Attribution of a logit to components. */
function attributionSection({ state, set }, run) {
	if (!run.top?.length || run.top[0].prob === null) return nothing;
	const select = (label, key, value, firstOptions) => {
		const options = [...firstOptions, ...run.top.map(({ id, text }) => [id, text])];
		if (!options.some(([id]) => id === value)) options.unshift([value, `token ${value}`]);
		return selectBox(label, options, value, (id) => set({ [key]: id }));
	};
	const answer = state.answer >= 0 ? state.answer : run.top[0].id;
	const hasContrast = state.contrast >= 0 && state.contrast !== answer;
	const contrast = hasContrast ? `&contrast=${state.contrast}` : "";
	const url = `/api/runs/${run.id}/attribution?answer=${answer}${contrast}`;
	const result = getJson(url, "attribution");
	return html`<section>
		<h2>Attribution of the prediction</h2>
		<div class="row">
			${select("Answer", "answer", answer, [])}
			${select("Contrast with", "contrast", state.contrast, [[-1, "nothing"]])}
		</div>
		${renderResource(
			result,
			({ view, heads, total }) =>
				html`<div class="columns">
					${contributionsFigure(view, total, result.pending)}
					${Object.entries(heads).map(
						([part, map]) =>
							html`<div>
								<ch-tensor-view
									.view=${decodedView(map)}
									.pending=${result.pending}
									.caption=${`Contribution of heads: ${part}`}
									.cursor=${cursorCell(state.layer, state.head)}
									@pick=${({ detail }) => set({ layer: detail.row, head: detail.col })}></ch-tensor-view>
								${
									part === "attention"
										? html`<p class="hint">
													Layer ${state.layer}, head ${state.head}:
													<ch-edit
														.name=${`blocks.${state.layer}.attn.z`}
														.head=${state.head}></ch-edit>
												</p>
												<p class="hint">
													Layer ${state.layer}, feed-forward:
													<ch-edit .name=${`blocks.${state.layer}.ffn.out`}></ch-edit>
												</p>`
										: nothing
								}
							</div>`,
					)}
				</div>`,
		)}
	</section>`;
}

/** The largest contributions and the sum of all others; they add up to the logit. */
function contributionsFigure(view, total, pending) {
	const { values, axes, note } = decodedView(view);
	let order = Array.from(values, (_, i) => i);
	if (values.length > MAX_BARS)
		order = order.sort((a, b) => Math.abs(values[b]) - Math.abs(values[a])).slice(0, MAX_BARS - 1);
	const rest = total - order.reduce((sum, i) => sum + values[i], 0);
	const omitted = values.length - order.length;
	return html`<ch-figure
		.caption=${`Contributions to the logit ${formatNumber(total, 5)}`}
		.note=${note}
		.pending=${pending}>
		<ch-bar-chart
			.labels=${[...order.map((i) => axes[0].labels[i]), ...(omitted ? [`${omitted} others`] : [])]}
			.values=${[...order.map((i) => values[i]), ...(omitted ? [rest] : [])]}
			.signed=${true}
			.valueName=${"logit"}></ch-bar-chart
	></ch-figure>`;
}

export default {
	id: "lens",
	title: "Lens & context",
	sentence:
		"Predictions after each layer, attribution, and how a word's vector depends on its context.",
	free: true,
	template,
};

// ---- a word in context (L3.1)

const MOLE_EXAMPLE = { word: "mole", texts: [], substitutes: "" }; // empty: the examples of the model's card
const LINE_STYLES = ["", "dashed", "dotted", "long", "thin", "faint"];
registerDefaults({ ...MOLE_EXAMPLE, context_layer: -1 });

/** The word in several sentences: pairwise similarity by layer, and similarity to substitutes. */
function wordInContext({ card, state, set }) {
	const { context_texts, coreference } = card.examples;
	const texts = state.texts.length ? state.texts : context_texts;
	const body = { model: card.name, word: state.word, texts };
	const result = postJson("context", body, "context");
	const example = (label, patch) => button(label, () => set(patch), { kind: "quiet" });
	const setText = (i, text) => set({ texts: texts.with(i, text) });
	return html`<section class="context">
		<h2>One word, several sentences</h2>
		<div class="row">
			${textInput("Word", state.word, (word) => set({ word }), { wide: false, size: 10 })}
			${example("mole: animal, unit, growth", MOLE_EXAMPLE)}
			${example("it: tired or wide", { word: "it", texts: coreference, substitutes: "chicken road he she they" })}
		</div>
		<ol class="sentences" start="0">
			${texts.map(
				(text, i) =>
					html`<li>
						<input
							type="text"
							aria-label=${`sentence ${i}`}
							.value=${text}
							@change=${(event) => setText(i, event.target.value)} />
						${texts.length > 2 ? html`<button type="button" class="quiet" aria-label=${`remove sentence ${i}`} @click=${() => set({ texts: texts.filter((_, n) => n !== i) })}>×</button>` : nothing}
					</li>`,
			)}
			${texts.length < 4 ? html`<li class="more"><button type="button" class="quiet" @click=${() => set({ texts: [...texts, texts.at(-1)] })}>Add a sentence</button></li>` : nothing}
		</ol>
		${measurement(card, state, set)}
		${renderResource(result, (value) => similarityFigure(value, state))}
		${result.value && !result.error ? substitutesSection(card, body, state, set) : nothing}
	</section>`;
}

/** What the model does with the example on many sentences. */
function measurement(card, { word, texts }, set) {
	const select = (layer, head) => set({ view: "attention", part: "attention", layer, head });
	const open = ({ name }) => set({ model: name, word, texts });
	if (word === MOLE_EXAMPLE.word && !texts.length)
		return card.examples.can_read_senses ? sensesResult(card) : nothing;
	if (word === "it" && texts === card.examples.coreference)
		return contrastResult(card, "it", select, open);
	return nothing;
}

function similarityFigure({ view, nearest, occurrences }, state) {
	const { values, shape, axes, note } = decodedView(view);
	const [layers, pairs] = shape;
	const [first] = occurrences;
	const parts = first.word.length;
	return html`<ch-figure
			.caption=${`Similarity of “${state.word}” between sentences`}
			.note=${note}>
			${values.every(Number.isFinite) ? html`<ch-line-chart .series=${similarityLines(view, layers, pairs)} .tickNames=${axes[0].labels.map((name) => name.replace("layer ", ""))} .xName=${"layer"} .valueName=${"cosine"} .yMin=${0} .yMax=${1} .label=${"cosine similarity by layer, also in the table below"}></ch-line-chart>` : nanMessage()}
			<div class="scroll">
				<table class="numbers cosines">
					<thead>
						<tr>
							<td></td>
							${axes[0].labels.map((name) => html`<th scope="col">${name}</th>`)}
						</tr>
					</thead>
					<tbody>
						${axes[1].labels.map(
							(pair, p) =>
								html`<tr>
									<th scope="row">${pair}</th>
									${axes[0].labels.map((_, l) => html`<td>${values[l * pairs + p].toFixed(4)}</td>`)}
								</tr>`,
						)}
					</tbody>
				</table>
			</div>
		</ch-figure>
		<p>
			Nearest neighbors in the embedding matrix:
			${nearest.axes[0].labels.map((name, i) => html`${i ? ", " : ""}<span class="word">${name}</span> <span class="hint">${formatNumber(decodedView(nearest).values[i])}</span>`)}.
			${parts > 1 ? html`<span class="hint">The word has ${parts} tokens here (${first.word.map((i) => first.tokens[i]).join(" ")}); its vector is their mean.</span>` : nothing}
		</p>`;
}

/** One line per pair of sentences. */
const similarityLines = (view, layers, pairs) =>
	memoize(view, "lines", () =>
		view.axes[1].labels.map((label, p) => ({
			label,
			kind: LINE_STYLES[p % LINE_STYLES.length],
			points: Array.from({ length: layers }, (_, l) => [
				l,
				decodedView(view).values[l * pairs + p],
			]),
		})),
	);

/** Compare the word in context with other words in its place. */
function substitutesSection(card, { model, word, texts }, state, set) {
	const layers = card.encoder_layers || card.n_layers; // of an encoder-decoder, the encoder
	const others = state.substitutes.trim() || card.examples.substitutes.join(" ");
	const body = {
		model,
		word,
		texts,
		substitutes: others.split(/\s+/),
		layer: Math.min(state.context_layer, layers - 1),
	};
	const result = postJson("context/substitute", body, "substitutes");
	return html`<h3 class="apart">Similarity to substitutes in context</h3>
		<div class="row">
			${textInput("Substitutes", others, (substitutes) => set({ substitutes }))}
			${numberSelect("After layer", layers, state.context_layer < 0 ? layers - 1 : Math.min(state.context_layer, layers - 1), (context_layer) => set({ context_layer }))}
		</div>
		${renderResource(
			result,
			(view) =>
				html`<ch-tensor-view
						.view=${viewWithNumbers(view)}
						.pending=${result.pending}
						.caption=${`“${word}” compared with substitutes`}></ch-tensor-view>
					<p class="nearest">
						${texts.map((text, i) => html`<span>In <q>${text}</q> it is most similar to <b class="word">${mostSimilar(view, i + 1)}</b>.</span> `)}
					</p>`,
		)}`;
}

function mostSimilar(view, row) {
	const { values, shape, axes } = decodedView(view);
	const cols = shape[1];
	const line = Array.from(values.subarray(row * cols, (row + 1) * cols));
	return axes[1].labels[line.indexOf(Math.max(...line))];
}
