// <ch-figure>: a figure with caption, note and export menu.

import { html, nothing, render } from "lit-html";
import { PageElement, reactive } from "ch/base-elements";
import { downloadFile, standaloneSvg, tableCsv, toFileName } from "ch/download";

/** The content comes from the surrounding template; the header precedes it, the footer follows it. */
export class Figure extends PageElement {
	static properties = reactive("caption", "note", "badge", "pending", "noExport");
	#footer = document.createElement("footer");
	#contentObserver = new MutationObserver(() => this.#placeFooter());

	constructor() {
		super();
		this.caption = "";
		this.note = "";
		this.badge = "";
		this.pending = false;
		this.noExport = false;
		this.addEventListener("keydown", (event) => event.key === "Escape" && this.#closeMenu());
	}

	createRenderRoot() {
		this.renderOptions.renderBefore = this.firstChild;
		return this;
	}

	connectedCallback() {
		super.connectedCallback();
		this.setAttribute("role", "figure");
		this.#placeFooter();
		this.#contentObserver.observe(this, { childList: true });
	}

	disconnectedCallback() {
		super.disconnectedCallback();
		this.#contentObserver.disconnect();
	}

	/** The surrounding template replaces everything after its last expression, even the footer. */
	#placeFooter() {
		if (this.lastChild !== this.#footer) this.append(this.#footer);
	}

	willUpdate() {
		this.setAttribute("aria-label", this.caption);
		this.classList.toggle("pending", this.pending);
		render(this.note ? html`<p>${this.note}</p>` : nothing, this.#footer);
	}

	render() {
		return html`<header>
			<h2>${this.caption}</h2>
			${this.badge ? html`<span class="badge">${this.badge}</span>` : nothing}
			${this.noExport ? nothing : this.#tools()}
		</header>`;
	}

	/** Table and export buttons; the formats are determined when the menu opens. */
	#tools() {
		const format = ([name, save]) =>
			html`<button
				type="button"
				@click=${() => {
					save();
					this.#closeMenu();
				}}>
				${name}
			</button>`;
		return html`<div class="tools">
			<button
				type="button"
				class="quiet"
				title="Show the numbers as a table (T)"
				@click=${() => this.#toggleTable()}>
				Table
			</button>
			<details class="menu">
				<summary
					class="quiet"
					title="Save this figure as a file"
					@click=${() => this.requestUpdate()}>
					Save
				</summary>
				<div class="items">${this.#formats().map(format)}</div>
			</details>
		</div>`;
	}

	/** The elements that have numbers; heat maps can also be saved as images. */
	get #charts() {
		/** @type {any[]} */
		const charts = [...this.querySelectorAll("ch-heatmap, ch-bar-chart, ch-patch-grid")];
		return charts.filter((chart) => chart.values);
	}

	#closeMenu() {
		this.querySelector("details.menu")?.removeAttribute("open");
	}

	#toggleTable() {
		const maps = this.#charts.filter((chart) => chart.localName === "ch-heatmap");
		const showTable = !maps[0]?.showTable;
		for (const map of maps) map.showTable = showTable;
	}

	/** [name, function that saves] of each format. */
	#formats() {
		const charts = this.#charts;
		const maps = charts.filter((chart) => chart.toSvg && chart.layout);
		const own = (selector) =>
			[...this.querySelectorAll(selector)].filter(
				(part) => !part.closest("ch-heatmap, ch-bar-chart"),
			);
		const tables = own("table");
		const drawings = own("svg");
		const formats = [];
		const add = (name, parts, ending, type, convert) => {
			const save = async () => {
				for (const [i, part] of parts.entries()) {
					const number = parts.length > 1 ? `-${i}` : "";
					const fileName = `${toFileName(part.name || this.caption)}${number}.${ending}`;
					downloadFile(fileName, await convert(part), type);
				}
			};
			if (parts.length) formats.push([name, save]);
		};
		const npy = "application/octet-stream";
		add("CSV of the table", tables, "csv", "text/csv", tableCsv);
		add("SVG of the drawing", drawings, "svg", "image/svg+xml", standaloneSvg);
		add(
			"PNG, 2×",
			maps,
			"png",
			"image/png",
			(map) => new Promise((done) => map.toCanvas().toBlob(done)),
		);
		add("SVG", maps, "svg", "image/svg+xml", (map) => map.toSvg());
		add("CSV", charts, "csv", "text/csv", (chart) => chart.toCsv());
		add(".npy", charts, "npy", npy, (chart) => chart.toNpy());
		return formats;
	}
}
customElements.define("ch-figure", Figure);
