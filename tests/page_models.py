"""Small random models with a byte tokenizer, for the tests of the page."""

import clearhead as ch

BYTES = ch.Tokenizer.bytes()


def byte_model(name="tiny-decoder", seed=3, **changes):
    if name == "tiny-encoder-decoder":
        changes = {
            "inference__decoder_start_tokens": [1],
            "inference__eos_tokens": [2],
            "context_length": 48,
            **changes,
        }
    return ch.new(name, tokenizer=BYTES, vocab_size=256, seed=seed, **changes)


def percent(share):
    """A probability as the page shows it."""
    return f"{100 * share:.{2 if share < 0.01 else 1}f}%"
