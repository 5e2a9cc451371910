// Masked language modeling (L6.3): mask a token and see what the encoder predicts.

import { html, nothing } from "lit-html";
import { headPattern, patternHeatmap, tokenTexts } from "ch/attention";
import "ch/charts";
import { numberSelect, tokenIndex } from "ch/controls";
import "ch/edits";
import { formatCount, formatNumber } from "ch/format";
import { editFields, getRun, postJson, renderError, renderResource } from "ch/requests";
import { registerDefaults } from "ch/state";
import "ch/tokens";

registerDefaults({ mask_positions: [] }, { inText: true });

function template(context) {
	const { card, state, text } = context;
	if (!text?.trim())
		return html`<p class="hint">
			No text yet. Type a sentence above, with [MASK] for missing words, or mask its tokens here.
		</p>`;
	const count = context.run?.tokens.length ?? Infinity; // the text may have become shorter
	const body = {
		model: card.name,
		text,
		mask_positions: state.mask_positions.filter((position) => position < count),
		top_k: 10,
	};
	const plain = postJson("fill", body, "masks");
	const edited = editFields()
		? postJson("fill", { ...body, ...editFields() }, "edited masks")
		: null;
	return renderResource(
		plain,
		(result) => fillFigures(context, result, edited),
		"Running the model…",
	);
}

function fillFigures(context, result, edited) {
	const { state, set } = context;
	const { tokens, masks } = result;
	const mask = masks.find(({ token }) => token === state.query) ?? masks[0];
	const positions = state.mask_positions;
	const toggled = (position) =>
		positions.includes(position)
			? positions.filter((other) => other !== position)
			: [...positions, position].sort((a, b) => a - b);
	const maskButton = ({ token }, i) =>
		html`<button
			type="button"
			class="quiet"
			aria-pressed=${token === mask.token}
			@click=${() => set({ query: token })}>
			${i + 1}
		</button>`;
	return html`<ch-figure
			.caption=${"Click a token to mask it"}
			.note=${"The model sees the mask token and all other tokens on both sides. Click a masked token to restore it."}>
			<div class="maskable" role="group" aria-label="tokens">
				${tokens.map(
					(token, i) =>
						html`<button
							type="button"
							class="token ${masks.some((one) => one.token === i) ? "masked" : ""} ${token.special ? "special" : ""}"
							aria-pressed=${positions.includes(i)}
							title=${`token ${i}`}
							@click=${() => set({ mask_positions: toggled(i), query: i })}>
							<span>${tokenLabel(result, i)}</span>
						</button>`,
				)}
			</div>
			${masks.length > 1 ? html`<p class="row">Masks: ${masks.map(maskButton)}</p>` : nothing}
		</ch-figure>
		${mask ? predictionsFigure(mask, edited) : html`<p class="hint">No token is masked yet.</p>`}
		${attentionFigure(context, result, mask)}`;
}

/** A masked token is shown struck through. */
function tokenLabel({ tokens, masks }, i) {
	const original = masks.find(({ token }) => token === i)?.original;
	return original ? html`<s>${original.text}</s>` : tokens[i].text;
}

function predictionsFigure(mask, edited) {
	const editedMask = edited?.value?.masks.find(({ token }) => token === mask.token);
	const { answers, original } = editedMask ?? mask;
	const unedited = new Map(mask.answers.map(({ id, probability }) => [id, probability]));
	return html`<ch-figure
		.caption=${`Predictions for token ${mask.token}`}
		.pending=${!!edited?.pending}
		.note=${editedMask ? "With your edits. Dark lines mark probabilities without edits, for tokens in the top 10." : "Softmax over the whole vocabulary; the top predictions are shown."}>
		${renderError(edited)}
		<ch-bar-chart
			.labels=${answers.map(({ text }) => text)}
			.values=${answers.map(({ probability }) => probability)}
			.max=${1}
			.valueName=${"probability"}
			.label=${"predictions"}
			.baseline=${editedMask ? answers.map(({ id }) => unedited.get(id) ?? NaN) : null}
			.selected=${original ? answers.findIndex(({ id }) => id === original.id) : -1}></ch-bar-chart>
		${
			original
				? html`<p class="summary-line">
						Original token <b class="word">${original.text}</b>: probability
						<b>${formatNumber(original.probability)}</b>, rank
						${formatCount(original.rank)}${
							editedMask && mask.original
								? html` <span class="hint"
										>(without edits ${formatNumber(mask.original.probability)})</span
									>`
								: nothing
						}.
					</p>`
				: nothing
		}
	</ch-figure>`;
}

/** Bidirectional attention of the masked text. */
function attentionFigure({ card, state, set, run, edited }, result, mask) {
	const layer = Math.min(state.layer, card.n_layers - 1);
	const head = Math.min(state.head, card.n_heads - 1);
	const current = editFields() ? edited : run;
	const isReusable = current?.tokens.map(({ id }) => id).join() === result.ids.join();
	/** @type {Resource<Run>} */
	const masked = isReusable
		? { value: current, pending: false }
		: getRun({ model: card.name, ids: result.ids, ...editFields() }, "masked run");
	const name = `blocks.${layer}.attn.pattern`;
	/** @type {Resource} */
	const pattern =
		masked.value && !masked.pending
			? headPattern(masked.value.id, `blocks.${layer}.attn`, head, "masked pattern")
			: masked;
	const labels = tokenTexts(result.tokens);
	const query = mask && state.query < 0 ? mask.token : tokenIndex(state.query, labels.length);
	return html`<ch-figure
		.caption=${"Bidirectional attention"}
		.pending=${pattern.pending}
		.note=${"An encoder has no causal mask, so no cell is hatched. Rows sum to 1."}>
		<div class="row">
			${numberSelect("Layer", card.n_layers, layer, (to) => set({ layer: to }))}${numberSelect("Head", card.n_heads, head, (to) => set({ head: to }))}
			<ch-edit .name=${`blocks.${layer}.attn.z`} .head=${head} .label=${`head ${head}`}></ch-edit>
		</div>
		${renderResource(pattern, (values) =>
			values.shape?.length !== 2 || values.shape[0] !== labels.length
				? nothing
				: html`<div class="columns">
						${patternHeatmap(values, [labels, labels], {
							...{ name, run: masked.value?.id ?? "", head },
							label: `attention, layer ${layer}, head ${head}`,
							cursor: state.key >= 0 ? [query, state.key] : null,
							pick: ({ row, col }) => set({ query: row, key: col }),
						})}
						<ch-attention-lines
							.values=${values}
							.rowLabels=${labels}
							.colLabels=${labels}
							.query=${query}
							@pick=${({ detail }) => set({ query: detail.row })}></ch-attention-lines>
					</div>`,
		)}
	</ch-figure>`;
}

export default {
	id: "fill",
	title: "Fill",
	sentence: "Mask a token, and the encoder predicts it from the tokens on both sides.",
	free: true, // handles [MASK] in the text itself
	template,
};
