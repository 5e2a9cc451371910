"""Laws of merge steps: start from single symbols, join two at a time, end with the token."""

import pytest
import tokenizers as tk
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models

from clearhead.tokenizers.tokenizer import BPEMerges, Tokenizer

BPE = Tokenizer.train_bpe(["lower lowest newer wider low 🐔 été aaaa aaaaa"] * 9, vocab_size=310)
MERGES = BPEMerges(BPE)


def test_merge_steps_follow_the_learned_order() -> None:
    pairs = [("l", "o"), ("lo", "w"), ("e", "r"), ("low", "er")]
    tokens = [*"lower", *("".join(pair) for pair in pairs)]
    model = models.BPE({token: i for i, token in enumerate(tokens)}, pairs)
    merges = BPEMerges(Tokenizer(tk.Tokenizer(model)))
    steps = [" ".join(step) for step in merges.merge_steps(8)]
    assert steps == ["l o w e r", "lo w e r", "low e r", "low er", "lower"]
    assert merges.first_merges(2) == [["l", "o", "lo"], ["lo", "w", "low"]]
    assert merges.merge_steps(0) == []


@given(st.text("lowernwidst 🐔éa"))
def test_merge_steps_join_one_pair_at_a_time(text: str) -> None:
    for i in BPE.encode(text):
        steps, (piece,) = MERGES.merge_steps(i), BPE.to_str_tokens([i])
        assert [len(step) for step in steps] == list(range(len(steps), 0, -1))
        assert (steps == []) == (i < 256)
        if steps:
            assert steps[-1] == [piece]


@pytest.mark.parametrize("tokenizer", [Tokenizer.bytes(), Tokenizer.characters("ab")])
def test_tokenizers_without_merges_have_no_steps(tokenizer: Tokenizer) -> None:
    assert len(BPEMerges(tokenizer)) == 0
    assert BPEMerges(tokenizer).merge_steps(0) == []


def test_special_tokens_have_no_merge_steps() -> None:
    assert MERGES.merge_steps(BPE.special_tokens["<|end|>"]) == []
