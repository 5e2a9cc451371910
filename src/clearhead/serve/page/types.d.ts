// Types of the page's JavaScript, for tsc. See clearhead/serve/explorer for the JSON of the API.

/** A matrix or vector as read from .npy. */
interface Matrix {
	shape: number[];
	data: Float32Array; // or Uint8Array
	pooled?: number;
}
/** [row, column] */
type Cell = [number, number];

interface Token {
	id: number | null;
	text: string;
	special?: boolean;
	added?: boolean;
	message?: number | null;
}
interface TopToken {
	id: number;
	text: string;
	prob: number | null;
}
interface Activation {
	shape: number[];
	description: string;
	formula: string;
}
/** A forward pass. */
interface Run {
	id: string;
	tokens: Token[];
	source_tokens?: Token[];
	activations: Record<string, Activation>;
	top: TopToken[];
	answer_token: number | null;
	milliseconds: number;
}
interface Edit {
	name: string;
	op: "ablate" | "mean_ablate" | "scale" | "patch";
	head?: number | null;
	token?: number | null;
	factor?: number;
}
type EditTarget = Pick<Edit, "name" | "head" | "token">;
/** The request fields of the current edits. */
interface EditFields {
	edits: Edit[];
	patch_from?: string;
}

/** The card of a model. */
interface Card {
	name: string;
	architecture: "decoder" | "encoder" | "encoder-decoder";
	head: "lm" | "mlm" | "classification" | "regression" | "none";
	n_layers: number;
	encoder_layers: number;
	n_heads: number;
	n_kv_heads: number;
	d_head: number;
	d_model: number;
	d_ff: number;
	activation: string;
	is_gated: boolean;
	norm: string;
	norm_position: "pre" | "post";
	position: string;
	sliding_window: number;
	scale_scores: boolean;
	tie_embeddings: boolean;
	context_length: number;
	vocab_size: number;
	num_parameters: number;
	device: string;
	step: number | null;
	reads_text: boolean;
	reads_images: boolean;
	reads_audio: boolean;
	has_chat: boolean;
	has_chat_template: boolean; // of its own, so it was trained to chat
	has_training_trace: boolean;
	views: string[];
	fingerprint: string;
	examples: Examples;
}
interface Examples {
	text: string;
	source: string;
	prompt: string;
	comparison: string;
	attention_text: string;
	attention_tokens: [number, number] | null;
	coreference: [string, string];
	pronouns: [string, string];
	shared_phrase: [string, string];
	context_texts: string[];
	substitutes: string[];
	can_read_senses: boolean;
	file: { name: string; data: string } | null;
}

/** A published model that the server may download. */
interface Offer {
	name: string;
	title: string;
	megabytes: number;
	is_downloaded: boolean;
	is_served: boolean;
	is_allowed: boolean;
}

/** The state of the page, which is also its URL. */
interface State {
	model: string;
	text: string | null;
	source: string | null;
	view: string;
	part: string;
	layer: number;
	head: number;
	query: number;
	key: number;
	step: number;
	cell: string;
	temperature: number;
	top_k: number;
	top_p: number;
	seed: number;
	edits: Edit[];
	patch_from: string;
	pins: string[];
	drawing?: string | null;
	tone?: number;
	[key: string]: any; // keys of views
}
type SetState = (patch: Partial<State>, options?: { replace?: boolean }) => void;

/** Something that loads. */
interface Resource<T = any> {
	key?: string;
	value?: T;
	error?: (Error & { status?: number }) | null;
	pending?: boolean;
	stop?: AbortController;
}
type Loader<T = any> = (options: { signal?: AbortSignal }) => Promise<T>;

/** A lens view as sent by the API. */
interface LensView {
	title: string;
	note: string;
	shape: number[];
	axes: { name: string; labels: string[] }[];
	values: any; // base64, or Float32Array once decoded
	value_name: string;
	signed: boolean;
	vmax: number | null;
	words?: string[][];
	has_colors?: boolean;
}

/** What a view's template receives. */
interface ViewContext {
	state: State;
	set: SetState;
	card: Card;
	text: string | null;
	source: string | null;
	run: Run | null;
	edited: Run | null;
	pending: boolean;
	error: Error | null;
	isEmpty: boolean;
	resource: <T>(key: string, loader: Loader<T>, slot?: string) => Resource<T>;
	highlight: HighlightedToken;
	inspect: (cell: any, mode?: string) => void;
	hover: (token: number, strip?: string) => void;
}
/** The token under the pointer; `strip` and `viewStrip` are state keys: query, or key for the source. */
interface HighlightedToken {
	token: number;
	strip: string;
	viewStrip: string;
}
interface PageView {
	id: string;
	title: string;
	sentence: string;
	free?: boolean; // renders without a run
	template: (context: ViewContext) => unknown;
}

/** Where the cells of a canvas lie, in CSS pixels. */
interface GridLayout {
	left: number;
	top: number;
	cellWidth: number;
	cellHeight: number;
	rows: number;
	cols: number;
}

interface Window {
	clearhead: { readonly state: State; set: SetState };
}
