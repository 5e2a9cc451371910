"""Backends generate the same tokens as we do; options they handle differently are refused."""

import subprocess
import sys

import jaxtyping
import pytest
import torch

import clearhead as ch

pytestmark = pytest.mark.slow

WORDS = ch.Tokenizer.train_bpe(
    ["the cat sat on the mat", "a dog ran"], 290, ("<|end|>", "<|start|>", "<|pad|>")
)
END, START, PAD = (WORDS.special_tokens[name] for name in ("<|end|>", "<|start|>", "<|pad|>"))
ROOMY = len(WORDS) + 7  # some tokens have no name
PROMPTS = ["the cat", "a", "the dog sat on", "on the mat", "dog"]


def peaky(preset, seed=1, vocabulary=len(WORDS), times=25, **options):
    """Random weights with large embeddings, so that the most likely token is rarely ambiguous."""
    model = ch.new(preset, vocab_size=vocabulary, tokenizer=WORDS, seed=seed, **options)
    with torch.no_grad():
        model.net.embed.tokens.weight.mul_(times)
    return model


@pytest.fixture(scope="module")
def engine():
    """Open a model in a backend, once for all tests."""
    kept = {}

    def opened(name, model, dtype=""):
        package = pytest.importorskip({"onnx": "onnxruntime"}.get(name, name))
        assert package
        if (name, id(model), dtype) not in kept:
            jaxtyping.config.update("jaxtyping_disable", True)  # in tracing, sizes are not ints
            try:
                kept[name, id(model), dtype] = model.with_backend(name, dtype)
            finally:
                jaxtyping.config.update("jaxtyping_disable", False)
        return kept[name, id(model), dtype]

    return opened


@pytest.fixture(scope="module")
def writer():
    return peaky(
        "tiny-decoder", vocabulary=ROOMY, context_length=64, inference__eos_tokens=[END, 262, 270]
    )


@pytest.fixture(scope="module")
def modern():
    return peaky(
        "tiny-llama", context_length=64, inference__eos_tokens=[END], inference__bos_tokens=[START]
    )


@pytest.fixture(scope="module")
def translator():
    """Some of its outputs end with EOS, others at max_tokens."""
    return peaky(
        "tiny-encoder-decoder",
        8,
        times=4,
        n_layers=1,
        inference__decoder_start_tokens=[START],
        inference__eos_tokens=[37],
        inference__sep_tokens=[END],
    )


ENGINES = ["ctranslate2", "onnxruntime"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("ctranslate2", "writer"), ("ctranslate2", "modern"), ("onnxruntime", "writer")],
)
def test_greedy_tokens_and_logprobs_equal_ours(name, kind, engine, request):
    model = request.getfixturevalue(kind)
    other = engine(name, model)
    ours = model.generate(PROMPTS, 20, temperature=0)
    for made, want in zip(other.generate(PROMPTS, 20, temperature=0), ours, strict=True):
        assert (made.tokens, made.text, made.finish_reason) == (
            want.tokens,
            want.text,
            want.finish_reason,
        )
        if (name, kind) != (
            "ctranslate2",
            "writer",
        ):  # there, it shares out the probability of tokens without a name
            assert made.logprobs == pytest.approx(want.logprobs, abs=1e-4)
    alone = other.generate(PROMPTS[0], 20, temperature=0)
    assert alone.tokens == ours[0].tokens
    assert max(map(max, (made.tokens for made in ours))) < len(WORDS)


@pytest.mark.parametrize("name", ENGINES)
def test_stop_strings_and_streaming_equal_ours(name, engine, writer):
    whole = writer.generate("the cat", 20, temperature=0)
    stop = whole.text[3:5]
    made, want = (
        m.generate(["the cat", "a"], 20, temperature=0, stop=stop)
        for m in (engine(name, writer), writer)
    )
    for one, other in zip(made, want, strict=True):
        assert (one.text, one.tokens, one.finish_reason) == (
            other.text,
            other.tokens,
            other.finish_reason,
        )
    assert stop not in made[0].text
    for prompt in PROMPTS:
        pieces = list(engine(name, writer).stream(prompt, 20, temperature=0))
        want = writer.generate(prompt, 20, temperature=0)
        assert "".join(piece.text for piece in pieces) == want.text
        assert [piece.token_logprob.token for piece in pieces] == want.tokens
        assert [piece.finish_reason for piece in pieces] == [""] * (len(pieces) - 1) + [
            want.finish_reason
        ]


def test_onnxruntime_supports_all_sampling_options(engine, writer):
    options = {
        "temperature": 0.9,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "seed": 3,
    }
    options |= {"logit_bias": {7: 2.0}, "suppress_tokens": (9,), "n": 2, "logprobs": 2}
    made, want = (
        m.generate(PROMPTS, 12, **options) for m in (engine("onnxruntime", writer), writer)
    )
    assert [[choice.tokens for choice in one.choices] for one in made] == [
        [choice.tokens for choice in one.choices] for one in want
    ]


def test_onnxruntime_reports_logprobs_of_translations(engine, translator):
    options = {"num_beams": 2, "max_tokens": 12, "n_best": 2, "logprobs": 2}
    made, want = (
        m.translate(PROMPTS, **options) for m in (engine("onnxruntime", translator), translator)
    )
    for one, other in zip(made, want, strict=True):
        for choice, expected in zip(one.choices, other.choices, strict=True):
            assert choice.tokens == expected.tokens
            assert [token.logprob for token in choice.token_logprobs] == pytest.approx(
                [token.logprob for token in expected.token_logprobs], abs=1e-3
            )


@pytest.mark.parametrize("beam", [1, 2, 4])
@pytest.mark.parametrize("name", ENGINES)
def test_translations_equal_ours(name, beam, engine, translator):
    n_best = min(beam, 2)
    for penalty in (1.0, 0.6):
        options = {
            "num_beams": beam,
            "max_tokens": 12,
            "length_penalty": penalty,
            "n_best": n_best,
            "early_stopping": True,
        }
        made, want = (
            m.translate([*PROMPTS, ""], **options) for m in (engine(name, translator), translator)
        )
        for one, other in zip(made, want, strict=True):
            assert [(choice.tokens, choice.text) for choice in one.choices] == [
                (choice.tokens, choice.text) for choice in other.choices
            ]
            assert [choice.score for choice in one.choices] == pytest.approx(
                [choice.score for choice in other.choices], abs=1e-2
            )
    ended = {one.tokens[-1] in translator.config.inference.eos_tokens for one in want[:-1]}
    assert ended == {True, False}  # else this says little


@pytest.mark.parametrize(
    ("start", "stop", "closed"),
    [([START], [END], True), ([START, 5], [END], False), ([START], [END, 5, 39], False)],
)
def test_ctranslate2_uses_the_start_and_eos_tokens_of_the_model(start, stop, closed, engine):
    use = {
        "inference__decoder_start_tokens": start,
        "inference__eos_tokens": stop,
        "inference__forced_eos": closed,
    }
    model = peaky("tiny-encoder-decoder", seed=4, **use)
    made, want = (
        m.translate(PROMPTS, 1, max_tokens=7) for m in (engine("ctranslate2", model), model)
    )
    assert [one.tokens for one in made] == [one.tokens for one in want]
    assert [one.score for one in made] == pytest.approx([one.score for one in want], abs=1e-3)
    assert not closed or all(one.tokens[-1] == END and len(one.tokens) == 7 for one in made)
    if len(start) > 1 or len(stop) > 1:
        with pytest.raises(ch.ClearheadError, match="num_beams=1"):
            engine("ctranslate2", model).translate("a", 2)


def test_int8_is_close(engine, writer):
    (made,), (want,) = (
        m.generate(["the cat"], 1, temperature=0)
        for m in (engine("ctranslate2", writer, "int8"), writer)
    )
    assert made.tokens == want.tokens
    assert made.logprobs == pytest.approx(want.logprobs, abs=0.1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "temperature=0"),
        ({"temperature": 0, "min_p": 0.1}, "min_p"),
        ({"temperature": 0, "logit_bias": {1: 1.0}}, "logit_bias"),
        ({"temperature": 0, "logprobs": 3}, "logprobs"),
        ({"temperature": 0, "repetition_penalty": 2.0}, "repetition_penalty"),
        ({"temperature": 0, "suppress_tokens": (3,), "prefix_tokens": (4,)}, "prefix_tokens"),
        ({"temperature": 0, "echo": True}, "echo"),
        ({"temperature": 0, "max_new_tokens": 3}, "use max_tokens"),
        ({"temperature": -1}, "temperature must be"),
        ({"temperature": 0, "max_tokens": 100}, "context of 64"),
        ({"temperature": 0, "prompt": ""}, "empty"),
    ],
)
def test_unsupported_ctranslate2_options_are_refused(options, sentence, engine, writer):
    with pytest.raises(ch.ClearheadError, match=sentence):
        engine("ctranslate2", writer).generate(**{"prompt": "the cat", **options})


def test_unknown_backend_dtype_or_task_is_refused(engine, writer, translator):
    for wrong, sentence in (
        (lambda: writer.with_backend("ctranslate"), "did you mean 'ctranslate2'"),
        (lambda: engine("ctranslate2", writer, "int7"), "int7"),
        (lambda: engine("onnxruntime", writer, "int8"), "float32"),
        (lambda: ch.new("tiny-encoder").with_backend("onnxruntime"), "not a language model"),
        (lambda: engine("ctranslate2", writer).translate("a"), "encoder-decoder"),
        (lambda: engine("ctranslate2", translator).generate("a"), "not a language model"),
        (lambda: engine("ctranslate2", translator).translate("a", 0), "num_beams must be"),
        (
            lambda: engine("ctranslate2", translator).translate("a", no_repeat_ngram_size=2),
            "no_repeat_ngram_size",
        ),
        (
            lambda: engine("ctranslate2", translator).translate("a", n_best=9),
            "n_best must be",
        ),
        (lambda: engine("ctranslate2", translator).translate("a", align=-2), "align"),
        (lambda: engine("ctranslate2", translator).translate("a", align=0), "align"),
        (lambda: engine("ctranslate2", translator).translate("a", alternatives=0), "alternatives"),
        (lambda: engine("ctranslate2", translator).translate("a", audio="a.wav"), "audio"),
        (lambda: engine("ctranslate2", translator).translate("a", beams=2), "no option 'beams'"),
        (
            lambda: engine("onnxruntime", translator).translate("a", align=-2),
            "align",
        ),
        (
            lambda: engine("onnxruntime", translator).translate(
                "a", edits={"final_norm": ch.ablate()}
            ),
            "edits",
        ),
        (
            lambda: engine("ctranslate2", translator).translate("a " * 600),
            "at most 512",
        ),
        (
            lambda: engine("ctranslate2", translator).translate("a", max_tokens=1000),
            "max_tokens = 1000",
        ),
        (
            lambda: ch.new("whisper-tiny", n_layers=1, architecture__encoder_layers=1).with_backend(
                "ctranslate2"
            ),
            "Whisper",
        ),
    ):
        with pytest.raises(ch.ClearheadError, match=sentence):
            wrong()


@pytest.mark.parametrize(
    ("name", "extra"), [("ctranslate2", "ctranslate2"), ("onnxruntime", "onnx")]
)
def test_missing_backend_says_what_to_install(name, extra, writer, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("clearhead.generate.backends.find_spec", lambda package: None)
    with pytest.raises(ch.ClearheadError, match=rf"pip install 'clearhead\[{extra}\]'"):
        writer.with_backend(name)


def test_process_exits_cleanly():
    pytest.importorskip("ctranslate2")
    code = (
        "import clearhead as ch; m = ch.new('tiny-decoder').with_backend('ctranslate2'); "
        "m.generate([1], 9, temperature=0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
