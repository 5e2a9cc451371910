// The stops of the tour, one per lecture topic. `at` returns the state changes (null: not possible with this model),
// `find` the highlighted element (caption or selector), `say` the text, `needs` the required kind of model.

const decoder = (card) => card.architecture === "decoder" && card.reads_text;
const both = (card) => card.architecture === "encoder-decoder";
const reads = (card) => card.reads_text && !both(card); // models with a single text input
const fluffy = (card) => (reads(card) ? { text: card.examples.attention_text } : {});
const thanks = (card) => (reads(card) ? { text: card.examples.prompt } : {});
const told = (card, text) => (reads(card) ? `“${text}”` : "A text");
const MOVES = ["learned", "sinusoidal"]; // absolute positions

const last = { query: -1, key: -1 };

const NEEDS = {
  translate: "an encoder-decoder",
  fill: "an encoder trained with masked language modeling",
  chat: "a model with a chat template",
  patches: "a model for images or audio",
  predict: "a language model",
};

export const PARTS = [
  {
    title: "Tokens in",
    stops: [
      { id: "L1.1", view: (card) => (card.reads_images || card.reads_audio ? "patches" : "tokens"), title: "Everything is tokens", at: () => ({}), find: "main ch-figure",
        say: "Text is split into tokens, images and audio into patches. Each becomes one vector; from there on everything is the same." },
      { id: "L1.2", view: "tokens", title: "Text becomes numbers", at: thanks, find: "Tokenized text",
        say: (card) => `${told(card, card.examples.prompt)} is split into tokens of the vocabulary, and each token has an id.` },
      { id: "L1.3", view: "tokens", title: "An id selects a row", at: thanks, find: ".way .wide",
        say: "A one-hot vector times the embedding matrix selects one of its rows. That row is all the model knows about this token before it sees the context." },
      { id: "L1.4", view: "vectors", title: "Directions carry meaning", at: () => ({ expression: "king - man + woman" }), find: "Nearest neighbors by cosine",
        say: "king − man + woman should be near queen; cats − cat is a direction for plural. Small models know little of this: you see what yours knows." },
      { id: "L1.5", view: "tokens", title: "The context is limited", at: () => ({}), find: ".strip .count",
        say: "The model reads at most this many tokens at once. Longer texts are an error, never silently truncated." },
    ],
  },
  {
    title: "Positions",
    stops: [
      { id: "L2.1", view: "position", title: "Order must be encoded", at: (card) => (reads(card) ? { text: "ate an apple" } : null), find: "The same words in reverse order",
        say: "To attention alone, “ate an apple” and “apple ate an” are the same set of words. With all tokens at one position, the first layer does not notice a reversed order; only positions tell." },
      { id: "L2.2", view: "position", title: "Positions are vectors too", at: () => ({}), find: "Token + position",
        say: ({ position }) => ({
          learned: "Learned positions are another embedding matrix, trained with everything else; token and position embeddings are added.",
          sinusoidal: "A vector per position is added to each token embedding. Here it is sinusoidal and not learned.",
        })[position] ?? "Learned positions are another embedding matrix. This model adds none: its positions enter in the attention scores." },
      { id: "L2.3", view: "position", title: "Waves, like binary digits", at: () => ({}), find: "sinusoidal",
        say: "Sines and cosines of decreasing frequency, like the bits of a binary counter, which flip at halving rates." },
      { id: "L2.4", view: "position", title: "Only distance matters", at: (card) => (reads(card) ? { text: "I walk my dog" } : null), find: "The same text, shifted",
        say: ({ position }) => `“I walk my dog” means the same early and late in a text. ${MOVES.includes(position)
          ? `This model's positions are ${position}, so its residual stream changes when the text is shifted; with relative or rotary positions it would not.`
          : "Only distances matter in this model: shift the text, and nothing changes."}` },
      { id: "L2.5", view: "position", title: "Rotary positions", at: () => ({}), find: "Rotary positions",
        say: "Queries and keys are rotated by an angle proportional to their position, so their product depends only on the distance. Move the slider." },
    ],
  },
  {
    title: "Attention",
    stops: [
      { id: "L3.1", view: "lens", title: "A word in its context", at: (card) => (reads(card) ? {} : null), find: "Similarity of",
        say: "“mole” starts as the same vector in all three sentences and diverges layer by layer: an animal, a unit, a growth." },
      { id: "L3.2", view: "attention", title: "The simplest attention", at: (card) => ({ ...fluffy(card), anatomy: true, ...last }), find: ".apart",
        say: "Compare each token with every visible token, normalize the scores with softmax, and average the vectors. The simplest attention compares the vectors themselves; a head compares queries and keys, as here." },
      { id: "L3.3", view: "attention", title: "One head", at: (card) => ({ ...fluffy(card), anatomy: true, lines: false }), find: ".apart",
        say: "Each query (q) is compared with each key (k); divided by √d and through a softmax, this gives the weight of each value (v)." },
      { id: "L3.4", view: "attention", title: "All tokens at once", at: (card) => ({ ...fluffy(card), anatomy: true, lines: false }), find: ".apart",
        say: "softmax(QKᵀ / √d + M) V: one matrix product of all queries with all keys." },
      { id: "L3.5", needs: "a decoder", view: "attention", title: "No looking ahead", at: (card) => (card.architecture === "encoder" ? null : { ...fluffy(card), part: "attention", lines: false }), find: /^layer \d+, head \d+|^Head|^Layer/i,
        say: "Masked scores are −∞ and their weights exactly 0: those cells are hatched. Change the last word: no earlier row changes." },
      { id: "L3.6", view: "attention", title: "A soft lookup", at: (card) => (card.examples.attention_tokens && reads(card) ? { ...fluffy(card), query: card.examples.attention_tokens[0], key: card.examples.attention_tokens[1], sort: "look", lines: false } : null), find: "heads",
        say: "In the lectures, creature asks “Are there adjectives before me?”. Heads are sorted by how much creature attends to fluffy. Select the first one and check other nouns." },
      { id: "L3.7", view: "attention", title: "Many heads", at: (card) => ({ ...fluffy(card), sort: "" }), find: "heads",
        say: "Each head has its own W_Q, W_K and W_V. Sort heads by their scores; their outputs are concatenated and multiplied by W_O." },
      { id: "L3.8", view: "translate", title: "Cross-attention", at: () => ({ translate_part: "cross" }), find: "Cross-attention",
        say: "Queries come from the target, keys and values from the source: each row shows what the decoder attended to for that token." },
    ],
  },
  {
    title: "The block",
    stops: [
      { id: "L4.1", view: "machine", title: "The residual stream", at: () => ({}), find: "main figure",
        say: "Each token's vector flows upward, and every component adds to it. Thicker branches add more, measured on your text. Only attention moves information between tokens." },
      { id: "L4.2", view: "block", title: "Feed-forward", at: () => ({}), find: "neuron activations",
        say: "The same small network for every token separately: up projection, activation, down projection. The dots are your model's own neurons." },
      { id: "L4.3", view: "block", title: "Layer norm", at: () => ({}), find: "Norm",
        say: ({ norm }) => (norm === "rmsnorm"
          ? "Per vector: divide by the root mean square, then scale. LayerNorm also subtracts the mean and adds a shift. σ is that of the selected token."
          : "Per vector: subtract the mean, divide by the standard deviation, scale and shift. μ and σ are those of the selected token.") },
      { id: "L4.4", view: "machine", title: "A stack of blocks", at: () => ({}), find: "main figure",
        say: "The same architecture and width in every block; only the weights differ." },
    ],
  },
  {
    title: "Out of the stack",
    stops: [
      { id: "L5.1", view: "predict", title: "Unembedding", at: (card) => (decoder(card) ? { text: card.examples.prompt } : null), find: "How a logit is computed",
        say: "The last vector times one row per token of the vocabulary gives the logits. With tied weights, these rows are the embeddings." },
      { id: "L5.2", view: "predict", title: "Temperature", at: (card) => (decoder(card) ? { text: card.examples.prompt, temperature: 0.4 } : null), find: ".sliders",
        say: "Logits are divided by the temperature before the softmax: low makes the top token dominant, high flattens the distribution. Move the slider." },
      { id: "L5.3", needs: "a language model", view: "lens", title: "Every position predicts", at: (card) => (decoder(card) ? { text: card.examples.attention_text } : null), find: "Prediction after each layer",
        say: "Every position predicts its next token, so one forward pass trains on all tokens at once." },
      { id: "L5.4", view: "predict", title: "Generation", at: (card) => (decoder(card) ? { text: card.examples.prompt, temperature: 1 } : null), find: "The next token",
        say: "Sample a token, append it, run again. Press Play to generate; click any bar to force another token." },
      { id: "L5.5", view: "chat", title: "Chat", at: () => ({ system: "You are an apple." }), find: "Model input",
        say: "“You are an apple.” System prompt and messages are just a longer prompt; here are its tokens." },
    ],
  },
  {
    title: "The three shapes",
    stops: [
      { id: "L6.1", needs: "a decoder", view: "machine", title: "Decoder", at: (card) => (card.architecture === "decoder" ? {} : null), find: "main figure",
        say: "A language model: everything so far, with the causal mask." },
      { id: "L6.2", view: "translate", title: "Encoder and decoder", at: () => ({ beam_node: -1 }), find: "Beam search",
        say: "Attention Is All You Need, 2017: an encoder without a mask and a decoder with cross-attention. Beam search keeps several hypotheses and ranks them by score." },
      { id: "L6.3", view: "fill", title: "Encoder", at: () => ({ mask_positions: [1], query: 1 }), find: "Click a token",
        say: "Trained with masked tokens, it sees both sides. Mask a token and it predicts the original; its attention has no causal mask." },
      { id: "L6.4", view: "patches", title: "Images and audio", at: () => ({}), find: "What the model",
        say: ({ reads_images }) => (reads_images ? "Image patches are flattened and multiplied by one matrix. Then they are tokens."
          : "Audio becomes a spectrogram, whose parts become tokens, in the steps listed here.") },
    ],
  },
  {
    title: "Beyond the lectures",
    stops: [
      { id: "edits", view: "attention", title: "Edit activations", at: (card) => ({ ...fluffy(card) }), find: "ch-edit",
        say: "Ablate, scale or negate a head: the prediction updates, and the link and the Python code include the edit." },
      { id: "training", needs: "a checkpoint of a run with --record-activations", view: "compare", title: "Watch it learn", at: (card) => (card.has_training_trace ? { compare: "training", trace_index: 0 } : null), find: ".scrub",
        say: "A training run with recorded activations: press Play to see heads form while the loss falls." },
    ],
  },
];

/** Every stop with its part; `view` is where it is seen with such a model, null where it cannot be for want of `needs`. */
export function stops(card) {
  return PARTS.flatMap(({ title: part, stops }) => stops.map((stop) => {
    const wanted = typeof stop.view === "function" ? stop.view(card) : stop.view;
    const view = card.views.includes(wanted) && stop.at(card) ? wanted : null;
    const say = typeof stop.say === "function" ? stop.say(card) : stop.say;
    return { ...stop, say, part, view, needs: stop.needs ?? NEEDS[wanted] ?? "a model with a single text input" };
  }));
}
