"""What is of the wrong kind gets a sentence, whichever function it is given to."""

import inspect

import pytest

import clearhead as ch


@pytest.fixture(scope="module")
def model():
    return ch.new("tiny-decoder", tokenizer=ch.Tokenizer.bytes(), vocab_size=257)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda m: ch.lens.ablation("story", "a"), "a model is needed, not str"),
        (lambda m: ch.lens.attention(None, "a"), "a model is needed, not NoneType"),
        (lambda m: ch.lens.positional_encodings(model="story"), "a model is needed, not str"),
        (lambda m: ch.lens.circuit("story", 0, 0), "a model is needed, not str"),
        (lambda m: ch.lens.attention_figure(5, 0), "what model.watch has seen is needed, not int"),
        (lambda m: ch.lens.max_activating_examples(m, 0, "a", True), "there is no neuron True"),
        (lambda m: ch.lens.read_training_trace(5), "the folder of a run is needed, not int"),
        (lambda m: ch.lens.tokens(m, "a").save(5), "the name of a file is needed, not int"),
        (lambda m: ch.scale("a"), "a number to multiply by is needed, not str"),
        (lambda m: ch.replace(5), "or a tensor, is needed, not int"),
        (lambda m: ch.ablate(mean="a"), "mean as True, .* is needed, not str"),
        (lambda m: m.watch("a", {"blocks.0.resid_post": 5}), "functions that keep a part"),
        (
            lambda m: m.watch("a", {"blocks.0.resid_post": lambda x: x.sum().item()}),
            "must return a tensor, not float",
        ),
        (
            lambda m: m.logits("a", edits={"blocks.0.attn.z": ch.ablate(head="1")}),
            "there is no head '1'",
        ),
        (lambda m: ch.train("lm-small", None), "a folder to train in is needed, not NoneType"),
        (lambda m: ch.compare(5), "a preset, .* is needed, not int"),
        (
            lambda m: ch.compare("lm-small", ["model.d_model=8"]),
            "vary as a dictionary .* is needed, not list",
        ),
        (
            lambda m: ch.compare("lm-small", baseline=5),
            "against as the name of a variant is needed, not int",
        ),
        (
            lambda m: ch.compare("lm-small", eval_lengths=5),
            "lengths as a list of numbers is needed, not int",
        ),
    ],
)
def test_the_wrong_kind_is_told(model, call, why):
    with pytest.raises(ch.ClearheadError, match=why):
        call(model)


def test_a_value_that_two_names_mean_is_kept_once(model):
    first = {"blocks.0.attn.pattern": lambda p: p[:, :1]}
    rest = {"blocks.*.attn.pattern": lambda p: p[:, 1:]}
    with pytest.raises(ch.ClearheadError, match="each time another part of it"):
        model.watch("ab", first | rest)
    assert "blocks.0.resid_post" in model.watch(
        "ab", ["blocks.0.resid_post", "blocks.*.resid_post"]
    )


@pytest.mark.parametrize("module", [ch.train, ch.evaluate])
def test_a_module_that_is_called_tells_its_arguments(module):
    assert len(inspect.signature(module).parameters) > 4
