"""Small random models for the tests of the page; they read bytes."""

import clearhead as ch

BYTES = ch.Tokenizer.bytes()


def model_of(name="tiny-decoder", seed=3, **changes):
    ends = (
        {"inference__decoder_start_tokens": [1], "inference__eos_tokens": [2], "context": 48}
        if name == "tiny-encoder-decoder"
        else {}
    )
    return ch.new(name, tokenizer=BYTES, vocab_size=256, seed=seed, **ends, **changes)
