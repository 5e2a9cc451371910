// <ch-tensor-view>: any lens view. One dimension as bars, two as a heat map, more as several heat maps.

import { html, nothing } from "lit-html";
import { PageElement, reactive } from "ch/base-elements";
import "ch/charts";
import "ch/figure";
import "ch/heatmap";
import { memoize } from "ch/requests";

const MAX_MAPS = 64; // per figure

export class TensorView extends PageElement {
	static properties = reactive("view", "pending", "caption", "cursor", "isMasked");

	constructor() {
		super();
		/** @type {LensView | null} with decoded values */
		this.view = null;
		this.pending = false;
		/** @type {string | null} instead of the title of the view */
		this.caption = null;
		/** @type {Cell | null} the selected cell of every map */
		this.cursor = null;
		/** @type {((row: number, col: number) => boolean) | null} */
		this.isMasked = null;
	}

	shouldUpdate() {
		return !!this.view;
	}

	render() {
		const { axes, title, note } = this.view;
		return html`<ch-figure
			.caption=${this.caption ?? title}
			.note=${note ?? ""}
			.pending=${this.pending}>
			${axes.length === 1 ? this.#bars() : this.#maps()}
		</ch-figure>`;
	}

	#bars() {
		const { axes, values, signed, vmax, value_name } = this.view;
		return html`<ch-bar-chart
			.labels=${axes[0].labels}
			.values=${values}
			.signed=${signed}
			.max=${vmax}
			.valueName=${value_name}
			@pick=${({ detail }) => this.emit("pick", detail)}></ch-bar-chart>`;
	}

	#maps() {
		const { axes, values, vmax, title } = this.view;
		const [rows, cols] = axes.slice(-2);
		const titles = mapTitles(axes.slice(0, -2));
		const max = vmax ?? largestMagnitude(values);
		return html`<div class="maps ${titles.length > 1 ? "many" : ""}">
				${titles.slice(0, MAX_MAPS).map(
					(name, map) =>
						html`<div>
							${name ? html`<h3>${name}</h3>` : nothing}
							<ch-heatmap
								.values=${mapValues(this.view, map)}
								.rowLabels=${rows.labels}
								.colLabels=${cols.labels}
								.signed=${this.view.signed}
								.max=${max}
								.cellTexts=${this.view.words}
								.hasColors=${this.view.has_colors ?? true}
								.valueName=${this.view.value_name}
								.axes=${[rows.name, cols.name]}
								.label=${name || title}
								.cursor=${this.cursor}
								.isMasked=${this.isMasked}
								@pick=${({ detail }) => this.emit("pick", { ...detail, map })}
								@hover=${({ detail }) => this.emit("hover", detail && { ...detail, map })}></ch-heatmap>
						</div>`,
				)}
			</div>
			${titles.length > MAX_MAPS ? html`<p class="badge">the first ${MAX_MAPS} of ${titles.length}</p>` : nothing}`;
	}
}
customElements.define("ch-tensor-view", TensorView);

/** One map of a view; memoized, so that it is not redrawn. */
const mapValues = (view, map) =>
	memoize(view, map, () => {
		const shape = view.shape.slice(-2);
		const size = shape[0] * shape[1];
		return { shape, data: view.values.subarray(map * size, (map + 1) * size) };
	});

/** The labels of the leading axes, combined; numbers follow the name of their axis. */
function mapTitles(axes) {
	const name = (axis, label) => (/^\d/.test(label) ? `${axis.name} ${label}` : label);
	const add = (title, axis, label) => `${title}${title && ", "}${name(axis, label)}`;
	const extend = (titles, axis) =>
		titles.flatMap((title) => axis.labels.map((label) => add(title, axis, label)));
	return axes.reduce(extend, [""]);
}

function largestMagnitude(values) {
	let max = 0;
	for (const value of values) if (Number.isFinite(value)) max = Math.max(max, Math.abs(value));
	return max || 1;
}
