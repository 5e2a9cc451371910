"""Text pairs: encoded as in training and in transformers, truncated, refused."""

import pytest
import torch
from huggingface_models import hf_model

import clearhead as ch
from clearhead.data.classification import LabeledExample, LabeledTextDataset
from clearhead.data.readers import DataReport

WORDS = ch.Tokenizer.bytes(("[CLS]", "[SEP]"))
CLS = 256
SEP = 257
AROUND = {"inference__bos_tokens": [CLS], "inference__sep_tokens": [SEP]}
PAIRS = [("a man eats", "someone eats"), ("no", "not at all"), ("a dog", "a cat")]


def judge(**changes):
    head = {"kind": "classification", "num_labels": 3}
    return ch.new(
        "tiny-encoder", vocab_size=258, tokenizer=WORDS, seed=4, head=head, **{**AROUND, **changes}
    )


@pytest.fixture(scope="module")
def model():
    made = judge(input__token_types=2)
    with torch.no_grad():
        made.net.embed.token_types.weight.normal_()  # so that it shows which text is which
    return made


def test_pairs_are_encoded_as_in_training(model):
    rows = [
        LabeledExample(WORDS.encode(a), WORDS.encode(b), 1.0)
        for a, b in [*PAIRS, ("x" * 50, "y" * 9)]
    ]
    trained = LabeledTextDataset(
        rows,
        rows,
        DataReport(),
        batch_size=4,
        context_length=32,
        seed=0,
        bos_tokens=[CLS],
        sep_tokens=[SEP],
        token_types=True,
    )
    packed = next(trained.valid_batches())
    batch = model.make_batch([*PAIRS, ("x" * 50, "y" * 9)], max_length=32)
    assert torch.equal(batch.inputs, packed.tokens)
    assert torch.equal(batch.segment_ids, packed.segment_ids)
    real = packed.segment_ids != 0
    assert torch.equal(batch.token_type_ids[real], packed.token_type_ids[real])


@torch.no_grad()
@pytest.mark.parametrize("case", ["bert", "bert-classification", "bert-regression", "bert-bare"])
def test_token_type_ids_equal_transformers(case, tmp_path):
    transformers = pytest.importorskip("transformers")
    assert transformers
    hf_model(case).save_pretrained(tmp_path / "theirs")
    read = ch.load(tmp_path / "theirs", device="cpu")
    words = ch.Tokenizer.characters("abcdefghij klmn", ("[CLS]", "[SEP]"))
    model = ch.Model(
        read.net, read.config.replace(inference__bos_tokens=[15], inference__sep_tokens=[16]), words
    )
    (a, b), (short, shorter) = pairs = [("abc def", "ghi"), ("kl", "m")]
    rows = [[15, *words.encode(first), 16, *words.encode(second), 16] for first, second in pairs]
    kinds = [
        [0] * (len(a) + 2) + [1] * (len(b) + 1),
        [0] * (len(short) + 2) + [1] * (len(shorter) + 1) + [0] * 7,
    ]
    ids = torch.tensor([rows[0], rows[1] + [0] * 7])
    output = hf_model(case)(
        ids,
        attention_mask=(torch.arange(13) < torch.tensor([[13], [6]])).long(),
        token_type_ids=torch.tensor(kinds),
        output_hidden_states=True,
    )
    hidden = model.hidden(pairs)
    resid_post = model.watch(pairs, "blocks.0.resid_post")["blocks.0.resid_post"]
    for row, length in enumerate((13, 6)):
        for ours, want in (
            (hidden, output["hidden_states"][-1]),
            (resid_post, output["hidden_states"][1]),
        ):
            torch.testing.assert_close(ours[row, :length], want[row, :length], atol=1e-5, rtol=1e-5)
    if case in ("bert-classification", "bert-regression"):
        torch.testing.assert_close(model.logits(pairs), output["logits"], atol=1e-5, rtol=1e-5)
    if case == "bert-classification":
        shares = torch.tensor([list(one.probabilities.values()) for one in model.classify(pairs)])
        torch.testing.assert_close(shares, output["logits"].softmax(-1), atol=1e-5, rtol=1e-5)


def test_batched_pairs_equal_single_ones(model):
    together = model.classify([*PAIRS, "a single text"])
    for pair, made in zip([*PAIRS, "a single text"], together, strict=True):
        assert list(model.classify(pair).probabilities.values()) == pytest.approx(
            list(made.probabilities.values()), abs=1e-6
        )
    assert model.logits(PAIRS[0]).shape == (3,)
    assert model.hidden(PAIRS[0]).shape == (3 + len("".join(PAIRS[0])), 32)
    assert model.watch(PAIRS[1]).tokens[:4] == ["[CLS]", "n", "o", "[SEP]"]


def test_order_and_token_types_of_a_pair_matter(model):
    a, b = PAIRS[0]
    one = model.logits((a, b))
    other = model.logits((b, a))
    list_of_two = model.logits([a, b])
    assert not torch.allclose(one, other, atol=1e-3)
    assert list_of_two.shape == (2, 3)
    same_ids = model.logits(
        [CLS, *WORDS.encode(a), SEP, *WORDS.encode(b), SEP]
    )  # all of the first kind
    assert not torch.allclose(one, same_ids, atol=1e-3)


def test_sep_token_separates_pairs_without_token_types():
    plain, (a, b) = judge(input__token_types=0), PAIRS[0]
    assert torch.equal(
        plain.logits((a, b)), plain.logits([CLS, *WORDS.encode(a), SEP, *WORDS.encode(b), SEP])
    )


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (("a", "b", "c"), "pair of texts"),
        (("a",), "pair of texts"),
        (("a", [1]), "pair of texts"),
        (("a", None), "pair of texts"),
        ([("a", "b"), ("a", 3)], "pair of texts"),
        (("a", ""), "both texts of a pair"),
        (("", "a"), "both texts of a pair"),
        ([["a", "b"]], "tuple"),
        (("a" * 40, "b"), "44 tokens"),
        ([("a", "b"), ("a" * 40, "b")], "text 2 is too long: 44 tokens"),
    ],
)
def test_invalid_pairs_are_refused(model, wrong, sentence):
    with pytest.raises(ch.ClearheadError, match=sentence):
        model.logits(wrong)


def test_models_without_sep_tokens_refuse_pairs():
    for model in (
        judge(inference__sep_tokens=[]),
        ch.new("tiny-decoder", vocab_size=258, tokenizer=WORDS),
    ):
        with pytest.raises(ch.ClearheadError, match="pairs"):
            model.logits(("a", "b"))
    both = ch.new(
        "tiny-encoder-decoder",
        vocab_size=258,
        tokenizer=WORDS,
        inference__decoder_start_tokens=[CLS],
        inference__sep_tokens=[SEP],
    )
    with pytest.raises(ch.ClearheadError, match="pairs"):
        both.logits("a", source=("a", "b"))
