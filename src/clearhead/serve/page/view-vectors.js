// Vector lab (L1.4): vector arithmetic, directions and similarities over the whole vocabulary.

import { html, nothing, svg } from "lit-html";
import { button, selectBox, textInput } from "ch/controls";
import { CHAT_MODEL, modelOffer } from "ch/downloads";
import { formatCount, formatNumber } from "ch/format";
import { decodedView, memoize, postJson, renderResource, viewWithNumbers } from "ch/requests";
import { registerDefaults, set } from "ch/state";

registerDefaults({
	expression: "king - man + woman",
	include_inputs: false,
	equation: "queen - king = woman - man",
	vectors_layer: -1,
	pairs: "cat:cats dog:dogs",
	direction_words: "one two student students teacher teachers house houses",
	similarity_words: "king queen man woman apple",
});
const EXAMPLES = [
	"king - man + woman",
	"Paris - France + Italy",
	"Hitler + Italy - Germany",
	"walking - walk + swim",
	"bigger - big + small",
];

const EQUATIONS = [
	"queen - king = woman - man",
	"E(king) - E(man) = E(queen) - E(woman)",
	"Mussolini - Hitler = Italy - Germany",
	"cats - cat = dogs - dog",
];

function template(context) {
	const { card, state, set } = context;
	const layers = card.architecture === "encoder-decoder" ? card.encoder_layers : card.n_layers;
	const layer = (_, i) => [i, `the residual stream after layer ${i}, each word on its own`];
	const options = [[-1, "the embedding matrix"], ...Array.from({ length: layers }, layer)];
	return html`<div class="row">
			${selectBox("Vectors", options, state.vectors_layer, (vectors_layer) => set({ vectors_layer }))}
		</div>
		${arithmeticSection(context)} ${equationSection(context)} ${directionSection(context)}
		${similaritySection(context)}`;
}

function getVectors({ card, state }, body, slot) {
	const layer = state.vectors_layer < 0 ? null : state.vectors_layer;
	return postJson("vectors", { model: card.name, ...body, layer }, slot);
}

const textField = (label, key, { state, set }, hint = "") =>
	textInput(label, state[key], (text) => set({ [key]: text }), { hint });

/** king - man + woman. */
function arithmeticSection(context) {
	const { state, set } = context;
	const result = getVectors(
		context,
		{ expression: state.expression, include_inputs: state.include_inputs },
		"arithmetic",
	);
	return html`<section>
		<h2>Vector arithmetic</h2>
		<div class="row">
			${textField("Expression", "expression", context, "words joined by + and -")}
			<label
				><input
					type="checkbox"
					.checked=${state.include_inputs}
					@change=${(event) => set({ include_inputs: event.target.checked })} />
				Include the input words</label
			>
		</div>
		<div class="row">
			${EXAMPLES.map((expression) => button(expression, () => set({ expression }), { kind: "quiet" }))}
		</div>
		${renderResource(
			result,
			(value) =>
				html`${multiTokenNote(value.words)}
					<div class="columns">
						<ch-figure
							.caption=${"Nearest neighbors by cosine"}
							.pending=${result.pending}
							.note=${`Among all ${formatCount(value.num_words)} tokens; input vectors are normalized.`}>
							<ch-bar-chart
								.labels=${value.view.axes[0].labels}
								.values=${decodedView(value.view).values}
								.max=${1}
								.signed=${false}
								.valueName=${"cosine"}
								@pick=${({ detail }) => set({ expression: plainWord(value.view.axes[0].labels[detail.index]) })}></ch-bar-chart
						></ch-figure>
						<figure class="projection">
							${projectionPlot(value)}
							<figcaption class="hint">
								Projection onto the first two principal components, which explain
								${(100 * value.explained_variance).toFixed(0)}% of the variance; distances are
								approximate.
							</figcaption>
						</figure>
					</div>`,
		)}
	</section>`;
}

/** queen - king = woman - man: both differences as arrows, their cosine, and a control. */
function equationSection(context) {
	const { state, set } = context;
	const result = getVectors(context, { equation: state.equation }, "equation");
	return html`<section class="equation">
		<h2>Equal differences</h2>
		<div class="row">
			${textField("Equation", "equation", context, "two sums of words with = between them")}
		</div>
		<div class="row">
			${EQUATIONS.map((equation) => button(equation, () => set({ equation }), { kind: "quiet" }))}
		</div>
		${renderResource(
			result,
			(value) =>
				html`${multiTokenNote(value.words)}
					<p>${equationSummary(value)}</p>
					<div class="columns">
						<figure class="projection">
							${pointsPlot("equation", value.points, differenceArrows(value))}
							<figcaption class="hint">
								Both differences as arrows. The plane shows
								${(100 * value.explained_variance).toFixed(0)}% of the variance of these words; the
								cosine is computed in all dimensions.
							</figcaption>
						</figure>
						<div>
							${value.neighbors.map((view, i) => neighborsFigure(view, value.sides[i].text))}
						</div>
					</div>`,
		)}
	</section>`;
}

const neighborsFigure = (view, side) =>
	html`<ch-figure .caption=${`Nearest to ${side}`} .noExport=${true}>
		<ch-bar-chart
			.labels=${view.axes[0].labels}
			.values=${decodedView(view).values}
			.max=${1}
			.signed=${false}
			.valueName=${"cosine"}></ch-bar-chart>
	</ch-figure>`;

function equationSummary({ view, sides }) {
	const [cosine, mean, low, high] = decodedView(view).values;
	const [average, from, to] = [mean, low, high].map((value) => value.toFixed(2).replace("-", "−"));
	return html`The cosine of ${sides[0].text} and ${sides[1].text} is
		<b data-fact="cosine" data-value=${cosine}>${formatNumber(cosine)}</b>; with one word of the
		right side replaced by random words it is ${average} on average, and between ${from} and ${to}
		for 95% of them.
		${cosine > high ? "The two are more alike than with a random word, but equal only at 1." : "In these vectors they are no more alike than with a random word."}`;
}

/** An arrow from the second to the first word of each side that is a difference. */
function differenceArrows({ sides, points }) {
	let first = 0;
	return sides.flatMap(({ is_difference: isDifference, size }) => {
		const start = first;
		first += size;
		return isDifference ? [[points[start + 1].position, points[start].position]] : [];
	});
}

/** The same words with a model with a larger vocabulary. @param {Card} card */
function keepWords({ name }) {
	set({ model: name, vectors_layer: -1 });
}

/** Name the words that have several tokens. */
function multiTokenNote(words) {
	const several = words.filter((word) => word.pieces.length > 1);
	if (!several.length) return nothing;
	return html`<p class="multi-token">
			Several tokens:
			${several.map(({ text, pieces }, i) => html`${i ? ", " : ""}<b>${text}</b> (${pieces.map((piece, n) => html`${n ? " " : ""}<code>${piece}</code>`)})`)}.
			The vector of such a word is the mean of its
			tokens${several.length > words.length / 2 ? "; arithmetic with mostly such words is not meaningful" : ""}.
		</p>
		${several.length > words.length / 2 ? modelOffer([CHAT_MODEL], keepWords) : nothing}`;
}

/** The view without the part of its note about tokens. */
const shortNote = (view) =>
	memoize(view, "brief", () => ({ ...view, note: view.note.split(";")[0] }));

const plainWord = (name) => name.replace(/^[·▁]|^##/, "");

/** king − man beside woman − result. */
function projectionPlot({ points }) {
	const inputs = points.filter(({ role }) => role === "input");
	const result = points.at(-1);
	const pairs = [
		[inputs[1], inputs[0]],
		[inputs[2], result],
	];
	return pointsPlot(
		"arithmetic",
		points,
		inputs.length === 3 ? pairs.map((ends) => ends.map(({ position }) => position)) : [],
	);
}

/** Points in a plane, and arrows between positions; `name` is unique on the page. */
function pointsPlot(name, points, arrows) {
	const xs = points.map(({ position }) => position[0]);
	const ys = points.map(({ position }) => position[1]);
	const left = Math.min(...xs);
	const right = Math.max(...xs);
	const bottom = Math.min(...ys);
	const top = Math.max(...ys);
	const x = (value) => 40 + ((value - left) / (right - left || 1)) * 300;
	const y = (value) => 270 - ((value - bottom) / (top - bottom || 1)) * 240;
	const at = ([u, v]) => `${x(u)} ${y(v)}`;
	return html`<svg viewBox="0 0 440 300" role="img" aria-label="words in a plane">
		<defs>
			<marker
				id=${`arrowhead-${name}`}
				viewBox="0 0 8 8"
				refX="11"
				refY="4"
				markerWidth="7"
				markerHeight="7"
				orient="auto">
				<path d="M0 0L8 4L0 8z"></path>
			</marker>
		</defs>
		${arrows.map(([from, to]) => svg`<path class="arrow" marker-end=${`url(#arrowhead-${name})`} d=${`M${at(from)}L${at(to)}`}></path>`)}
		${placeLabels(points, x, y).map(
			({ text, role, cx, cy, place }) =>
				svg`<circle class=${role} cx=${cx} cy=${cy} r=${role === "neighbor" ? 3.5 : 5}><title>${text}</title></circle>
      ${place ? svg`<text class=${role} x=${place.x} y=${place.y + 11}>${text}</text>` : nothing}`,
		)}
	</svg>`;
}

/** Place a label next to each point, input words first; labels without room are omitted. */
function placeLabels(points, x, y) {
	const taken = points.map(({ position }) => ({
		x: x(position[0]) - 4,
		y: y(position[1]) - 4,
		width: 8,
		height: 8,
	}));
	const isFree = (box) =>
		box.x >= 0 &&
		box.x + box.width <= 440 &&
		!taken.some(
			(other) =>
				box.x < other.x + other.width &&
				other.x < box.x + box.width &&
				box.y < other.y + other.height &&
				other.y < box.y + box.height,
		);
	const rank = { result: 0, input: 1, neighbor: 2 };
	return [...points]
		.sort((a, b) => rank[a.role] - rank[b.role])
		.map(({ text: label, role, position }) => {
			const text = role === "result" ? "result" : plainWord(label);
			const width = 6.7 * text.length;
			const cx = x(position[0]);
			const cy = y(position[1]);
			const places = [
				[8, -7],
				[-8 - width, -7],
				[-width / 2, -21],
				[-width / 2, 7],
				[8, -19],
				[8, 5],
			].map(([dx, dy]) => ({ x: cx + dx, y: cy + dy, width, height: 14 }));
			const place = places.find(isFree);
			if (place) taken.push(place);
			return { text, role, cx, cy, place };
		});
}

/** The mean difference of word pairs, and the projection of words onto it. */
function directionSection(context) {
	const { state } = context;
	const pairs = state.pairs
		.trim()
		.split(/\s+/)
		.map((pair) => pair.split(":"));
	const isValid = pairs.every((pair) => pair.length === 2 && pair[0] && pair[1]);
	const words = state.direction_words.trim().split(/\s+/).filter(Boolean);
	const result =
		isValid && words.length ? getVectors(context, { pairs, words }, "direction") : null;
	return html`<section>
		<h2>Direction</h2>
		<p class="hint">
			The mean difference between the words of each pair, and the dot product of other words with
			it.
		</p>
		<div class="row">
			${textField("Pairs", "pairs", context, "first:second pairs separated by spaces")}${textField("Words", "direction_words", context)}
		</div>
		${
			!isValid
				? html`<p class="problem">Write pairs like cat:cats dog:dogs.</p>`
				: !result
					? html`<p class="hint">Enter words to project.</p>`
					: renderResource(
							result,
							(value) =>
								html`${multiTokenNote(value.words)}
									<div class="columns">
										<ch-tensor-view
											.view=${shortNote(decodedView(value.view))}
											.pending=${result.pending}
											.caption=${"Dot product with the direction"}></ch-tensor-view>
										${pairs.length > 1 ? html`<ch-tensor-view .view=${viewWithNumbers(value.agreement)} .pending=${result.pending} .caption=${"Cosine between the pairs' differences"}></ch-tensor-view>` : nothing}
									</div>`,
						)
		}
	</section>`;
}

/** Pairwise similarities. */
function similaritySection(context) {
	const words = context.state.similarity_words.trim().split(/\s+/).filter(Boolean);
	const result = words.length > 1 ? getVectors(context, { words }, "similarities") : null;
	return html`<section>
		<h2>Similarities</h2>
		<div class="row">${textField("Words", "similarity_words", context)}</div>
		${!result ? html`<p class="hint">Enter two or more words.</p>` : renderResource(result, (value) => html`${multiTokenNote(value.words)}<ch-tensor-view .view=${shortNote(viewWithNumbers(value.view))} .pending=${result.pending} .caption=${"Pairwise cosine similarity"}></ch-tensor-view>`)}
	</section>`;
}

export default {
	id: "vectors",
	title: "Vector lab",
	sentence: "Words are vectors: similar words are close, and directions carry meaning.",
	free: true,
	template,
};
