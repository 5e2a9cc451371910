// Softmax of typed logits at any temperature, step by step (L5.2). Needs no model.

import { html, nothing } from "lit-html";
import { button, slider, textInput } from "ch/controls";
import "ch/figure";
import { formatNumber, formatPercent } from "ch/format";
import { registerDefaults } from "ch/state";

const LECTURE_LOGITS = "+6, −5, 4, 1.5, 9.9";
const MAX_LOGITS = 40;
registerDefaults({ typed_logits: LECTURE_LOGITS, typed_temperature: 1 });

/**
 * A field for logits, the temperature, and the table logit → logit/T → exp → probability.
 * @param {ViewContext} context @param {number[]} modelLogits the largest logits of the model
 */
export function softmaxFigure({ state, set }, modelLogits) {
	const temperature = Math.min(100, Math.max(0.01, state.typed_temperature));
	const logits = parseLogits(state.typed_logits);
	const setExponent = (exponent) =>
		set({ typed_temperature: Number((10 ** exponent).toPrecision(3)) }, { replace: true });
	const example = (label, text) =>
		button(label, () => set({ typed_logits: text }), { kind: "quiet" });
	const modelText = modelLogits.map((logit) => formatNumber(logit, 4)).join(", ");
	return html`<ch-figure
		.caption=${"Softmax of any logits"}
		.noExport=${true}
		.note=${"probability = exp(logit / T) ÷ their sum. A low temperature gives nearly everything to the largest logit, a high one approaches equal shares."}>
		<div class="row">
			${textInput("Logits", state.typed_logits, (typed_logits) => set({ typed_logits }), { hint: "numbers separated by commas" })}
			${slider("T", { key: "typed_temperature", min: -1, max: 2, step: 0.01, value: Math.log10(temperature), format: () => formatNumber(temperature), hint: "Temperature, on a logarithmic scale from 0.1 to 100" }, setExponent)}
		</div>
		<div class="row">
			${example("the lecture's", LECTURE_LOGITS)}
			${modelLogits.length ? example("the model's largest", modelText) : nothing}
			${[0.1, 1, 10].map((value) => button(`T = ${value}`, () => set({ typed_temperature: value }), { kind: "quiet" }))}
		</div>
		${logits ? softmaxTable(logits, temperature) : html`<p class="problem">Write up to ${MAX_LOGITS} numbers separated by commas, like ${LECTURE_LOGITS}.</p>`}
	</ch-figure>`;
}

/** @returns {number[] | null} */
function parseLogits(text) {
	const parts = text
		.replaceAll("−", "-")
		.split(/[\s,;]+/)
		.filter(Boolean);
	const numbers = parts.map(Number);
	const isValid =
		numbers.length && numbers.length <= MAX_LOGITS && numbers.every((n) => Math.abs(n) <= 1e6);
	return isValid ? numbers : null;
}

function softmaxTable(logits, temperature) {
	const scaled = logits.map((logit) => logit / temperature);
	const max = Math.max(...scaled);
	const shifted = scaled.map((value) => Math.exp(value - max)); // cannot overflow
	const sum = shifted.reduce((a, b) => a + b, 0);
	return html`<div class="scroll">
		<table class="numbers softmax">
			<thead>
				<tr>
					<th scope="col">logit</th>
					<th scope="col">logit / T</th>
					<th scope="col">exp</th>
					<th scope="col">probability</th>
					<td></td>
				</tr>
			</thead>
			<tbody>
				${logits.map(
					(logit, i) =>
						html`<tr>
							<td>${formatNumber(logit, 4)}</td>
							<td>${formatNumber(scaled[i], 4)}</td>
							<td>${formatNumber(Math.exp(scaled[i]), 4)}</td>
							<td data-probability=${shifted[i] / sum}>${formatPercent(shifted[i] / sum)}</td>
							<td class="share-cell"><span .style=${`--share:${shifted[i] / sum}`}></span></td>
						</tr>`,
				)}
			</tbody>
			<tfoot>
				<tr>
					<th scope="row" colspan="2">sum</th>
					<td>${formatNumber(sum * Math.exp(max), 4)}</td>
					<td>100%</td>
					<td></td>
				</tr>
			</tfoot>
		</table>
	</div>`;
}
