// A look-up in a table of keys and values: hard, and soft as in attention (L3.6). Needs no model.

import { html } from "lit-html";
import { button, slider, textInput } from "ch/controls";
import { formatNumber, formatPercent } from "ch/format";
import { registerDefaults } from "ch/state";

/** @type {[string, number][]} */
const TABLE = [
	["order_101", 20],
	["order_102", 35],
	["order_103", 12],
	["order_104", 50],
	["order_105", 8],
];
registerDefaults({ lookup_query: "order_104", lookup_sharpness: 1 });

/** Characters that two texts have at the same places: the dot product of their one-hot vectors. */
const dotProduct = (a, b) => [...a].filter((letter, i) => letter === b[i]).length;

/** @param {ViewContext} context */
export function lookupFigure({ state, set }) {
	const query = state.lookup_query;
	const sharpness = Math.min(10, Math.max(0, state.lookup_sharpness));
	const scores = TABLE.map(([key]) => sharpness * dotProduct(query, key));
	const max = Math.max(...scores);
	const shifted = scores.map((score) => Math.exp(score - max));
	const sum = shifted.reduce((a, b) => a + b, 0);
	const weights = shifted.map((value) => value / sum);
	const found = TABLE.find(([key]) => key === query);
	const result = TABLE.reduce((total, [, value], i) => total + weights[i] * value, 0);
	return html`<div class="row">
			${textInput("Query", query, (lookup_query) => set({ lookup_query }), { wide: false, size: 12 })}
			${slider("Sharpness", { key: "lookup_sharpness", min: 0, max: 10, step: 0.1, value: sharpness, format: (value) => value.toFixed(1) }, (lookup_sharpness) => set({ lookup_sharpness }, { replace: true }))}
			${["order_104", "order_10?"].map((text) => button(text, () => set({ lookup_query: text }), { kind: "quiet" }))}
		</div>
		<div class="scroll">
			<table class="numbers lookup">
				<thead>
					<tr>
						<th scope="col">key</th>
						<th scope="col">value</th>
						<th scope="col">hard: equal?</th>
						<th scope="col">q · k</th>
						<th scope="col">soft: weight</th>
					</tr>
				</thead>
				<tbody>
					${TABLE.map(
						([key, value], i) =>
							html`<tr>
								<th scope="row">${key}</th>
								<td>${value}</td>
								<td>${key === query ? 1 : 0}</td>
								<td>${dotProduct(query, key)}</td>
								<td data-weight=${weights[i]}>${formatPercent(weights[i])}</td>
							</tr>`,
					)}
				</tbody>
			</table>
		</div>
		<p>
			Hard look-up: <b>${found ? found[1] : "not found"}</b>. Soft look-up, Σ weight × value:
			<b data-fact="soft" data-value=${result}>${formatNumber(result)}</b>.
		</p>
		<p class="hint">
			q · k counts the characters that query and key have at the same places, the dot product of
			their one-hot vectors. Softmax of sharpness × q · k gives the weights: a sharp look-up is
			hard, and one for an unknown key still answers, with a mixture. Attention learns its queries,
			keys and values.
		</p>`;
}
