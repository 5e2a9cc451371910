// The block (L4): residual stream, norms and neurons of one token.

import { html, nothing, svg } from "lit-html";
import { decodeView } from "ch/api";
import "ch/charts";
import { buttonGroup, numberSelect, tokenIndex } from "ch/controls";
import "ch/edits";
import { formatCount, formatNumber } from "ch/format";
import { getJson, renderResource } from "ch/requests";
import "ch/tensor-view";

const PART_NAMES = { attn: "attention", cross_attn: "cross-attention", ffn: "feed-forward" };

function template(context) {
	const { card, state, set, run } = context;
	const isEncoder = card.architecture === "encoder-decoder" && state.part === "encoder";
	const layers = isEncoder ? card.encoder_layers : card.n_layers;
	const tokens = isEncoder ? run.source_tokens : run.tokens;
	context.highlight.viewStrip = isEncoder ? "key" : "query";
	const selected = isEncoder ? state.key : state.query;
	const layer = Math.min(state.layer, layers - 1);
	const defaultToken = isEncoder ? -1 : (run.answer_token ?? -1);
	const token = tokenIndex(selected < 0 ? defaultToken : selected, tokens.length);
	const block = getBlock(run, layer, token, isEncoder, "block");
	const edited =
		context.edited && getBlock(context.edited, layer, token, isEncoder, "edited block");
	return html`<div class="row">
			${
				card.architecture === "encoder-decoder"
					? buttonGroup(
							"stack",
							[
								["encoder", "encoder"],
								["attention", "decoder"],
							],
							isEncoder ? "encoder" : "attention",
							(part) => set({ part }),
						)
					: nothing
			}
			${numberSelect("Layer", layers, layer, (layer) => set({ layer }))}
			<p class="hint">
				Token ${token}: <b class="word">${tokens[token].text}</b>. Select another one in the token
				strip.
			</p>
		</div>
		${renderResource(
			block,
			(data) =>
				html`${residualFigure(run, data, card, tokens[token].text, edited?.value)}
				${data.norms.map((norm) => normFigure(run, data, norm, card))}
				${neuronsFigure(context, run, data, card)}`,
		)}
		${normsFigure(context, run, isEncoder)}`;
}

function getBlock(run, layer, token, isEncoder, slot) {
	const url = `/api/runs/${run.id}/block?layer=${layer}&token=${token}&encoder=${isEncoder}`;
	return getJson(url, slot, (block) => ({
		...block,
		residual: splitRows(block.residual),
		norms: block.norms.map((norm) => ({ ...norm, ...splitRows(norm.view) })),
		neurons: { ...block.neurons, ...splitRows(block.neurons.view) },
	}));
}

/** A view as vectors by name, each wrapped into a few lines, with a common color limit. */
function splitRows(view) {
	const { values, shape, axes } = decodeView(view);
	const size = shape[1];
	const line = lineLength(size);
	const row = (i) => ({
		shape: [Math.ceil(size / line), line],
		data: values.slice(i * size, (i + 1) * size),
	});
	const rows = Object.fromEntries(axes[0].labels.map((name, i) => [name, row(i)]));
	return { rows, max: colorLimit(values) };
}

/** Numbers per line: the largest divisor of the size up to 128. */
function lineLength(size) {
	for (let line = Math.min(128, size); line > 24; line--) if (size % line === 0) return line;
	return size;
}

/** Color limit: the 99th percentile, as a few outlier dimensions would leave all others pale. */
function colorLimit(values) {
	const magnitudes = Float32Array.from(values, Math.abs).sort();
	return magnitudes[Math.floor(0.99 * (magnitudes.length - 1))] || magnitudes.at(-1) || 1;
}

const vectorNorm = ({ data }) => Math.sqrt(data.reduce((sum, value) => sum + value * value, 0));

/**
 * One vector: name, heat map, norm. @param {string} label @param {Matrix} values @param {number} max
 * @param {{ name?: string, run?: string, token?: number, hint?: string, kind?: string, norm?: unknown }}
 *   options
 */
function vectorStrip(label, values, max, options) {
	const { name = "", run = "", token = 0, hint = "", kind = "" } = options;
	const { norm = formatNumber(vectorNorm(values)) } = options;
	return html`<div class="strip-row ${kind}">
		<span class="label" title=${hint}>${label}</span>
		<ch-heatmap
			.values=${values}
			.signed=${true}
			.max=${max}
			.maxCellSize=${7}
			.cellHeight=${values.shape[0] > 1 ? 6 : 16}
			.name=${name}
			.run=${run}
			.toIndex=${(r, c) => [token, r * values.shape[1] + c]}
			.label=${label}
			.axes=${["line", "dimension"]}></ch-heatmap>
		<span class="number">${norm}</span>
	</div>`;
}

function residualFigure(run, { path, token, residual: { rows, max } }, card, word, edited) {
	const sum = card.norm_position === "post" ? "= norm of the sum" : "= sum";
	const labels = {
		resid_pre: "x, block input",
		resid_mid: sum,
		resid_cross: sum,
		resid_post: `${sum}, block output`,
	};
	const isOutput = (name) => name.endsWith(".out");
	const norm = (name) => {
		const current = formatNumber(vectorNorm(rows[name]));
		if (!edited) return current;
		return html`${current} → <b>${formatNumber(vectorNorm(edited.residual.rows[name]))}</b>`;
	};
	return html`<ch-figure
		.caption=${`Residual stream of “${word}” and what is added to it`}
		.note=${`Each strip is one vector on a common color scale: blue is positive, orange is negative, full color is ${formatNumber(max)}. The number is its norm. Only attention moves information between tokens.`}>
		<div class="strips">
			${Object.entries(rows).map(([name, values]) =>
				vectorStrip(
					isOutput(name) ? `+ ${PART_NAMES[name.split(".")[0]]}` : labels[name],
					values,
					max,
					{
						name: `${path}.${name}`,
						run: run.id,
						token,
						kind: isOutput(name) ? "added" : "",
						hint: `${path}.${name}`,
						norm: norm(name),
					},
				),
			)}
		</div>
		<div class="row controls">
			${Object.keys(rows)
				.filter(isOutput)
				.map(
					(name) =>
						html`<ch-edit
							.name=${`${path}.${name}`}
							.label=${PART_NAMES[name.split(".")[0]]}></ch-edit>`,
				)}
		</div>
	</ch-figure>`;
}

function normFigure(run, { path, token }, norm, card) {
	const { rows, mean, std, is_centered: isCentered } = norm;
	const max = Math.max(...["x", "(x − μ) / σ", "out"].map((name) => colorLimit(rows[name].data)));
	const place =
		card.norm_position === "pre"
			? `before ${PART_NAMES[norm.part]}`
			: `after ${PART_NAMES[norm.part]}`;
	const labels = {
		x: `x = ${norm.input}`,
		"(x − μ) / σ": isCentered ? "(x − μ) / σ" : "x / σ",
		γ: "γ, learned",
		β: "β, learned",
		out: "output",
	};
	return html`<ch-figure
		.caption=${`Norm ${place}`}
		.note=${
			isCentered
				? "Per token: subtract the mean, divide by the standard deviation, then scale and shift each dimension."
				: "Per token: divide by the root mean square, then scale each dimension."
		}>
		<p class="formula-line">
			${
				isCentered
					? html`<math display="block"
							><mrow
								><mi>γ</mi><mo>⊙</mo
								><mfrac
									><mrow><mi>x</mi><mo>−</mo><mi>μ</mi></mrow
									><mi>σ</mi></mfrac
								><mo>+</mo><mi>β</mi></mrow
							></math
						>`
					: html`<math display="block"
							><mrow
								><mi>γ</mi><mo>⊙</mo><mfrac><mi>x</mi><mi>σ</mi></mfrac></mrow
							></math
						>`
			}
			<span
				>${isCentered ? html`μ = <b>${formatNumber(mean, 4)}</b>, ` : nothing}σ =
				<b>${formatNumber(std, 4)}</b>
				<span class="quiet"
					>(${isCentered ? "√(variance + ε)" : "√(mean of squares + ε)"}, ε =
					${formatNumber(norm.eps, 1)})</span
				></span
			>
		</p>
		<div class="strips">
			${Object.entries(rows).map(([name, values]) =>
				vectorStrip(labels[name], values, "γβ".includes(name) ? colorLimit(values.data) : max, {
					name: name === "out" ? `${path}.${norm.name}` : "",
					run: run.id,
					token,
					kind: "γβ".includes(name) ? "learned" : "",
					hint: name === "out" ? `${path}.${norm.name}` : "",
				}),
			)}
		</div>
	</ch-figure>`;
}

function neuronsFigure(context, run, { path, token, neurons }, card) {
	const { rows, max, top, active_fraction, positive_fraction } = neurons;
	const note = card.activation.startsWith("relu")
		? `${(100 * active_fraction).toFixed(0)}% of ${formatCount(rows.post.data.length)} neurons are active; the others are exactly 0.`
		: `${(100 * positive_fraction).toFixed(0)}% of ${formatCount(rows.post.data.length)} neurons are positive before the activation.`;
	const labels = top.map(({ neuron }) => `neuron ${neuron}`);
	const notes = top.some(({ words }) => words.length)
		? top.map(({ words }) => words.join("  "))
		: null;
	return html`<ch-figure .caption=${"Feed-forward: neuron activations"} .note=${note}>
		<div class="two">
			<div>
				<h3>
					All neurons: input (x axis, histogram in gray) and output of ${card.activation} (y axis)
				</h3>
				${scatterPlot((rows.gate ?? rows.up).data, rows.post.data, card.is_gated)}
			</div>
			<div>
				<h3>Neurons with the largest output</h3>
				<ch-bar-chart
					.labels=${labels}
					.values=${top.map(({ norm }) => norm)}
					.notes=${notes}
					.valueName=${"norm"}
					.label=${"neurons with the largest output"}
					@pick=${(event) => context.inspect({ run: run.id, name: `${path}.ffn.post`, index: [token, top[event.detail.index].neuron], value: top[event.detail.index].value }, "lock")}></ch-bar-chart>
				<p class="note">
					Norm of each neuron's output: |activation| × ‖its row of
					W₂‖.${notes ? " Next to it are the tokens whose logits it raises most." : ""}
				</p>
			</div>
		</div>
		<p>
			The same network for every token: given the vector of this token alone, without the others,
			its output differs by at most
			<b data-fact="alone" data-value=${neurons.alone_difference}
				>${formatNumber(neurons.alone_difference)}</b
			>.
		</p>
		<div class="strips">
			${Object.entries(rows).map(([name, values]) => vectorStrip({ gate: "gate", up: card.is_gated ? "up" : "before", post: "after" }[name], values, max, { name: `${path}.ffn.${name}`, run: run.id, token, hint: `${path}.ffn.${name}` }))}
		</div>
	</ch-figure>`;
}

/** Scatter plot of neurons before and after their activation, with a histogram behind it. */
function scatterPlot(before, after, isGated) {
	const width = 300;
	const height = 190;
	const margin = 26;
	const x0 = Math.min(...before, 0);
	const x1 = Math.max(...before, 0);
	const y0 = Math.min(...after, 0);
	const y1 = Math.max(...after, 0);
	const x = (v) => margin + ((v - x0) / (x1 - x0 || 1)) * (width - 2 * margin);
	const y = (v) => height - margin - ((v - y0) / (y1 - y0 || 1)) * (height - 2 * margin);
	const bins = new Array(32).fill(0);
	for (const v of before) bins[Math.min(31, Math.floor((32 * (v - x0)) / (x1 - x0 || 1)))]++;
	const max = Math.max(...bins);
	const step = (width - 2 * margin) / 32;
	const dots = Array.from(before, (v, i) => `M${x(v).toFixed(1)} ${y(after[i]).toFixed(1)}h0`).join(
		"",
	);
	const tick = (v, axis) =>
		svg`<text x=${axis === "x" ? x(v) : x(0) - 5} y=${axis === "x" ? y(0) + 12 : y(v)} text-anchor=${axis === "x" ? "middle" : "end"} dominant-baseline="middle">${formatNumber(v, 2)}</text>`;
	return html`<svg
			class="scatter"
			viewBox="0 0 ${width} ${height}"
			role="img"
			aria-label="${before.length} neurons before and after their activation">
			${bins.map((n, i) => svg`<rect x=${margin + i * step} y=${height - margin - (0.5 * (height - 2 * margin) * n) / max} width=${step - 1} height=${(0.5 * (height - 2 * margin) * n) / max}><title>${n} neurons</title></rect>`)}
			<line x1=${margin / 2} x2=${width - margin / 2} y1=${y(0)} y2=${y(0)}></line>
			<line x1=${x(0)} x2=${x(0)} y1=${margin / 2} y2=${height - margin / 2}></line>
			<path class="dots" d=${dots}></path>
			${[x0, x1].filter(Boolean).map((v) => tick(v, "x"))}${[y0, y1].filter(Boolean).map((v) => tick(v, "y"))}</svg
		>${isGated ? html`<p class="note">Multiplied by the gate, so the dots do not lie on the activation function.</p>` : nothing}`;
}

/** Norms of the residual stream and of what each component adds, for all tokens. */
function normsFigure({ set, highlight: { viewStrip } }, run, isEncoder) {
	const url = `/api/runs/${run.id}/residual?encoder=${isEncoder}`;
	const result = getJson(url, "residual", decodeView);
	const note = run.tokens.length > 256 ? ". The first tokens often have the largest norm" : "";
	return renderResource(
		result,
		(view) =>
			html`<ch-tensor-view
				.view=${view}
				.pending=${result.pending}
				.caption=${`Norms of the residual stream and of each component's output, by layer${note}`}
				@pick=${(event) => {
					const [part] = view.axes[1].labels[event.detail.row].split(" ");
					const layer = /^\d+$/.test(part) ? { layer: Number(part) } : {};
					set({ [viewStrip]: event.detail.col, ...layer });
				}}></ch-tensor-view>`,
	);
}

export default {
	id: "block",
	title: "Block",
	sentence: "Residual stream, norms and neurons of one token in one block.",
	template,
};
