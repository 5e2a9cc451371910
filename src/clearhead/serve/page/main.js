// The page: header, rail of views, current view, inspector and token strip, rendered from the state.

import { html, nothing, render } from "lit-html";
import * as api from "ch/api";
import { layerCount } from "ch/attention";
import "ch/charts";
import { button } from "ch/controls";
import { modelOffer } from "ch/downloads";
import "ch/edits";
import "ch/figure";
import { editSummary, pageHeader } from "ch/header";
import "ch/heatmap";
import * as inspector from "ch/inspector";
import { handleShortcuts, helpDialog } from "ch/keyboard";
import {
	currentCard,
	currentInput,
	currentRuns,
	isDisconnected,
	isLoading,
	isReportable,
	resource,
	retryFailed,
} from "ch/requests";
import { notify, set, state, subscribe } from "ch/state";
import "ch/tensor-view";
import "ch/tokens";

const root = document.getElementById("page");
/** @type {Map<string, PageView>} */
const views = new Map();
/** @type {HighlightedToken} */
const highlight = { token: -1, strip: "query", viewStrip: "query" };

async function start() {
	if (api.snapshot?.hash && !location.hash) history.replaceState(null, "", api.snapshot.hash);
	const { imports } = JSON.parse(document.querySelector('script[type="importmap"]').textContent);
	const names = Object.keys(imports).filter((name) => name.startsWith("ch/view-"));
	const modules = await Promise.allSettled(names.map((name) => import(name)));
	for (const result of modules) {
		if (result.status === "fulfilled") views.set(result.value.default.id, result.value.default);
		else console.error(result.reason);
	}
	root.replaceChildren();
	subscribe(scheduleRender);
	handleShortcuts(availableViews, moveSelection);
	root.addEventListener("inspect", (/** @type {CustomEvent} */ { detail }) =>
		inspector.inspect(detail, detail?.mode),
	);
	root.addEventListener("pointerover", ({ target }) =>
		inspectUnderPointer(inspector.numberAt(target)),
	);
	root.addEventListener("click", (event) => {
		const cell = inspector.numberAt(event.target);
		if (cell) inspector.inspect(cell, "lock");
		setTimeout(() => scrollAboveSheet(event), 120);
	});
	api.whenSettled(scheduleRender);
	window.addEventListener("theme", scheduleRender);
	scheduleRender();
}

let isPointing = false; // at a number in a table or drawing; maps and bars report themselves

function inspectUnderPointer(cell) {
	if (cell || isPointing) inspector.inspect(cell);
	isPointing = !!cell;
}

/** In narrow windows, scroll the clicked element above the inspector sheet. */
function scrollAboveSheet({ target, clientY }) {
	const sheet = root.querySelector(".inspector.open");
	if (!sheet || getComputedStyle(sheet).position !== "fixed" || !target.closest?.("main")) return;
	const hidden = clientY + 30 - sheet.getBoundingClientRect().top;
	if (hidden > 0) window.scrollBy({ top: hidden });
}

let activeTab = "";

/** Scroll the active tab into view when the rail is horizontal. */
function scrollTabIntoView() {
	/** @type {HTMLElement | null} */
	const rail = root.querySelector(".rail");
	/** @type {HTMLElement | null} */
	const tab = rail?.querySelector("[aria-current=page]");
	if (!tab || activeTab === tab.textContent) return;
	activeTab = tab.textContent;
	rail.scrollLeft = tab.offsetLeft - rail.offsetLeft - (rail.clientWidth - tab.clientWidth) / 2;
}

/** Expose the heights of header and strip as CSS variables. */
const sizeObserver = new ResizeObserver((entries) => {
	for (const entry of entries) {
		const target = /** @type {HTMLElement} */ (entry.target);
		const name = target.matches(".top") ? "--top" : "--strip";
		document.documentElement.style.setProperty(name, `${target.offsetHeight}px`);
	}
});

let isScheduled = false;

function scheduleRender() {
	delete document.body.dataset.ready; // immediately: tests wait for it
	if (isScheduled) return;
	isScheduled = true;
	requestAnimationFrame(() => {
		isScheduled = false;
		renderPage();
		if (api.pendingRequests() || isLoading() || isScheduled) return;
		setTimeout(makeScrollable, 60); // after all elements have their size
		document.body.dataset.ready = "";
	});
}

/** Make overflowing boxes scrollable by keyboard. */
function makeScrollable() {
	for (const box of /** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll(".scroll"))) {
		const overflows = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
		if (overflows === (box.tabIndex === 0)) continue;
		box.tabIndex = overflows ? 0 : -1;
		box.setAttribute("role", overflows ? "group" : "presentation");
		box.setAttribute("aria-label", overflows ? "scrollable content" : "");
	}
}

/** The views available for this model, in the order of its card. */
function availableViews() {
	return (currentCard().value?.views ?? [])
		.filter((id) => views.has(id))
		.map((id) => views.get(id));
}

function renderPage() {
	const model = currentCard();
	render(model.value ? pageTemplate(model.value) : loadingPage(model), root);
	for (const part of root.querySelectorAll(":scope > .top, :scope > .strip"))
		sizeObserver.observe(part);
	scrollTabIntoView();
	reconnect();
}

function loadingPage(model) {
	const other = state().model ? button("Show another model", () => set({ model: "" })) : nothing;
	return html`<main class="alone">
		${
			model.error
				? html`<h1>clearhead</h1>
						<p class="problem">${model.error.message}</p>
						<p><button type="button" @click=${retryFailed}>Try again</button> ${other}</p>
						${modelOffer([state().model], retryFailed)}`
				: html`<p class="loading">Loading the model…</p>`
		}
	</main>`;
}

/** @param {Card} card */
function pageTemplate(card) {
	const available = availableViews();
	const view = available.find(({ id }) => id === state().view) ?? available[0];
	highlight.viewStrip = "query";
	/** @type {ViewContext} */
	const context = {
		...{ state: state(), set, card, resource, highlight },
		...currentInput(card),
		...currentRuns(card),
		inspect: inspector.inspect,
		hover: highlightToken,
	};
	document.title = `${view?.title ?? "clearhead"} · ${card.name} · clearhead`;
	return html`<a class="skip" href="#view" @click=${skipToView}>Skip to the view</a>
		${pageHeader(context)}
		<nav class="rail" aria-label="views">
			${available.map(
				(each, i) =>
					html`<button
						type="button"
						aria-current=${each === view ? "page" : "false"}
						title=${each.sentence ?? ""}
						@click=${() => set({ view: each.id })}>
						<kbd>${i < 9 ? i + 1 : ""}</kbd>${each.title}
					</button>`,
			)}
		</nav>
		<main
			id="view"
			tabindex="-1"
			class="view ${view?.id ?? ""} ${context.pending ? "pending" : ""}">
			${viewBody(view, context)}
		</main>
		<aside class=${inspector.isOpen() ? "inspector open" : "inspector"} aria-label="inspector">
			${inspector.inspectorPanel(context)}
		</aside>
		${tokenStrip(context)}
		${
			isDisconnected()
				? html`<div class="disconnected" role="alert">${api.DISCONNECTED}</div>`
				: nothing
		}
		${helpDialog()}`;
}

/** @param {PageView | undefined} view @param {ViewContext} context */
function viewBody(view, context) {
	if (!view) return html`<p class="hint">No view supports this model.</p>`;
	const title = html`<header class="title">
		<h1>${view.title}</h1>
		${view.sentence ? html`<p>${view.sentence}</p>` : nothing}
	</header>`;
	const error = isReportable(context.error)
		? html`<p class="problem" role="alert">${context.error.message}</p>`
		: nothing;
	const edits = editSummary(context);
	if (view.free || context.run) return html`${title}${error}${renderView(view, context)}${edits}`;
	if (context.isEmpty)
		return html`${title}
			<p class="hint">
				This model reads ${context.card.reads_images ? "images" : "audio"}. Open one in the Patches
				view.
			</p>`;
	return html`${title}${error}${context.error ? nothing : html`<p class="loading">Running the model…</p>`}`;
}

/** Isolate errors of a view. */
function renderView(view, context) {
	try {
		return view.template(context);
	} catch (error) {
		console.error(error);
		return html`<p class="problem">This view failed to render (${error.message}).</p>`;
	}
}

/** @param {ViewContext} context */
function tokenStrip({ run, card }) {
	if (!run) return html`<footer class="strip" aria-label="tokens"></footer>`;
	const strip = (tokens, label, key) =>
		html`<ch-tokens
			.tokens=${tokens}
			.selected=${state()[key]}
			.highlighted=${highlight.strip === key ? highlight.token : -1}
			.label=${label}
			@pick=${({ detail }) => set({ [key]: detail.index === state()[key] ? -1 : detail.index })}
			@hover=${({ detail }) => highlightToken(detail.index, key)}></ch-tokens>`;
	const hasSource = run.source_tokens && card.architecture === "encoder-decoder";
	return html`<footer class="strip" aria-label="tokens">
		${
			hasSource
				? html`<div class="side">
						<span>source</span>${strip(run.source_tokens, "source tokens", "key")}
					</div>`
				: nothing
		}
		<div class="side">
			${hasSource ? html`<span>target</span>` : nothing}${strip(run.tokens, "tokens", "query")}
		</div>
		<span class="count"
			>${run.tokens.length} of ${card.context_length} tokens · ${run.milliseconds.toFixed(0)}
			ms</span
		>
	</footer>`;
}

function highlightToken(token, strip = highlight.viewStrip) {
	if (highlight.token === token && highlight.strip === strip) return;
	Object.assign(highlight, { token, strip });
	notify();
}

function skipToView(event) {
	event.preventDefault();
	document.getElementById("view").focus();
}

/** Move the selected "layer", "head" or "token" by ±1. */
function moveSelection(what, step) {
	const card = currentCard().value;
	if (!card) return;
	if (what !== "token") {
		const count = what === "head" ? card.n_heads : layerCount(card, state().part);
		set({ [what]: Math.max(0, Math.min(count - 1, state()[what] + step)) });
		return;
	}
	const key = highlight.viewStrip;
	const { run } = currentRuns(card);
	const last = ((key === "key" ? run?.source_tokens : run?.tokens)?.length ?? 0) - 1;
	if (last < 0) return;
	const current = state()[key];
	const next = current < 0 ? (step > 0 ? 0 : last) : current + step;
	set({ [key]: Math.max(0, Math.min(last, next)) });
}

let isReconnecting = false;

async function reconnect() {
	if (!isDisconnected() || isReconnecting) return;
	isReconnecting = true;
	for (let wait = 500; !(await api.isAlive()); wait = Math.min(4000, 1.5 * wait))
		await new Promise((done) => setTimeout(done, wait));
	isReconnecting = false;
	retryFailed();
}

start();
