// Keyboard shortcuts and their help dialog.

import { html } from "lit-html";
import { clearInspector } from "ch/inspector";
import { set } from "ch/state";

const SHORTCUTS = [
	["1 – 9", "view"],
	["[ ]", "layer"],
	["{ }", "head"],
	["← →", "previous or next token; in a heat map, move the cell"],
	["Enter", "lock the cell in the inspector"],
	["T", "show the focused (or first) figure as a table"],
	["Space", "play or pause"],
	[".", "single step"],
	["/", "edit the text"],
	["Esc", "clear the inspector"],
	["?", "this help"],
];

/**
 * Handle shortcuts outside of form fields.
 * @param {() => PageView[]} availableViews
 * @param {(what: "layer" | "head" | "token", step: number) => void} move
 */
export function handleShortcuts(availableViews, move) {
	document.addEventListener("keydown", (event) => {
		const target = /** @type {HTMLElement} */ (event.target);
		const isTyping = target.closest?.("input, textarea, select");
		if (event.ctrlKey || event.metaKey || event.altKey) return;
		if (event.key === "Escape") {
			if (isTyping) target.blur();
			else clearInspector();
			return;
		}
		if (isTyping) return;
		const digit = Number(event.key);
		if (digit >= 1 && digit <= 9) {
			const view = availableViews()[digit - 1];
			if (view) set({ view: view.id });
		} else if (event.key === "[" || event.key === "]") move("layer", event.key === "]" ? 1 : -1);
		else if (event.key === "{" || event.key === "}") move("head", event.key === "}" ? 1 : -1);
		else if (event.key === "/") query("form.prompt textarea[name=text]")?.focus();
		else if (event.key === "?") showHelp();
		else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
			if (!target.matches?.("body, main")) return; // handled by the focused element
			move("token", event.key === "ArrowRight" ? 1 : -1);
		} else if (event.key === " " && target.closest?.("button, summary, a")) return;
		else if (event.key === " " || event.key === ".") {
			const name = event.key === " " ? "play" : "step";
			if (window.dispatchEvent(new CustomEvent(name, { cancelable: true }))) return; // not handled
		} else if (event.key.toLowerCase() === "t") {
			const button = query("main ch-figure:has(ch-heatmap) > header .tools > button");
			if (!button) return;
			button.click();
		} else return;
		event.preventDefault();
	});
}

/** @param {string} selector @returns {HTMLElement | null} */
const query = (selector) => document.querySelector(selector);

/** Open the help dialog. */
export function showHelp() {
	/** @type {HTMLDialogElement} */ (document.getElementById("help")).showModal();
}

/** The help dialog. */
export function helpDialog() {
	return html`<dialog
		id="help"
		aria-label="keyboard shortcuts"
		@click=${(event) => event.target.id === "help" && event.target.close()}>
		<form method="dialog">
			<h2>Keyboard shortcuts</h2>
			<dl>
				${SHORTCUTS.map(
					([key, action]) =>
						html`<dt><kbd>${key}</kbd></dt>
							<dd>${action}</dd>`,
				)}
			</dl>
			<button class="main">Close</button>
		</form>
	</dialog>`;
}
