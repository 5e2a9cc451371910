// Edits of activations: the list in the state, and <ch-edit>, the buttons that change it.

import { html, nothing } from "lit-html";
import { LIVE_ONLY, snapshot } from "ch/api";
import { PageElement, reactive } from "ch/base-elements";
import { set, state, subscribe } from "ch/state";

/** Add an edit, or replace the one of the same target. @param {Edit} edit */
export function addEdit(edit) {
	const present = Object.entries(edit).filter(([, value]) => value !== null && value !== undefined);
	const others = state().edits.filter((other) => !hasSameTarget(other, edit));
	set({ edits: [...others, /** @type {any} */ (Object.fromEntries(present))] });
}

/** @param {EditTarget} target */
export function removeEdit(target) {
	set({ edits: state().edits.filter((other) => !hasSameTarget(other, target)) });
}

/** The edit of a target, if any. @param {EditTarget} target */
export const findEdit = (target) => state().edits.find((other) => hasSameTarget(other, target));

/** @param {EditTarget} a @param {EditTarget} b */
const hasSameTarget = (a, b) =>
	a.name === b.name &&
	(a.head ?? null) === (b.head ?? null) &&
	(a.token ?? null) === (b.token ?? null);

/** @param {EditTarget} target */
function describeTarget({ name, head, token }) {
	const place = name
		.replace(/^encoder\./, "encoder, ")
		.replace(/blocks\.(\d+)\./, "layer $1 ")
		.replace(/cross_attn\.(z|out)/, "cross-attention")
		.replace(/\battn\.(z|out)/, "attention")
		.replace("ffn.out", "feed-forward")
		.replace(/\bembed$/, "embedding");
	const parts = [place];
	if (head !== null && head !== undefined) parts.push(`head ${head}`);
	if (token !== null && token !== undefined) parts.push(`token ${token}`);
	return parts.join(", ");
}

/** Describe an edit. @param {Edit} edit */
export function describeEdit(edit) {
	const target = describeTarget(edit);
	return {
		ablate: `${target} off`,
		mean_ablate: `${target} set to its mean`,
		scale: `${target} × ${edit.factor}`,
		patch: `${target} patched`,
	}[edit.op];
}

export class EditControls extends PageElement {
	static properties = reactive("name", "head", "token", "label");
	#unsubscribe = () => {};

	constructor() {
		super();
		this.name = ""; // of the activation
		/** @type {number | null} */
		this.head = null;
		/** @type {number | null} */
		this.token = null;
		this.label = "";
	}

	connectedCallback() {
		super.connectedCallback();
		this.#unsubscribe = subscribe(() => this.requestUpdate());
	}

	disconnectedCallback() {
		super.disconnectedCallback();
		this.#unsubscribe();
	}

	willUpdate() {
		this.setAttribute("role", "group");
		this.setAttribute("aria-label", `edit ${describeTarget(this)}`);
	}

	render() {
		return html`${this.label ? html`<span class="target">${this.label}</span>` : nothing}
		${this.#button("off", "Set to zero", "ablate")}
		${this.#button("mean", "Replace with the mean over all tokens", "mean_ablate")}
		${this.#button("×2", "Multiply by 2", "scale", 2)}
		${this.#button("×½", "Multiply by 0.5", "scale", 0.5)}
		${this.#button("×−1", "Multiply by −1", "scale", -1)}
		${this.#button("patch", "Replace with the value in another text", "patch")}`;
	}

	/** @param {string} label @param {string} hint @param {Edit["op"]} op @param {number} [factor] */
	#button(label, hint, op, factor) {
		const { name, head, token } = this;
		const target = { name, head, token };
		const current = findEdit(target);
		const isActive = current?.op === op && (factor === undefined || current.factor === factor);
		return html`<button
			type="button"
			class="quiet"
			aria-pressed=${isActive}
			title=${snapshot ? LIVE_ONLY : hint}
			?disabled=${!!snapshot}
			@click=${() => (isActive ? removeEdit(target) : addEdit({ ...target, op, factor }))}>
			${label}
		</button>`;
	}
}
customElements.define("ch-edit", EditControls);
