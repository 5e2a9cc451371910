// The stops of the tour: each point of the lectures, where it can be seen, and what to set for that.
// `at` gives what the state becomes (null: this model cannot show it); `find` is what is lit up, by caption or selector;
// `say` is the sentence, or makes it for a model; `needs` says what a model must have, where its view does not say it.

const decoder = (card) => card.kind === "decoder" && card.text;
const both = (card) => card.kind === "encoder-decoder";
const reads = (card) => card.text && !both(card); // one text
const fluffy = (card) => (reads(card) ? { text: card.examples.fluffy } : {});
const thanks = (card) => (reads(card) ? { text: card.examples.predict } : {});
const told = (card, text) => (reads(card) ? `“${text}”` : "A text");
const MOVES = ["learned", "sinusoidal"]; // positions that know where a text begins

const last = { query: -1, key: -1 };

const NEEDS = {
  translate: "an encoder-decoder",
  fill: "an encoder that was trained on hidden words",
  chat: "a model with a chat template",
  patches: "a model that reads pictures or sound",
  predict: "a language model",
};

export const PARTS = [
  {
    title: "Tokens in",
    stops: [
      { id: "L1.1", view: (card) => (card.pictures || card.sound ? "patches" : "tokens"), title: "Everything is tokens", at: () => ({}), find: "main ch-figure",
        say: "Text is cut into pieces, pictures and sounds into patches. Each becomes one vector, and from there on all is the same." },
      { id: "L1.2", view: "tokens", title: "Text becomes numbers", at: thanks, find: "The text, cut into pieces",
        say: (card) => `${told(card, card.examples.predict)} is cut into pieces that are in the vocabulary, and each piece has a number. What the vocabulary is made of stands below.` },
      { id: "L1.3", view: "tokens", title: "A number picks a row", at: thanks, find: ".way .wide",
        say: "A one-hot row times the embedding matrix is nothing but picking a row of it. That row is all the model knows of this piece before it has read the rest." },
      { id: "L1.4", view: "vectors", title: "Directions carry meaning", at: () => ({ sum: "king - man + woman" }), find: "Nearest by cosine",
        say: "king − man + woman should lie near queen; cats − cat is a direction that says how plural a word is. Small models know little of this: what you see is what yours knows." },
      { id: "L1.5", view: "tokens", title: "The context is bounded", at: () => ({}), find: ".strip .count",
        say: "At most so many tokens are read at once. What is longer gets a clear answer instead of a silent cut." },
    ],
  },
  {
    title: "Positions",
    stops: [
      { id: "L2.1", view: "position", title: "Order must be told", at: (card) => (reads(card) ? { text: "ate an apple" } : null), find: "The same words in another order",
        say: "To attention alone, “ate an apple” and “apple ate an” are one bag of words. With all tokens at one place, the first layer does not notice that those before the last come in reverse; only positions tell." },
      { id: "L2.2", view: "position", title: "Positions are vectors too", at: () => ({}), find: "Token + position",
        say: ({ position }) => ({
          learned: "Learned positions are one more matrix, random at the start and trained with everything else; the sum of token and position goes in.",
          sinusoidal: "A vector for each position is added to the token's. Here it is made of waves and not learned; learned ones would be one more matrix.",
        })[position] ?? "Learned positions are one more matrix, whose rows are added to the tokens'. This model adds nothing there: its positions come in where queries meet keys." },
      { id: "L2.3", view: "position", title: "Waves, like binary digits", at: () => ({}), find: "sinusoidal",
        say: "Sines and cosines of falling frequency: beside binary counting you see the same idea, digits that flip at halving rates." },
      { id: "L2.4", view: "position", title: "Only distance matters", at: (card) => (reads(card) ? { text: "I walk my dog" } : null), find: "begun later",
        say: ({ position }) => `“I walk my dog” means the same early and late in a text. ${MOVES.includes(position)
          ? `This model's positions are ${position}, so its streams move when the text begins later; with relative or rotary ones they would not.`
          : "Only distances count in this model: begin the text later, and nothing moves."}` },
      { id: "L2.5", view: "position", title: "Rotary positions", at: () => ({}), find: "Rotary positions",
        say: "Queries and keys turn by an angle that grows with their position, so that their product depends on the distance alone. Move the slider." },
    ],
  },
  {
    title: "Attention",
    stops: [
      { id: "L3.1", view: "lens", title: "A word in its context", at: (card) => (reads(card) ? {} : null), find: "How alike",
        say: "“mole” begins as the same vector in all three sentences, and becomes another one layer by layer: an animal, a unit, a growth." },
      { id: "L3.2", view: "attention", title: "The simplest attention", at: (card) => ({ ...fluffy(card), anatomy: true, ...last }), find: ".apart",
        say: "Compare each token with each that it may see, turn the comparisons into shares, and take that much of each. The simplest attention compares the vectors themselves; a head compares its own queries and keys of them, as here." },
      { id: "L3.3", view: "attention", title: "One head", at: (card) => ({ ...fluffy(card), anatomy: true, lines: false }), find: ".apart",
        say: "What each token asks (q) meets what each answers to (k); divided by √d and through a softmax it says how much of each value (v) is taken." },
      { id: "L3.4", view: "attention", title: "All tokens in one go", at: (card) => ({ ...fluffy(card), anatomy: true, lines: false }), find: ".apart",
        say: "softmax(QKᵀ / √d + M) V: one product of all queries with all keys, as many rows and columns as there are tokens." },
      { id: "L3.5", needs: "a decoder", view: "attention", title: "No looking ahead", at: (card) => (card.kind === "encoder" ? null : { ...fluffy(card), part: "attention", lines: false }), find: /^layer \d+, head \d+|^Head|^Layer/i,
        say: "Where a query may not look, the score is −∞ and the share exactly 0: those cells are hatched. Change the last word: no earlier row changes." },
      { id: "L3.6", view: "attention", title: "A soft look-up", at: (card) => (card.examples.asks && reads(card) ? { ...fluffy(card), query: card.examples.asks[0], key: card.examples.asks[1], sort: "look", lines: false } : null), find: "heads",
        say: "“Are there adjectives before me?” asks creature; fluffy and blue answer. The heads stand in the order of how much creature looks at fluffy, which is not its neighbour. Choose the first, and see whether it does so for other nouns too." },
      { id: "L3.7", view: "attention", title: "Many heads", at: (card) => ({ ...fluffy(card), sort: "" }), find: "heads",
        say: "Each head has its own W_Q, W_K, W_V and looks at different things. Sort them by what they do; what they found is joined and multiplied by W_O." },
      { id: "L3.8", view: "translate", title: "Looking at the source", at: () => ({ look: "cross" }), find: "Cross-attention",
        say: "Queries from what is written, keys and values from what was read: each row shows where the decoder looked when it wrote that token." },
    ],
  },
  {
    title: "The block",
    stops: [
      { id: "L4.1", view: "machine", title: "The residual stream", at: () => ({}), find: "main figure",
        say: "Each token's vector passes up, and every part adds to it. The thicker a branch, the more it adds, measured on your text. Only attention moves anything between tokens." },
      { id: "L4.2", view: "block", title: "Feed-forward", at: () => ({}), find: "neurons answer",
        say: "The same small network for every token alone: up to many neurons, an activation, and down again. The dots are your model's own neurons." },
      { id: "L4.3", view: "block", title: "Layer norm", at: () => ({}), find: "Norm",
        say: ({ norm }) => (norm === "rms"
          ? "Over one vector: divide by the root of its mean square, then scale. Layer norm would take the mean away first, and shift at the end. σ here is that of the chosen token."
          : "Over one vector: take the mean away, divide by the deviation, scale and shift. μ and σ here are those of the chosen token.") },
      { id: "L4.4", view: "machine", title: "A stack of blocks", at: () => ({}), find: "main figure",
        say: "The same shape again and again, the same width throughout: what differs are the weights, and so what each block adds." },
    ],
  },
  {
    title: "Out of the stack",
    stops: [
      { id: "L5.1", view: "predict", title: "Unembedding", at: (card) => (decoder(card) ? { text: card.examples.predict } : null), find: "How a logit comes about",
        say: "The last vector is multiplied with a row for each token of the vocabulary: one logit each. Where the matrix is tied, these are the embeddings again." },
      { id: "L5.2", view: "predict", title: "Temperature", at: (card) => (decoder(card) ? { text: card.examples.predict, temp: 0.4 } : null), find: ".sliders",
        say: "Logits are divided by the temperature before the softmax: low, and the likeliest always wins; high, and the chance spreads. Drag it." },
      { id: "L5.3", needs: "a language model", view: "lens", title: "Every position predicts", at: (card) => (decoder(card) ? { text: card.examples.fluffy } : null), find: "If it stopped",
        say: "Each position predicts its next token, which is why one pass teaches as many lessons as there are tokens." },
      { id: "L5.4", view: "predict", title: "Writing", at: (card) => (decoder(card) ? { text: card.examples.predict, temp: 1 } : null), find: "The next token",
        say: "Draw a token, append it, run again. Play lets it write; click any bar to force another word and see where that leads." },
      { id: "L5.5", view: "chat", title: "Chat", at: () => ({ system: "You are an apple." }), find: "What the model reads",
        say: "“You are an apple.” A system prompt and the turns of a conversation are just a longer prefix; here are its very tokens." },
    ],
  },
  {
    title: "The three shapes",
    stops: [
      { id: "L6.1", needs: "a decoder", view: "machine", title: "Decoder", at: (card) => (card.kind === "decoder" ? {} : null), find: "main figure",
        say: "A language model: all that you have seen so far, with the causal mask." },
      { id: "L6.2", view: "translate", title: "Encoder and decoder", at: () => ({ branch: -1 }), find: "Beam search",
        say: "Attention Is All You Need, 2017: an encoder without a mask, a decoder that also looks at it. Beam search follows several texts and ranks them by their score." },
      { id: "L6.3", view: "fill", title: "Encoder", at: () => ({ hide: [1], query: 1 }), find: "Click a token",
        say: "Trained on hidden words, it sees both sides. Hide a token and it says what stood there; its attention has no triangle." },
      { id: "L6.4", view: "patches", title: "Pictures and sound", at: () => ({}), find: "What the model",
        say: ({ pictures }) => (pictures ? "Squares of a picture are flattened and multiplied by one matrix. Then they are tokens."
          : "A sound becomes a spectrogram, and pieces of that become tokens, in the steps that are listed. Then all is as with words.") },
    ],
  },
  {
    title: "And what no lecture can show",
    stops: [
      { id: "edits", view: "attention", title: "Switch something off", at: (card) => ({ ...fluffy(card) }), find: "ch-edit",
        say: "Switch a head off, scale it or turn it round: the prediction changes before your eyes, and the link and the Python carry the edit." },
      { id: "training", needs: "a checkpoint of a run with --microscope", view: "compare", title: "Watch it learn", at: (card) => (card.microscope ? { pair: "training", moment: 0 } : null), find: ".scrub",
        say: "A training run under the microscope leaves a film: press Play and see heads form while the loss falls." },
    ],
  },
];

/** Every stop with its part; `view` is where it is seen with such a model, null where it cannot be for want of `needs`. */
export function stops(card) {
  return PARTS.flatMap(({ title: part, stops }) => stops.map((stop) => {
    const wanted = typeof stop.view === "function" ? stop.view(card) : stop.view;
    const view = card.views.includes(wanted) && stop.at(card) ? wanted : null;
    const say = typeof stop.say === "function" ? stop.say(card) : stop.say;
    return { ...stop, say, part, view, needs: stop.needs ?? NEEDS[wanted] ?? "a model that reads one text" };
  }));
}
