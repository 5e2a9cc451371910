"""A model with non-finite weights raises NonFiniteError in every task."""

import pytest
import torch

import clearhead as ch
from clearhead.errors import NonFiniteError

WORDS = ch.Tokenizer.bytes(("<|mask|>", "<|end|>"))
MASK, END = WORDS.special_tokens.values()
CLASSES = {"kind": "classification", "num_labels": 2}
FILES = {
    "text": "one\n\ntwo",
    "rows.tsv": "text\tlabel\none\t0\ntwo\t1\n",
    "pairs.tsv": "one\teins\ntwo\tzwei\n",
}


def broken(preset, **changes):
    model = ch.new(preset, vocab_size=len(WORDS), tokenizer=WORDS, **changes)
    with torch.no_grad():
        model.net.blocks[0].ffn.up.weight.fill_(torch.nan)
    return model


def decoder():
    return broken("tiny-decoder")


def headless():
    """A model whose tied embeddings are NaN for tokens that do not occur in the text."""
    model = ch.new("tiny-decoder", vocab_size=len(WORDS), tokenizer=WORDS)
    model.net.embed.tokens.weight.data[:9] = torch.nan
    return model


def encoder(**changes):
    return broken("tiny-encoder", inference__mask_token=[MASK], **changes)


def translator():
    return broken(
        "tiny-encoder-decoder", inference__decoder_start_tokens=[END], inference__eos_tokens=[END]
    )


@pytest.mark.parametrize(
    "ask",
    [
        lambda: decoder().generate("one", max_tokens=2),
        lambda: decoder().generate("one", max_tokens=2, echo=True),
        lambda: decoder().beam_search("one", max_tokens=2),
        lambda: decoder().score(["one", "two"]),
        lambda: decoder().embed("one"),
        lambda: encoder().fill("a [MASK]"),
        lambda: encoder(head="none").embed(["one", "two"]),
        lambda: encoder(head=CLASSES).classify(["one", "two"]),
        lambda: encoder(head="regression").classify("one"),
        lambda: translator().translate(["one"], max_tokens=2),
        lambda: ch.lens.attention(decoder(), "one"),
        lambda: ch.lens.word_attention(decoder(), "one", "one two"),
        lambda: ch.lens.rollout(decoder(), "one"),
        lambda: ch.lens.logit_lens(decoder(), "one"),
        lambda: ch.lens.logit_lens(headless(), "one"),
        lambda: ch.lens.ablation(headless(), "one"),
        lambda: ch.lens.patching(decoder(), "one", "two"),
        lambda: ch.lens.max_activating_examples(decoder(), 0, ["one", "two"], 1),
        lambda: ch.lens.steering(decoder(), [("one", "two")], "blocks.1.resid_post"),
        lambda: ch.evaluate(decoder(), "text"),
        lambda: ch.evaluate(encoder(), "text"),
        lambda: ch.evaluate(encoder(head=CLASSES), "rows.tsv"),
        lambda: ch.evaluate(encoder(head="regression"), "rows.tsv"),
        lambda: ch.evaluate(translator(), "pairs.tsv", source_column="0", target_column="1"),
    ],
)
def test_non_finite_models_are_refused_by_every_task(tmp_path, monkeypatch, ask):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(NonFiniteError, match="NaN"):
        ask()


def test_non_finite_activations_can_be_watched():
    assert ch.lens.attention(decoder(), "one", layer=0).values.isfinite().all()
    assert decoder().watch("one", "blocks.0.ffn.up")["blocks.0.ffn.up"].isnan().all()


def test_minus_infinity_is_a_valid_logprob():
    model = ch.new("tiny-decoder", vocab_size=8, head={"kind": "lm", "bias": True})
    with torch.no_grad():
        model.net.head.bias[3] = -torch.inf
    assert model.score([1, 3]).total_logprob == -torch.inf
