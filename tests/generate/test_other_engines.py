"""Other engines behind the same call write what we write, token for token; what they do otherwise is refused."""

import subprocess
import sys

import jaxtyping
import pytest
import torch

import clearhead as ch

WORDS = ch.Tokenizer.train_bpe(
    ["the cat sat on the mat", "a dog ran"], 290, ("<|end|>", "<|start|>", "<|pad|>")
)
END, START, PAD = (WORDS.special_tokens[name] for name in ("<|end|>", "<|start|>", "<|pad|>"))
ROOMY = len(WORDS) + 7  # some tokens have no name
PROMPTS = ["the cat", "a", "the dog sat on", "on the mat", "dog"]


def peaky(preset, seed=1, vocabulary=len(WORDS), times=25, **options):
    """Random weights, their embeddings so many times as large: the likeliest token is rarely one of two."""
    model = ch.new(preset, vocab_size=vocabulary, tokenizer=WORDS, seed=seed, **options)
    with torch.no_grad():
        model.net.embed.tokens.weight.mul_(times)
    return model


@pytest.fixture(scope="module")
def engine():
    """A model in an engine, kept for the other tests."""
    kept = {}

    def opened(name, model, dtype=""):
        package = pytest.importorskip({"onnx": "onnxruntime"}.get(name, name))
        assert package
        if (name, id(model), dtype) not in kept:
            jaxtyping.config.update(
                "jaxtyping_disable", True
            )  # while it is traced, a size that may vary is no int
            try:
                kept[name, id(model), dtype] = model.through(name, dtype)
            finally:
                jaxtyping.config.update("jaxtyping_disable", False)
        return kept[name, id(model), dtype]

    return opened


@pytest.fixture(scope="module")
def writer():
    return peaky(
        "tiny-decoder", vocabulary=ROOMY, context=64, inference__eos_tokens=[END, 262, 270]
    )


@pytest.fixture(scope="module")
def modern():
    return peaky(
        "tiny-llama", context=64, inference__eos_tokens=[END], inference__bos_tokens=[START]
    )


@pytest.fixture(scope="module")
def translator():
    """Some of its outputs end, others break off."""
    return peaky(
        "tiny-encoder-decoder",
        8,
        times=4,
        layers=1,
        inference__decoder_start_tokens=[START],
        inference__eos_tokens=[37],
        inference__sep_tokens=[END],
    )


ENGINES = ["ctranslate2", "onnxruntime"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("ctranslate2", "writer"), ("ctranslate2", "modern"), ("onnxruntime", "writer")],
)
def test_the_likeliest_tokens_are_ours_with_their_probabilities(name, kind, engine, request):
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
def test_texts_stop_and_stream_as_ours(name, engine, writer):
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
        pieces = list(engine(name, writer).generate(prompt, 20, temperature=0, stream=True))
        want = writer.generate(prompt, 20, temperature=0)
        assert "".join(piece.text for piece in pieces) == want.text
        assert [piece.chosen.token for piece in pieces] == want.tokens
        assert [piece.finish_reason for piece in pieces] == [""] * (len(pieces) - 1) + [
            want.finish_reason
        ]


def test_onnxruntime_knows_every_option_of_writing(engine, writer):
    options = {
        "temperature": 0.9,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "seed": 3,
    }
    options |= {"bias": {7: 2.0}, "banned": (9,), "n": 2, "logprobs": 2}
    made, want = (
        m.generate(PROMPTS, 12, **options) for m in (engine("onnxruntime", writer), writer)
    )
    assert [[one.tokens for one in some] for some in made] == [
        [one.tokens for one in some] for some in want
    ]


@pytest.mark.parametrize("beam", [1, 2, 4])
@pytest.mark.parametrize("name", ENGINES)
def test_translations_are_ours(name, beam, engine, translator):
    n_best = min(beam, 2)
    for penalty in (1.0, 0.6):
        options = {
            "beam": beam,
            "max_tokens": 12,
            "length_penalty": penalty,
            "n_best": n_best,
            "early": True,
        }
        made, want = (
            m.translate([*PROMPTS, ""], **options) for m in (engine(name, translator), translator)
        )
        if n_best == 1:
            made = [[one] for one in made]
            want = [[one] for one in want]
        for some, others in zip(made, want, strict=True):
            assert [(one.tokens, one.text) for one in some] == [
                (other.tokens, other.text) for other in others
            ]
            assert [one.score for one in some] == pytest.approx(
                [other.score for other in others], abs=1e-2
            )
    ended = {one.tokens[-1] in translator.config.inference.eos_tokens for one, *_ in want[:-1]}
    assert ended == {True, False}  # else this says little


@pytest.mark.parametrize(
    ("start", "stop", "closed"),
    [([START], [END], True), ([START, 5], [END], False), ([START], [END, 5, 39], False)],
)
def test_ctranslate2_starts_stops_and_closes_as_the_model_is_used(start, stop, closed, engine):
    use = {
        "inference__decoder_start_tokens": start,
        "inference__eos_tokens": stop,
        "inference__forced_eos": closed,
    }
    model = peaky("tiny-encoder-decoder", seed=4, **use)
    made, want = (m.translate(PROMPTS, 1, 7) for m in (engine("ctranslate2", model), model))
    assert [one.tokens for one in made] == [one.tokens for one in want]
    assert [one.score for one in made] == pytest.approx([one.score for one in want], abs=1e-3)
    assert not closed or all(one.tokens[-1] == END and len(one.tokens) == 7 for one in made)
    if len(start) > 1 or len(stop) > 1:
        with pytest.raises(ch.ClearheadError, match="CTranslate2's beams differ from ours"):
            engine("ctranslate2", model).translate("a", 2)


def test_int8_is_near(engine, writer):
    (made,), (want,) = (
        m.generate(["the cat"], 1, temperature=0)
        for m in (engine("ctranslate2", writer, "int8"), writer)
    )
    assert made.tokens == want.tokens
    assert made.logprobs == pytest.approx(want.logprobs, abs=0.1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "temperature = 1.0: CTranslate2 draws by no seed"),
        ({"temperature": 0, "min_p": 0.1}, "does not know min_p as we do"),
        ({"temperature": 0, "bias": {1: 1.0}, "n": 2}, "does not know n, bias"),
        ({"temperature": 0, "logprobs": 3}, "does not know logprobs"),
        ({"temperature": 0, "repetition_penalty": 2.0}, "does not know repetition_penalty"),
        ({"temperature": 0, "banned": (3,), "forced": (4,)}, "does not know banned, forced"),
        ({"temperature": -1}, "of at least 0"),
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"temperature": 0, "max_tokens": 100}, "exceed the context of 64"),
        ({"temperature": 0, "prompt": ""}, "the text is empty"),
    ],
)
def test_what_ctranslate2_does_otherwise_is_refused(options, sentence, engine, writer):
    with pytest.raises(ch.ClearheadError, match=sentence):
        engine("ctranslate2", writer).generate(**{"prompt": "the cat", **options})


def test_an_unknown_engine_dtype_or_task_gets_a_sentence(engine, writer, translator):
    for wrong, sentence in (
        (lambda: writer.through("ctranslate"), "did you mean 'ctranslate2'"),
        (lambda: engine("ctranslate2", writer, "int7"), "has no dtype 'int7' on this cpu"),
        (lambda: engine("onnxruntime", writer, "int8"), "computes in float32 here, not in int8"),
        (lambda: ch.new("tiny-encoder").with_backend("onnxruntime"), "does not write text"),
        (lambda: engine("ctranslate2", writer).translate("a"), "has no source to read"),
        (lambda: engine("ctranslate2", translator).generate("a"), "does not write text"),
        (lambda: engine("ctranslate2", translator).translate("a", 0), "must be at least 1"),
        (
            lambda: engine("ctranslate2", translator).translate("a", no_repeat=2),
            "does not know no_repeat",
        ),
        (
            lambda: engine("ctranslate2", translator).translate("a", n_best=9),
            "more than the 5 beams can give",
        ),
        (lambda: engine("ctranslate2", translator).translate("a", align=-2), "does not know align"),
        (
            lambda: engine("onnxruntime", translator).translate("a", align=-2),
            "does not show what happens inside, as align",
        ),
        (
            lambda: engine("onnxruntime", translator).translate("a", edits={"norm": ch.ablate()}),
            "as edits asks",
        ),
        (
            lambda: engine("ctranslate2", translator).translate("a " * 600),
            "reads at most 512 at once",
        ),
        (
            lambda: engine("ctranslate2", translator).translate("a", max_tokens=1000),
            "max_tokens = 1000 is more than",
        ),
        (
            lambda: ch.new("whisper-tiny", n_layers=1, architecture__encoder_layers=1).with_backend(
                "ctranslate2"
            ),
            "CTranslate2 hears with Whisper",
        ),
    ):
        with pytest.raises(ch.ClearheadError, match=sentence):
            wrong()


@pytest.mark.parametrize(
    ("name", "extra"), [("ctranslate2", "ctranslate2"), ("onnxruntime", "onnx")]
)
def test_a_missing_engine_says_what_to_install(name, extra, writer, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("clearhead.generate.backends.find_spec", lambda package: None)
    with pytest.raises(
        ch.ClearheadError, match=rf"is not installed; pip install 'clearhead\[{extra}\]'"
    ):
        writer.through(name)


def test_the_process_ends_in_peace():
    pytest.importorskip("ctranslate2")
    code = "import clearhead as ch; m = ch.new('tiny-decoder').through('ctranslate2'); m.generate([1], 9, temperature=0)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
