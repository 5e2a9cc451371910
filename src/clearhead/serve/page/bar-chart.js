// <ch-bar-chart>: a bar chart; each bar is a button.

import { html, nothing } from "lit-html";
import { formatNumber } from "ch/colors";
import { toCsv, toNpy } from "ch/download";
import { figureText, PageElement, reactive } from "ch/element";

export class BarChart extends PageElement {
	static properties = reactive(
		...["labels", "values", "notes", "signed", "max", "valueName", "baseline", "selected", "label"],
	);

	constructor() {
		super();
		/** @type {string[]} */
		this.labels = [];
		/** @type {ArrayLike<number>} */
		this.values = [];
		/** @type {string[] | null} a note next to each value */
		this.notes = null;
		this.signed = false;
		/** @type {number | null} value of a full bar; null: the largest value */
		this.max = null;
		this.valueName = "value";
		/** @type {ArrayLike<number> | null} values without edits, drawn as lines */
		this.baseline = null;
		this.selected = -1;
		this.label = "";
	}

	willUpdate() {
		this.classList.toggle("signed", this.signed);
		this.setAttribute("role", "group");
		if (this.label) this.setAttribute("aria-label", this.label);
	}

	render() {
		const values = Array.from(this.values);
		const magnitudes = [...values, ...Array.from(this.baseline ?? [])].map((v) => Math.abs(v) || 0);
		const max = this.max ?? Math.max(1e-30, ...magnitudes);
		const share = (value) =>
			Math.min(1, (this.signed ? Math.abs(value) : Math.max(0, value)) / max || 0);
		const baseline = (value) =>
			value === undefined || Number.isNaN(value)
				? nothing
				: html`<span
						class="baseline"
						.style=${`--share:${share(value)}`}
						title=${`without edits ${formatNumber(value)}`}></span>`;
		return values.map(
			(value, i) =>
				html`<button
					type="button"
					class="bar ${value < 0 ? "negative" : ""}"
					data-i=${i}
					aria-pressed=${this.selected === i}
					@click=${(event) => {
						this.#inspect(i, "lock");
						this.emit("pick", { index: i, value, isAdding: event.shiftKey });
					}}
					@pointerenter=${() => {
						this.#inspect(i);
						this.emit("hover", { index: i, value });
					}}
					@pointerleave=${() => {
						this.#inspect(-1);
						this.emit("hover", null);
					}}>
					<span class="name">${this.labels[i]}</span>
					<span class="track" .style=${`--share:${share(value)}`}
						><span class="fill"></span>${baseline(this.baseline?.[i])}</span
					>
					<span class="number">${formatNumber(value)}</span>
					${this.notes ? html`<span class="note">${this.notes[i]}</span>` : nothing}
				</button>`,
		);
	}

	/** Show a bar in the inspector; −1: none. */
	#inspect(i, mode = "hover") {
		const where = [this.labels[i]];
		const cell = {
			...figureText(this),
			where,
			measure: this.valueName,
			value: this.values[i],
			mode,
		};
		this.emit("inspect", i < 0 ? null : cell, true);
	}

	toCsv() {
		const rows = Array.from(this.values, (value, i) => [this.labels[i], value]);
		return toCsv([["name", this.valueName], ...rows]);
	}

	toNpy() {
		return toNpy([this.values.length], this.values);
	}
}
customElements.define("ch-bar-chart", BarChart);
