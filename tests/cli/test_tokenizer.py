"""`clearhead tokenizer`: what it makes is the same each time, what it shows can be read and harms no terminal."""

import gzip
import io
import json
import os
import pty
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import tokenizers as tk
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

import clearhead as ch
from clearhead.cli.main import main
from clearhead.tokenizers.tokenizer import Tokenizer

TEXT = "so long, and thanks for all the fish\nthe lower the fish, the longer the thanks\n"


class Done(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def clearhead(monkeypatch, capsys):
    """The command as `main` runs it, in this process: a new one would take seconds each time."""

    def run(*words, stdin=b""):
        monkeypatch.setattr(sys, "argv", ["clearhead", "tokenizer", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            main()
        return Done(end.value.code, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    (folder / "a.txt").write_text(TEXT * 20)
    (folder / "b.txt.gz").write_bytes(gzip.compress(TEXT.encode() * 20))
    (folder / "c.jsonl").write_text(
        "".join(json.dumps({"body": TEXT, "text": "zzz"}) + "\n" for _ in range(20))
    )
    return folder


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    path = tmp_path_factory.mktemp("bpe") / "tok.json"
    Tokenizer.train_bpe([TEXT] * 9, 300).save(path)
    return path


# ---------------------------------------------------------------- train
def test_the_same_texts_give_the_same_file_from_any_kind_of_source(clearhead, texts, tmp_path):
    sources = [
        [texts / "a.txt"],
        [texts / "b.txt.gz"],
        ["-"],
        [texts / "c.jsonl", "--field", "body"],
    ]
    made = []
    for number, words in enumerate(sources):
        out = tmp_path / f"{number}.json"
        done = clearhead("train", *words, "--size", 280, "--output", out, stdin=TEXT.encode() * 20)
        assert done.status == 0, done.err
        assert "byte-level BPE, 280 tokens, 23 merges, 1 special token" in done.out
        assert "bytes a token" in done.out
        made.append(out.read_bytes())
    assert len(set(made)) == 1
    assert Tokenizer.load(tmp_path / "0.json").special_tokens == {"<|end|>": 279}


@pytest.mark.parametrize(("kind", "size"), [("bpe", 280), ("characters", 20), ("bytes", 258)])
def test_every_kind_reads_back_what_it_cut_and_has_its_special_tokens(
    clearhead, texts, tmp_path, kind, size
):
    words = [
        "--kind",
        kind,
        "--special",
        "<|user|>",
        "--special",
        "<|end|>",
        "--output",
        tmp_path / "t.json",
    ]
    done = clearhead("train", texts / "a.txt", *words, *(["--size", 280] if kind == "bpe" else []))
    assert done.status == 0, done.err
    made = Tokenizer.load(tmp_path / "t.json")
    assert made.special_tokens == {"<|end|>": size - 2, "<|user|>": size - 1}
    assert made.decode(made.encode(TEXT)) == TEXT
    assert len(made) == size


def test_a_folder_is_made_and_a_tokenizer_replaced_and_nothing_else(clearhead, texts, tmp_path):
    out = tmp_path / "deep" / "t.json"
    assert clearhead("train", "--kind", "bytes", "--output", out).status == 0
    assert clearhead("train", texts / "a.txt", "--kind", "characters", "--output", out).status == 0
    assert len(Tokenizer.load(out)) == 19
    assert [path.name for path in out.parent.iterdir()] == ["t.json"]
    out.write_text('{"my": "notes"}')
    assert (
        "is no tokenizer; choose another name"
        in clearhead("train", "--kind", "bytes", "--output", out).err
    )
    assert out.read_text() == '{"my": "notes"}'


def test_broken_lines_are_refused_or_skipped_with_their_numbers(clearhead, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"good\n\xff\ngood\n")
    refused = clearhead("train", tmp_path / "a.txt", "--output", tmp_path / "t.json")
    assert refused.status == 2
    assert "a.txt:2: the line is not valid UTF-8" in refused.err
    assert not (tmp_path / "t.json").exists()
    skipped = clearhead(
        "train", tmp_path / "a.txt", "--broken", "skip", "--output", tmp_path / "t.json"
    )
    assert skipped.status == 0
    assert "a.txt:2" in skipped.err
    assert "there are no more pairs to join" in skipped.out


def test_ctrl_c_ends_at_once_and_leaves_nothing(tmp_path):
    command = [sys.executable, "-m", "clearhead", "tokenizer", "train", "-", "--output", "t.json"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path
    ) as run:
        assert run.stdin is not None
        for _ in range(40):  # more than a pipe holds: it is being read
            run.stdin.write(TEXT.encode() * 1000)
        run.send_signal(signal.SIGINT)
        assert run.wait(20) in (-signal.SIGINT, 130)
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- show
def test_a_text_is_shown_in_pieces_with_ids_and_merges(clearhead, bpe):
    done = clearhead("show", bpe, "so thanks🐔")
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    loaded = Tokenizer.load(bpe)
    ids = loaded.encode("so thanks🐔")
    assert lines[0] == "│".join(loaded.to_str_tokens(ids))
    assert lines[2] == "ids " + " ".join(map(str, ids))
    assert lines[3].endswith(f"{13 / len(ids):.2f} bytes a token")
    story = next(line for line in lines if line.endswith("→ ·thanks")).split("  ")[-1].split(" → ")
    assert story[0] == "· t h a n k s"
    assert [len(step.split()) for step in story] == [7, 6, 5, 4, 3, 2, 1]
    assert "".join(lines[0].split("│")) == "so·thanks‹f0›‹9f›‹90›‹94›"


def test_text_from_stdin_is_cut_as_it_is(clearhead, bpe):
    assert clearhead("show", bpe, "-", stdin=b"so\nthe fish\n").out.startswith(
        "so│↵\nthe│·fish│↵\n"
    )
    assert "not UTF-8" in clearhead("show", bpe, "-", stdin=b"\xff").err
    assert "the text is empty" in clearhead("show", bpe, "-").err


def test_no_control_code_reaches_a_terminal(clearhead, bpe, tmp_path):
    inner = tk.Tokenizer.from_str(Tokenizer.load(bpe).backend.to_str())
    inner.add_special_tokens(["\x1b]0;title\x07"])
    inner.save(str(tmp_path / "t.json"))
    for words in (["a\x1b[31mb\x07\r\u202e\u0301"], []):
        out = clearhead("show", tmp_path / "t.json", *words).out
        assert all(character.isprintable() or character == "\n" for character in out)
    assert "‹1b›]0;title‹07›" in out


def on_terminal(*words, **env):
    """What a terminal receives."""
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "clearhead", "tokenizer", *map(str, words)]
    with subprocess.Popen(
        command, stdout=child, stderr=child, env=os.environ | {"TERM": "xterm"} | env
    ) as run:
        os.close(child)
        seen = b""
        while part := read(parent):
            seen += part
        assert run.wait() == 0, seen
    os.close(parent)
    return seen.decode()


def read(descriptor):
    try:
        return os.read(descriptor, 4096)
    except OSError:  # how Linux tells that the other end is closed
        return b""


def test_on_a_terminal_pieces_have_two_colours_in_turn_unless_colours_are_unwanted(bpe):
    seen = on_terminal("show", bpe, "so fish", NO_COLOR="")
    first, second = seen.split("\x1b[0m")[:2]
    assert first.startswith("\x1b[")
    assert first.endswith("so")
    assert second.endswith("·fish")
    assert first.removesuffix("so") != second.removesuffix("·fish")
    assert on_terminal("show", bpe, "so fish", NO_COLOR="1").startswith("so│·fish")


def test_on_a_terminal_training_says_how_far_it_is(texts, tmp_path):
    seen = on_terminal("train", texts / "a.txt", "--size", "300", "--output", tmp_path / "t.json")
    assert "joining frequent pairs" in seen
    assert "(100%)" in seen


def test_a_tokenizer_without_a_text_is_described(clearhead, bpe):
    lines = dict(line.split(maxsplit=1) for line in clearhead("show", bpe).out.splitlines())
    assert lines["tokenizer"] == "byte-level BPE, 285 tokens, 28 merges, 1 special token"
    assert lines["special"] == "<|end|> 284"
    assert lines["first"].startswith("merges   t h → th, · th → ·th, ")
    assert "thanks" in lines["longest"]


def unigram():
    inner = tk.Tokenizer(
        models.Unigram([("<unk>", 0.0), ("▁fish", -1.0), ("▁", -2.0), ("s", -3.0)], 0, False)
    )
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    return inner


def sentencepiece_bpe():
    vocabulary = {
        token: i
        for i, token in enumerate(["<unk>", "▁", "f", "i", "s", "h", "is", "fis", "fish", "▁fish"])
    }
    pairs = [("i", "s"), ("f", "is"), ("fis", "h"), ("▁", "fish")]
    inner = tk.Tokenizer(models.BPE(vocabulary, pairs, unk_token="<unk>", fuse_unk=True))
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return inner


def word_piece():
    inner = tk.Tokenizer(
        models.WordPiece({"[UNK]": 0, "[CLS]": 1, "fish": 2, "##es": 3}, unk_token="[UNK]")
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.add_special_tokens(["[CLS]"])
    inner.post_processor = processors.TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 1)])
    return inner


PUBLISHED = [
    (unigram, "fish fishs", "·fish│·fish│s", "Unigram", ""),
    (sentencepiece_bpe, "fish", "·fish", "BPE", "· f i s h → · f is h → · fis h → · fish → ·fish"),
    (word_piece, "fishes", "fish│##es", "WordPiece", ""),
    (lambda: Tokenizer.characters("fish").backend, "fish", "f│i│s│h", "characters", ""),
    (lambda: Tokenizer.bytes().backend, "fi", "f│i", "bytes", ""),
]


@pytest.mark.parametrize(("make", "text", "pieces", "kind", "story"), PUBLISHED)
def test_every_kind_is_shown_with_merges_where_it_has_some(
    clearhead, make, text, pieces, kind, story, tmp_path
):
    make().save(str(tmp_path / "tokenizer.json"))
    done = clearhead("show", tmp_path, text)  # a folder with nothing else in it
    assert done.out.startswith(f"{pieces}\n")
    assert story in done.out
    assert ("merged" in done.out) == bool(story)
    described = clearhead("show", tmp_path / "tokenizer.json").out
    assert described.split(None, 1)[1].startswith(f"{kind}, ")
    assert ("first merges" in described) == bool(story)
    assert ("[CLS] …" in described) == (kind == "WordPiece")


def test_no_weights_are_read(clearhead, tmp_path):
    model = ch.new(
        "tiny-llama", vocab_size=256, tokenizer=Tokenizer.bytes(), inference__bos_tokens=[7]
    )
    for kind, weights in (("clearhead", "model.safetensors"), ("hf", "model.safetensors")):
        ch.save(model, tmp_path / kind, kind)
        (tmp_path / kind / weights).unlink()
        assert clearhead("show", tmp_path / kind, "ab").out.startswith("a│b\n")
    assert "‹07› …" in clearhead("show", tmp_path / "clearhead").out
    ch.save(model, tmp_path / "gguf", "gguf")
    assert clearhead("show", tmp_path / "gguf" / "model.gguf", "ab").out.startswith("a│b\n")
    for path in (tmp_path / "clearhead").glob("*.json"):
        if path.name == "tokenizer.json":
            path.unlink()
    assert "holds no tokenizer.json" in clearhead("show", tmp_path / "clearhead").err


def test_from_the_hub_no_weights_are_fetched(clearhead, tmp_path, monkeypatch):
    asked = []
    unigram().save(str(tmp_path / "tokenizer.json"))
    fetch = lambda name, **options: asked.append(options["allow_patterns"]) or str(tmp_path)  # noqa: E731
    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert clearhead("show", "owner/model", "fish").out.startswith("·fish\n")
    assert "*.json" in asked[0]
    assert not any("safetensors" in pattern for pattern in asked[0])


def test_a_translator_shows_both_of_its_tokenizers(clearhead, tmp_path):
    model = ch.new("tiny-encoder-decoder", vocab_size=256, tokenizer=Tokenizer.bytes())
    model.source_tokenizer = Tokenizer.characters("ab")
    ch.save(model, tmp_path / "m")
    out = clearhead("show", tmp_path / "m").out
    assert (
        out.index("what it reads")
        < out.index("characters")
        < out.index("what it writes")
        < out.index("bytes")
    )


MISTAKES = [
    (["train"], "there is nothing to learn from"),
    (["train", "nowhere.txt"], "no such file"),
    (["train", "TEXTS", "--kind", "bbe"], "did you mean 'bpe'?"),
    (["train", "TEXTS", "--kind", "bytes", "--size", "300"], "is for bpe"),
    (["train", "TEXTS", "--size", "256"], "a vocabulary of 256 is too small"),
    (["train", "TEXTS", "--special", "a"], "'a' may also come out of plain text"),
    (["train", "TEXTS", "--broken", "mend"], "it is refuse or skip"),
    (["train", "TEXTS", "--output", "."], "is a folder; name a file"),
    (["train", "-"], "there is no text in"),
    (["show", "nowhere"], "there is no such folder or file"),
    (
        ["show", "TEXTS"],
        "a.txt is no tokenizer; name a tokenizer.json, a .gguf file or a model's folder.",
    ),
    (["show", "CHARACTERS", "fish!"], "'!' (U+0021), which is not in the vocabulary"),
]


@pytest.mark.parametrize(("words", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence_and_status_2(
    clearhead, words, sentence, texts, tmp_path, monkeypatch
):
    Tokenizer.characters("fish").save(tmp_path / "characters.json")
    places = {"TEXTS": texts / "a.txt", "CHARACTERS": tmp_path / "characters.json"}
    monkeypatch.chdir(tmp_path)
    done = clearhead(*(places.get(word, word) for word in words))
    assert (done.status, done.out) == (2, "")
    assert len(done.err.strip().splitlines()) == 1
    assert sentence in done.err


def test_without_a_command_the_commands_are_listed(clearhead):
    done = clearhead()
    assert done.status == 0
    assert all(word in done.out for word in ("train", "show"))
