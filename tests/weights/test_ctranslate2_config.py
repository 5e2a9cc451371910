"""Exports to CTranslate2 in use: vocabularies, special tokens, suppressed tokens, Whisper."""

import json
from fnmatch import fnmatchcase

import pytest
import tokenizers as tk
import torch
from ctranslate2_models import (
    DECODERS,
    ENCODER_DECODERS,
    ENCODERS,
    TOLERANCE,
    TRANSLATOR,
    WHISPER,
    EncoderDecoder,
    checkpoint,
    ct2,
    greedy,
    max_difference,
    model,
    open_engine,
    random_ids,
    token_names,
)

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.weights.checkpoint import MODEL_FILES
from clearhead.weights.export_ctranslate2 import save_ctranslate2

pytestmark = pytest.mark.slow


def word_tokenizer(size, *special) -> Tokenizer:
    """Words w0, w1, …, then special tokens."""
    inner = tk.Tokenizer(tk.models.WordLevel({f"w{i}": i for i in range(size - len(special))}))
    inner.add_special_tokens(list(special))
    return Tokenizer(inner)


def test_unused_ids_get_unique_names(tmp_path):
    save_ctranslate2(
        tmp_path, checkpoint(model(vocab_size=9), tokenizer=word_tokenizer(7, "<unused7>"))
    )
    names = json.loads((tmp_path / "vocabulary.json").read_text())
    assert names == ["w0", "w1", "w2", "w3", "w4", "w5", "<unused7>", "<<unused7>>", "<unused8>"]


def test_source_and_target_vocabularies_are_written(tmp_path):
    m = model(architecture=EncoderDecoder(1, 20, 31), attention=c.Attention(3))
    model_ = checkpoint(
        m,
        tokenizer=word_tokenizer(29, "<unk>"),
        source_tokenizer=word_tokenizer(30, "<s>"),
        bos_tokens=(29,),
        decoder_start_tokens=(3,),
        eos_tokens=(4,),
    )
    save_ctranslate2(tmp_path, model_)
    assert json.loads((tmp_path / "source_vocabulary.json").read_text())[28:] == [
        "w28",
        "<s>",
        "<unused30>",
    ]
    assert json.loads((tmp_path / "target_vocabulary.json").read_text())[27:] == ["w27", "<unk>"]
    config = json.loads((tmp_path / "config.json").read_text())
    tokens = {
        "bos_token": "<s>",
        "eos_token": "w4",
        "unk_token": "<unk>",
        "decoder_start_token": "w3",
    }
    assert tokens.items() <= config.items()
    assert config["add_source_bos"] is config["add_source_eos"] is False
    assert Tokenizer.load(tmp_path / "tokenizer.json").special_tokens == {"<unk>": 28}
    assert Tokenizer.load(tmp_path / "source_tokenizer.json").special_tokens == {"<s>": 29}


@pytest.mark.parametrize(
    "m", [DECODERS["llama"], DECODERS["no positions"]], ids=["no bias", "bias"]
)
def test_suppressed_tokens_and_eos_tokens(m, tmp_path):
    net = checkpoint(m).net
    prompt = [3, 4]
    suppressed = greedy(net, prompt, 1)
    expected = greedy(net, prompt, 8, suppress_tokens=suppressed)
    save_ctranslate2(
        tmp_path,
        checkpoint(
            m,
            suppress_tokens=tuple(suppressed),
            eos_tokens=(expected[-1], 2),
            chat_template="{{ messages }}",
        ),
    )
    options = {"include_prompt_in_result": False, "max_length": 12}
    theirs = (
        open_engine(ct2.Generator, tmp_path)
        .generate_batch([token_names(prompt)], **options)[0]
        .sequences_ids[0]
    )
    assert theirs == expected[: expected.index(expected[-1])]
    assert json.loads((tmp_path / "config.json").read_text())["inference"]["eos_tokens"] == [
        expected[-1],
        2,
    ]
    assert (tmp_path / "chat_template.jinja").read_text() == "{{ messages }}"


def test_several_decoder_start_tokens_are_a_prefix(tmp_path):
    save_ctranslate2(tmp_path, model := checkpoint(TRANSLATOR, decoder_start_tokens=(5, 6)))
    source = random_ids(29, 9)[0]
    engine = open_engine(ct2.Translator, tmp_path)
    theirs = engine.translate_batch(
        [token_names(source)], [token_names([5, 6])], beam_size=1, max_decoding_length=8
    )[0]
    assert theirs.hypotheses[0] == token_names([6, *greedy(model.net, [5, 6], 7, source)])


def test_without_eos_tokens_nothing_stops_generation(tmp_path):
    ours = greedy(checkpoint(DECODERS["llama"]).net, [3, 4], 8)
    inner = tk.Tokenizer(
        tk.models.WordLevel({"<unk>" if i == ours[2] else f"w{i}": i for i in range(29)})
    )
    save_ctranslate2(tmp_path, checkpoint(DECODERS["llama"], tokenizer=Tokenizer(inner)))
    options = {"include_prompt_in_result": False, "max_length": 8}
    assert (
        open_engine(ct2.Generator, tmp_path)
        .generate_batch([["w3", "w4"]], **options)[0]
        .sequences_ids[0]
        == ours
    )


@torch.no_grad()
def test_whisper_transcribes_equally(tmp_path):
    special = (
        "<|endoftext|>",
        "<|startoftranscript|>",
        "<|en|>",
        "<|transcribe|>",
        "<|notimestamps|>",
    )
    end, *start = range(35, 40)
    audio = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(0))
    net = checkpoint(WHISPER).net
    suppressed = (*greedy(net, start, 1, audio[0]), end)
    begin_suppressed = tuple(greedy(net, start, 1, audio[1], suppressed))
    inference = {
        "decoder_start_tokens": tuple(start),
        "eos_tokens": (end,),
        "suppress_tokens": suppressed,
        "begin_suppress_tokens": begin_suppressed,
    }
    save_ctranslate2(
        tmp_path, checkpoint(WHISPER, tokenizer=word_tokenizer(40, *special), **inference)
    )
    engine = open_engine(ct2.models.Whisper, tmp_path)
    features = ct2.StorageView.from_array(audio.numpy())
    assert max_difference(engine.encode(features), net.encode(audio)) < TOLERANCE
    results = engine.generate(features, [start, start], beam_size=1, max_length=16)
    for spectrogram, theirs in zip(audio, results, strict=True):
        assert theirs.sequences_ids[0] == greedy(
            net, start, 8, spectrogram, suppressed, begin_suppressed
        )
    assert json.loads((tmp_path / "config.json").read_text())["lang_ids"] == [37]
    assert json.loads((tmp_path / "preprocessor_config.json").read_text())["feature_size"] == 6


def test_whisper_with_another_eos_token_is_refused(tmp_path):
    special = ("<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>")
    with pytest.raises(
        ClearheadError,
        match=r"inference.eos_tokens is \(3,\)",
    ):
        save_ctranslate2(
            tmp_path, checkpoint(WHISPER, tokenizer=word_tokenizer(40, *special), eos_tokens=(3,))
        )


@pytest.mark.parametrize(
    "m",
    [DECODERS["gpt2"], ENCODERS["bert"], ENCODER_DECODERS["vaswani"], ENCODER_DECODERS["marian"]],
)
def test_only_known_model_files_are_written(m, tmp_path):
    save_ctranslate2(tmp_path, checkpoint(m, tokenizer=word_tokenizer(20), chat_template="x"))
    for path in tmp_path.iterdir():
        assert any(fnmatchcase(path.name, part) for part in MODEL_FILES)
