// Base class of the page's custom elements: LitElement without shadow DOM.

import { LitElement } from "lit-element";

/** Whether a property changed. Templates recreate arrays and functions on every render. */
function hasChanged(value, old) {
	if (value === old || (typeof value === "function" && typeof old === "function")) return false;
	if (Array.isArray(value) && Array.isArray(old))
		return value.length !== old.length || value.some((item, i) => item !== old[i]);
	return !(value?.data && value.data === old?.data && String(value.shape) === String(old.shape));
}

/** Declare properties that are set by templates. */
export const reactive = (...names) =>
	Object.fromEntries(names.map((name) => [name, { attribute: false, hasChanged }]));

/** Redraws when a property or the theme changes; with `redrawsOnResize`, also when its width does. */
export class PageElement extends LitElement {
	static redrawsOnResize = false;
	#redraw = () => this.requestUpdate();

	createRenderRoot() {
		return this;
	}

	connectedCallback() {
		super.connectedCallback();
		window.addEventListener("theme", this.#redraw);
		if (/** @type {any} */ (this.constructor).redrawsOnResize) resizeObserver.observe(this);
	}

	disconnectedCallback() {
		super.disconnectedCallback();
		window.removeEventListener("theme", this.#redraw);
		resizeObserver.unobserve(this);
	}

	/** Dispatch an event. */
	emit(name, detail, bubbles = false) {
		this.dispatchEvent(new CustomEvent(name, { detail, bubbles }));
	}
}

const widths = new WeakMap();
const resizeObserver = new ResizeObserver((entries) => {
	for (const { target, contentRect } of entries) {
		if (widths.get(target) === contentRect.width) continue; // heights follow from the content
		widths.set(target, contentRect.width);
		/** @type {PageElement} */ (target).requestUpdate();
	}
});

/** Title and note of the figure around an element. */
export function figureText(element) {
	const figure = element.closest("ch-figure");
	return { title: element.label || figure?.caption || "", note: figure?.note ?? "" };
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
	window.dispatchEvent(new Event("theme")),
);
