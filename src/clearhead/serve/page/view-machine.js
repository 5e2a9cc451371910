// The whole model drawn from its configuration: the residual stream and the components that add to it (L4.1, L4.4, L6).

import { html, nothing, svg } from "lit-html";
import { decodeView } from "ch/api";
import { button } from "ch/controls";
import { formatCount, formatNumber, formatPercent } from "ch/format";
import { getJson, modelUrl, renderResource } from "ch/requests";
import { registerDefaults } from "ch/state";

registerDefaults({ expanded: false });

const TRUNK_WIDTH = 20; // width of the residual stream; branches are drawn in proportion to what they add
const MAX_BLOCKS = 6; // blocks drawn before the middle ones are folded
const BLOCK_HEIGHT = 132;
const CROSS_HEIGHT = 74;
const BRANCH_OFFSET = 150;
const BOX_WIDTH = 116;

export default {
	id: "machine",
	title: "Machine",
	sentence:
		"One residual stream per token runs upward; every component reads from it and adds to it. Branch widths show how much is added.",
	template(context) {
		const { run, edited, card, state } = context;
		const hasEncoder = card.architecture === "encoder-decoder";
		const getNorms = (encoder, { id } = run, slot = "") => {
			const url = `/api/runs/${id}/residual${encoder ? "?encoder=true" : ""}`;
			return getJson(url, `residual ${encoder}${slot}`, decodeView);
		};
		const norms = getNorms(false);
		const encoderNorms = hasEncoder ? getNorms(true) : null;
		const editedShares = (encoder, token) => {
			const value = edited && getNorms(encoder, edited, " edited").value;
			return value ? relativeNorms(value, token) : null;
		};
		const error = norms.error ?? encoderNorms?.error;
		if (error) return html`<p class="problem">${error.message}</p>`;
		if (!norms.value || (hasEncoder && !encoderNorms.value))
			return html`<p class="loading">Measuring components…</p>`;
		const token = Math.min(state.query, run.tokens.length - 1);
		const place =
			token >= 0
				? html`at <b>${run.tokens[token].text}</b> (token ${token})`
				: "on average over all tokens; select a token in the strip below";
		return html`<p class="hint">
				Widths are the norm of each component's output relative to the residual stream after it,
				${place}.
			</p>
			<div class="machines">
				<div class=${hasEncoder ? "stacks two" : "stacks"}>
					${
						hasEncoder
							? stackFigure(
									context,
									true,
									relativeNorms(encoderNorms.value, -1),
									editedShares(true, -1),
								)
							: nothing
					}
					${stackFigure(context, false, relativeNorms(norms.value, token), editedShares(false, token))}
				</div>
				${blockPanel(context)}
			</div>
			${parametersFigure(card)}`;
	},
};

/** Norm of each component's output relative to the stream after it, at a token or on average. */
function relativeNorms({ axes, values, shape }, token) {
	const [, parts, tokens] = shape;
	return Object.fromEntries(
		axes[1].labels.map((name, p) => {
			let sum = 0;
			let count = 0;
			for (let t = 0; t < tokens; t++) {
				if (token >= 0 && t !== token) continue;
				sum += values[p * tokens + t] / values[(parts + p) * tokens + t];
				count++;
			}
			return [name, sum / count];
		}),
	);
}

/** `shares` are relative norms by component, `edited` those with the edits. */
function stackFigure(context, encoder, shares, edited) {
	const { card, state, set, run } = context;
	const hasEncoder = card.architecture === "encoder-decoder";
	const hasCross = hasEncoder && !encoder;
	const [layers, tokens] = encoder
		? [card.encoder_layers, run.source_tokens]
		: [card.n_layers, run.tokens];
	const title = hasEncoder ? (encoder ? "encoder" : "decoder") : "";
	const isFolded = layers > MAX_BLOCKS + 1 && !state.expanded;
	const visible = isFolded
		? [0, 1, 2, -1, layers - 2, layers - 1]
		: Array.from({ length: layers }, (_, i) => i);
	const block = BLOCK_HEIGHT + (hasCross ? CROSS_HEIGHT : 0);
	const sizes = visible.map((layer) => (layer < 0 ? 54 : block));
	const height = 210 + sizes.reduce((a, b) => a + b, 0);
	const width = 2 * BRANCH_OFFSET + BOX_WIDTH + 48;
	const middle = width / 2;
	let y = height - 92;
	const blocks = visible.map((layer, i) => {
		const bottom = y;
		y -= sizes[i];
		if (layer < 0) return foldedBlocks(middle, bottom, layers - 5, () => set({ expanded: true }));
		return blockGroup(context, { layer, bottom, middle, shares, edited, hasCross, encoder });
	});
	return html`<figure class="stack">
		${title ? html`<figcaption>${title}</figcaption>` : nothing}
		<svg
			viewBox="0 0 ${width} ${height}"
			role="group"
			aria-label=${`${title || "model"}: ${layers} blocks`}>
			<line
				class="trunk"
				x1=${middle}
				x2=${middle}
				y1=${height - 62}
				y2="76"
				stroke-width=${TRUNK_WIDTH}></line>
			${svg`<circle class="pulse" data-run=${run.id} cx=${middle} cy="0" r="5" .style=${`--from:${height - 66}px;--to:80px`}></circle>`}
			${blocks}
			${labeledBox(middle, height - 42, 190, "token embeddings", `${tokens.length} × ${card.d_model}`, () => set({ view: "tokens" }))}
			${"positions" in shares ? svg`<text class="number" x=${middle + 104} y=${height - 38}>positions ${formatNumber(shares.positions, 2)}</text>` : nothing}
			${encoder ? labeledBox(middle, 52, 170, card.norm_position === "pre" ? "norm" : "encoder output", "read by cross-attention →", null) : outputBox(context, middle)}</svg
		>${state.expanded && layers > MAX_BLOCKS + 1 ? button("Collapse the middle blocks", () => set({ expanded: false }), { kind: "quiet" }) : nothing}
	</figure>`;
}

function outputBox(context, middle) {
	const { card, set, run } = context;
	const view = card.views.includes("predict") ? "predict" : "lens";
	return svg`${card.norm_position === "pre" ? svg`<text class="small" x=${middle + 20} y="92">norm</text>` : nothing}
    ${labeledBox(middle, 44, 216, run.answer_token === null ? (OUTPUT_NAMES[card.head] ?? "output") : "masked token", topPrediction(context), () => set({ view }))}`;
}

const OUTPUT_NAMES = {
	lm: "unembedding: next token",
	mlm: "masked tokens",
	classification: "classes",
	regression: "a number",
	none: "hidden states",
};

function topPrediction({ run }) {
	const [top] = run.top;
	if (!top) return "";
	return top.prob === null ? `“${top.text}”` : `“${top.text}” ${formatPercent(top.prob)}`;
}

function blockGroup(
	{ card, state, set, run },
	{ layer, bottom, middle, shares, edited, hasCross, encoder },
) {
	const path = `${encoder ? "encoder." : ""}blocks.${layer}`;
	const part = encoder ? "encoder" : "attention";
	const isActive = state.layer === layer && (state.part === "encoder") === encoder;
	const rise = hasCross ? CROSS_HEIGHT : 0;
	const share = (component) => [shares, edited].map((all) => all?.[`${layer} ${component}`]);
	const where =
		encoder || state.query < 0
			? "mean over all tokens"
			: `${run.tokens[Math.min(state.query, run.tokens.length - 1)].text} (token ${state.query})`;
	const names = (output, stream) => [`${path}.${output}`, `${path}.${stream}`, where];
	const open = (patch) => () => set({ layer, part, ...patch });
	return svg`<g class=${isActive ? "block active" : "block"}>
    <rect class="frame" x="4" y=${bottom - BLOCK_HEIGHT - rise + 8} width=${2 * middle - 8} height=${BLOCK_HEIGHT + rise - 14} rx="12" @click=${open({})}></rect>
    <text class="small" x="16" y=${bottom - BLOCK_HEIGHT - rise + 28}>block ${layer}</text>
    ${branchGroup({
			...{ middle, y: bottom - 12, side: -1, card, share: share("attention") },
			...{ isEdited: hasEdit(state, `${path}.attn`), names: names("attn.out", "resid_mid") },
			...{
				name: "attention",
				label: `${card.n_heads} heads`,
				onClick: open({ view: "attention" }),
			},
		})}
    ${
			hasCross
				? branchGroup({
						...{ middle, y: bottom - 12 - CROSS_HEIGHT, side: -1, card, share: share("cross") },
						isEdited: hasEdit(state, `${path}.cross_attn`),
						names: names("cross_attn.out", "resid_cross"),
						name: "cross-attention",
						label: "to the source",
						onClick: open({ view: "attention", part: "cross" }),
					})
				: nothing
		}
    ${branchGroup({
			...{ middle, y: bottom - 66 - rise, side: 1, card, share: share("feed-forward") },
			...{ isEdited: hasEdit(state, `${path}.ffn`), names: names("ffn.out", "resid_post") },
			...{ name: "feed-forward", label: `${card.d_ff} neurons`, onClick: open({ view: "block" }) },
		})}
  </g>`;
}

const hasEdit = (state, path) => state.edits.some(({ name }) => name.startsWith(path));

/** A branch out of the stream, through a component, and back. */
function branchGroup(options) {
	const { middle, y, side, card, share: shares, isEdited, names, name, label, onClick } = options;
	const [output, stream, where] = names;
	const [share, editedShare] = shares;
	const x = middle + side * BRANCH_OFFSET;
	const width = Math.max(1, Math.min(2 * TRUNK_WIDTH, TRUNK_WIDTH * (editedShare ?? share) || 0));
	const up = y - 44;
	const isChanged =
		editedShare !== undefined && formatNumber(editedShare, 2) !== formatNumber(share, 2);
	return svg`<g class=${isEdited ? "branch edited" : "branch"}>
    <path d=${`M${middle} ${y} C${middle + side * 60} ${y} ${x} ${y + 6} ${x} ${y - 10}`} stroke-width=${2}></path>
    <path class="back" d=${`M${x} ${y - 34} C${x} ${up - 8} ${middle + side * 60} ${up} ${middle + side * 10} ${up}`} stroke-width=${width}></path>
    <circle class="plus" cx=${middle} cy=${up} r="9"></circle><text class="sign" x=${middle} y=${up + 4.5}>+</text>
    ${labeledBox(x, y - 22, BOX_WIDTH + 24, name, label, onClick)}
    <text class="number" x=${middle + side * 66} y=${up - 6 - width / 2} text-anchor="middle" data-title=${`relative norm of ${output}`} data-where=${where}
      data-value=${editedShare ?? share} data-formula=${`‖${output}‖ ÷ ‖${stream}‖: norm of the output relative to the residual stream after it`}>${formatNumber(share, 2)}${isChanged ? ` → ${formatNumber(editedShare, 2)}` : ""}</text>
    ${
			card.norm_position === "pre"
				? svg`<text class="small" x=${middle + side * 34} y=${y + 13} text-anchor="middle">norm</text>`
				: svg`<text class="small" x=${middle - side * 14} y=${up - 8} text-anchor=${side > 0 ? "end" : "start"}>norm</text>`
		}
  </g>`;
}

function labeledBox(x, y, width, name, label, onClick) {
	const onKey = (event) =>
		(event.key === "Enter" || event.key === " ") && (event.preventDefault(), onClick());
	return svg`<g class=${onClick ? "part open" : "part"} tabindex=${onClick ? 0 : nothing} role=${onClick ? "button" : "img"} aria-label=${`${name} ${label}`.trim()} @click=${onClick ?? nothing} @keydown=${onClick ? onKey : nothing}>
    <rect x=${x - width / 2} y=${y - 19} width=${width} height="38" rx="8"></rect>
    <text class="name" x=${x} y=${y - 2}>${name}</text> <text class="details" x=${x} y=${y + 13}>${label}</text></g>`;
}

function foldedBlocks(x, y, count, onClick) {
	return svg`<g class="part open" tabindex="0" role="button" aria-label=${`${count} more blocks`} @click=${onClick} @keydown=${(event) => event.key === "Enter" && onClick()}>
    <rect x=${x - 80} y=${y - 42} width="160" height="30" rx="15"></rect><text class="name" x=${x} y=${y - 23}>${count} more blocks</text></g>`;
}

/** All parameters, part by part; each matrix in row form and in column form. */
function parametersFigure(card) {
	const result = getJson(`${modelUrl(card.name)}/parameters`, "parameters");
	return html`<ch-figure
		.caption=${"Parameters, part by part"}
		.noExport=${true}
		.note=${"Row form multiplies from the left, x W; column form from the right, W x, with each matrix transposed: there the embeddings are the columns of W_E. d = d_model, |V| = size of the vocabulary."}>
		${renderResource(
			result,
			(groups) =>
				html`<div class="scroll">
					<table class="numbers parameters">
						<thead>
							<tr>
								${["part", "symbol", "row form", "column form", "layers", "parameters"].map((name) => html`<th scope="col">${name}</th>`)}
							</tr>
						</thead>
						<tbody>
							${groups.map(
								(group) =>
									html`<tr>
										<th scope="row">${group.part}</th>
										<td>${group.symbol}</td>
										<td>${shapeText(group.formula, group.shape)}</td>
										<td>
											${shapeText(group.formula.split(" × ").reverse().join(" × "), group.shape.toReversed())}
										</td>
										<td>${group.layers}</td>
										<td>${group.count ? formatCount(group.count) : "shared"}</td>
									</tr>`,
							)}
						</tbody>
						<tfoot>
							<tr>
								<th scope="row" colspan="5">total</th>
								<td data-total>
									${formatCount(groups.reduce((sum, { count }) => sum + count, 0))}
								</td>
							</tr>
						</tfoot>
					</table>
				</div>`,
		)}
	</ch-figure>`;
}

const shapeText = (formula, shape) =>
	html`${formula} <span class="hint">${shape.join(" × ")}</span>`;

/** Edits and facts of the selected block. */
function blockPanel({ card, run, state, set }) {
	const token = Math.min(state.query, run.tokens.length - 1);
	const encoder = state.part === "encoder" && card.architecture === "encoder-decoder";
	const layer = Math.min(state.layer, (encoder ? card.encoder_layers : card.n_layers) - 1);
	const path = `${encoder ? "encoder." : ""}blocks.${layer}`;
	const edit = (label, name) =>
		html`<p><ch-edit .name=${`${path}.${name}`} .label=${label}></ch-edit></p>`;
	return html`<section class="block-panel">
		<h2>${encoder ? "Encoder block" : "Block"} ${layer}</h2>
		<p class="hint">Ablate or scale a component to see how the prediction changes.</p>
		${edit("attention", "attn.out")}${card.architecture === "encoder-decoder" && !encoder ? edit("cross-attention", "cross_attn.out") : nothing}${edit("feed-forward", "ffn.out")}
		${token >= 0 && !encoder ? html`<p><ch-edit .name=${"embed"} .token=${token} .label=${`the token ${run.tokens[token].text}`}></ch-edit></p>` : nothing}
		<p>
			<button type="button" @click=${() => set({ view: "attention", layer })}>
				Attention heads
			</button>
			<button type="button" @click=${() => set({ view: "block", layer })}>Neurons and norms</button>
		</p>
		<dl>
			<dt>d_model</dt>
			<dd>${card.d_model}</dd>
			<dt>heads</dt>
			<dd>
				${card.n_heads}, d_head
				${card.d_head}${card.n_kv_heads < card.n_heads ? `; ${card.n_kv_heads} key/value heads` : ""}
			</dd>
			<dt>neurons</dt>
			<dd>${card.d_ff}, ${card.activation}</dd>
			<dt>norm</dt>
			<dd>
				${card.norm === "rmsnorm" ? "RMSNorm" : "LayerNorm"},
				${card.norm_position === "pre" ? "pre-norm" : "post-norm"}
			</dd>
			<dt>positions</dt>
			<dd>${card.position}</dd>
		</dl>
	</section>`;
}
