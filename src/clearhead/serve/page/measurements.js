// What the loaded model does on many sentences with controls: captions follow from these numbers.

import { html, nothing } from "lit-html";
import { snapshot } from "ch/api";
import { button } from "ch/controls";
import { CHAT_MODEL, ENCODER, modelOffer, SENTENCES } from "ch/downloads";
import { formatCount } from "ch/format";
import { decodedView, getJson, modelUrl, renderResource } from "ch/requests";
import { notify } from "ch/state";

const MAX_AUTO_PARAMETERS = 5e7; // larger models are measured on request: it takes a minute
const requested = new Set(); // names of larger models

/** Of each contrast: what a head may do, its words, and models in which a head does it. */
export const CONTRASTS = {
	adjectives: {
		claim: "A noun attends to the adjectives before it",
		effect: "to the adjectives",
		control: "to other words in their place",
		models: [SENTENCES, CHAT_MODEL],
	},
	it: {
		claim: "“it” attends to the noun that it means",
		effect: "to the noun that it means",
		control: "to the same noun when it means another",
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
			${button("Measure this model", measure)} <span class="hint">A minute.</span>
		</p>`;
	}
	const result = getJson(`${modelUrl(card.name)}/${path}`, `measured ${path}`);
	if (result.error) {
		const reason = snapshot ? "this page was saved without the numbers." : result.error.message;
		return html`<p class="hint">This model was not measured: ${reason}</p>`;
	}
	return renderResource(result, template, "Measuring this model on many sentences…");
}

const signed = (value) => value.toFixed(2).replace("-", "−");

/**
 * What the best heads of the model give in a contrast, and the model that does it if this one does not.
 * @param {Card} card @param {string} name @param {(layer: number, head: number) => void} select
 * @param {(card: Card) => void} open with another model
 */
export function contrastResult(card, name, select, open) {
	const { claim, effect, control, models } = CONTRASTS[name];
	return measured(card, `contrasts/${name}`, (result) => {
		const [to, other, difference, low, high] = decodedView(result.view).values;
		const [layer, head] = result.heads[0];
		const isClear = result.has_clear_effect;
		return html`<p data-clear=${isClear ? "true" : "false"}>
				<b>${claim}${isClear ? "." : "? Not clearly in this model."}</b> The best head, layer
				${layer}, head ${head}, gives ${signed(to)} ${effect}, ${signed(other)} ${control}
				(${formatCount(result.num_pairs)} held-out pairs; difference ${signed(difference)}, 95%
				${signed(low)} to ${signed(high)}).
				${button("Show this head", () => select(layer, head), { kind: "quiet" })}
			</p>
			${isClear ? nothing : modelOffer(models, open)}`;
	});
}

/** Whether "mole" takes in its meaning, and whether any word in its place does. @param {Card} card */
export function sensesResult(card) {
	return measured(card, "senses", ({ words, senses, num_sentences: count }) => {
		const [mole, control] = words.map(({ statistics }) => statistics);
		const [within, between, , low] = mole;
		const isClear = low > 0;
		const difference = ([, , value, from, to]) =>
			`difference ${signed(value)}, 95% ${signed(from)} to ${signed(to)}`;
		return html`<p data-clear=${isClear ? "true" : "false"}>
				<b
					>${isClear ? "In this model, the vector of “mole” takes in its meaning." : "In this model, the vector of “mole” does not clearly take in its meaning."}</b
				>
				After the last layer its cosine is ${signed(within)} within a meaning (${senses.join(", ")})
				and ${signed(between)} between meanings (${count} sentences; ${difference(mole)}).
				${
					control[3] > 0
						? html`So does “${words[1].word}” in its place (${difference(control)}): any word takes
							in its context, and mole needs no entry for each meaning.`
						: html`“${words[1].word}” in its place: ${difference(control)}.`
				}
			</p>
			${isClear ? nothing : modelOffer([SENTENCES, ENCODER])}`;
	});
}
