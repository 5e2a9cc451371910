"""A model whose weights are no numbers says so, whatever it is asked: nobody is answered NaN."""

import pytest
import torch

import clearhead as ch
from clearhead.errors import NonFiniteError

WORDS = ch.Tokenizer.bytes(("<|mask|>", "<|end|>"))
MASK, END = WORDS.special_tokens.values()
CLASSES = {"kind": "classes", "classes": 2}
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
    """Whose embedding, which is its head too, has no numbers for tokens of which it reads none."""
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
        lambda: ch.evaluate(translator(), "pairs.tsv", sides=("0", "1")),
    ],
)
def test_what_a_broken_model_is_asked_it_refuses_to_answer(tmp_path, monkeypatch, ask):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(
        NonFiniteError, match=r"hold no numbers; the weights of the model may be broken\.$"
    ):
        ask()


def test_what_is_before_the_break_can_be_seen_and_so_can_the_break():
    assert ch.lens.attention(decoder(), "one", layer=0).values.isfinite().all()
    assert decoder().watch("one", "blocks.0.ffn.pre")["blocks.0.ffn.pre"].isnan().all()


def test_a_word_that_cannot_be_is_told_as_impossible():
    model = ch.new("tiny-decoder", vocab_size=8, head={"kind": "lm", "bias": True})
    with torch.no_grad():
        model.net.head.bias[3] = -torch.inf
    assert model.score([1, 3]).total == -torch.inf
