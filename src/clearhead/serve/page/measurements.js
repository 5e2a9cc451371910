// What the loaded model does on many sentences with controls: captions follow from these numbers.

import { html, nothing } from "lit-html";
import { snapshot } from "ch/api";
import { button } from "ch/controls";
import { CHAT_MODEL, ENCODER, modelOffer, SENTENCES } from "ch/downloads";
import { abbreviateCount, formatCount } from "ch/format";
import { decodedView, getJson, modelUrl, renderResource } from "ch/requests";
import { notify } from "ch/state";

const MAX_AUTO_PARAMETERS = 2e8; // larger models are measured on request: it takes a minute
const requested = new Set(); // names of larger models

/** Of each contrast: what a head may do, its words, and models in which a head does it. */
export const CONTRASTS = {
	adjectives: {
		claim: "A noun attends more to adjectives before it than to",
		effect: "to the adjectives",
		control: "to other words in their place",
		models: [CHAT_MODEL],
	},
	it: {
		claim: "“it” attends more to a noun when it means it",
		effect: "to the noun that it means",
		control: "to the same noun when it means another",
		limit: "This does not say which of two nouns gets more.",
		models: [SENTENCES, ENCODER],
	},
	pronouns: {
		claim: "“he” and “she” attend to the name that fits",
		effect: "to the name that fits",
		control: "to the same name for the other pronoun",
		models: ["story", SENTENCES, ENCODER],
	},
};

/** A measurement of the model; of a large one, on request. */
function measured(card, path, template) {
	if (card.num_parameters > MAX_AUTO_PARAMETERS && !requested.has(card.name)) {
		const measure = () => {
			requested.add(card.name);
			notify();
		};
		return html`<p>
			${button("Measure this model", measure)}
			<span class="hint"
				>It reads many sentences: with ${abbreviateCount(card.num_parameters)} parameters, a minute
				or more.</span
			>
		</p>`;
	}
	const result = getJson(`${modelUrl(card.name)}/${path}`, `measured ${card.name} ${path}`);
	if (result.error) {
		const reason = snapshot ? "this page was saved without the numbers." : result.error.message;
		return html`<p class="hint">This model was not measured: ${reason}</p>`;
	}
	return renderResource(result, template, "Measuring this model on many sentences…");
}

const signed = (value) =>
	value
		.toFixed(2)
		.replace(/^-(?!0\.00$)/, "−")
		.replace("-", "");

const list = (words, word) =>
	[words.slice(0, -1).join(", "), words.at(-1)].filter(Boolean).join(` ${word} `);
const interval = ([, , difference, low, high]) =>
	`difference ${signed(difference)}, 95% ${signed(low)} to ${signed(high)}`;

/** Scroll to the heat map of the selected head. */
const scrollToHead = () => document.querySelector(".heads > div")?.scrollIntoView();

/** The claim as far as it holds against each kind of control. */
function claimText({ claim }, { has_clear_effect: isClear, by_control: controls }) {
	const kinds = (isAbove) =>
		controls
			.filter(({ statistics: [, , , low] }) => isClear && low > 0 === isAbove)
			.map(({ kind }) => kind);
	const [above, others] = [kinds(true), kinds(false)];
	if (!controls.length) return `${claim}${isClear ? "." : "? Not clearly in this model."}`;
	if (!above.length) return `${claim} other words in their place? Not clearly in this model.`;
	const rest = others.length ? `, but not clearly more than to ${list(others, "or")}` : "";
	return `${claim} ${list(above, "and")} in their place${rest}.`;
}

/**
 * What the best heads of the model give in a contrast, and the model that does it if this one does not.
 * @param {Card} card @param {string} name
 * @param {(layer: number, head: number, replace: boolean) => void} select
 * @param {(card: Card) => void} open with another model
 * @param {boolean} [isSelected] whether to select the best head at once
 */
export function contrastResult(card, name, select, open, isSelected = false) {
	const { effect, control, limit, models } = CONTRASTS[name];
	return measured(card, `contrasts/${name}`, (result) => {
		const statistics = decodedView(result.view).values;
		const [to, other] = statistics;
		const [layer, head] = result.heads[0];
		if (isSelected) queueMicrotask(() => select(layer, head, true));
		const show = () => {
			select(layer, head, false);
			requestAnimationFrame(() => requestAnimationFrame(scrollToHead));
		};
		const isClear =
			result.has_clear_effect && result.by_control.every(({ statistics: [, , , low] }) => low > 0);
		const kinds = result.by_control.map(
			({ kind, statistics }) =>
				`${kind} ${signed(statistics[1])} against ${signed(statistics[0])} (${interval(statistics)})`,
		);
		return html`<p data-clear=${isClear ? "true" : "false"}>
				<b>${claimText(CONTRASTS[name], result)}</b> The best head, layer ${layer}, head ${head},
				gives ${signed(to)} ${effect}, ${signed(other)} ${control} (${formatCount(result.num_pairs)}
				held-out pairs;
				${interval(statistics)}).${kinds.length ? ` By control: ${kinds.join("; ")}.` : ""}
				${limit && result.has_clear_effect ? limit : nothing}
				${button("Show this head", show, { kind: "quiet" })}
			</p>
			${isClear ? nothing : modelOffer(models, open)}`;
	});
}

/** Whether "mole" differs by its meaning, or as any word in its place does. @param {Card} card */
export function sensesResult(card) {
	return measured(card, "senses", (result) => {
		const { statistics, controls, senses, num_sentences: count } = result;
		const [within, between, , low] = statistics;
		const isApart = low > 0;
		const isClear = isApart && controls.every(({ excess }) => excess[3] > 0);
		const isAny = controls.every(({ statistics: [, , , low] }) => low > 0);
		const claim = isClear
			? "“mole” differs by its meaning."
			: !isApart
				? "“mole” does not clearly differ between its meanings."
				: isAny
					? "“mole” differs between its meanings, but any word does: its vector takes in the sentence."
					: "“mole” differs between its meanings, but not clearly more than other words in its place.";
		return html`<p data-clear=${isClear ? "true" : "false"}>
				<b>In this model, ${claim}</b> After the last layer its cosine is ${signed(within)} within a
				meaning (${senses.join(", ")}) and ${signed(between)} between meanings (${count} sentences;
				${interval(statistics)}). In the same sentences:
				${controls.map(({ word, statistics, excess }) => `“${word}” ${interval(statistics)} (mole minus ${word}: ${signed(excess[2])}, ${signed(excess[3])} to ${signed(excess[4])})`).join("; ")}.
			</p>
			${isApart ? nothing : modelOffer([SENTENCES, ENCODER])}`;
	});
}
