"""Arguments of the wrong type are errors that say what was expected."""

import pytest

import clearhead as ch


@pytest.fixture(scope="module")
def model():
    return ch.new("tiny-decoder", tokenizer=ch.Tokenizer.bytes(), vocab_size=257)


MODEL_FUNCTIONS = [
    lambda m: ch.lens.ablation(m, "a"),
    lambda m: ch.lens.attention(m, "a"),
    lambda m: ch.lens.attribution(m, "a"),
    lambda m: ch.lens.circuit(m, 0, 0),
    lambda m: ch.lens.composition(m),
    lambda m: ch.lens.context(m, "a", ["a b", "a c"]),
    lambda m: ch.lens.head_output_norms(m, "a"),
    lambda m: ch.lens.head_scores(m, "a"),
    lambda m: ch.lens.logit_lens(m, "a"),
    lambda m: ch.lens.logits(m, "a"),
    lambda m: ch.lens.max_activating_examples(m, 0, ["a"], 1),
    lambda m: ch.lens.parameters(m),
    lambda m: ch.lens.patching(m, "a", "b"),
    lambda m: ch.lens.phrase_shift(m, "a b", "b"),
    lambda m: ch.lens.position_curves(m),
    lambda m: ch.lens.position_shift(m, "a"),
    lambda m: ch.lens.position_similarity(m),
    lambda m: ch.lens.positional_encodings(m),
    lambda m: ch.lens.relative_bias(m),
    lambda m: ch.lens.residual_norms(m, "a"),
    lambda m: ch.lens.rollout(m, "a"),
    lambda m: ch.lens.rotary_angles(m),
    lambda m: ch.lens.simple_attention(m, "a"),
    lambda m: ch.lens.softmax_steps(m, "a", layer=0, head=0),
    lambda m: ch.lens.steering(m, [("a", "b")], "final_norm"),
    lambda m: ch.lens.tokens(m, "a"),
    lambda m: ch.lens.value_weighted_attention(m, "a"),
    lambda m: ch.lens.word_attention(m, "a", "a b"),
]


@pytest.mark.parametrize("call", MODEL_FUNCTIONS)
@pytest.mark.parametrize("not_a_model", ["story", None])
def test_every_function_needs_a_model(call, not_a_model):
    expected = f"expected a model, got {type(not_a_model).__name__}"
    with pytest.raises(ch.ClearheadError, match=expected):
        call(not_a_model)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: ch.lens.cached_attention(5, 0), "model.watch, got int"),
        (lambda m: ch.lens.max_activating_examples(m, 0, "a", True), "there is no neuron True"),
        (lambda m: ch.lens.read_training_trace(5), "folder of a run, got int"),
        (lambda m: ch.lens.tokens(m, "a").save(5), "a file name, got int"),
        (lambda m: ch.lens.word_attention(m, "a", 5), "a text, got int"),
        (lambda m: ch.lens.word_attention(m, 5, "a"), "a word, got int"),
        (lambda m: ch.scale("a"), "a number to multiply by, got str"),
        (lambda m: ch.replace(5), "or a tensor, got int"),
        (lambda m: ch.ablate(mean="a"), "mean=True .*, got str"),
        (lambda m: m.watch("a", {"blocks.0.resid_post": 5}), "function"),
        (lambda m: m.watch("a", {"blocks.0.resid_post": lambda x: x.sum().item()}), "float"),
    ],
)
def test_wrong_types_are_refused(model, call, message):
    with pytest.raises(ch.ClearheadError, match=message):
        call(model)


def test_two_patterns_with_different_selectors_for_one_activation(model):
    first = {"blocks.0.attn.pattern": lambda p: p[:, :1]}
    rest = {"blocks.*.attn.pattern": lambda p: p[:, 1:]}
    with pytest.raises(ch.ClearheadError, match=r"blocks\.0\.attn\.pattern"):
        model.watch("ab", first | rest)
    names = ["blocks.0.resid_post", "blocks.*.resid_post"]
    assert "blocks.0.resid_post" in model.watch("ab", names)
