"""A folder of CTranslate2's as it is used: names of tokens, starts and stops, what is never written, Whisper."""

import json
from fnmatch import fnmatchcase

import pytest
import tokenizers as tk
import torch
from ctranslate2_models import (
    BOTH,
    DECODERS,
    ENCODERS,
    LANGUAGE,
    NEAR,
    SOUND,
    Both,
    called,
    checkpoint,
    ct2,
    far,
    greedy,
    model,
    opened,
    rows,
)

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.weights.checkpoint import MODEL_FILES
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.weights.ctranslate2 import save_ctranslate2


def words(size, *special) -> Tokenizer:
    """Words w0, w1 …, then special tokens."""
    inner = tk.Tokenizer(tk.models.WordLevel({f"w{i}": i for i in range(size - len(special))}))
    inner.add_special_tokens(list(special))
    return Tokenizer(inner)


def test_tokens_have_their_names_and_others_get_new_ones(tmp_path):
    save_ctranslate2(tmp_path, checkpoint(model(vocab_size=9), tokenizer=words(7, "<unused7>")))
    names = json.loads((tmp_path / "vocabulary.json").read_text())
    assert names == ["w0", "w1", "w2", "w3", "w4", "w5", "<unused7>", "<<unused7>>", "<unused8>"]


def test_sources_and_targets_have_their_own_words(tmp_path):
    m = model(architecture=Both(1, 20, 31), attention=c.Attention(3))
    model_ = checkpoint(
        m, tokenizer=words(29, "<unk>"), source=words(30, "<s>"), begin=(29,), start=(3,), stop=(4,)
    )
    save_ctranslate2(tmp_path, model_)
    assert json.loads((tmp_path / "source_vocabulary.json").read_text())[28:] == [
        "w28",
        "<s>",
        "<unused30>",
    ]
    assert json.loads((tmp_path / "target_vocabulary.json").read_text())[27:] == ["w27", "<unk>"]
    told = json.loads((tmp_path / "config.json").read_text())
    tokens = {
        "bos_token": "<s>",
        "eos_token": "w4",
        "unk_token": "<unk>",
        "decoder_start_token": "w3",
    }
    assert tokens.items() <= told.items()
    assert told["add_source_bos"] is told["add_source_eos"] is False
    assert Tokenizer.load(tmp_path / "tokenizer.json").special_tokens == {"<unk>": 28}
    assert Tokenizer.load(tmp_path / "source_tokenizer.json").special_tokens == {"<s>": 29}


@pytest.mark.parametrize(
    "m", [DECODERS["llama"], DECODERS["no positions"]], ids=["no bias", "bias"]
)
def test_what_is_never_written_is_not_and_the_stop_token_stops(m, tmp_path):
    net = checkpoint(m).net
    prompt = [3, 4]
    never = greedy(net, prompt, 1)
    held = greedy(net, prompt, 8, never=never)
    save_ctranslate2(
        tmp_path, checkpoint(m, never=tuple(never), stop=(held[-1], 2), chat="{{ messages }}")
    )
    options = {"include_prompt_in_result": False, "max_length": 12}
    theirs = (
        opened(ct2.Generator, tmp_path)
        .generate_batch([called(prompt)], **options)[0]
        .sequences_ids[0]
    )
    assert theirs == held[: held.index(held[-1])]
    assert json.loads((tmp_path / "config.json").read_text())["use"]["stop"] == [held[-1], 2]
    assert (tmp_path / "chat_template.jinja").read_text() == "{{ messages }}"


def test_several_start_tokens_are_a_prefix_of_which_the_first_is_not_repeated(tmp_path):
    save_ctranslate2(tmp_path, model := checkpoint(LANGUAGE, start=(5, 6)))
    source = rows(29, 9)[0]
    engine = opened(ct2.Translator, tmp_path)
    theirs = engine.translate_batch(
        [called(source)], [called([5, 6])], beam_size=1, max_decoding_length=8
    )[0]
    assert theirs.hypotheses[0] == called([6, *greedy(model.net, [5, 6], 7, source)])


def test_without_a_stop_token_nothing_stops_it(tmp_path):
    ours = greedy(checkpoint(DECODERS["llama"]).net, [3, 4], 8)
    inner = tk.Tokenizer(
        tk.models.WordLevel({"<unk>" if i == ours[2] else f"w{i}": i for i in range(29)})
    )
    save_ctranslate2(
        tmp_path, checkpoint(DECODERS["llama"], tokenizer=Tokenizer(inner))
    )  # what is unknown would be the end
    options = {"include_prompt_in_result": False, "max_length": 8}
    assert (
        opened(ct2.Generator, tmp_path)
        .generate_batch([["w3", "w4"]], **options)[0]
        .sequences_ids[0]
        == ours
    )


@torch.no_grad()
def test_whisper_hears_what_we_hear(tmp_path):
    special = (
        "<|endoftext|>",
        "<|startoftranscript|>",
        "<|en|>",
        "<|transcribe|>",
        "<|notimestamps|>",
    )
    end, *start = range(35, 40)
    sounds = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(0))
    net = checkpoint(SOUND).net
    never = (*greedy(net, start, 1, sounds[0]), end)
    never_first = tuple(greedy(net, start, 1, sounds[1], never))
    use = {"start": tuple(start), "stop": (end,), "never": never, "never_first": never_first}
    save_ctranslate2(tmp_path, checkpoint(SOUND, tokenizer=words(40, *special), **use))
    engine = opened(ct2.models.Whisper, tmp_path)
    heard = ct2.StorageView.from_array(sounds.numpy())
    assert far(engine.encode(heard), net.encode(sounds)) < NEAR
    results = engine.generate(heard, [start, start], beam_size=1, max_length=16)
    for sound, theirs in zip(sounds, results, strict=True):
        assert theirs.sequences_ids[0] == greedy(net, start, 8, sound, never, never_first)
    assert json.loads((tmp_path / "config.json").read_text())["lang_ids"] == [37]
    assert json.loads((tmp_path / "preprocessor_config.json").read_text())["feature_size"] == 6


def test_whisper_with_another_end_is_refused(tmp_path):
    special = ("<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>")
    with pytest.raises(
        ClearheadError,
        match=r"stops at <\|endoftext\|> when it hears, but use.eos_tokens is \(3,\)",
    ):
        save_ctranslate2(tmp_path, checkpoint(SOUND, tokenizer=words(40, *special), stop=(3,)))


@pytest.mark.parametrize("m", [DECODERS["gpt2"], ENCODERS["bert"], BOTH["vaswani"], BOTH["marian"]])
def test_only_parts_of_a_model_are_written(m, tmp_path):
    save_ctranslate2(tmp_path, checkpoint(m, tokenizer=words(20), chat="x"))
    for path in tmp_path.iterdir():
        assert any(fnmatchcase(path.name, part) for part in MODEL_FILES)
