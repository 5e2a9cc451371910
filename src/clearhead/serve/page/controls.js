// Controls: button, button group, select, slider, text field, copying, and the player behind a Play button.

import { html } from "lit-html";
import { notify } from "ch/state";

/**
 * A button. @param {unknown} label @param {(event: any) => void} onClick
 * @param {{ kind?: string, disabled?: boolean, title?: string }} [options] `kind` is a CSS class
 */
export const button = (label, onClick, { kind = "", disabled = false, title = "" } = {}) =>
	html`<button type="button" class=${kind} ?disabled=${disabled} title=${title} @click=${onClick}>
		${label}
	</button>`;

/**
 * A button group. @param {string} label @param {any[][]} options [value, label] or [value, label, hint]
 * @param {any} value @param {(value: any) => void} onChange
 */
export function buttonGroup(label, options, value, onChange) {
	return html`<div class="choices" role="group" aria-label=${label}>
		${options.map(
			([option, text, hint]) =>
				html`<button
					type="button"
					aria-pressed=${option === value}
					title=${hint ?? text}
					@click=${() => onChange(option)}>
					${text}
				</button>`,
		)}
	</div>`;
}

/**
 * A select box. @param {unknown} label @param {any[][]} options [value, label]
 * @param {any} value @param {(value: any) => void} onChange
 */
export function selectBox(label, options, value, onChange) {
	const select = ({ target }) => onChange(options[target.selectedIndex][0]);
	return html`<label class="select"
		>${label}
		<select @change=${select}>
			${options.map(([option, text]) => html`<option ?selected=${option === value}>${text}</option>`)}
		</select></label
	>`;
}

/** A select box of the numbers below `count`. */
export const numberSelect = (label, count, value, onChange) =>
	selectBox(
		label,
		Array.from({ length: count }, (_, i) => [i, i]),
		value,
		onChange,
	);

/**
 * A slider with its value; reports every move. @param {string} label
 * @param {{ min: number, max: number, step?: number, value: number, hint?: string, key?: string,
 *   format?: (value: number) => unknown }} options
 * @param {(value: number) => void} onChange
 */
export function slider(label, { min, max, step = 1, value, format = String, hint, key }, onChange) {
	return html`<label class="slider" title=${hint ?? ""}
		>${label}
		<input
			type="range"
			data-key=${key ?? ""}
			min=${min}
			max=${max}
			step=${step}
			.value=${String(value)}
			@input=${({ target }) => onChange(Number(target.value))} />
		<output>${format(value)}</output></label
	>`;
}

/**
 * A text field; reports when editing ends. @param {string} label @param {string} value
 * @param {(text: string) => void} onChange
 * @param {{ wide?: boolean, size?: number, hint?: string, placeholder?: string }} [options]
 */
export function textInput(label, value, onChange, options = {}) {
	const { wide = true, size = 20, hint = "", placeholder = "" } = options;
	return html`<label class=${wide ? "wide" : ""}
		>${label}
		<input
			type="text"
			spellcheck="false"
			size=${size}
			title=${hint}
			placeholder=${placeholder}
			.value=${value}
			@change=${({ target }) => onChange(target.value)}
	/></label>`;
}

/** Copy a text to the clipboard; the button shows the result for a moment. */
export async function copyText(button, text, errorMessage) {
	const label = (button.dataset.label ??= button.textContent);
	try {
		await navigator.clipboard.writeText(text);
		button.textContent = "Copied";
	} catch {
		button.textContent = errorMessage;
	}
	setTimeout(() => (button.textContent = label), 1600);
}

/** Index of the selected token; negative values count from the end. */
export const tokenIndex = (query, count) =>
	Math.max(0, Math.min(count - 1, query < 0 ? count + query : query));

let playTimer = 0;

export const isPlaying = () => playTimer !== 0;

/** Show every number from `first` to `last`, one after the other; stops instead if already playing. */
export function togglePlay(first, last, show) {
	if (playTimer) {
		stopPlaying();
		return;
	}
	let next = first;
	const step = () => {
		if (next >= last) stopPlaying();
		show(Math.min(next++, last));
	};
	const isSlow = matchMedia("(prefers-reduced-motion: reduce)").matches;
	playTimer = window.setInterval(step, isSlow ? 1000 : 400);
	step();
}

function stopPlaying() {
	clearInterval(playTimer);
	playTimer = 0;
	notify();
}

window.addEventListener("play", (event) => {
	/** @type {HTMLButtonElement | null} */
	const button = document.querySelector("main button.play");
	if (!button) return;
	event.preventDefault();
	button.click();
});
