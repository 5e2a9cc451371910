"""Direct logit attribution: a logit is the sum of what components, heads and tokens contribute."""

import json
import re

import pytest
import tokenizers as tk
import torch
from hypothesis import assume, given

import clearhead as ch
from clearhead import config as c
from clearhead.evaluate.invariants import ModelUnderTest
from clearhead.hooks import Recorder
from clearhead.lens.logit_attribution import decompose_logit, path_from_logit, required_activations
from clearhead.lens.logit_target import LogitTarget
from clearhead.model.transformer import build_transformer
from strategies import examples, models

IDS = [3, 1, 4, 1, 5, 9]
BYTES = {"vocab_size": 256, "tokenizer": ch.Tokenizer.bytes()}
IMAGE = torch.rand(1, 8, 8)


@given(models())
@examples(100)
def test_components_heads_and_tokens_sum_to_the_logit_in_every_model(m):
    assume(not isinstance(m.head, c.NoHead))
    net = build_transformer(m, seed=1, dtype=torch.float64).eval()
    recorder = Recorder(required_activations(m))
    generator = torch.Generator().manual_seed(5)
    for p in net.parameters():  # so that norms and biases are not trivial
        p.data += 0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    with torch.no_grad():
        hidden = net(**ModelUnderTest(net).random_inputs(rows=1), hooks=recorder)
        net.compute_logits(hidden, hooks=recorder)
    cache = recorder.values
    logits = cache["logits"][0]
    is_pooled = logits.dim() == 1
    row = logits if is_pooled else logits[-1]
    for against in (None, 0):
        target = LogitTarget(len(row) - 1, against, 0 if is_pooled else len(logits) - 1, "")
        path = path_from_logit(net, cache["final_norm"][0], target)
        components, layers = decompose_logit(net, cache, path)
        total = torch.stack(list(components.values())).sum()
        torch.testing.assert_close(total, target.select(row), atol=1e-6, rtol=1e-6)
        for i, layer in enumerate(layers):
            for kind, contribution in layer.items():
                torch.testing.assert_close(
                    contribution.keys.sum() + contribution.bias,
                    components[f"{i} {kind}"],
                    atol=1e-6,
                    rtol=1e-6,
                )


def test_contribution_equals_removing_the_component_with_the_norm_frozen():
    model = ch.new("tiny-decoder", seed=4)
    result = ch.lens.attribution(model, IDS, token=7, position=2)
    cache = model.watch(IDS, ["blocks.*.ffn.out", "blocks.1.resid_post"])
    x = cache["blocks.1.resid_post"][0, 2]
    without = x - cache["blocks.1.ffn.out"][0, 2]  # the last component
    norm = model.net.final_norm
    std = (x.var(correction=0) + norm.eps).sqrt()
    hidden = (without - without.mean()) / std * norm.weight + norm.bias
    removed = model.logits(IDS)[2, 7] - hidden @ model.net.embed.tokens.weight[7]
    index = result.axes[0].labels.index("1 feed-forward")
    assert float(result.values[index]) == pytest.approx(removed.item(), abs=1e-5)


@pytest.mark.parametrize(
    "preset", ["tiny-decoder", "tiny-llama", "tiny-encoder", "tiny-encoder-decoder"]
)
def test_table_sums_to_the_logit_and_views_agree(preset):
    model = ch.new(preset, seed=3)
    is_encoder_decoder = model.architecture == "encoder-decoder"
    inputs = {"source": [2, 7, 1]} if is_encoder_decoder else {}
    result = ch.lens.attribution(model, IDS, token=5, against=8, **inputs)
    logits = model.logits(IDS, **inputs)[-1]
    difference = float(logits[5] - logits[8])
    assert result.total == pytest.approx(difference, abs=1e-4)
    assert sum(row["logit"] for row in result.table()) == pytest.approx(difference, abs=1e-4)
    for kind in ("attention", "cross") if is_encoder_decoder else ("attention",):
        by_head = result.by_head(kind).values
        torch.testing.assert_close(result.by_source_token(kind).values.sum(dim=-1), by_head)


def test_default_token_is_the_top_prediction():
    model = ch.new("tiny-decoder", seed=3, **BYTES)
    best = int(model.logits("abc")[-1].argmax())
    assert ch.lens.attribution(model, "abc").target.answer == best
    assert ch.lens.attribution(model, "abc", token="d").target.answer == ord("d")


MERGES = ["h e", "he r", "Ġ her", "d o", "do g", "c a", "Ġ ca", "Ġca t"]


@pytest.fixture(scope="module")
def speller():
    """A model whose tokenizer has `her` with and without a space, `dog` without, `cat` with."""
    backend = json.loads(ch.Tokenizer.bytes().backend.to_str())
    backend["pre_tokenizer"]["use_regex"] = True
    backend["model"]["merges"] = MERGES
    for merge in MERGES:
        backend["model"]["vocab"][merge.replace(" ", "")] = len(backend["model"]["vocab"])
    tokenizer = ch.Tokenizer(tk.Tokenizer.from_str(json.dumps(backend)))
    return ch.new("tiny-decoder", vocab_size=len(tokenizer), tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("token", "against", "spelled"),
    [
        ("her", "cat", (" her", " cat")),
        (" her", "cat", (" her", " cat")),
        ("cat", "her", (" cat", " her")),
        ("her", "dog", ("her", "dog")),
        ("her", ".", (" her", ".")),
        ("dog", "x", ("dog", "x")),
    ],
)
def test_words_are_resolved_with_the_same_spacing(speller, token, against, spelled):
    tokenizer = speller.tokenizer
    ids = [tokenizer.encode(text)[0] for text in spelled]
    label, other = tokenizer.to_str_tokens(ids)
    result = ch.lens.attribution(speller, "abc", token=token, against=against)
    assert [result.target.answer, result.target.against] == ids
    description = f"logit of {label!r} (id {ids[0]}) minus {other!r} (id {ids[1]})"
    assert result.title == f"{description} after 'c'"
    effects = ch.lens.patching(speller, "abc", "abd", token=token, against=against)
    assert effects.title == f"change of the {description}"


@pytest.mark.parametrize(("token", "against"), [("cat", "dog"), ("dog", " her")])
def test_words_of_different_spacing_are_an_error(speller, token, against):
    with pytest.raises(ch.ClearheadError, match="leading space"):
        ch.lens.attribution(speller, "abc", token=token, against=against)


def test_a_word_that_is_no_token_is_an_error(speller):
    with pytest.raises(ch.ClearheadError, match="'bird' is 4 tokens"):
        ch.lens.attribution(speller, "abc", token="her", against="bird")


def test_classes_are_selected_by_name():
    model = ch.new("tiny-images", inference__labels=[f"class {i}" for i in range(10)])
    result = ch.lens.attribution(model, images=IMAGE, token="class 3", against="class 4")
    assert result.title == "logit of 'class 3' minus 'class 4'"


def test_classes_are_selected_by_number():
    result = ch.lens.attribution(ch.new("tiny-images"), images=IMAGE, token="3")
    assert result.target.answer == 3
    assert result.title == "logit of '3'"


def test_edits_are_attributed():
    model = ch.new("tiny-decoder", seed=3)
    edits = {"blocks.0.attn.z": ch.ablate(head=1)}
    result = ch.lens.attribution(model, IDS, token=5, edits=edits)
    logit = float(model.logits(IDS, edits=edits)[-1, 5])
    assert result.total == pytest.approx(logit, abs=1e-4)
    assert float(result.by_head().values[0, 1]) == pytest.approx(0, abs=1e-6)


EDITED = [
    "full_embed",
    "blocks.0.resid_mid",
    "blocks.1.resid_post",
    "blocks.0.attn.out",
    "final_norm",
    "logits",
]


@pytest.mark.parametrize("name", EDITED)
def test_contributions_of_no_component_are_the_remainder(name):
    model = ch.new("tiny-decoder", seed=3)
    edits = {name: ch.scale(2.0)}
    result = ch.lens.attribution(model, IDS, token=5, edits=edits)
    logit = float(model.logits(IDS, edits=edits)[-1, 5])
    assert result.total == pytest.approx(logit, abs=1e-3)
    assert sum(row["logit"] for row in result.table()) == pytest.approx(logit, abs=1e-3)
    remainders = [
        row["component"] for row in result.table() if "remainder" in (row["component"], row["head"])
    ]
    assert remainders == ["0 attention" if name.endswith("out") else "remainder"]
    unedited = ch.lens.attribution(model, IDS, token=5)
    assert "remainder" not in unedited.axes[0].labels


def test_int8_contributions_sum_to_the_logit(tmp_path):
    ch.save(ch.new("tiny-decoder", seed=3, d_model=128), tmp_path / "model")
    model = ch.load(tmp_path / "model", dtype="int8")
    total = ch.lens.attribution(model, IDS, token=5).total
    assert total == pytest.approx(float(model.logits(IDS)[-1, 5]), abs=1e-3)


def test_default_position_is_the_first_mask_token():
    model = ch.new("tiny-encoder", seed=3, inference__mask_token=[9])
    ids = [3, 1, 9, 1, 9]
    result = ch.lens.attribution(model, ids)
    assert result.target.position == 2
    assert result.title.endswith(" at '9'")
    assert ch.lens.attribution(model, [3, 1, 4]).target.position == 2
    assert ch.lens.attribution(model, ids, position=0).target.position == 0
    baseline = ch.lens.ablation(model, ids).baseline
    assert baseline == pytest.approx(float(model.logits(ids)[2].max()))


ERRORS = [
    (lambda m: ch.lens.attribution(m, "abc", position="1"), "position must be an integer"),
    (
        lambda m: ch.lens.attribution(ch.new("tiny-images"), images=IMAGE, token="cat"),
        "known: 0, 1",
    ),
    (lambda m: ch.lens.attribution(m, "abc", token="xyz"), "'xyz' is 3 tokens ('x', 'y', 'z')"),
    (lambda m: ch.lens.attribution(m, "abc", token=256), "from 0 to 255, got 256"),
    (lambda m: ch.lens.attribution(m, "abc", position=3), "there is no token 3"),
    (lambda m: ch.lens.attribution(m, ["abc", "def"]), "one text at a time, got 2"),
    (lambda m: ch.lens.attribution(m, "abc").by_head("cross"), "no attention of kind 'cross'"),
    (lambda m: ch.lens.attribution(ch.new("tiny-encoder", head="none"), IDS), "no head"),
    (lambda m: ch.lens.attribution(ch.new("tiny-decoder"), IDS, token="a"), "no tokenizer"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ch.ClearheadError, match=re.escape(message)):
        call(ch.new("tiny-decoder", **BYTES))
