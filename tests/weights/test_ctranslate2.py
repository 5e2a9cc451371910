"""CTranslate2 computes what we compute, for every model that it can express; the others are refused."""

import sys
from types import SimpleNamespace

import hypothesis
import pytest
import torch
from ctranslate2_models import (
    BOTH,
    DECODERS,
    ENCODERS,
    LANGUAGE,
    NEAR,
    SOUND,
    Encoder,
    Tokens,
    called,
    checkpoint,
    ct2,
    difference,
    greedy,
    model,
    opened,
    rows,
)

import strategies
from clearhead import config as c
from clearhead.config.presets import presets
from clearhead.errors import ClearheadError
from clearhead.generate.beam_search import beam_search
from clearhead.weights.ctranslate2 import _unsupported_text, save_ctranslate2


@pytest.mark.parametrize("m", [*DECODERS.values(), *ENCODERS.values()], ids=[*DECODERS, *ENCODERS])
def test_logits_and_hidden_states_are_ours(m, tmp_path):
    save_ctranslate2(tmp_path, model := checkpoint(m))
    assert difference(tmp_path, model) < NEAR


@pytest.mark.parametrize("m", BOTH.values(), ids=BOTH)
def test_scores_of_translations_are_ours(m, tmp_path):
    save_ctranslate2(tmp_path, model := checkpoint(m, start=(1,), stop=(2,)))
    assert difference(tmp_path, model) < NEAR


@pytest.mark.parametrize("m", DECODERS.values(), ids=DECODERS)
def test_continuations_are_ours_greedy_and_by_beams(m, tmp_path):
    save_ctranslate2(tmp_path, model := checkpoint(m))  # without a stop token it never stops
    engine = opened(ct2.Generator, tmp_path)
    for prompt in rows(m.vocab_size, 1, 7):
        ours = greedy(model.net, prompt, 8)
        for include in (True, False):  # token by token, or at once
            options = {
                "max_length": 8 + include * (len(prompt) - 1),
                "include_prompt_in_result": include,
            }
            theirs = engine.generate_batch([called(prompt)], **options)[0].sequences_ids[0]
            assert theirs[-8:] == ours
        best = beam_search(model.net, [prompt], beams=3, max_tokens=6)[0][0]
        options = {
            "beam_size": 3,
            "max_length": 6,
            "include_prompt_in_result": False,
            "return_scores": True,
        }
        theirs = engine.generate_batch([called(prompt)], **options)[0]
        assert theirs.sequences_ids[0] == best.tokens
        assert theirs.scores[0] == pytest.approx(best.score, abs=1e-4)


@pytest.mark.parametrize("m", BOTH.values(), ids=BOTH)
def test_translations_are_ours_greedy_and_by_beams(m, tmp_path):
    save_ctranslate2(tmp_path, model := checkpoint(m, start=(1,)))
    engine = opened(ct2.Translator, tmp_path)
    sources = rows(m.architecture.source_vocab_size or m.vocab_size, 11, 6)
    results = engine.translate_batch(
        [called(ids) for ids in sources], beam_size=1, max_decoding_length=8
    )
    for source, theirs in zip(sources, results, strict=True):
        assert theirs.hypotheses[0] == called(greedy(model.net, [1], 8, source))
        prefix = [7, 8]
        best = beam_search(
            model.net, [[1, *prefix]], source=torch.tensor([source]), beams=3, max_tokens=4
        )[0][0]
        theirs = engine.translate_batch(
            [called(source)], [called(prefix)], beam_size=3, max_decoding_length=6
        )[0]
        assert theirs.hypotheses[0] == called(prefix + best.tokens)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(strategies.models())
def test_any_model_is_expressed_exactly_or_refused(tmp_path_factory, m):
    both = isinstance(m.architecture, c.EncoderDecoder)
    model = checkpoint(m, start=(1,) if both else (), stop=(2,) if both else ())
    folder = tmp_path_factory.mktemp("any")
    try:
        save_ctranslate2(folder, model)
    except ClearheadError as refusal:
        assert str(refusal).startswith("CTranslate2")  # noqa: PT017 - either is right
        assert not list(folder.iterdir())
    else:
        assert difference(folder, model) < NEAR


@pytest.mark.parametrize("m", [DECODERS["qwen3"], ENCODERS["bert"], BOTH["marian"], BOTH["t5"]])
def test_every_parameter_is_in_the_file(m, tmp_path):
    model = checkpoint(m)
    seen = set()
    for i, p in enumerate([None, *model.net.parameters()]):
        if p is not None:
            p.data.mul_(1.5)
        (folder := tmp_path / str(i)).mkdir()
        save_ctranslate2(folder, model)
        seen.add((folder / "model.bin").read_bytes())
    assert len(seen) == 1 + len(list(model.net.parameters()))


def test_a_parameter_that_has_no_place_is_refused(tmp_path):
    model = checkpoint(DECODERS["gpt2"])
    model.net.extra = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(ClearheadError, match="no place for extra"):
        save_ctranslate2(tmp_path, model)


def changed(m, **options):
    return c.Config(m).replace(**options).model


REFUSED = [
    (model(ffn=c.FeedForward("relu2")), {}, "no activation relu2; it has relu, gelu"),
    (
        model(attention=c.Attention(sliding_window=5)),
        {},
        "window = 5 is less than the context of 20",
    ),
    (model(head=c.NoHead()), {}, "need head language, not hidden"),
    (
        model(input=Tokens(token_types=2)),
        {},
        "kinds of sentence in an encoder alone, not in shape decoder",
    ),
    (model(position=c.T5(8, 12)), {}, "misplaces the tokens of a prompt among relative positions"),
    (model(), {"never_first": (3,)}, "cannot forbid first tokens"),
    (presets["tiny-encoder"].model, {}, "not with head masked-word; give the model head hidden"),
    (model(architecture=Encoder, head=c.ClassificationHead()), {}, "not with head classes"),
    (
        model(architecture=Encoder, position=c.ALiBi(), head=c.NoHead()),
        {},
        "alibi positions in a decoder alone",
    ),
    (changed(presets["tiny-images"].model, head="none"), {}, "does not read pictures"),
    (changed(presets["tiny-audio"].model, head="none"), {}, "does not read spectrogram"),
    (
        changed(LANGUAGE, position="alibi"),
        {},
        "alibi positions in a decoder alone, not in shape encoder-decoder",
    ),
    (changed(LANGUAGE, attention__qk_norm=True), {}, "does not normalise each head"),
    (changed(LANGUAGE, shape__input__kinds=2), {}, "kinds of sentence"),
    (
        changed(LANGUAGE, architecture__source_context_length=30, attention__sliding_window=25),
        {},
        "less than the context of 30",
    ),
    (
        changed(SOUND, norm_position="post"),
        {},
        "hears with wiring pre and gelu or geglu, not with post and gelu",
    ),
    (changed(SOUND, ffn__activation="relu"), {}, "not with pre and relu"),
    (changed(SOUND, position="rotary"), {}, "not with rotary ones"),
    (SOUND, {}, r"no <\|startoftranscript\|> in the tokenizer"),
]


@pytest.mark.parametrize(("m", "use", "words"), REFUSED, ids=[words for *_, words in REFUSED])
def test_what_cannot_be_expressed_is_refused(m, use, words, tmp_path):
    with pytest.raises(ClearheadError, match=words):
        save_ctranslate2(tmp_path, checkpoint(m, **use))


def test_positions_that_nobody_has_expressed_yet_are_refused():
    unknown = SimpleNamespace(
        input=Tokens(), shape=c.Decoder(), position=SimpleNamespace(kind="logarithmic")
    )
    assert [*_unsupported_text(unknown, c.InferenceConfig())] == [
        "CTranslate2 has no logarithmic positions."
    ]


def test_numbers_of_64_bits_are_refused(tmp_path):
    model = checkpoint(DECODERS["gpt2"])
    model.net.double()
    with pytest.raises(ClearheadError, match=r"but embed\.tokens\.weight is float64"):
        save_ctranslate2(tmp_path, model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_the_bits_are_half_the_file_and_the_same_numbers(dtype, tmp_path):
    sizes = []
    for kind in (torch.float32, dtype):
        model = checkpoint(DECODERS["llama"])
        model.net.to(kind)
        (folder := tmp_path / str(kind)).mkdir()
        save_ctranslate2(folder, model)
        sizes.append((folder / "model.bin").stat().st_size)
    assert sizes[1] < 0.6 * sizes[0]
    model.net.float()
    assert difference(folder, model) < NEAR


def test_without_the_package_there_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ClearheadError, match=r"pip install 'clearhead\[ctranslate2\]'"):
        save_ctranslate2(tmp_path, checkpoint(DECODERS["gpt2"]))
