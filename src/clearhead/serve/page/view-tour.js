// The tour: lecture topics as captions over the live views; the current stop is part of the URL.
//
// Of each stop, `changes` returns the state changes (null: not possible with this model); `target` is
// the highlighted element (caption or selector), `text` the caption, `needs` the required kind of model,
// and `download` a published model of this kind.

import { html, nothing, render } from "lit-html";
import { snapshot } from "ch/api";
import { button } from "ch/controls";
import { CHAT_MODEL, modelOffer } from "ch/downloads";
import { currentCard, getJson, modelUrl, serverModels } from "ch/requests";
import { notify, registerDefaults, set, state, subscribe, withChanges } from "ch/state";

const isDecoder = (card) => card.architecture === "decoder" && card.reads_text;
const isEncoderDecoder = (card) => card.architecture === "encoder-decoder";
const readsOneText = (card) => card.reads_text && !isEncoderDecoder(card); // models with a single text input
const attentionText = (card) => (readsOneText(card) ? { text: card.examples.attention_text } : {});
const promptText = (card) => (readsOneText(card) ? { text: card.examples.prompt } : {});
const quotedText = (card, text) => (readsOneText(card) ? `“${text}”` : "A text");
const ABSOLUTE_POSITIONS = ["learned", "sinusoidal"];

/** A sentence, perhaps with another to compare, and whether a head does what it suggests. */
const hypothesisChanges = (hypothesis, texts) => (card) => {
	const [text, compare_text] = texts(card.examples);
	if (!readsOneText(card) || !text || text === compare_text) return null;
	return { text, compare_text, hypothesis, lines: false, best_head: true };
};

const UNDECIDED = /^The chicken .* it(?= )/; // the example up to "it"

const noChanges = () => ({});
const NO_SELECTION = { query: -1, key: -1 };

/** Bundled and published models with a view; other views are those of any model. */
const MODELS = {
	translate: ["en-de"],
	fill: ["fill"],
	chat: [CHAT_MODEL],
	patches: ["digits"],
	compare: [],
};

const REQUIREMENTS = {
	translate: "an encoder-decoder",
	fill: "an encoder trained with masked language modeling",
	chat: "a model with a chat template",
	patches: "a model for images or audio",
	predict: "a language model",
};

const CHAPTERS = [
	{
		title: "Tokens in",
		stops: [
			{
				id: "L1.1",
				view: (card) => (card.reads_images || card.reads_audio ? "patches" : "tokens"),
				title: "Everything is tokens",
				target: "main ch-figure",
				text: "Text is split into tokens, images and audio into patches. Each becomes one vector; from there on everything is the same.",
			},
			{
				id: "L1.2",
				view: "tokens",
				title: "Text becomes numbers",
				changes: promptText,
				target: "Tokenized text",
				text: (card) =>
					`${quotedText(card, card.examples.prompt)} is split into tokens of the vocabulary, and each token has an id.`,
			},
			{
				id: "L1.3",
				view: "tokens",
				title: "An id selects a row",
				changes: promptText,
				target: ".token-steps .wide",
				text: "A one-hot vector times the embedding matrix selects one of its rows. That row is all the model knows about this token before it reads the context.",
			},
			{
				id: "L1.4",
				view: "vectors",
				title: "Directions carry meaning",
				changes: () => ({ expression: "king - man + woman" }),
				target: "Nearest neighbors by cosine",
				text: "king − man + woman should be near queen; cats − cat is a direction for plural. Small models capture little of this; here you see what yours has learned.",
			},
			{
				id: "L1.4a",
				view: "vectors",
				title: "Equal differences",
				changes: () => ({ equation: "queen - king = woman - man" }),
				target: ".equation",
				text: "E(queen) − E(king) = E(woman) − E(man): if a direction means gender, the two arrows are parallel. The cosine says how parallel they are, and one word of the right side replaced by random words is the control.",
			},
			{
				id: "L1.5",
				view: "tokens",
				title: "The context is limited",
				target: ".strip .count",
				text: "The model reads at most this many tokens at once. Longer texts are an error, never silently truncated.",
			},
		],
	},
	{
		title: "Positions",
		stops: [
			{
				id: "L2.1",
				view: "position",
				title: "Order must be encoded",
				changes: (card) => (readsOneText(card) ? { text: "ate an apple" } : null),
				target: "The same words in reverse order",
				text: "To attention alone, “ate an apple” and “apple ate an” are the same set of words. With all tokens at the same position, the first layer cannot detect a reversed order: only positions carry it.",
			},
			{
				id: "L2.2",
				view: "position",
				title: "Positions are vectors too",
				target: "Token + position",
				text: ({ position }) =>
					({
						learned:
							"Learned positions are another embedding matrix, trained with everything else; token and position embeddings are added.",
						sinusoidal:
							"A vector per position is added to each token embedding. Here it is sinusoidal and not learned.",
					})[position] ??
					"Learned positions are another embedding matrix. This model adds none: its positions enter in the attention scores.",
			},
			{
				id: "L2.3",
				view: "position",
				title: "Waves, like binary digits",
				target: "sinusoidal",
				text: "Sines and cosines of decreasing frequency, like the bits of a binary counter, which flip at halving rates.",
			},
			{
				id: "L2.3a",
				view: "position",
				title: "Positions as curves",
				target: "as curves",
				text: "The vectors of positions 2 and 50, dimension by dimension: the fast waves on the left tell neighbors apart, the slow ones on the right tell far positions apart.",
			},
			{
				id: "L2.4a",
				view: "position",
				title: "The same words, later",
				changes: (card) =>
					readsOneText(card) ? { phrase_text: "", phrase_other: "", layer: 0 } : null,
				target: "The same words, later",
				text: "“I walk my dog every day” and “every single day I walk my dog” have the same words, shifted. With relative or rotary positions their scores in layer 0 are equal; with absolute ones they are not.",
			},
			{
				id: "L2.4",
				view: "position",
				title: "Only distance matters",
				changes: (card) => (readsOneText(card) ? { text: "I walk my dog" } : null),
				target: "The same text, shifted",
				text: ({ position }) =>
					`“I walk my dog” means the same early and late in a text. ${
						ABSOLUTE_POSITIONS.includes(position)
							? `This model's positions are ${position}, so its residual stream changes when the text is shifted; with relative or rotary positions it would not.`
							: "Only distances matter in this model: shift the text, and nothing changes."
					}`,
			},
			{
				id: "L2.5",
				view: "position",
				title: "Rotary positions",
				target: "Rotary positions",
				text: "Queries and keys are rotated by an angle proportional to their position, so their product depends only on the distance. Move the slider.",
			},
		],
	},
	{
		title: "Attention",
		stops: [
			{
				id: "L3.1",
				view: "lens",
				title: "A word in its context",
				changes: (card) => (readsOneText(card) ? {} : null),
				target: "Similarity of",
				text: ({ position }) =>
					`“mole” is an animal, a unit and a growth. Its token embedding is the same in all three sentences; ${
						ABSOLUTE_POSITIONS.includes(position)
							? "positions, then context, change it"
							: "context changes it"
					}. Whether its meaning does, or any word would differ as much, is measured on 18 sentences, above the curves.`,
			},
			{
				id: "L3.1a",
				view: "attention",
				title: "Tired or wide",
				changes: hypothesisChanges("it", ({ coreference }) => coreference),
				target: ".hypothesis",
				text: "“The chicken didn't cross the road because it was too tired”, or “too wide”: for “it”, the meaning changes with the last word, which only a model without a causal mask sees. Whether a head of this model follows is measured with 20 other pairs.",
			},
			{
				id: "L3.2",
				view: "attention",
				title: "The simplest attention",
				changes: (card) => ({ ...attentionText(card), simplest: true, ...NO_SELECTION }),
				target: ".simplest",
				text: "Multiply each token's vector with every visible one, x_i · x_j, normalize with softmax, and average the vectors: no queries, keys or values. The selected head, below it, multiplies queries with keys instead, so a token need not attend to what resembles it.",
			},
			{
				id: "L3.3",
				view: "attention",
				title: "One head",
				changes: (card) => ({ ...attentionText(card), anatomy: true, lines: false }),
				target: ".apart",
				text: "Each query (q) is compared with each key (k); divided by √d_k and through a softmax, this gives the weight of each value (v).",
			},
			{
				id: "L3.3a",
				view: "attention",
				title: "A look-up, hard and soft",
				changes: () => ({ lookup: true, lookup_query: "order_104", lookup_sharpness: 1 }),
				target: ".lookup-table",
				text: "A key-value store finds order_104 by an equal key. A soft look-up compares the query with all keys and answers with a mixture of their values; the sharper, the closer to the hard one. Attention is a soft look-up.",
			},
			{
				id: "L3.4",
				view: "attention",
				title: "All tokens at once",
				changes: (card) => ({ ...attentionText(card), anatomy: true, lines: false }),
				target: ".apart",
				text: "softmax(QKᵀ / √d_k + M) V: one matrix product of all queries with all keys.",
			},
			{
				id: "L3.5",
				needs: "a decoder",
				view: "attention",
				title: "No looking ahead",
				changes: (card) =>
					card.architecture === "encoder"
						? null
						: { ...attentionText(card), part: "attention", lines: false },
				target: /^Layer \d+/,
				text: "Masked scores are −∞ and their weights exactly 0: those cells are hatched. Change the last word: no earlier row changes.",
			},
			{
				id: "L3.6",
				view: "attention",
				title: "A soft lookup",
				changes: hypothesisChanges("adjectives", ({ attention_text: text }) => [text, ""]),
				target: ".hypothesis",
				text: "“Are there adjectives before me?” would be the query of creature, and fluffy and blue would have matching keys. Whether a head of this model does so is measured with nouns, verbs and adverbs in place of the adjectives: a head that looks back by two words fails.",
			},
			{
				id: "L3.6a",
				view: "attention",
				title: "He or she",
				changes: hypothesisChanges("pronouns", ({ pronouns }) => pronouns),
				target: ".hypothesis",
				text: "“Lily gave Tim her ball. He was happy, and she”: whom does a pronoun mean? The control has the other pronoun. Select the head that was found, and compare both sentences.",
			},
			{
				id: "L3.7",
				view: "attention",
				title: "Many heads",
				changes: (card) => ({ ...attentionText(card), sort: "" }),
				target: "heads",
				text: "Each head has its own W_Q, W_K and W_V. Sort heads by their scores; their outputs are concatenated and multiplied by W_O.",
			},
			{
				id: "L3.8",
				view: "translate",
				title: "Cross-attention",
				changes: () => ({ translate_part: "cross" }),
				target: "Cross-attention",
				text: "Queries come from the target, keys and values from the source: each row shows which source tokens the decoder attends to for that token.",
			},
		],
	},
	{
		title: "The block",
		stops: [
			{
				id: "L4.1",
				view: "machine",
				title: "The residual stream",
				target: "main figure",
				text: "Each token's vector flows upward, and every component adds to it. Thicker branches add more, measured on your text. Only attention moves information between tokens (Elhage et al., A Mathematical Framework for Transformer Circuits, 2021).",
			},
			{
				id: "L4.2",
				view: "block",
				title: "Feed-forward",
				target: "neuron activations",
				text: "The same small network for every token separately: up projection, activation, down projection. As in class, attention is the discussion, and this is each student's own assignment after it. The dots are the neurons of your model.",
			},
			{
				id: "L4.3",
				view: "block",
				title: "Layer norm",
				target: "Norm",
				text: ({ norm, norm_position: position }) =>
					`${
						norm === "rmsnorm"
							? "Per vector: divide by the root mean square, then scale. LayerNorm also subtracts the mean and adds a shift. σ is that of the selected token."
							: "Per vector: subtract the mean, divide by the standard deviation, scale and shift. μ and σ are those of the selected token."
					} ${
						position === "pre"
							? "This model is pre-norm, x + f(norm(x)); that of 2017 was post-norm, norm(x + f(x))."
							: "This model is post-norm, norm(x + f(x)), as in 2017; most are pre-norm today, x + f(norm(x))."
					}`,
			},
			{
				id: "L4.4",
				view: "machine",
				title: "A stack of blocks",
				target: "main figure",
				text: "The same architecture and width in every block; only the weights differ.",
			},
			{
				id: "L4.4a",
				view: "machine",
				title: "Counting parameters",
				target: "Parameters, part by part",
				text: "Each matrix with its shape in row form and in column form: the embedding matrix is |V| × d, or d × |V|, where each column is a token.",
			},
		],
	},
	{
		title: "Out of the stack",
		stops: [
			{
				id: "L5.1",
				view: (card) => (card.head === "classification" ? "classify" : "predict"),
				title: "Unembedding",
				changes: (card) =>
					card.head === "classification"
						? {}
						: isDecoder(card)
							? { text: card.examples.prompt }
							: null,
				target: /^(How a logit is computed|Prediction$)/,
				text: ({ head }) =>
					head === "classification"
						? "A classifier needs no vocabulary: the vector of the text times one row per class, plus a bias, gives the logits, and their softmax the probabilities."
						: "The last vector times one row per token of the vocabulary gives the logits. With tied weights, these rows are the embeddings.",
			},
			{
				id: "L5.2a",
				view: "predict",
				title: "Softmax by hand",
				changes: () => ({ typed_logits: "+6, −5, 4, 1.5, 9.9", typed_temperature: 10 }),
				target: "Softmax of any logits",
				text: "Five logits, +6, −5, 4, 1.5 and 9.9, become probabilities: divide by T, exponentiate, divide by the sum. At T = 10 all five get a share; move T to 1, and the largest gets 98%. Type other logits.",
			},
			{
				id: "L5.2",
				view: "predict",
				title: "Temperature",
				changes: (card) =>
					isDecoder(card) ? { text: card.examples.prompt, temperature: 0.4 } : null,
				target: ".sliders",
				text: "Logits are divided by the temperature before the softmax: low makes the top token dominant, high flattens the distribution. The name is from thermodynamics: a state of energy E has probability proportional to exp(−E / kT), and a logit is a negative energy. Move the slider.",
			},
			{
				id: "L5.3",
				needs: "a language model",
				view: "lens",
				title: "Every position predicts",
				changes: (card) => (isDecoder(card) ? { text: card.examples.attention_text } : null),
				target: "Prediction after each layer",
				text: "Every position predicts its next token, so one forward pass trains on all tokens at once.",
			},
			{
				id: "L5.3a",
				needs: "a language model",
				view: "lens",
				title: "Undecided at “it”",
				changes: (card) =>
					isDecoder(card) && UNDECIDED.test(card.examples.coreference[0])
						? { text: UNDECIDED.exec(card.examples.coreference[0])[0] }
						: null,
				target: "Prediction after each layer",
				text: "“The chicken didn't cross the road because it …”: is it the chicken or the road? That depends on words to come, tired or wide, which a model with a causal mask has not read at “it”. Here is what it predicts.",
			},
			{
				id: "L5.4",
				view: "predict",
				title: "Generation",
				changes: (card) =>
					isDecoder(card) ? { text: card.examples.prompt, temperature: 1 } : null,
				target: "The next token",
				text: "Sample a token, append it, run again. Press Play to generate; click any bar to force another token.",
			},
			{
				id: "L5.4a",
				view: "predict",
				title: "Facts are in the weights",
				needs: "a language model that was trained to chat",
				download: CHAT_MODEL,
				changes: (card) =>
					isDecoder(card) && card.has_chat_template
						? { text: "Harry Potter's least favorite professor is Professor", temperature: 1 }
						: null,
				target: "The next token",
				text: "“Harry Potter's least favorite professor is Professor …”: no word of this text names him. If the first piece of Snape is first, it comes from the training texts. As a control, delete “least”: if the answer stays, the model knows the professors of the book, but not whom he likes.",
			},
			{
				id: "L5.5",
				view: "chat",
				title: "Chat",
				download: CHAT_MODEL,
				changes: (card) =>
					card.has_chat_template
						? {
								system: "You are an apple.",
								other_system: "You are a pirate.",
								messages: [{ role: "user", content: "Hello! What are you?" }],
								temperature: 0,
							}
						: null,
				target: "Model input",
				text: "“You are an apple”: system prompt and messages are joined into one longer prompt; here are its tokens. The model only continues them. The system prompt changes who answers, not always: press Answer with both, below, to compare an apple with a pirate.",
			},
		],
	},
	{
		title: "Three architectures",
		stops: [
			{
				id: "L6.1",
				needs: "a decoder",
				view: "machine",
				title: "Decoder",
				changes: (card) => (card.architecture === "decoder" ? {} : null),
				target: "main figure",
				text: "A language model: with the causal mask, each token attends to itself and earlier tokens.",
			},
			{
				id: "L6.2",
				view: "translate",
				title: "Encoder and decoder",
				changes: () => ({ beam_node: -1 }),
				target: "Beam search",
				text: "Attention Is All You Need, 2017: an encoder without a mask and a decoder with cross-attention (here pre-norm; in 2017 post-norm). Beam search keeps several hypotheses and ranks them by score.",
			},
			{
				id: "L6.3",
				view: "fill",
				title: "Encoder",
				changes: () => ({ mask_positions: [1], query: 1 }),
				target: "Click a token",
				text: "Trained with masked tokens, it sees both sides. Mask a token and it predicts the original; its attention has no causal mask.",
			},
			{
				id: "L6.4",
				view: "patches",
				title: "Images and audio",
				target: "Model input",
				text: ({ reads_images }) =>
					reads_images
						? "Image patches are flattened and multiplied by one matrix. Then they are tokens."
						: "Audio becomes a spectrogram, whose parts become tokens, in the steps listed here.",
			},
		],
	},
	{
		title: "Beyond the lectures",
		stops: [
			{
				id: "edits",
				view: "attention",
				title: "Edit activations",
				changes: (card) => ({ ...attentionText(card) }),
				target: "ch-edit",
				text: "Ablate, scale or negate a head: the prediction updates, and the link and the Python code include the edit.",
			},
			{
				id: "training",
				needs: "a checkpoint of a run with --record-activations",
				view: "compare",
				title: "Watch it learn",
				changes: (card) =>
					card.has_training_trace ? { compare: "training", trace_index: 0 } : null,
				target: ".step-slider",
				text: "A training run with recorded activations: press Play to see heads form while the loss falls.",
			},
		],
	},
];

/** All stops with their chapter; `view` is null if this model cannot show the stop. */
function tourStops(card) {
	return CHAPTERS.flatMap(({ title: part, stops }) =>
		stops.map((stop) => {
			const preferred = typeof stop.view === "function" ? stop.view(card) : stop.view;
			const isPossible = card.views.includes(preferred) && (stop.changes ?? noChanges)(card);
			const view = isPossible ? preferred : null;
			const text = typeof stop.text === "function" ? stop.text(card) : stop.text;
			return {
				...stop,
				text,
				part,
				view,
				models: stop.download ? [stop.download] : (MODELS[preferred] ?? ["story"]),
				needs: stop.needs ?? REQUIREMENTS[preferred] ?? "a model with a single text input",
			};
		}),
	);
}

registerDefaults({ tour: "" });

function template({ card }) {
	const all = tourStops(card).map((stop) => (stop.view ? stop : stopOfOtherModel(stop, card)));
	const first = all.find(({ view }) => view);
	const done = all.find(({ id }) => id === state().tour);
	const unloaded = all.every(({ view }) => view)
		? []
		: otherCards(card)
				.filter(({ views }) => !views)
				.map(({ name }) => name);
	return html`<p class="row">
			<button type="button" class="main" @click=${() => goTo(card, first)}>Start the tour</button>
			${done ? button(`Continue at ${done.title}`, () => goTo(card, done)) : nothing}
			<span class="hint">Keys: N next, B back, Esc end.</span>
			${
				unloaded.length && !loadOthers
					? html`<button
							type="button"
							class="quiet"
							@click=${() => {
								loadOthers = true;
								notify();
							}}>
							Load ${unloaded.join(", ")}
						</button>`
					: nothing
			}
		</p>
		<div class="parts">
			${CHAPTERS.map(
				({ title }, i) =>
					html`<section>
						<h2>${i + 1}. ${title}</h2>
						<ol>
							${all
								.filter(({ part }) => part === title)
								.map(
									(stop) =>
										html`<li>
											<button
												type="button"
												class="stop"
												?disabled=${!stop.view}
												aria-current=${stop.id === state().tour ? "step" : "false"}
												@click=${() => goTo(stop.card ?? card, stop)}>
												<b>${stop.title}</b
												><span
													>${!stop.view ? `Requires ${stop.needs}.` : stop.card ? `With ${stop.card.name}: ${stop.text}` : stop.text}</span
												>
											</button>
											${stop.view || !stop.download ? nothing : modelOffer([stop.download], (card) => goToStop(card, stop.id))}
										</li>`,
								)}
						</ol>
					</section>`,
			)}
		</div>`;
}

let loadOthers = false; // whether to load models that are not loaded yet
const otherCards = (card) =>
	(snapshot ? [] : (serverModels().value ?? []))
		.filter(({ name }) => name !== card.name)
		.map((other) =>
			other.views || !loadOthers ? other : (getJson(modelUrl(other.name)).value ?? other),
		);

/** A stop that this model cannot show, with the card of another loaded model that can. */
function stopOfOtherModel(stop, card) {
	for (const other of otherCards(card).filter(({ views }) => views)) {
		const match = tourStops(other).find(({ id }) => id === stop.id);
		if (match.view) return { ...match, card: other };
	}
	return stop;
}

let viewBefore = "machine"; // view before the tour
subscribe(({ view, tour }) => tour || view === "tour" || (viewBefore = view));
let stateBefore = null; // state before the tour: every stop starts from it, and it is restored at the end

function goTo(card, stop) {
	if (!stop?.view) return;
	if (!state().tour || !stateBefore) stateBefore = { ...state(), view: viewBefore, tour: "" };
	const isCurrent = card.name === currentCard().value.name;
	const model = isCurrent ? state().model : card.name;
	const patch = {
		model,
		cell: "",
		pins: [],
		...(stop.changes ?? noChanges)(card),
		view: stop.view,
		tour: stop.id,
	};
	set(withChanges(stateBefore, patch));
}

/** Go to a stop with another model. */
const goToStop = (card, id) =>
	goTo(
		card,
		tourStops(card).find((stop) => stop.id === id),
	);

/** The stops that the current model can show and the current one, and the index of that. */
function currentStops() {
	const card = currentCard().value;
	const isCurrent = ({ id }) => id === state().tour;
	const stops = card ? tourStops(card).filter((stop) => stop.view || isCurrent(stop)) : [];
	return { card, stops, index: stops.findIndex(isCurrent) };
}

/** Go to the next or previous stop. */
function moveBy(step) {
	const { card, stops, index } = currentStops();
	if (!card || !state().tour) return;
	if (index + step >= stops.length) endTour();
	else if (index + step >= 0) goTo(card, stops[index + step]);
}

function endTour() {
	set({ ...stateBefore, tour: "" });
	stateBefore = null;
}

// ---- caption
const captionHost = document.createElement("aside");
captionHost.className = "tour-caption";
captionHost.setAttribute("aria-label", "tour");
captionHost.setAttribute("aria-live", "polite");
document.body.append(captionHost);

/** Whether the page was opened at a link such as #tour=L3.2, which names a stop and no view. */
let isLinkToStop = Boolean(state().tour) && !/[#&]view=/.test(location.hash);

function renderCaption() {
	const { card, stops, index } = currentStops();
	const stop = stops[index];
	if (stop?.view && isLinkToStop) {
		isLinkToStop = false;
		return goTo(card, stop);
	}
	const isAway = stop?.view && stop.view !== state().view;
	captionHost.hidden = !stop || state().view === "tour";
	document.body.classList.toggle("touring", !captionHost.hidden);
	render(
		captionHost.hidden
			? nothing
			: html`<p class="where">
						${stop.part}<span
							>${index + 1} of
							${stops.length}${stop.id.startsWith("L") ? ` · ${stop.id}` : ""}</span
						>
					</p>
					<h2>${stop.title}</h2>
					<p class="text">${stop.text}</p>
					${stop.view ? nothing : offerOf(stop, card)}
					<p class="tour-buttons">
						<button type="button" ?disabled=${index === 0} @click=${() => moveBy(-1)}>Back</button>
						${isAway ? button("Return", () => goTo(card, stop), { kind: "main" }) : button(index === stops.length - 1 ? "Finish" : "Next", () => moveBy(1), { kind: "main" })}
						<button type="button" class="quiet" @click=${endTour}>End the tour</button>
					</p>`,
		captionHost,
	);
	highlight(captionHost.hidden || isAway || !stop.view ? null : stop);
}

/** What a stop requires that this model does not have, and a model that has it. */
function offerOf(stop, card) {
	const other = stopOfOtherModel(stop, card);
	const open = (card) => goToStop(card, stop.id);
	return html`<p class="needs">${card.name} cannot show this. It requires ${stop.needs}.</p>
		${other.card ? button(`Open with ${other.card.name}`, () => open(other.card)) : modelOffer(stop.models, open)}`;
}

let highlighted = null;
let scrolledTo = ""; // id of a stop

/** Highlight the target of the caption once it is rendered. */
function highlight(stop) {
	const target = stop ? findTarget(stop.target) : null;
	if (highlighted !== target) {
		highlighted?.classList.remove("tour-target");
		target?.classList.add("tour-target");
		highlighted = target;
	}
	if (!stop) scrolledTo = "";
	else if (target && scrolledTo !== stop.id) {
		if ("ready" in document.body.dataset) scrolledTo = stop.id; // content above may still grow until then
		const isTall = target.getBoundingClientRect().height > 0.7 * innerHeight;
		target.scrollIntoView({
			block: isTall ? "start" : "center",
			behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth",
		});
	}
}

/** Find an element by selector, or a figure by its caption. */
function findTarget(target) {
	if (!target) return null;
	if (typeof target === "string" && /^(main|ch-|[.#])/.test(target))
		return document.querySelector(target);
	const isMatch = (text) =>
		target instanceof RegExp
			? target.test(text)
			: text.toLowerCase().includes(target.toLowerCase());
	/** @type {any[]} */
	const figures = [...document.querySelectorAll("main ch-figure")];
	return figures.find(({ caption }) => isMatch(caption)) ?? null;
}

let frame = 0;
subscribe(() => {
	// the page is rendered two frames after the last change
	cancelAnimationFrame(frame);
	frame = requestAnimationFrame(() => (frame = requestAnimationFrame(renderCaption)));
});

document.addEventListener("keydown", (event) => {
	const target = /** @type {HTMLElement} */ (event.target);
	const isTyping = target.closest?.("input, textarea, select");
	if (!state().tour || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
	const step = { n: 1, b: -1 }[event.key.toLowerCase()];
	if (event.key === "Escape") endTour();
	else if (step) moveBy(step);
	else return;
	event.preventDefault();
});

export default {
	id: "tour",
	title: "Tour",
	sentence: "The lecture topics, one by one, on the live views of your model.",
	free: true,
	template,
};
