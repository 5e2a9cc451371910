// Tokens (L1): text is split into tokens, each token has an id, and each id selects a row of the
// embedding matrix.

import { html, nothing } from "lit-html";
import { buttonGroup } from "ch/controls";
import { formatCount } from "ch/format";
import {
	currentInput,
	getArray,
	getJson,
	modelUrl,
	postJson,
	renderResource,
	viewMatrix,
} from "ch/requests";
import { registerDefaults } from "ch/state";

registerDefaults({ side: "source" });
const VECTOR_AXES = ["token", "dimension"];
const MAX_WITH_IDS = 300; // longer texts show no ids

function template(context) {
	const { card, state, set } = context;
	const hasEncoder = card.architecture === "encoder-decoder";
	const isSource = hasEncoder && state.side === "source";
	const text = isSource ? currentInput(card).source : currentInput(card).text;
	const body = { model: card.name, text: text ?? "", source: isSource };
	const tokenization = postJson("tokenize", body, "tokens");
	return html`${
		hasEncoder
			? buttonGroup(
					"text",
					[
						["source", "source"],
						["target", "target"],
					],
					state.side,
					(side) => set({ side }),
				)
			: nothing
	}
	${renderResource(tokenization, (value) => tokenFigures(context, value, isSource))}`;
}

function tokenFigures(context, tokenization, isSource) {
	const { state, set } = context;
	const strip = isSource ? "key" : "query";
	context.highlight.viewStrip = strip;
	const { tokens } = tokenization;
	if (!tokens.length) return html`<p class="hint">No text yet. Type some above.</p>`;
	const typed = tokens.filter((token) => !token.added).length;
	const last = tokens.findLastIndex((token) => !token.added);
	const selected = state[strip];
	const index = selected < 0 ? Math.max(0, last) : Math.min(tokens.length - 1, selected);
	return html`<ch-figure .caption=${"Tokenized text"}>
			<div class="pieces" role="group" aria-label="tokens of the text">
				${tokens.map(
					(token, i) =>
						html`<button
							type="button"
							class="piece ${token.special ? "special" : ""} ${token.added ? "added" : ""}"
							aria-pressed=${i === index}
							title=${token.added ? "added by the model, not typed" : `id ${token.id}`}
							@click=${() => set({ [strip]: i })}>
							<span class="word">${token.text}</span
							>${tokens.length > MAX_WITH_IDS ? nothing : html`<span class="id">${token.id}</span>`}
						</button>`,
				)}
			</div>
			<p class="hint">
				${formatCount(tokenization.bytes, "byte")},
				${formatCount(typed, "token")}${typed ? html`: ${(tokenization.bytes / typed).toFixed(2)} bytes per token` : nothing}.
				The vocabulary has
				${formatCount(tokenization.vocab_size, "token")}${tokenization.merges ? html` and ${formatCount(tokenization.merges, "merge")} of frequent pairs` : nothing}.
				${tokens.some((token) => token.added) ? html`Dashed tokens were added by the model.` : nothing}
			</p>
			${tokenization.decoded === null ? nothing : html`<p class="hint">Decoding gives a different text: <q>${tokenization.decoded}</q></p>`}
		</ch-figure>
		${tokenSteps(context, tokenization, tokens[index], index, isSource)}
		${embeddingsFigure(context, tokens, isSource, index)}`;
}

/** One token step by step: bytes, merges, id, one-hot vector, embedding. */
function tokenSteps(context, tokenization, token, index, isSource) {
	const { bytes, steps } = tokenization.details[token.id];
	const { card } = context;
	const row = getJson(`${modelUrl(card.name)}/embedding-rows?ids=${token.id}`, "row");
	const matrix = getJson(`${modelUrl(card.name)}/embedding-matrix`, "matrix");
	const position = token.id / Math.max(1, tokenization.vocab_size - 1);
	return html`<h2>Token ${index}, <span class="word">${token.text}</span>, step by step</h2>
		<ol class="token-steps">
			<li>
				<h3>Bytes</h3>
				<p class="bytes">
					${bytes.map((byte) => html`<code>${byte.toString(16).padStart(2, "0")}</code>`)}
				</p>
				<p class="hint">${describeBytes(bytes, token)}</p>
			</li>
			${
				steps.length
					? html`<li>
							<h3>Merges</h3>
							<ol class="merges">
								${steps.map((step) => html`<li>${step.map((symbol) => html`<span class="symbol">${symbol}</span>`)}</li>`)}
							</ol>
							<p class="hint">The pair that was learned first is merged first.</p>
						</li>`
					: nothing
			}
			<li>
				<h3>Id</h3>
				<p class="large">${formatCount(token.id)}</p>
				<p class="hint">
					of ${formatCount(tokenization.vocab_size)}, starting at
					0${token.special ? "; a special token that typed text cannot produce" : ""}
				</p>
			</li>
			<li>
				<h3>One-hot vector</h3>
				<svg
					class="onehot"
					viewBox="0 0 120 34"
					role="img"
					aria-label=${`a vector of ${tokenization.vocab_size} zeros with a one at ${token.id}`}>
					<line x1="2" x2="118" y1="28" y2="28"></line>
					<line class="one" x1=${2 + 116 * position} x2=${2 + 116 * position} y1="28" y2="5"></line>
					<text x=${Math.max(8, Math.min(114, 2 + 116 * position + 7))} y="12">1</text>
				</svg>
				<p class="hint">
					${formatCount(tokenization.vocab_size - 1, "zero")} and a single 1. Multiplied by E it
					selects a row:
					<math
						><mrow
							><msub><mi>e</mi><mn>${token.id}</mn></msub
							><mo>·</mo><mi>E</mi><mo>=</mo><mi>E</mi><mo>[</mo><mn>${token.id}</mn
							><mo>]</mo></mrow
						></math
					>
				</p>
			</li>
			<li class="wide">
				<h3>Row of the embedding matrix E</h3>
				<div class="matrix-row">
					${renderResource(
						matrix,
						(view) =>
							html`<div class="minimap" .style=${`--position:${position}`}>
								<ch-heatmap
									.values=${viewMatrix(view)}
									.signed=${true}
									.maxCellSize=${3}
									.label=${"the embedding matrix, downsampled"}
									.valueName=${"value"}
									.axes=${VECTOR_AXES}></ch-heatmap>
								<span class="here" aria-hidden="true"></span>
							</div>`,
						"Loading the embedding matrix…",
					)}
					<div>
						${renderResource(
							row,
							(view) =>
								html`<ch-heatmap
										class="one-row"
										.values=${viewMatrix(view)}
										.signed=${true}
										.maxCellSize=${14}
										.cellHeight=${20}
										.label=${`row ${token.id} of E`}
										.valueName=${"value"}
										.axes=${VECTOR_AXES}></ch-heatmap>
									<p class="hint">
										${view.shape[1]} numbers: the embedding of
										<span class="word">${token.text}</span>, independent of context.
									</p>`,
						)}
						<p class="hint">${matrix.value?.note ?? ""}</p>
						<p class="hint">
							Edit this embedding:
							<ch-edit .name=${isSource ? "encoder.embed" : "embed"} .token=${index}></ch-edit>
						</p>
					</div>
				</div>
			</li>
		</ol>`;
}

function describeBytes(bytes, token) {
	if (token.special) return "The name of a special token; the model only sees its id.";
	if (bytes.every((byte) => byte < 128))
		return `UTF-8: ${formatCount(bytes.length, "byte")}, one per character.`;
	const isWhole = !/^(‹[0-9a-f]{2}›)+$/.test(token.text);
	return isWhole
		? `UTF-8: ${formatCount(bytes.length, "byte")}; non-ASCII characters take two to four.`
		: "Part of a character; its other bytes are in adjacent tokens.";
}

/** The embeddings of all tokens of the run. */
function embeddingsFigure({ run, state, set, highlight: { viewStrip } }, tokens, isSource, index) {
	if (!run) return nothing;
	const name = isSource ? "encoder.embed" : "embed";
	const runTokens = isSource ? run.source_tokens : run.tokens;
	if (!run.activations[name] || runTokens?.length !== tokens.length) return nothing;
	const result = getArray(`/api/runs/${run.id}/tensor/${name}`, "token embeddings");
	return html`<ch-figure .caption=${"Token embeddings"}>
		${renderResource(
			result,
			(value) =>
				html`<ch-heatmap
						.values=${value}
						.rowLabels=${tokens.map((token) => token.text)}
						.signed=${true}
						.cellHeight=${Math.max(2, Math.min(14, Math.floor(480 / tokens.length)))}
						.name=${name}
						.run=${run.id}
						.cursor=${state[viewStrip] < 0 ? null : [index, 0]}
						.axes=${VECTOR_AXES}
						.label=${"the vector of each token"}
						@pick=${(event) => set({ [viewStrip]: event.detail.row })}></ch-heatmap>
					<p class="hint">
						One row of ${value.shape[1]} numbers per
						token${run.activations[name].formula ? html` (<span class="formula">${run.activations[name].formula}</span>)` : nothing}.
						Repeated tokens have identical rows: positions are not included yet.
					</p>`,
		)}
	</ch-figure>`;
}

export default {
	id: "tokens",
	title: "Tokens",
	sentence:
		"Text is split into tokens, each token has an id, and each id selects a row of the embedding matrix.",
	template,
};
