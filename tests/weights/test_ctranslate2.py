"""CTranslate2 computes exactly what we compute, or the export is refused."""

import sys
from types import SimpleNamespace

import hypothesis
import pytest
import torch
from ctranslate2_models import (
    DECODERS,
    ENCODER_DECODERS,
    ENCODERS,
    TOLERANCE,
    TRANSLATOR,
    WHISPER,
    Encoder,
    Tokens,
    checkpoint,
    ct2,
    engine_difference,
    greedy,
    model,
    open_engine,
    random_ids,
    token_names,
)

import strategies
from beams import beam_search
from clearhead import config as c
from clearhead.config.presets import presets
from clearhead.errors import ClearheadError
from clearhead.weights.export_ctranslate2 import save_ctranslate2, text_problems

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("m", [*DECODERS.values(), *ENCODERS.values()], ids=[*DECODERS, *ENCODERS])
def test_logits_and_hidden_states_are_equal(m, tmp_path):
    save_ctranslate2(tmp_path, model := checkpoint(m))
    assert engine_difference(tmp_path, model) < TOLERANCE


@pytest.mark.parametrize("m", ENCODER_DECODERS.values(), ids=ENCODER_DECODERS)
def test_translation_scores_are_equal(m, tmp_path):
    save_ctranslate2(tmp_path, model := checkpoint(m, decoder_start_tokens=(1,), eos_tokens=(2,)))
    assert engine_difference(tmp_path, model) < TOLERANCE


@pytest.mark.parametrize("m", DECODERS.values(), ids=DECODERS)
def test_generation_is_equal_greedy_and_with_beams(m, tmp_path):
    save_ctranslate2(tmp_path, model := checkpoint(m))  # without eos tokens it never stops
    engine = open_engine(ct2.Generator, tmp_path)
    for prompt in random_ids(m.vocab_size, 1, 7):
        ours = greedy(model.net, prompt, 8)
        for include in (True, False):  # reads the prompt token by token, or at once
            options = {
                "max_length": 8 + include * (len(prompt) - 1),
                "include_prompt_in_result": include,
            }
            theirs = engine.generate_batch([token_names(prompt)], **options)[0].sequences_ids[0]
            assert theirs[-8:] == ours
        best = beam_search(model.net, [prompt], num_beams=3, max_tokens=6)[0][0]
        options = {
            "beam_size": 3,
            "max_length": 6,
            "include_prompt_in_result": False,
            "return_scores": True,
        }
        theirs = engine.generate_batch([token_names(prompt)], **options)[0]
        assert theirs.sequences_ids[0] == best.tokens
        assert theirs.scores[0] == pytest.approx(best.score, abs=1e-4)


@pytest.mark.parametrize("m", ENCODER_DECODERS.values(), ids=ENCODER_DECODERS)
def test_translations_are_equal_greedy_and_with_beams(m, tmp_path):
    save_ctranslate2(tmp_path, model := checkpoint(m, decoder_start_tokens=(1,)))
    engine = open_engine(ct2.Translator, tmp_path)
    sources = random_ids(m.architecture.source_vocab_size or m.vocab_size, 11, 6)
    results = engine.translate_batch(
        [token_names(ids) for ids in sources], beam_size=1, max_decoding_length=8
    )
    for source, theirs in zip(sources, results, strict=True):
        assert theirs.hypotheses[0] == token_names(greedy(model.net, [1], 8, source))
        prefix = [7, 8]
        best = beam_search(
            model.net, [[1, *prefix]], source=torch.tensor([source]), num_beams=3, max_tokens=4
        )[0][0]
        theirs = engine.translate_batch(
            [token_names(source)], [token_names(prefix)], beam_size=3, max_decoding_length=6
        )[0]
        assert theirs.hypotheses[0] == token_names(prefix + best.tokens)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(strategies.models())
def test_any_model_is_exported_exactly_or_refused(tmp_path_factory, m):
    special = {}
    if isinstance(m.architecture, c.EncoderDecoder):
        special = {"decoder_start_tokens": (1,), "eos_tokens": (2,)}
    model = checkpoint(m, **special)
    folder = tmp_path_factory.mktemp("any")
    try:
        save_ctranslate2(folder, model)
    except ClearheadError as refusal:
        assert str(refusal).startswith("CTranslate2")  # noqa: PT017 - both outcomes are allowed
        assert not list(folder.iterdir())
    else:
        assert engine_difference(folder, model) < TOLERANCE


@pytest.mark.parametrize(
    "m", [DECODERS["qwen3"], ENCODERS["bert"], ENCODER_DECODERS["marian"], ENCODER_DECODERS["t5"]]
)
def test_every_parameter_is_exported(m, tmp_path):
    model = checkpoint(m)
    contents = set()
    for i, p in enumerate([None, *model.net.parameters()]):
        if p is not None:
            p.data.mul_(1.5)
        (folder := tmp_path / str(i)).mkdir()
        save_ctranslate2(folder, model)
        contents.add((folder / "model.bin").read_bytes())
    assert len(contents) == 1 + len(list(model.net.parameters()))


def test_unknown_parameter_is_refused(tmp_path):
    model = checkpoint(DECODERS["gpt2"])
    model.net.extra = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(ClearheadError, match="parameter extra"):
        save_ctranslate2(tmp_path, model)


def replace(m, **options):
    return c.Config(m).replace(**options).model


REFUSED = [
    (model(ffn=c.FeedForward("relu2")), {}, "no activation relu2"),
    (
        model(attention=c.Attention(sliding_window=5)),
        {},
        "sliding_window = 5",
    ),
    (model(head=c.NoHead()), {}, "head lm only"),
    (
        model(input=Tokens(token_types=2)),
        {},
        "token_types in encoders only",
    ),
    (model(position=c.T5(8, 12)), {}, "t5 positions"),
    (model(), {"begin_suppress_tokens": (3,)}, "begin_suppress_tokens"),
    (presets["tiny-encoder"].model, {}, "this one has head mlm"),
    (
        model(architecture=Encoder, head=c.ClassificationHead()),
        {},
        "this one has head classification",
    ),
    (
        model(architecture=Encoder, position=c.ALiBi(), head=c.NoHead()),
        {},
        "alibi positions in decoders only",
    ),
    (replace(presets["tiny-images"].model, head="none"), {}, "does not support images"),
    (replace(presets["tiny-audio"].model, head="none"), {}, "does not support spectrogram"),
    (
        replace(TRANSLATOR, position="alibi"),
        {},
        "not in encoder-decoder models",
    ),
    (replace(TRANSLATOR, attention__qk_norm=True), {}, "qk_norm"),
    (replace(TRANSLATOR, architecture__source_input__token_types=2), {}, "token_types"),
    (
        replace(TRANSLATOR, architecture__source_context_length=30, attention__sliding_window=25),
        {},
        "less than the context length 30",
    ),
    (
        replace(WHISPER, norm_position="post"),
        {},
        "not post and gelu",
    ),
    (replace(WHISPER, ffn__activation="relu"), {}, "not pre and relu"),
    (replace(WHISPER, position="rotary"), {}, "not rotary"),
    (WHISPER, {}, r"requires the token <\|startoftranscript\|>"),
]


@pytest.mark.parametrize(
    ("m", "inference", "message"), REFUSED, ids=[message for *_, message in REFUSED]
)
def test_inexpressible_model_is_refused(m, inference, message, tmp_path):
    with pytest.raises(ClearheadError, match=message):
        save_ctranslate2(tmp_path, checkpoint(m, **inference))


def test_unknown_position_scheme_is_refused():
    unknown = SimpleNamespace(
        input=Tokens(), architecture=c.Decoder(), position=SimpleNamespace(kind="logarithmic")
    )
    assert [*text_problems(unknown, c.InferenceConfig())] == [
        "CTranslate2 does not support logarithmic positions."
    ]


def test_float64_is_refused(tmp_path):
    model = checkpoint(DECODERS["gpt2"])
    model.net.double()
    with pytest.raises(ClearheadError, match=r"but embed\.tokens\.weight is float64"):
        save_ctranslate2(tmp_path, model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_halves_the_file_and_stays_exact(dtype, tmp_path):
    sizes = []
    for kind in (torch.float32, dtype):
        model = checkpoint(DECODERS["llama"])
        model.net.to(kind)
        (folder := tmp_path / str(kind)).mkdir()
        save_ctranslate2(folder, model)
        sizes.append((folder / "model.bin").stat().st_size)
    assert sizes[1] < 0.6 * sizes[0]
    model.net.float()
    assert engine_difference(folder, model) < TOLERANCE


def test_missing_package_is_reported(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ClearheadError, match=r"pip install 'clearhead\[ctranslate2\]'"):
        save_ctranslate2(tmp_path, checkpoint(DECODERS["gpt2"]))
