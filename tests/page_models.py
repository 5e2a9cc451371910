"""Small random models for the tests of the page; they read bytes."""

import clearhead as ch

BYTES = ch.Tokenizer.bytes()


def model_of(name="tiny-decoder", seed=3, **changes):
    ends = {"use__start": [1], "use__stop": [2], "context": 48} if name == "tiny-encoder-decoder" else {}
    return ch.new(name, tokenizer=BYTES, vocabulary=256, seed=seed, **ends, **changes)
