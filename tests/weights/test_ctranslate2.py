"""CTranslate2 computes what we compute, for every model that it can express; the others are refused."""

import json
import sys
from fnmatch import fnmatchcase
from types import SimpleNamespace

import hypothesis
import numpy as np
import pytest
import tokenizers as tk
import torch

import strategies
from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.generate.beam import beam_search
from clearhead.model.transformer import build
from clearhead.presets import presets
from clearhead.tokens.text import Tokenizer
from clearhead.weights.checkpoint import Checkpoint
from clearhead.weights.ctranslate2 import _in_text, write
from clearhead.weights.whole import PARTS

ct2 = pytest.importorskip("ctranslate2")

Decoder, Encoder, Both, Tokens = c.Decoder(), c.Encoder(), c.EncoderDecoder, c.Tokens
Rotary, Llama3, Linear, RMSNorm, LayerNorm = c.Rotary, c.Llama3, c.Linear, c.RMSNorm, c.LayerNorm
UNTIED = c.Language(tied=False)
NEAR = 1e-5


def model(**options) -> c.ModelConfig:
    return c.ModelConfig(**{"vocabulary": 29, "context": 20, "width": 24, "layers": 2} | options)


DECODERS = {
    "gpt2": model(ffn=c.FeedForward("gelu-tanh", 40), attention=c.Attention(3)),
    "llama": model(
        position=Rotary(theta=500.0, scaling=Llama3(4.0, 1.5, 3.0, 16)),
        attention=c.Attention(6, 2, 8, bias=()),
        ffn=c.FeedForward("swiglu", 40, bias=False),
        norm=RMSNorm(eps=1e-2),
        head=UNTIED,
    ),
    "qwen3": model(
        position=Rotary(theta=100.0),
        attention=c.Attention(4, 1, 6, 20, ("q", "k", "v"), qk_norm=True),  # a window of all the context is none
        ffn=c.FeedForward("swiglu", 40, bias=False),
        norm=RMSNorm(eps=1e-3),
        head=UNTIED,
    ),
    "part turned": model(position=Rotary(width=4, scaling=Linear(3.0)), attention=c.Attention(3), head=UNTIED),
    "layer qk-norm": model(
        position=Rotary(),
        attention=c.Attention(3, qk_norm=True),
        norm=LayerNorm(eps=1e-2, bias=False),
        ffn=c.FeedForward("silu"),
        head=UNTIED,
    ),
    "alibi": model(position=c.Alibi(), attention=c.Attention(6, 3), input=Tokens(norm=True), head=UNTIED),
    "shaw": model(position=c.Shaw(distance=3), attention=c.Attention(3, scaled=False), wiring="post", head=UNTIED),
    "no positions": model(position=c.NoPositions(), head=c.Language(tied=False, bias=True, scaled=True)),
    "sinusoidal": model(position=c.Sinusoidal(), input=Tokens(scaled=True), ffn=c.FeedForward("geglu"), head=UNTIED),
}
ENCODERS = {
    "bert": model(
        shape=Encoder,
        wiring="post",
        input=Tokens(kinds=3, scaled=True, norm=True),
        ffn=c.FeedForward("gelu", 40),
        norm=LayerNorm(eps=1e-3),
        head=c.Hidden(),
    ),
    "modern": model(
        shape=Encoder,
        position=Rotary(scaling=Llama3(4.0, context=16)),
        attention=c.Attention(4, 2, qk_norm=True),
        ffn=c.FeedForward("geglu-tanh", 40),
        norm=RMSNorm(),
        head=c.Hidden(),
    ),
    "relative": model(shape=Encoder, position=c.Relative(8, 12), attention=c.Attention(3), head=c.Hidden()),
    "shaw": model(shape=Encoder, position=c.Shaw(distance=3), attention=c.Attention(4, 1), head=c.Hidden()),
}
BOTH = {
    "vaswani": model(
        shape=Both(1, 20, input=Tokens(scaled=True)),
        wiring="post",
        input=Tokens(scaled=True),
        position=c.Sinusoidal(),
        attention=c.Attention(3, bias=()),
    ),
    "marian": model(
        shape=Both(2, 20, 31, Tokens(scaled=True)),
        wiring="post",
        input=Tokens(scaled=True),
        position=c.Sinusoidal(layout="halves"),
        ffn=c.FeedForward("silu", 40),
        head=c.Language(bias=True),
    ),
    "t5": model(
        shape=Both(3, 20),
        position=c.Relative(8, 12),
        attention=c.Attention(3, head_width=6, bias=(), scaled=False),
        ffn=c.FeedForward("geglu-tanh", 40, bias=False),
        norm=RMSNorm(),
        head=c.Language(scaled=True),
    ),
    "grouped": model(
        shape=Both(1, 20, 31, Tokens(norm=True)),
        position=Rotary(width=4),
        attention=c.Attention(6, 2, 8, bias=("q", "v", "out")),
        norm=LayerNorm(bias=False),
        head=c.Language(tied=False, bias=True),
    ),
    "learned": model(shape=Both(2, 18), attention=c.Attention(4, 1), norm=RMSNorm(eps=1e-2), head=UNTIED),
}


def checkpoint(m, seed=1, tokenizer=None, source=None, **use) -> Checkpoint:
    """Random weights, biases and gains too; peaky, so that the best token is never one of two."""
    net, generator = build(m, seed).eval(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if name.endswith("bias") or "norm." in name or "position" in name or "kinds" in name:
                p.add_(torch.randn(p.shape, generator=generator) * 0.3)
            elif "embed" in name:
                p.mul_(40)
    return Checkpoint(net, c.Config(m, c.Use(**use)), tokenizer, source)


def rows(vocabulary, *lengths) -> list[list[int]]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(5, vocabulary, (length,), generator=generator).tolist() for length in lengths]


def called(ids) -> list[str]:
    return [f"<unused{i}>" for i in ids]


def far(theirs, ours) -> float:
    """The greatest difference, where numbers are large in parts of the largest."""
    return float((torch.tensor(np.array(theirs)) - ours).abs().max() / ours.abs().max().clamp(min=1))


@torch.no_grad()
def greedy(net, ids, count, source=None, never=(), never_first=()) -> list[int]:
    """The plain loop; a near tie would say nothing about either engine."""
    written = []
    for _ in range(count):
        rest = {} if source is None else {"source": torch.as_tensor(source)[None]}
        logits = net.predict(net(torch.tensor([ids + written]), **rest))[0, -1]
        logits[[*never, *(never_first if not written else ())]] = -torch.inf
        best = logits.topk(2)
        assert best.values[0] - best.values[1] > 1e-3
        written.append(int(best.indices[0]))
    return written


def opened(engine, folder, **options):
    return engine(str(folder), compute_type="float32", intra_threads=1, **options)


@torch.no_grad()
def difference(folder, model) -> float:
    """How far what CTranslate2 computes is from what we compute, in rows of different lengths."""
    net, m, use = model.net, model.config.model, model.config.use
    if isinstance(m.shape, c.EncoderDecoder):
        engine = opened(ct2.Translator, folder)
        sources, targets = rows(m.shape.vocabulary or m.vocabulary, 11, 6), rows(m.vocabulary, 5, 9)
        scored = engine.score_batch([called(ids) for ids in sources], [called(ids) for ids in targets])
        worst = 0.0
        for source, target, theirs in zip(sources, targets, scored, strict=True):
            ids = torch.tensor([[*use.start, *target, *use.stop]])
            log_probs = net.predict(net(ids[:, :-1], source=torch.tensor([source])))[0].log_softmax(-1)
            worst = max(worst, far(theirs.log_probs, log_probs.gather(1, ids[0, 1:, None])[:, 0]))
        return worst
    texts = rows(m.vocabulary, 11, 6)
    if isinstance(m.shape, c.Encoder):
        kinds = [[i % m.input.kinds for i in ids] for ids in texts] if m.input.kinds else None
        theirs = opened(ct2.Encoder, folder).forward_batch(texts, token_type_ids=kinds).last_hidden_state
        ours = [
            net(torch.tensor([ids]), kinds=torch.tensor([kinds[i]]) if kinds else None) for i, ids in enumerate(texts)
        ]
    else:
        theirs = opened(ct2.Generator, folder).forward_batch(texts)
        ours = [net.predict(net(torch.tensor([ids]))) for ids in texts]
    return max(far(row[: len(ids)], own[0]) for row, own, ids in zip(np.array(theirs), ours, texts, strict=True))


@pytest.mark.parametrize("m", [*DECODERS.values(), *ENCODERS.values()], ids=[*DECODERS, *ENCODERS])
def test_logits_and_hidden_states_are_ours(m, tmp_path):
    write(tmp_path, model := checkpoint(m))
    assert difference(tmp_path, model) < NEAR


@pytest.mark.parametrize("m", BOTH.values(), ids=BOTH)
def test_scores_of_translations_are_ours(m, tmp_path):
    write(tmp_path, model := checkpoint(m, start=(1,), stop=(2,)))
    assert difference(tmp_path, model) < NEAR


@pytest.mark.parametrize("m", DECODERS.values(), ids=DECODERS)
def test_continuations_are_ours_greedy_and_by_beams(m, tmp_path):
    write(tmp_path, model := checkpoint(m))  # without a stop token it never stops
    engine = opened(ct2.Generator, tmp_path)
    for prompt in rows(m.vocabulary, 1, 7):
        ours = greedy(model.net, prompt, 8)
        for include in (True, False):  # token by token, or at once
            options = {"max_length": 8 + include * (len(prompt) - 1), "include_prompt_in_result": include}
            theirs = engine.generate_batch([called(prompt)], **options)[0].sequences_ids[0]
            assert theirs[-8:] == ours
        best = beam_search(model.net, [prompt], beams=3, max_tokens=6)[0][0]
        options = {"beam_size": 3, "max_length": 6, "include_prompt_in_result": False, "return_scores": True}
        theirs = engine.generate_batch([called(prompt)], **options)[0]
        assert theirs.sequences_ids[0] == best.tokens
        assert theirs.scores[0] == pytest.approx(best.score, abs=1e-4)


@pytest.mark.parametrize("m", BOTH.values(), ids=BOTH)
def test_translations_are_ours_greedy_and_by_beams(m, tmp_path):
    write(tmp_path, model := checkpoint(m, start=(1,)))
    engine = opened(ct2.Translator, tmp_path)
    sources = rows(m.shape.vocabulary or m.vocabulary, 11, 6)
    results = engine.translate_batch([called(ids) for ids in sources], beam_size=1, max_decoding_length=8)
    for source, theirs in zip(sources, results, strict=True):
        assert theirs.hypotheses[0] == called(greedy(model.net, [1], 8, source))
        prefix = [7, 8]
        best = beam_search(model.net, [[1, *prefix]], source=torch.tensor([source]), beams=3, max_tokens=4)[0][0]
        theirs = engine.translate_batch([called(source)], [called(prefix)], beam_size=3, max_decoding_length=6)[0]
        assert theirs.hypotheses[0] == called(prefix + best.tokens)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(strategies.models())
def test_any_model_is_expressed_exactly_or_refused(tmp_path_factory, m):
    both = isinstance(m.shape, c.EncoderDecoder)
    model = checkpoint(m, start=(1,) if both else (), stop=(2,) if both else ())
    folder = tmp_path_factory.mktemp("any")
    try:
        write(folder, model)
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
        write(folder, model)
        seen.add((folder / "model.bin").read_bytes())
    assert len(seen) == 1 + len(list(model.net.parameters()))


def test_a_parameter_that_has_no_place_is_refused(tmp_path):
    model = checkpoint(DECODERS["gpt2"])
    model.net.extra = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(ClearheadError, match="no place for extra"):
        write(tmp_path, model)


LANGUAGE = model(shape=Both(1, 20), attention=c.Attention(3))
SOUND = model(
    vocabulary=40,
    shape=Both(1, 5, input=c.Sound(mels=6, frames=9)),
    attention=c.Attention(4, 2, 6, bias=("q", "v", "out")),
    ffn=c.FeedForward("gelu", 40),
    norm=LayerNorm(eps=1e-3),
    head=c.Language(tied=False, bias=True),
)


def changed(m, **options):
    return c.Config(m).change(**options).model


REFUSED = [
    (model(ffn=c.FeedForward("relu2")), {}, "no activation relu2; it has relu, gelu"),
    (model(attention=c.Attention(window=5)), {}, "window = 5 is less than the context of 20"),
    (model(head=c.Hidden()), {}, "need head language, not hidden"),
    (model(input=Tokens(kinds=2)), {}, "kinds of sentence in an encoder alone, not in shape decoder"),
    (model(position=c.Relative(8, 12)), {}, "misplaces the tokens of a prompt among relative positions"),
    (model(), {"never_first": (3,)}, "cannot forbid first tokens"),
    (presets["tiny-encoder"].model, {}, "not with head masked-word; give the model head hidden"),
    (model(shape=Encoder, head=c.Classes()), {}, "not with head classes"),
    (model(shape=Encoder, position=c.Alibi(), head=c.Hidden()), {}, "alibi positions in a decoder alone"),
    (changed(presets["tiny-pictures"].model, head="hidden"), {}, "does not read pictures"),
    (changed(presets["tiny-sound"].model, head="hidden"), {}, "does not read spectrogram"),
    (changed(LANGUAGE, position="alibi"), {}, "alibi positions in a decoder alone, not in shape encoder-decoder"),
    (changed(LANGUAGE, attention__qk_norm=True), {}, "does not normalise each head"),
    (changed(LANGUAGE, shape__input__kinds=2), {}, "kinds of sentence"),
    (changed(LANGUAGE, shape__context=30, attention__window=25), {}, "less than the context of 30"),
    (changed(SOUND, wiring="post"), {}, "hears with wiring pre and gelu or geglu, not with post and gelu"),
    (changed(SOUND, ffn__activation="relu"), {}, "not with pre and relu"),
    (changed(SOUND, position="rotary"), {}, "not with rotary ones"),
    (SOUND, {}, r"no <\|startoftranscript\|> in the tokenizer"),
]


@pytest.mark.parametrize(("m", "use", "words"), REFUSED, ids=[words for *_, words in REFUSED])
def test_what_cannot_be_expressed_is_refused(m, use, words, tmp_path):
    with pytest.raises(ClearheadError, match=words):
        write(tmp_path, checkpoint(m, **use))


def test_positions_that_nobody_has_expressed_yet_are_refused():
    unknown = SimpleNamespace(input=Tokens(), shape=c.Decoder(), position=SimpleNamespace(kind="logarithmic"))
    assert [*_in_text(unknown, c.Use())] == ["CTranslate2 has no logarithmic positions."]


def test_numbers_of_64_bits_are_refused(tmp_path):
    model = checkpoint(DECODERS["gpt2"])
    model.net.double()
    with pytest.raises(ClearheadError, match=r"but embed\.tokens\.weight is float64"):
        write(tmp_path, model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_the_bits_are_half_the_file_and_the_same_numbers(dtype, tmp_path):
    sizes = []
    for kind in (torch.float32, dtype):
        model = checkpoint(DECODERS["llama"])
        model.net.to(kind)
        (folder := tmp_path / str(kind)).mkdir()
        write(folder, model)
        sizes.append((folder / "model.bin").stat().st_size)
    assert sizes[1] < 0.6 * sizes[0]
    model.net.float()
    assert difference(folder, model) < NEAR


def test_without_the_package_there_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ClearheadError, match=r"pip install 'clearhead\[ctranslate2\]'"):
        write(tmp_path, checkpoint(DECODERS["gpt2"]))


# ---------------------------------------------------------------- how it is used
def words(size, *special) -> Tokenizer:
    """Words w0, w1 …, then special tokens."""
    inner = tk.Tokenizer(tk.models.WordLevel({f"w{i}": i for i in range(size - len(special))}))
    inner.add_special_tokens(list(special))
    return Tokenizer(inner)


def test_tokens_have_their_names_and_others_get_new_ones(tmp_path):
    write(tmp_path, checkpoint(model(vocabulary=9), tokenizer=words(7, "<unused7>")))
    names = json.loads((tmp_path / "vocabulary.json").read_text())
    assert names == ["w0", "w1", "w2", "w3", "w4", "w5", "<unused7>", "<<unused7>>", "<unused8>"]


def test_sources_and_targets_have_their_own_words(tmp_path):
    m = model(shape=Both(1, 20, 31), attention=c.Attention(3))
    model_ = checkpoint(m, tokenizer=words(29, "<unk>"), source=words(30, "<s>"), begin=(29,), start=(3,), stop=(4,))
    write(tmp_path, model_)
    assert json.loads((tmp_path / "source_vocabulary.json").read_text())[28:] == ["w28", "<s>", "<unused30>"]
    assert json.loads((tmp_path / "target_vocabulary.json").read_text())[27:] == ["w27", "<unk>"]
    told = json.loads((tmp_path / "config.json").read_text())
    tokens = {"bos_token": "<s>", "eos_token": "w4", "unk_token": "<unk>", "decoder_start_token": "w3"}
    assert tokens.items() <= told.items()
    assert told["add_source_bos"] is told["add_source_eos"] is False
    assert Tokenizer.load(tmp_path / "tokenizer.json").special == {"<unk>": 28}
    assert Tokenizer.load(tmp_path / "source_tokenizer.json").special == {"<s>": 29}


@pytest.mark.parametrize("m", [DECODERS["llama"], DECODERS["no positions"]], ids=["no bias", "bias"])
def test_what_is_never_written_is_not_and_the_stop_token_stops(m, tmp_path):
    net, prompt = checkpoint(m).net, [3, 4]
    never = greedy(net, prompt, 1)
    held = greedy(net, prompt, 8, never=never)
    write(tmp_path, checkpoint(m, never=tuple(never), stop=(held[-1], 2), chat="{{ messages }}"))
    options = {"include_prompt_in_result": False, "max_length": 12}
    theirs = opened(ct2.Generator, tmp_path).generate_batch([called(prompt)], **options)[0].sequences_ids[0]
    assert theirs == held[: held.index(held[-1])]
    assert json.loads((tmp_path / "config.json").read_text())["use"]["stop"] == [held[-1], 2]
    assert (tmp_path / "chat_template.jinja").read_text() == "{{ messages }}"


def test_several_start_tokens_are_a_prefix_of_which_the_first_is_not_repeated(tmp_path):
    write(tmp_path, model := checkpoint(LANGUAGE, start=(5, 6)))
    source = rows(29, 9)[0]
    engine = opened(ct2.Translator, tmp_path)
    theirs = engine.translate_batch([called(source)], [called([5, 6])], beam_size=1, max_decoding_length=8)[0]
    assert theirs.hypotheses[0] == called([6, *greedy(model.net, [5, 6], 7, source)])


def test_without_a_stop_token_nothing_stops_it(tmp_path):
    ours = greedy(checkpoint(DECODERS["llama"]).net, [3, 4], 8)
    inner = tk.Tokenizer(tk.models.WordLevel({"<unk>" if i == ours[2] else f"w{i}": i for i in range(29)}))
    write(tmp_path, checkpoint(DECODERS["llama"], tokenizer=Tokenizer(inner)))  # what is unknown would be the end
    options = {"include_prompt_in_result": False, "max_length": 8}
    assert opened(ct2.Generator, tmp_path).generate_batch([["w3", "w4"]], **options)[0].sequences_ids[0] == ours


@torch.no_grad()
def test_whisper_hears_what_we_hear(tmp_path):
    special = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")
    end, *start = range(35, 40)
    sounds = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(0))
    net = checkpoint(SOUND).net
    never = (*greedy(net, start, 1, sounds[0]), end)
    never_first = tuple(greedy(net, start, 1, sounds[1], never))
    use = {"start": tuple(start), "stop": (end,), "never": never, "never_first": never_first}
    write(tmp_path, checkpoint(SOUND, tokenizer=words(40, *special), **use))
    engine, heard = opened(ct2.models.Whisper, tmp_path), ct2.StorageView.from_array(sounds.numpy())
    assert far(engine.encode(heard), net.encode(sounds)) < NEAR
    results = engine.generate(heard, [start, start], beam_size=1, max_length=16)
    for sound, theirs in zip(sounds, results, strict=True):
        assert theirs.sequences_ids[0] == greedy(net, start, 8, sound, never, never_first)
    assert json.loads((tmp_path / "config.json").read_text())["lang_ids"] == [37]
    assert json.loads((tmp_path / "preprocessor_config.json").read_text())["feature_size"] == 6


def test_whisper_with_another_end_is_refused(tmp_path):
    special = ("<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>")
    with pytest.raises(ClearheadError, match=r"stops at <\|endoftext\|> when it hears, but use.stop is \(3,\)"):
        write(tmp_path, checkpoint(SOUND, tokenizer=words(40, *special), stop=(3,)))


@pytest.mark.parametrize("m", [DECODERS["gpt2"], ENCODERS["bert"], BOTH["vaswani"], BOTH["marian"]])
def test_only_parts_of_a_model_are_written(m, tmp_path):
    write(tmp_path, checkpoint(m, tokenizer=words(20), chat="x"))
    for path in tmp_path.iterdir():
        assert any(fnmatchcase(path.name, part) for part in PARTS)
