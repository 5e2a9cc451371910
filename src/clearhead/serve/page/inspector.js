// The inspector: the value under the pointer, its arithmetic, and Python code that reproduces it.

import { html, nothing } from "lit-html";
import { figureText } from "ch/base-elements";
import { button, copyText } from "ch/controls";
import { formatNumber } from "ch/format";
import { getJson, isReportable } from "ch/requests";
import { notify, set, state } from "ch/state";

const HOVER_DELAY = 70; // milliseconds of hovering before the explanation is requested
// A cell is { run, name, index, value }; a number that is not an activation has no name, but
// { title, where, measure, value, note }.
let hoveredCell = null;
let lockedNumber = null; // a clicked number that is not an activation: { cell, view }
let restingCell = null;
let hoverTimer = 0;

/**
 * Show a cell: "hover" previews it, "lock" stores it in the URL, "pin" adds it to the list. null ends
 * the preview.
 */
export function inspect(cell, mode = "hover") {
	if (mode === "hover") {
		hoveredCell = cell;
		clearTimeout(hoverTimer);
		hoverTimer = window.setTimeout(() => {
			restingCell = hoveredCell;
			notify();
		}, HOVER_DELAY);
		notify();
	} else if (cell && !cell.name) {
		lockedNumber = { cell, view: state().view };
		if (state().cell) set({ cell: "" });
		notify();
	} else if (cell) {
		lockedNumber = null;
		const key = cellKey(cell);
		if (mode === "pin") set({ pins: [...state().pins.filter((pin) => pin !== key), key] });
		else set({ cell: key });
	}
}

/** Clear the inspector. */
export function clearInspector() {
	hoveredCell = null;
	restingCell = null;
	lockedNumber = null;
	set({ cell: "", pins: [] });
	notify();
}

const cellKey = ({ name, index }) => `${name}@${index?.join(",")}`;
const visibleNumber = () => (lockedNumber?.view === state().view ? lockedNumber.cell : null);

/** Parse a cell of the URL: name@1,5,3. */
function parseCell(key) {
	const [name, index = ""] = key.split("@");
	return name ? { name, index: index.split(",").filter(Boolean).map(Number) } : null;
}

/** Indices of the locked cell if it belongs to this activation, else null. */
export function lockedIndex(name) {
	const cell = parseCell(state().cell);
	return cell?.name === name ? cell.index : null;
}

/** Whether the inspector has content. */
export const isOpen = () =>
	!!(hoveredCell || visibleNumber() || state().cell || state().pins.length);

/** The inspector panel. @param {ViewContext} context */
export function inspectorPanel({ run, edited }) {
	const cell = hoveredCell ?? visibleNumber() ?? parseCell(state().cell);
	const isResting = hoveredCell && restingCell && cellKey(restingCell) === cellKey(hoveredCell);
	const isClearable = visibleNumber() || state().cell || state().pins.length;
	const pins = state().pins.map(parseCell).filter(Boolean);
	const hint = html`<p class="hint">
		Hover over any number to inspect it. Click to lock, Shift-click to pin, Esc to clear.
	</p>`;
	return html`<header>
			<h2>Inspector</h2>
			${isClearable ? button("Clear (Esc)", clearInspector, { kind: "quiet" }) : nothing}
		</header>
		${
			cell && !cell.name
				? numberSection(cell)
				: cell && run
					? activationSection(cell, run, "inspected", !hoveredCell || isResting)
					: hint
		}
		${cell?.name && edited && !hoveredCell ? editedValue(cell, edited) : nothing}
		${pins.map(
			(pin) =>
				html`<hr />
					${activationSection(pin, run, `pin ${cellKey(pin)}`)}`,
		)}`;
}

/** A number that is not an activation. */
function numberSection({ title, where, measure, value, note }) {
	return html`<section class="cell">
		<p class="path">${title}</p>
		<p class="value" data-value=${value}>
			${typeof value === "number" ? exactNumber(value) : value}
		</p>
		<dl>
			${measure ? fact("measure", measure) : nothing}
			${where.length ? fact("where", multiline(where)) : nothing}
			${note ? fact("description", note) : nothing}
		</dl>
	</section>`;
}

const fact = (name, value) =>
	html`<dt>${name}</dt>
		<dd>${value}</dd>`;

const multiline = (labels) => labels.map((label, i) => html`${i ? html`<br />` : nothing}${label}`);

const explainUrl = (runId, { name, index }) =>
	`/api/runs/${runId}/explain?name=${encodeURIComponent(name)}&index=${index.join(",")}`;

/** An activation; its explanation is requested once the pointer rests. */
function activationSection(cell, run, slot, isReady = true) {
	const activation =
		run && Object.hasOwn(run.activations, cell.name) ? run.activations[cell.name] : null;
	if (!activation) return html`<p class="hint">This model has no ${cell.name}.</p>`;
	/** @type {Resource} */
	const result = isReady ? getJson(explainUrl(cell.run || run.id, cell), slot) : { pending: true };
	const explanation = result.value && !result.pending ? result.value : null;
	const value = explanation ? toNumber(explanation) : cell.value;
	return html`<section class="cell ${result.pending ? "pending" : ""}">
		<p class="path">${cell.name}<span>[${cell.index.join(", ")}]</span></p>
		<p class="description">${activation.description}</p>
		<p class="value" data-value=${value ?? nothing}>
			${value === null || value === undefined ? " " : exactNumber(value)}
		</p>
		<dl>
			${fact("shape", (explanation?.shape ?? activation.shape).join(" × "))}
			${explanation ? fact("where", multiline(explanation.labels)) : nothing}
			${explanation ? rank(explanation) : nothing} ${fact("formula", activation.formula)}
		</dl>
		${isReportable(result.error) ? html`<p class="problem">${result.error.message}</p>` : nothing}
		${
			explanation
				? html`<ol class="steps">
							${explanation.steps.map(stepItem)}
						</ol>
						<details class="python">
							<summary>Python</summary>
							<pre>${explanation.python}</pre>
						</details>
						<p>
							<button type="button" @click=${({ target }) => copyCode(target, explanation.python)}>
								Copy as Python
							</button>
						</p>`
				: nothing
		}
	</section>`;
}

function rank({ is_largest, percentile }) {
	if (is_largest) return fact("rank", "the largest value");
	if (percentile === null || percentile === undefined) return nothing;
	return fact("percentile", Math.min(99.9, percentile).toFixed(1));
}

/** The same cell with the edits. */
function editedValue(cell, edited) {
	const { value } = getJson(explainUrl(edited.id, cell), "inspected, edited");
	return value
		? html`<p class="after">
				With the edits <b>${formatNumber(toNumber(value), 6)}</b>
				<button
					type="button"
					class="quiet"
					@click=${({ target }) => copyCode(target, value.python)}>
					Copy as Python
				</button>
			</p>`
		: nothing;
}

/** JSON has no infinity and NaN. */
const toNumber = ({ value, non_finite }) =>
	value ?? { "-inf": -Infinity, inf: Infinity }[non_finite] ?? NaN;

function stepItem({ description, value, non_finite, terms }) {
	return html`<li>
		<span>${description}</span
		>${value === undefined ? nothing : html` <b>${formatNumber(toNumber({ value, non_finite }), 6)}</b>`}
		${
			terms?.length
				? html`<table class="terms">
						<tbody>
							${terms.map(
								([label, a, b, product]) =>
									html`<tr>
										<th scope="row" title=${label} colspan=${a === null && b === null ? 3 : 1}>
											${label.replace(/^dimension /, "dim ")}
										</th>
										${
											a === null && b === null
												? nothing
												: html`<td>${a === null ? "" : formatNumber(a, 4)}</td>
														<td>${b === null ? "" : html`× ${formatNumber(b, 4)}`}</td>`
										}
										<td>${formatNumber(product, 4)}</td>
									</tr>`,
							)}
						</tbody>
					</table>`
				: nothing
		}
	</li>`;
}

/** Six digits; all digits in the tooltip. */
function exactNumber(value) {
	return html`<span title=${String(value)}>${formatNumber(value, 6)}</span>`;
}

const copyCode = (button, code) =>
	copyText(button, code, "Clipboard access denied; copy the code under Python.");

/** Inspector content of a table cell or an element with data-title; else null. */
export function numberAt(target) {
	const element = target.closest?.("main [data-title]");
	if (element) {
		const { title, where = "", formula = "", value } = element.dataset;
		return { title, where: where ? [where] : [], note: formula, value: Number(value) };
	}
	const cell = target.closest?.("main table:not(.candidates) td");
	if (!cell || !/\d/.test(cell.textContent)) return null;
	const table = cell.closest("table");
	const headings = table.tHead?.rows[0]?.cells;
	const where = [
		cell.closest("tr").querySelector("th")?.textContent,
		headings?.[cell.cellIndex]?.textContent,
		cell.querySelector(".word")?.textContent,
	];
	const value =
		cell.dataset.value === undefined
			? (cell.querySelector(".hint") ?? cell).textContent.trim()
			: Number(cell.dataset.value);
	const { title, note } = figureText(cell);
	const section = cell.closest("section")?.querySelector("h2")?.textContent;
	return {
		title: title || section || "",
		where: where.map((text) => text?.trim()).filter(Boolean),
		note,
		value,
	};
}
