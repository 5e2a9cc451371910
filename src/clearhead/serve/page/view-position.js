// Position (L2): how this model and others encode token order.

import { html, nothing, svg } from "lit-html";
import * as api from "ch/api";
import { selectedHead } from "ch/attention";
import "ch/charts";
import { button, numberSelect, selectBox, slider, textInput } from "ch/controls";
import { formatNumber } from "ch/format";
import {
	currentInput,
	decodedView,
	memoize,
	nanMessage,
	postJson,
	renderResource,
	viewMatrix,
} from "ch/requests";
import { registerDefaults } from "ch/state";

registerDefaults({
	num_positions: 32,
	offset: 4,
	phrase_text: "", // empty: the examples of the model's card
	phrase_other: "",
});
const POSITION_AXES = ["position", "dimension"];
const TOKEN_AXES = ["token", "dimension"];
const PAIR_AXES = ["position", "other"];
const ATTENTION_AXES = ["query", "key"];
const isFuture = (query, key) => key > query; // masked in a decoder
const SCHEMES = {
	none: "None. Attention treats its input as a set: word order has no effect.",
	learned: "Learned: an embedding matrix with one trained row per position.",
	sinusoidal:
		"Sinusoidal: sine and cosine waves of decreasing frequency. Nothing is learned; nearby positions are similar.",
	t5: "T5 relative bias: each head adds a learned bias per distance to its scores. Absolute positions do not matter.",
	alibi:
		"ALiBi: each head subtracts a penalty proportional to distance from its scores, with its own slope.",
	shaw: "Shaw: a learned vector per distance is added to the keys.",
	rotary:
		"Rotary: queries and keys are rotated by angles proportional to their position, so only distances matter.",
};

function template(context) {
	const { card, state, set } = context;
	const body = {
		model: card.name,
		num_positions: Math.max(2, Math.min(state.num_positions, card.context_length, 512)),
	};
	const result = postJson("positions", body, "positions");
	return html`<div class="row">
			${slider("Positions", { min: 8, max: Math.min(card.context_length, 256), step: 8, value: body.num_positions }, (num_positions) => set({ num_positions }, { replace: true }))}
		</div>
		${renderResource(result, (value) => html`${schemeFigures(value)}${curvesFigure(value)}`)}
		${sumFigure(context)} ${result.value ? rotaryFigure(context, result.value) : nothing}
		${orderFigure(context)} ${shiftFigure(context)} ${phraseFigure(context)}`;
}

/** Positions 2 and 50 as curves over the dimensions. */
function curvesFigure({ scheme, curves }) {
	return Object.entries(curves).map(
		([name, view]) =>
			html`<ch-figure
				.caption=${`Positions ${view.axes[0].labels.join(" and ")} as curves: ${name === "own" ? scheme : name}`}
				.noExport=${true}
				.badge=${name === "own" ? "yours" : "for comparison"}
				.note=${"Rows of the heat map: the vector of each position over its dimensions."}>
				<ch-line-chart
					.series=${curveSeries(view)}
					.xName=${"dimension"}
					.valueName=${"value"}
					.label=${`position vectors as curves, ${name}`}></ch-line-chart>
			</ch-figure>`,
	);
}

const curveSeries = (view) =>
	memoize(view, "curves", () => {
		const { values, shape, axes } = decodedView(view);
		return axes[0].labels.map((label, row) => ({
			label: `pos ${label}`,
			kind: row ? "dashed" : "",
			points: Array.from({ length: shape[1] }, (_, i) => [i, values[row * shape[1] + i]]),
		}));
	});

/** Words that two texts share, at different positions: their scores in one head (L2.4). */
function phraseFigure({ card, state, set }) {
	if (card.architecture === "encoder-decoder" || !card.reads_text) return nothing;
	const { layer, head } = selectedHead(state, card);
	const text = state.phrase_text || card.examples.shared_phrase[0];
	const other = state.phrase_other || card.examples.shared_phrase[1];
	const body = { model: card.name, text, other, layer, head };
	const result = postJson("positions/phrase", body, "phrase");
	return html`<ch-figure
		.caption=${"The same words, later"}
		.noExport=${true}
		.note=${"In layer 0, relative and rotary positions give equal scores; absolute ones do not. In later layers the words have read what precedes them."}>
		<div class="row">
			${textInput("Text", text, (phrase_text) => set({ phrase_text }))}
			${textInput("Other text", other, (phrase_other) => set({ phrase_other }))}
			${numberSelect("Layer", card.n_layers, layer, (to) => set({ layer: to }))}
			${numberSelect("Head", card.n_heads, head, (to) => set({ head: to }))}
		</div>
		${renderResource(
			result,
			({ texts, starts, difference, largest_difference: largest }) =>
				html`<p>
						The scores of this head differ by up to <b>${formatNumber(difference)}</b>, those of any
						head of the layer by up to <b>${formatNumber(largest)}</b>.
					</p>
					<div class="columns">
						${texts.map(
							(view, i) =>
								html`<div>
									<h3>scores ${starts[i]}</h3>
									<ch-heatmap
										.values=${viewMatrix(view)}
										.rowLabels=${view.axes[0].labels}
										.colLabels=${view.axes[1].labels}
										.signed=${true}
										.label=${`scores ${starts[i]}`}
										.valueName=${"score"}
										.axes=${ATTENTION_AXES}></ch-heatmap>
								</div>`,
						)}
					</div>`,
		)}
	</ch-figure>`;
}

/** The model's own scheme next to others for comparison. */
function schemeFigures({ scheme, own, compared }) {
	const isRotary = scheme === "rotary";
	const isSinusoidal = scheme === "sinusoidal";
	const angleNote = isRotary
		? "The cosine of each pair's angle: the first pairs rotate fast, the last ones barely."
		: "";
	const similarityNote = isRotary
		? "The mean cosine of the angles between two positions."
		: "Cosine similarity of position vectors.";
	return html`<p class="lead">
			<span class="badge yours">yours</span> ${SCHEMES[scheme] ?? scheme}
		</p>
		${own.own && !isSinusoidal ? viewFigure("Position × dimension", own.own, angleNote) : nothing}
		${own.bias ? biasFigures(own.bias) : nothing}
		<ch-figure
			.caption=${"Sinusoidal positions next to binary counting"}
			.badge=${isSinusoidal ? "yours" : "for comparison"}
			.note=${"Left: alternating sine and cosine, each pair with a lower frequency. Right: the position in binary, for comparison; each bit flips half as often as the previous one."}>
			<div class="beside">
				${viewHeatmap(compared.sinusoidal ?? own.own)}${viewHeatmap(compared.binary)}
			</div></ch-figure
		>
		${own.similarity ? viewFigure("Similarity of positions", own.similarity, similarityNote, PAIR_AXES) : nothing}`;
}

const viewFigure = (caption, view, note, axes = POSITION_AXES) =>
	html`<ch-figure .caption=${caption} .badge=${"yours"} .note=${note}
		>${viewHeatmap(view, axes)}</ch-figure
	>`;

function viewHeatmap(view, axes = POSITION_AXES) {
	const rows = view.axes[0].labels;
	return html`<ch-heatmap
		.values=${viewMatrix(view)}
		.rowLabels=${rows}
		.signed=${view.signed}
		.max=${view.vmax}
		.label=${view.title}
		.valueName=${view.value_name}
		.axes=${axes}
		.maxCellSize=${16}
		.cellHeight=${Math.max(2, Math.min(16, Math.floor(480 / rows.length)))}></ch-heatmap>`;
}

/** The bias by distance, and as a matrix added to the scores of each head. */
function biasFigures(view) {
	const { values, shape, axes } = decodedView(view);
	const [heads, distances] = shape;
	const matrices = memoize(view, "matrices", () => {
		const offsets = axes[1].labels.map(Number);
		const size = Math.min(24, Math.max(...offsets) + 1);
		const zero = offsets.indexOf(0);
		return Array.from({ length: heads }, (_, head) => ({
			shape: [size, size],
			data: Float32Array.from({ length: size * size }, (_, i) => {
				const index = zero + Math.floor(i / size) - (i % size);
				return index >= 0 && index < distances ? values[head * distances + index] : NaN;
			}),
		}));
	});
	const max = values.reduce((a, b) => Math.max(a, Math.abs(b)), 1e-9);
	return html`<ch-tensor-view
			.view=${decodedView(view)}
			.caption=${"Bias added to scores, by distance (yours)"}></ch-tensor-view>
		<ch-figure
			.caption=${"The same bias as a matrix over queries and keys"}
			.badge=${"yours"}
			.note=${"Queries are rows, keys are columns: the bias is constant along diagonals. All heads share one color scale."}>
			<div class="maps many">
				${matrices.map(
					(matrix, head) =>
						html`<div>
							<h3>head ${head}</h3>
							<ch-heatmap
								.values=${matrix}
								.signed=${true}
								.max=${max}
								.label=${`bias of head ${head}`}
								.axes=${ATTENTION_AXES}
								.maxCellSize=${9}
								.cellHeight=${9}
								.isMasked=${Number(axes[1].labels[0]) === 0 ? isFuture : null}></ch-heatmap>
						</div>`,
				)}
			</div></ch-figure
		>`;
}

/** Token embedding + position embedding = input of the first block, on one color scale. */
function sumFigure({ run, resource, set }) {
	if (!run) return nothing;
	const prefix = run.source_tokens && !run.activations["embed"] ? "encoder." : "";
	const names = ["embed", "pos_embed", "full_embed"]
		.map((name) => prefix + name)
		.filter((name) => run.activations[name]);
	if (names.length < 3) {
		return html`<ch-figure .caption=${"Token + position"}
			><p class="hint">
				This model adds no position embeddings; positions enter in the attention scores.
			</p></ch-figure
		>`;
	}
	const result = resource(
		`${run.id} token + position`,
		async ({ signal }) => {
			const parts = await Promise.all(
				names.map((name) => api.npy(`/api/runs/${run.id}/tensor/${name}`, { signal })),
			);
			const max = Math.max(
				...parts.map(({ data }) => data.reduce((a, b) => Math.max(a, Math.abs(b)), 0)),
			);
			return {
				parts,
				max,
				labels: (prefix ? run.source_tokens : run.tokens).map((token) => token.text),
			};
		},
		"token + position",
	);
	const titles = ["token embeddings", "position embeddings", "input of the first block"];
	return html`<ch-figure .caption=${"Token + position embeddings"}>
		${renderResource(
			result,
			({ parts, max, labels }) =>
				html`<div class="sum">
						${parts.map(
							(part, i) =>
								html`${i ? html`<span class="sign" aria-hidden="true">${i === 1 ? "+" : "="}</span>` : nothing}
									<div>
										<h3>${titles[i]}</h3>
										<ch-heatmap
											.values=${part}
											.rowLabels=${labels}
											.signed=${true}
											.max=${max}
											.cellHeight=${Math.max(2, Math.min(14, Math.floor(480 / labels.length)))}
											.name=${names[i]}
											.run=${run.id}
											.label=${titles[i]}
											.axes=${TOKEN_AXES}
											@pick=${(event) => set({ query: event.detail.row })}></ch-heatmap>
									</div>`,
						)}
					</div>
					<p class="hint">
						Common color scale from −${formatNumber(max)} to ${formatNumber(max)}.
						${run.activations[names[2]].formula}
					</p>`,
		)}
	</ch-figure>`;
}

/** The tokens in reverse order: without positions, attention cannot tell (L2.1). */
function orderFigure(context) {
	const { card } = context;
	const body = { model: card.name, text: currentInput(card).text ?? "" };
	if (card.architecture === "encoder-decoder" || !card.reads_text || !body.text) return nothing;
	const result = postJson("positions/reverse", body, "order");
	return html`<ch-figure .caption=${"The same words in reverse order"}>
		${renderResource(result, ({ view, rows, token, is_complete }) => {
			const { values, shape } = decodedView(view);
			const layers = shape[1];
			const row = (label, n) =>
				html`<tr>
					<th scope="row">${label}</th>
					${Array.from({ length: layers }, (_, i) => html`<td>${formatShare(values[n * layers + i])}</td>`)}
				</tr>`;
			return html`<p>
					Relative change of the residual stream of <b class="word">${rows[0][token]}</b> when the
					tokens before it are
					reversed${is_complete ? "" : ` (first ${rows[0].length} tokens of the text)`}:
				</p>
				<div class="scroll">
					<table class="numbers">
						<thead>
							<tr>
								<td></td>
								${view.axes[1].labels.map((name) => html`<th scope="col">layer ${name}</th>`)}
							</tr>
						</thead>
						<tbody>
							${row(`with ${card.position} positions (yours)`, 0)}${row("with all tokens at the same position", 1)}
						</tbody>
					</table>
				</div>
				<p class="hint">
					Without positions, the first layer treats the tokens as a set.
					${
						card.architecture === "decoder"
							? "Later layers of a decoder can tell, because of the causal mask."
							: "Without a causal mask, later layers cannot tell either."
					}
				</p>`;
		})}</ch-figure
	>`;
}

const formatShare = (value) => (value < 1e-5 ? "<0.001%" : `${formatNumber(100 * value)}%`);

/** Effect of shifting all positions: none if only distances matter. */
function shiftFigure(context) {
	const { card, run, state, set } = context;
	if (card.architecture === "encoder-decoder" || !card.reads_text || !run) return nothing;
	const max = Math.min(32, card.context_length - run.tokens.length); // so that the shifted text fits
	const body = {
		model: card.name,
		text: currentInput(card).text ?? "",
		offset: Math.max(1, Math.min(state.offset, max)),
	};
	if (!body.text || max < 1) return nothing;
	const result = postJson("positions/shift", body, "shift");
	return html`<ch-figure .caption=${"The same text, shifted"}>
		<div class="row">
			${slider("Shift by", { min: 1, max, value: body.offset }, (offset) => set({ offset }, { replace: true }))}
		</div>
		${renderResource(result, ({ residual, patterns, is_complete }) => {
			const max = decodedView(residual).values.reduce((a, b) => Math.max(a, b), 0);
			const isUnchanged = max < 1e-4;
			const largest = (view) =>
				Math.max(
					1e-4,
					decodedView(view).values.reduce((a, b) => Math.max(a, b), 0),
				);
			const map = (view, label) =>
				html`<div>
					<h3>${label}</h3>
					<ch-heatmap
						.values=${viewMatrix(view)}
						.rowLabels=${view.axes[0].labels}
						.colLabels=${view.axes[1].labels}
						.max=${largest(view)}
						.label=${view.note}
						.valueName=${"change"}></ch-heatmap>
				</div>`;
			return html`<p>
					${
						isUnchanged
							? html`<b>Nothing changes</b> (at most ${formatNumber(max)} of the norm, which is
									rounding): only distances matter in this model.`
							: html`The residual stream changes by up to <b>${formatNumber(100 * max)}%</b> of its
									norm: absolute positions matter in this model.`
					}
					${is_complete ? nothing : html`<span class="badge">first ${residual.shape[1]} tokens</span>`}
				</p>
				${isUnchanged ? nothing : html`<div class="columns shifted">${map(residual, "layer × token: relative change of the residual stream")}${map(patterns, "layer × head: largest change of a weight")}</div>`}`;
		})}
	</ch-figure>`;
}

export default {
	id: "position",
	title: "Position",
	sentence: "How the model encodes the order of its tokens.",
	template,
};

// ---- rotary positions (L2.5)

registerDefaults({ shift: 0, distance: 0 });
const NUM_DIALS = 6;
const ARROW_LENGTH = 60; // length of the longest arrow

/**
 * Pairs of dimensions of a query and a key, rotated by their positions, and q · k as the positions
 * change.
 */
function rotaryFigure(context, { inv_freq: frequencies, is_rotary: isRotary, scheme }) {
	const { card, run, resource, state } = context;
	if (!run || !run.activations[`blocks.${state.layer}.attn.q`] || !run.tokens.length)
		return nothing;
	const layer = state.layer;
	const head = Math.min(state.head, card.n_heads - 1);
	const kvHead = Math.floor(head / (card.n_heads / card.n_kv_heads)); // grouped-query attention
	const url = (name, head) =>
		`/api/runs/${run.id}/tensor/blocks.${layer}.attn.${name}?head=${head}`;
	const result = resource(
		`rotary ${run.id} ${layer} ${head}`,
		async ({ signal }) => {
			const [q, k, scores] = await Promise.all(
				[
					["q", head],
					["k", kvHead],
					["scores", head],
				].map(([name, head]) => api.npy(url(name, head), { signal })),
			);
			return { q, k, scores };
		},
		"rotary",
	);
	return html`<ch-figure
		.caption=${"Rotary positions: rotating pairs"}
		.badge=${isRotary ? "yours" : "for comparison"}>
		${isRotary ? nothing : html`<p class="hint">This model uses ${scheme} positions. Its queries and keys are shown as rotary positions would rotate them.</p>`}
		${renderResource(result, (value) => rotaryDials(context, value, frequencies, isRotary))}</ch-figure
	>`;
}

function rotaryDials({ card, run, state, set }, { q, k, scores }, frequencies, isRotary) {
	const head = Math.min(state.head, card.n_heads - 1);
	const tokens = run.tokens;
	const last = tokens.length - 1;
	if (q.shape[0] !== tokens.length) return nothing; // still of the previous text
	const i = Math.min(last, state.query < 0 ? last : state.query);
	const j = Math.min(last, state.key < 0 ? Math.max(0, i - 1) : state.key);
	const width = q.shape[1];
	const half = frequencies.length;
	const a = q.data.subarray(i * width, (i + 1) * width);
	const b = k.data.subarray(j * width, (j + 1) * width);
	if (![...a, ...b].every(Number.isFinite)) return nanMessage();
	const scale = !card.scale_scores ? 1 : Math.sqrt(width);
	const product = (distance) => rotatedProduct(a, b, frequencies, distance) / scale;
	const positions = [i + state.shift + state.distance, j + state.shift];
	const distance = positions[0] - positions[1];
	const pairs = evenlySpaced(half, NUM_DIALS);
	const longest = Math.max(
		1e-9,
		...pairs.flatMap((p) => [Math.hypot(a[p], a[p + half]), Math.hypot(b[p], b[p + half])]),
	);
	const select = (key, value) =>
		selectBox(
			html`<span class=${`dot ${key[0]}`}></span>${key}`,
			tokens.map(({ text }, n) => [n, `${n} ${text}`]),
			value,
			(token) => set({ [key]: token }),
		);
	const slide = (key, label, max) =>
		slider(label, { min: 0, max, value: state[key] }, (value) =>
			set({ [key]: value }, { replace: true }),
		);
	const score = product(distance);
	const modelScore = scores.data[i * scores.shape[1] + j];
	return html`<div class="row">
			${select("query", i)} ${select("key", j)}
			<span class="hint">layer ${state.layer}, head ${head}</span>
		</div>
		<div class="row">
			${slide("shift", "Shift both by", 64)} ${slide("distance", "Shift only the query by", 32)}
			${state.shift || state.distance ? button("Reset", () => set({ shift: 0, distance: 0 }), { kind: "quiet" }) : nothing}
		</div>
		<div class="dials">
			${pairs.map((p) => rotaryDial(p, a, b, half, frequencies[p], positions, longest))}
		</div>
		<div class="columns rotated">
			<div>
				<p class="large">${formatNumber(score, 5)}</p>
				<p class="hint">
					q · k ${scale === 1 ? "" : html`÷ √${width}`} over all ${half} pairs, query at
					${positions[0]}, key at ${positions[1]}, <b>distance ${distance}</b>.
					${state.shift && !state.distance ? html`Both positions changed, the score did not: only the distance matters.` : nothing}
					${!state.shift && !state.distance && isRotary && Number.isFinite(modelScore) ? html`The model computes ${formatNumber(modelScore, 5)}.` : nothing}
				</p>
			</div>
			${scoreByDistance(product, distance)}
		</div>`;
}

/** @param {number[]} positions of query and key */
function rotaryDial(p, a, b, half, frequency, positions, longest) {
	const [i, j] = positions;
	const arrow = (vector, position, name) => {
		const angle = frequency * position;
		const x = vector[p];
		const y = vector[p + half];
		const end = [
			x * Math.cos(angle) - y * Math.sin(angle),
			y * Math.cos(angle) + x * Math.sin(angle),
		].map((n) => (n / longest) * ARROW_LENGTH);
		return svg`<line class=${name} x1="0" y1="0" x2=${end[0]} y2=${-end[1]}></line><circle class=${name} cx=${end[0]} cy=${-end[1]} r="4"></circle>`;
	};
	const degrees = (frequency * 180) / Math.PI;
	return html`<figure>
		<svg
			viewBox="-70 -70 140 140"
			role="img"
			aria-label=${`pair ${p}: query rotated by ${Math.round(degrees * i)}°, key by ${Math.round(degrees * j)}°`}>
			<circle class="rim" r=${ARROW_LENGTH + 6}></circle>
			<path class="cross" d="M-66 0H66M0-66V66"></path>
			${arrow(b, j, "k")}${arrow(a, i, "q")}
		</svg>
		<figcaption>
			pair ${p}<br /><span class="hint">${formatNumber(degrees)}° per position</span>
		</figcaption>
	</figure>`;
}

/** The score by distance. */
function scoreByDistance(product, distance) {
	const sign = distance < 0 ? -1 : 1; // the key may follow the query
	const points = Array.from({ length: Math.max(32, Math.abs(distance)) + 1 }, (_, d) => [
		sign * d,
		product(sign * d),
	]);
	return html`<ch-line-chart
		.series=${[{ label: "", points }]}
		.markX=${distance}
		.xName=${"distance of query and key"}
		.valueName=${"q · k"}
		.height=${150}
		.label=${"q · k by distance"}></ch-line-chart>`;
}

/** q · k after rotation at a given distance; dimensions beyond the pairs are not rotated. */
function rotatedProduct(a, b, frequencies, distance) {
	const half = frequencies.length;
	let sum = 0;
	for (let p = 0; p < half; p++) {
		const cos = Math.cos(frequencies[p] * distance);
		const sin = Math.sin(frequencies[p] * distance);
		sum +=
			(a[p] * b[p] + a[p + half] * b[p + half]) * cos +
			(a[p] * b[p + half] - a[p + half] * b[p]) * sin;
	}
	for (let d = 2 * half; d < a.length; d++) sum += a[d] * b[d];
	return sum;
}

/** Up to `count` evenly spaced indices below `size`. */
function evenlySpaced(size, count) {
	const length = Math.min(count, size);
	const index = (_, i) => Math.round((i * (size - 1)) / Math.max(1, length - 1));
	return [...new Set(Array.from({ length }, index))];
}
