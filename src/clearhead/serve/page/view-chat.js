// Chat (L5.5): a conversation is a longer prompt. Shows its exact tokens and who wrote them.

import { html, nothing } from "lit-html";
import * as api from "ch/api";
import "ch/charts";
import { button } from "ch/controls";
import { CHAT_MODEL, modelOffer } from "ch/downloads";
import "ch/figure";
import { formatCount } from "ch/format";
import { editFields, getRun, postJson, renderResource } from "ch/requests";
import { notify, registerDefaults, state } from "ch/state";
import { nextTokenTable } from "ch/view-compare";

const MAX_ANSWER_TOKENS = 200;
const MAX_COMPARED_TOKENS = 40;
const SEED_STEP = 1000003; // seed increment per answer, as in the library
registerDefaults({
	system: "You are an apple.",
	messages: [{ role: "user", content: "Hello! What are you?" }],
	other_system: "",
});

const ROLES = ["system", "user", "assistant"];
let pendingAnswer = null; // { to, text, stop, error } while generating
/** @type {{ to: string, texts: string[], error: string, isPending: boolean } | null} */
let comparedAnswers = null; // with both system prompts

function template(context) {
	const { system, messages: turns } = context.state;
	const input = getTokens(context, withSystem(system, turns), "conversation");
	return html`${
			context.card.has_chat_template
				? nothing
				: html`<p class="hint">
							This model was not trained to chat: it has no chat template and continues your text.
						</p>
						${modelOffer([CHAT_MODEL])}`
		}
		<div class="columns chat-columns">
			<div>${conversationSection(context, input)}</div>
			<div>${renderResource(input, inputFigure)} ${firstTokenFigure(context, input)}</div>
		</div>
		${comparisonFigure(context, input)}`;
}

/** Identifies the conversation an answer belongs to. */
const conversationKey = () => JSON.stringify([state().model, state().system, state().messages]);
const withSystem = (system, turns) => [
	...(system.trim() ? [{ role: "system", content: system }] : []),
	...turns,
];

function getTokens({ card }, messages, slot) {
	const body = { model: card.name, messages };
	return postJson("chat/tokens", body, slot, (result) => ({ ...result, messages }));
}

/** The conversation as editable messages. */
function conversationSection(context, input) {
	const { state, set } = context;
	const edit = (i, content) => {
		const messages = state.messages.map((turn, j) => (i === j ? { ...turn, content } : turn));
		set({ messages }, { replace: true });
	};
	const textarea = (content, onInput, label) =>
		html`<textarea
			rows=${Math.max(1, Math.ceil(content.length / 46))}
			aria-label=${label}
			spellcheck="false"
			.value=${content}
			@input=${(event) => onInput(event.target.value)}></textarea>`;
	const isAnswering = pendingAnswer?.to === conversationKey();
	return html`<section class="conversation" aria-label="conversation">
		<div class="message system">
			<span class="role">system</span
			>${textarea(state.system, (system) => set({ system }, { replace: true }), "system prompt")}
		</div>
		${state.messages.map(
			(turn, i) =>
				html`<div class="message ${turn.role}">
					<span class="role">${turn.role}</span>
					${textarea(turn.content, (content) => edit(i, content), `${turn.role}, message ${i + 1}`)}
					<button
						type="button"
						class="quiet"
						title="Remove this message and all following"
						@click=${() => set({ messages: state.messages.slice(0, i) })}>
						×
					</button>
				</div>`,
		)}
		${
			isAnswering
				? html`<div class="message assistant" aria-live="polite">
						<span class="role">assistant</span>
						<p class="writing">${pendingAnswer.text || "…"}</p>
					</div>`
				: nothing
		}
		${isAnswering && pendingAnswer.error ? html`<p class="problem">${pendingAnswer.error}</p>` : nothing}
		<div class="row">
			${
				isAnswering && pendingAnswer.stop
					? button("Stop", () => pendingAnswer.stop.abort(), { kind: "main" })
					: state.messages.at(-1)?.role === "user"
						? button("Answer", () => generateAnswer(context, input.value), {
								kind: "main",
								disabled:
									!!api.snapshot ||
									!input.value ||
									input.pending ||
									isFull(context.card, input.value),
								title: api.snapshot ? api.LIVE_ONLY : "",
							})
						: button(
								"Add a message",
								() => set({ messages: [...state.messages, { role: "user", content: "" }] }),
								{ kind: "main" },
							)
			}
			<span class="hint"
				>Temperature ${state.temperature}, seed ${state.seed} (set in
				Predict).${editFields() ? " Your edits apply to the answer." : ""}</span
			>
		</div>
	</section>`;
}

function generationRequest(card, { temperature, top_k, top_p }, ids, maxTokens, seed) {
	const max_tokens = Math.max(1, Math.min(maxTokens, card.context_length - ids.length));
	const sampling = { temperature, top_k, top_p, seed };
	return { model: card.name, ids, max_tokens, ...sampling, ...editFields() };
}

/** Generate an answer after exactly these tokens and append it as a message. */
async function generateAnswer({ card, state: settings, set }, { ids }) {
	const stop = new AbortController();
	const answer = { to: conversationKey(), text: "", stop, error: null };
	const answers = settings.messages.filter(({ role }) => role === "assistant");
	pendingAnswer = answer;
	notify();
	const seed = settings.seed + SEED_STEP * answers.length;
	const body = generationRequest(card, settings, ids, MAX_ANSWER_TOKENS, seed);
	try {
		await api.events(
			"/api/generate",
			body,
			(event, data) => {
				if (answer.to !== conversationKey()) stop.abort(); // the conversation changed
				if (event === "token") answer.text += data.piece;
				if (event === "error") answer.error = data.message;
				notify();
			},
			stop.signal,
		);
	} catch (error) {
		if (error.name !== "AbortError") answer.error = error.message;
	}
	answer.stop = null;
	if (pendingAnswer !== answer || answer.error || answer.to !== conversationKey()) return notify();
	pendingAnswer = null;
	set({ messages: [...state().messages, { role: "assistant", content: answer.text.trim() }] });
}

const isFull = (card, { ids }) => ids.length >= card.context_length;

/** The exact input: message tokens between tokens of the template. */
function inputFigure({ tokens, spans_found: hasSpans, messages }) {
	const inMessages = tokens.filter(({ message }) => message !== null).length;
	return html`<ch-figure
		.caption=${`Model input: ${formatCount(tokens.length, "token")}`}
		.note=${hasSpans ? `${formatCount(inMessages, "token")} belong to messages, the other ${formatCount(tokens.length - inMessages)} to the template. The model continues after the last token.` : "This model's template rewrites messages, so tokens cannot be assigned to messages."}>
		<div class="bands">
			${groupByMessage(tokens).map(
				({ message, tokens }) =>
					html`<span
						class="band ${message === null ? "template" : messages[message].role}"
						title=${message === null ? "added by the template" : messages[message].role}
						>${tokens.map(
							(token) =>
								html`<span
									class="message-token ${token.special ? "special" : ""}"
									title=${`id ${token.id}`}
									>${withLineBreak(token)}</span
								>`,
						)}</span
					>`,
			)}
		</div>
		<p class="legend roles">
			${ROLES.filter((role) => messages.some((one) => one.role === role)).map((role) => html`<span class="band ${role}">${role}</span>`)}<span
				class="band template"
				>template</span
			>
		</p>
	</ch-figure>`;
}

/** Break the line after a newline token. */
const withLineBreak = ({ text }) => (text.endsWith("↵") ? `${text}\n` : text);

function groupByMessage(tokens) {
	const groups = [];
	for (const token of tokens) {
		if (groups.at(-1)?.message === token.message && groups.length) groups.at(-1).tokens.push(token);
		else groups.push({ message: token.message, tokens: [token] });
	}
	return groups;
}

function firstTokenFigure({ card }, input) {
	if (!input.value || input.pending) return nothing;
	if (isFull(card, input.value))
		return html`<p class="hint">
			The conversation fills the context of ${formatCount(card.context_length)} tokens; no room for
			an answer.
		</p>`;
	const body = { model: card.name, ids: input.value.ids };
	const plain = getRun(body, "chat run");
	const next = editFields() ? getRun({ ...body, ...editFields() }, "edited chat run") : plain;
	const unedited = new Map(
		next === plain ? [] : plain.value?.top.map(({ id, prob }) => [id, prob]),
	);
	return html`<ch-figure
		.caption=${"First token of the answer"}
		.pending=${next.pending}
		.note=${next === plain ? "" : "With your edits; dark lines are without edits, for tokens in the top 10."}
		>${renderResource(
			next,
			({ top }) =>
				html`<ch-bar-chart
					.labels=${top.map(({ text }) => text)}
					.values=${top.map(({ prob }) => prob)}
					.baseline=${unedited.size ? top.map(({ id }) => unedited.get(id) ?? NaN) : null}
					.max=${1}
					.valueName=${"probability"}
					.label=${"most likely first tokens"}></ch-bar-chart>`,
		)}</ch-figure
	>`;
}

/** The same conversation with another system prompt. */
function comparisonFigure(context, input) {
	const { card, state, set } = context;
	const second = state.other_system.trim()
		? getTokens(context, withSystem(state.other_system, state.messages), "other conversation")
		: null;
	return html`<ch-figure
		.caption=${"Compare system prompts"}
		.note=${"Only the prompt differs; the model is the same."}>
		<label class="other-system"
			>Other system prompt
			<input
				type="text"
				.value=${state.other_system}
				placeholder="You are a pirate."
				@input=${(event) => set({ other_system: event.target.value }, { replace: true })}
		/></label>
		${
			second && input.value && !input.pending && !isFull(card, input.value)
				? renderResource(second, (result) => {
						if (isFull(card, result))
							return html`<p class="hint">
								With this system prompt, the conversation fills the context.
							</p>`;
						const [a, b] = [input.value, result].map(({ ids }, i) =>
							getRun({ model: card.name, ids }, i ? "other chat run" : "chat run"),
						);
						return html`<div class="bands">
								${tokenDiff(input.value.tokens, result.tokens).map(([kind, token]) => html`<span class="message-token ${kind}" title=${{ removed: "only with the first prompt", added: "only with the other", same: "in both" }[kind]}>${withLineBreak(token)}</span>`)}
							</div>
							${renderResource(b, () => renderResource(a, () => nextTokenTable([a.value, b.value], [state.system, state.other_system].map(shortPrompt))))}
							${answerPair(context, [input.value.ids, result.ids])}`;
					})
				: html`<p class="hint">Enter another system prompt to compare.</p>`
		}
	</ch-figure>`;
}

/** The beginnings of the answers with both system prompts, side by side. */
function answerPair(context, ids) {
	const { card, state } = context;
	const prompts = [state.system, state.other_system];
	const key = JSON.stringify([ids, generationRequest(card, state, [], 0, state.seed)]);
	const answers = comparedAnswers?.to === key ? comparedAnswers : null;
	return html`<p class="row">
			${button("Answer with both", () => compareAnswers(card, state, ids, key), {
				disabled: !!api.snapshot || !!comparedAnswers?.isPending,
				title: api.snapshot ? api.LIVE_ONLY : "",
			})}
			<span class="hint">The first ${MAX_COMPARED_TOKENS} tokens of each.</span>
		</p>
		${answers?.error ? html`<p class="problem">${answers.error}</p>` : nothing}
		${
			answers
				? html`<dl class="answers" aria-live="polite">
						${prompts.map(
							(prompt, i) =>
								html`<div>
									<dt>${shortPrompt(prompt)}</dt>
									<dd>${answers.texts[i] || "…"}</dd>
								</div>`,
						)}
					</dl>`
				: nothing
		}`;
}

async function compareAnswers(card, settings, ids, to) {
	const answers = { to, texts: ["", ""], error: "", isPending: true };
	comparedAnswers = answers;
	notify();
	const onEvent = (i) => (event, data) => {
		if (event === "token") answers.texts[i] += data.piece;
		if (event === "error") answers.error = data.message;
		notify();
	};
	const request = (ids) =>
		generationRequest(card, settings, ids, MAX_COMPARED_TOKENS, settings.seed);
	try {
		await Promise.all(ids.map((ids, i) => api.events("/api/generate", request(ids), onEvent(i))));
	} catch ({ message }) {
		answers.error = message;
	}
	answers.isPending = false;
	notify();
}

const shortPrompt = (text) =>
	text.trim() ? (text.length > 28 ? `${text.slice(0, 27)}…` : text) : "no system prompt";

/** Diff of two token lists by their common prefix and suffix. */
function tokenDiff(before, after) {
	const isSame = (a, b) => a && b && a.id === b.id;
	let first = 0;
	let last = 0;
	while (isSame(before[first], after[first])) first++;
	while (
		last < Math.min(before.length, after.length) - first &&
		isSame(before.at(-1 - last), after.at(-1 - last))
	)
		last++;
	return [
		...before.slice(0, first).map((t) => ["same", t]),
		...before.slice(first, before.length - last).map((t) => ["removed", t]),
		...after.slice(first, after.length - last).map((t) => ["added", t]),
		...before.slice(before.length - last).map((t) => ["same", t]),
	];
}

export default {
	id: "chat",
	title: "Chat",
	sentence: "A conversation is a longer prompt: its exact tokens and who wrote them.",
	free: true,
	template,
};
