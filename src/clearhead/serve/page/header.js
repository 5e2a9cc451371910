// The header: model, prompt and edits.

import { html, nothing } from "lit-html";
import * as api from "ch/api";
import { isDark } from "ch/colors";
import { button, copyText, textInput } from "ch/controls";
import { downloadFile } from "ch/download";
import { describeEdit, removeEdit } from "ch/edits";
import { abbreviateCount, formatPercent } from "ch/format";
import { showHelp } from "ch/keyboard";
import { currentFile } from "ch/media-input";
import { currentCard, editFields, reloadAll, runRequest, serverModels } from "ch/requests";
import { notify, set, state, stateUrl } from "ch/state";

/** The header of the page. @param {ViewContext} context */
export function pageHeader({ card, text, source }) {
	const models = api.snapshot ? [] : (serverModels().value ?? []); // a saved page contains one model
	const hasSource = card.architecture === "encoder-decoder";
	const facts = [
		card.architecture,
		`${hasSource ? `${card.encoder_layers} + ` : ""}${card.n_layers} layers`,
		`${card.n_heads} heads`,
		`d_model ${card.d_model}`,
		card.vocab_size ? `${abbreviateCount(card.vocab_size)} tokens` : "",
		`${abbreviateCount(card.num_parameters)} parameters`,
		card.device,
		card.step === null ? "" : `step ${card.step}`,
	].filter(Boolean);
	const saved = api.snapshot
		? html`<p class="saved" title=${api.LIVE_ONLY}>Saved page of “${card.name}”</p>`
		: null;
	return html`<header class="top">
		<div class="model">
			<span class="brand">clearhead</span>
			${models.length > 1 ? modelSelect(models, card) : html`<b>${card.name}</b>`}
			<span class="facts">${facts.join(" · ")}</span>
			<span class="tools">${toolButtons()}</span>
		</div>
		${
			card.reads_text || card.has_chat
				? html`<form
						class="prompt"
						@submit=${submitPrompt}
						@input=${scheduleInput}
						@keydown=${handlePromptKey}
						@focusin=${() => (hasHistoryEntry = false)}>
						${hasSource ? promptField("source", "Source text", source ?? "") : nothing}
						${promptField("text", hasSource ? "Target text so far (empty: the model's own translation)" : "Input text", text ?? "")}
						${saved ?? html`<button type="submit" class="main">Run</button>`}
					</form>`
				: (saved ?? nothing)
		}
	</header>`;
}

function modelSelect(models, card) {
	const change = ({ target }) => {
		clearTimeout(typingTimer);
		/** @type {HTMLFormElement} */ (document.querySelector("form.prompt"))?.reset(); // discard unsent typing for the previous model
		set({ model: target.value });
	};
	return html`<select aria-label="model" .value=${card.name} @change=${change}>
		${models.map(({ name }) => html`<option .value=${name} ?selected=${name === card.name}>${name}</option>`)}
	</select>`;
}

/** The edits as chips, and their effect on the prediction. */
export function editSummary({ run, edited }) {
	const { edits } = state();
	if (!edits.length) return nothing;
	const best = run?.top[0];
	const other = edited?.top[0];
	const same = best?.id === other?.id;
	const left = edited?.top.find(({ id }) => id === best?.id);
	return html`<section class="edits" aria-label="edits">
		${edits.map(
			(edit) =>
				html`<button
					type="button"
					class="chip"
					title="Remove this edit"
					@click=${() => removeEdit(edit)}>
					${describeEdit(edit)} <span aria-hidden="true">×</span
					><span class="visually-hidden">, remove</span>
				</button>`,
		)}
		${edits.length > 1 ? button("Remove all", () => set({ edits: [] }), { kind: "quiet" }) : nothing}
		${edits.some(({ op }) => op === "patch") ? textInput("Patch from", state().patch_from, (patch_from) => set({ patch_from }), { wide: false, size: 36, placeholder: "another text with the same number of tokens" }) : nothing}
		${
			best && other && best.prob !== null
				? html`<p>
						${run.answer_token === null ? "Next token" : "Masked token"}:
						<b>${best.text}</b> ${formatPercent(best.prob)} →
						${same ? "" : html`<b>${other.text}</b> `}${formatPercent(other.prob)}
						${same ? nothing : html`<span class="hint">(${best.text} now ${left ? formatPercent(left.prob) : "not in the top 10"})</span>`}
					</p>`
				: nothing
		}
	</section>`;
}

/** A text field; resetting its form restores the text of the state. */
function promptField(name, label, value) {
	const rows = Math.min(6, Math.max(1, value.split("\n").length, Math.ceil(value.length / 90)));
	return html`<label
		><span class="visually-hidden">${label}</span
		><textarea
			name=${name}
			rows=${rows}
			spellcheck="false"
			placeholder=${label}
			?readonly=${api.snapshot}
			title=${api.snapshot ? api.LIVE_ONLY : ""}
			.defaultValue=${value}
			.value=${value}></textarea>
	</label>`;
}

let typingTimer = 0; // debounce timer of typing
let hasHistoryEntry = false; // whether the current typing already has a history entry
window.addEventListener("popstate", () => (hasHistoryEntry = false));

/** Apply typed text after a short pause. */
function scheduleInput({ currentTarget: form }) {
	clearTimeout(typingTimer);
	typingTimer = setTimeout(() => applyInput(form), 350);
}

function applyInput(form) {
	clearTimeout(typingTimer);
	const changed = [...form.querySelectorAll("textarea")].filter(
		({ value, defaultValue }) => value !== defaultValue,
	);
	if (!changed.length) return;
	const emptyValue = (name) => (name === "text" && form.source ? null : "");
	const entries = changed.map(({ name, value }) => [name, value || emptyValue(name)]);
	set(Object.fromEntries(entries), { replace: hasHistoryEntry });
	hasHistoryEntry = true;
}

function submitPrompt(event) {
	event.preventDefault();
	applyInput(event.currentTarget);
	hasHistoryEntry = false;
}

function handlePromptKey(event) {
	const { target, currentTarget: form } = event;
	if (event.key === "Escape" && !api.snapshot) {
		// discard what was typed
		clearTimeout(typingTimer);
		if (hasHistoryEntry) history.back();
		else form.reset();
	}
	if (event.key !== "Enter" || event.shiftKey || !target.matches("textarea")) return;
	event.preventDefault();
	form.requestSubmit();
	target.blur(); // return keyboard shortcuts to the page
}

function toolButtons() {
	return html`<button
			type="button"
			class="quiet"
			title="Copy a link to this view"
			@click=${({ target }) => copyText(target, stateUrl(), "See the address bar")}>
			Copy link
		</button>
		${api.snapshot ? nothing : html`<button type="button" class="quiet" title="Save this page with its data as one HTML file" ?disabled=${isSaving} @click=${savePage}>${isSaving ? "Saving…" : "Save page"}</button>`}
		<button
			type="button"
			class="quiet"
			title="Light or dark theme"
			aria-label="light or dark theme"
			@click=${toggleTheme}>
			${isDark() ? "☀" : "☾"}
		</button>
		<button
			type="button"
			class="quiet"
			title="Keyboard shortcuts (?)"
			aria-label="keyboard shortcuts"
			@click=${showHelp}>
			?
		</button>`;
}

function toggleTheme() {
	const next = isDark() ? "light" : "dark";
	document.documentElement.dataset.theme = next;
	try {
		localStorage.setItem("theme", next);
	} catch {
		/* a page opened as a file may have no storage */
	}
	window.dispatchEvent(new Event("theme"));
}

try {
	const theme = localStorage.getItem("theme");
	if (theme) document.documentElement.dataset.theme = theme;
} catch {
	/* as above */
}

let isSaving = false;
const pageReady = async () => {
	do await new Promise((done) => setTimeout(done, 30));
	while (!("ready" in document.body.dataset));
};

/** The image or audio of a request with its name. */
function uploadedFile(card, { image, audio }) {
	const data = image ?? audio;
	if (!data) return null;
	return { name: currentFile(card)?.name ?? (image ? "a drawing" : "a tone"), data };
}

/** Save the page with the data that every view requests, like `clearhead explore --output`. */
async function savePage() {
	const card = currentCard().value;
	const { layer, head, query, view } = state();
	const { hash } = location;
	const { title } = document;
	isSaving = true;
	api.startRecording();
	reloadAll();
	try {
		for (const view of card.views) {
			set({ view }, { replace: true });
			await pageReady();
		}
		const body = runRequest(card, editFields() ?? {});
		const url = `/api/snapshot?layer=${layer}&head=${head}&query=${query}`;
		const required = await api.json("POST", url, body);
		const [page, recorded] = await Promise.all([api.standalonePage(), api.recordedResponses()]);
		const snapshot = { ...required, ...recorded, file: uploadedFile(card, body), hash };
		const data = JSON.stringify(snapshot).replaceAll("<", "\\u003c");
		const html = page.replace('"SNAPSHOT_DATA"', () => data);
		downloadFile(`${title.replace(/[^\w.-]+/g, "-")}.html`, html, "text/html");
	} catch (error) {
		alert(error.message);
	} finally {
		isSaving = false;
		set({ view }, { replace: true });
		notify();
	}
}
