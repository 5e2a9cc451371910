// Classify (L6.3): class probabilities of a text, and the effect of ablating tokens.

import { html, nothing } from "lit-html";
import "ch/charts";
import { addEdit, findEdit, removeEdit } from "ch/edits";
import "ch/figure";
import { formatNumber } from "ch/format";
import { editFields, postJson, renderError, renderResource, runRequest } from "ch/requests";
import "ch/tokens";

/** @param {number} token @returns {Edit} */
const ablation = (token) => ({ name: "embed", token, op: "ablate" });

function template(context) {
	const { card, run, text } = context;
	if (!text?.trim()) return html`<p class="hint">Nothing to classify yet. Type a text above.</p>`;
	const toggle = ({ detail: { index } }) =>
		findEdit(ablation(index)) ? removeEdit(ablation(index)) : addEdit(ablation(index));
	return html`${classificationFigure(context, runRequest(card))}
	${
		run
			? html`<ch-figure
					.caption=${"Which tokens matter? Click one to ablate it"}
					.noExport=${true}
					.note=${"Its embedding is set to zero; its position stays. Click again to restore it."}>
					<ch-tokens
						.tokens=${run.tokens}
						.selected=${run.tokens.map((_, i) => i).filter((i) => findEdit(ablation(i)))}
						.label=${"tokens to ablate"}
						@pick=${toggle}></ch-tokens
				></ch-figure>`
			: nothing
	}`;
}

export default {
	id: "classify",
	title: "Classify",
	sentence:
		"A classification head on top of the encoder predicts class probabilities for the text.",
	free: true,
	template,
};

const MAX_CLASSES = 12; // classes that are shown

/** The output of a classifier or regressor, with and without edits; nothing for other models. */
export function classificationFigure({ card }, body) {
	if (card.head !== "classification" && card.head !== "regression") return nothing;
	const plain = postJson("classify", body, "classification");
	const edited = editFields()
		? postJson("classify", { ...body, ...editFields() }, "edited classification")
		: null;
	const note = !edited
		? ""
		: card.head === "regression"
			? "Without and with your edits."
			: "With your edits; dark lines are without edits.";
	return html`<ch-figure
		.caption=${"Prediction"}
		.pending=${plain.pending || !!edited?.pending}
		.note=${note}>
		${renderError(edited)}
		${renderResource(plain, ({ labels, value }) => {
			if (!labels)
				return html`<p class="summary-line">
					Predicted value:
					<b>${formatNumber(value, 4)}</b
					>${edited?.value ? html` → <b>${formatNumber(edited.value.value, 4)}</b>` : nothing}
				</p>`;
			const current = edited?.value?.labels ?? labels;
			const order = [...current.keys()]
				.sort((a, b) => current[b].probability - current[a].probability)
				.slice(0, MAX_CLASSES);
			return html`<ch-bar-chart
					.labels=${order.map((i) => current[i].text)}
					.values=${order.map((i) => current[i].probability)}
					.max=${1}
					.valueName=${"probability"}
					.label=${"classes"}
					.baseline=${edited?.value ? order.map((i) => labels[i].probability) : null}></ch-bar-chart
				>${labels.length > MAX_CLASSES ? html`<p class="badge">the first ${MAX_CLASSES} of ${labels.length}</p>` : nothing}
				<p class="hint">
					Logits, the dot product with the row of each class plus its bias:
					${order.map((i) => `${current[i].text} ${formatNumber(current[i].logit, 3)}`).join(", ")}.
				</p>`;
		})}</ch-figure
	>`;
}
