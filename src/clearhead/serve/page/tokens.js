// <ch-tokens>: tokens as a row of buttons, optionally colored by values.

import { html } from "lit-html";
import { PageElement, reactive } from "ch/base-elements";
import { cssColor, textColor } from "ch/colors";

export class Tokens extends PageElement {
	static properties = reactive(
		...["tokens", "values", "max", "signed", "selected", "highlighted", "label"],
	);

	constructor() {
		super();
		/** @type {Token[]} */
		this.tokens = [];
		/** @type {number[] | null} one per token */
		this.values = null;
		/** @type {number | null} */
		this.max = null;
		this.signed = false;
		/** @type {number | number[]} one index or several */
		this.selected = -1;
		this.highlighted = -1;
		this.label = "tokens";
		this.addEventListener("click", (event) => {
			const index = this.#indexOf(event);
			if (index >= 0) this.emit("pick", { index, isAdding: event.shiftKey });
		});
		this.addEventListener("pointerover", (event) =>
			this.emit("hover", { index: this.#indexOf(event) }),
		);
		this.addEventListener("pointerleave", () => this.emit("hover", { index: -1 }));
		this.addEventListener("focusin", (event) => {
			const index = this.#indexOf(event);
			if (index >= 0) this.emit("hover", { index });
		});
		this.addEventListener("keydown", (event) => {
			const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
			if (!step) return;
			/** @type {HTMLButtonElement | null} */
			const next = this.querySelector(`button[data-i="${this.#indexOf(event) + step}"]`);
			if (!next) return;
			next.focus();
			event.preventDefault();
			event.stopPropagation();
		});
	}

	#indexOf({ target }) {
		return Number(target.closest?.("button.token")?.dataset.i ?? -1);
	}

	willUpdate() {
		this.setAttribute("role", "group");
		this.setAttribute("aria-label", this.label);
	}

	render() {
		const { values } = this;
		const max = this.max ?? Math.max(1e-30, ...Array.from(values ?? [], (v) => Math.abs(v) || 0));
		const selected = new Set([this.selected].flat());
		return this.tokens.map((token, i) => {
			const share = values ? Math.max(-1, Math.min(1, values[i] / max)) : 0;
			const colors = values ? `background:${cssColor(share)};color:${textColor(share)}` : "";
			const id = token.id === null || token.id === undefined ? "" : `, id ${token.id}`;
			return html`<button
				type="button"
				class="token ${token.special ? "special" : ""} ${this.highlighted === i ? "highlighted" : ""}"
				data-i=${i}
				aria-pressed=${selected.has(i)}
				title=${`token ${i}${id}`}
				.style=${colors}
				.textContent=${token.text}></button>`;
		});
	}
}
customElements.define("ch-tokens", Tokens);
