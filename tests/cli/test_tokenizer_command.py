"""`clearhead tokenizer`: deterministic training, readable output without control codes."""

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
from clearhead.tokenizers.tokenizer import END_TOKEN, Tokenizer

TEXT = "so long, and thanks for all the fish\nthe lower the fish, the longer the thanks\n"


class Result(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def clearhead(monkeypatch, capsys):
    """Run the command in this process, as `main` does."""

    def run(*words, stdin=b""):
        monkeypatch.setattr(sys, "argv", ["clearhead", "tokenizer", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            main()
        return Result(end.value.code, *capsys.readouterr())

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
def test_training_is_deterministic_for_every_source(clearhead, texts, tmp_path):
    sources = [
        [texts / "a.txt"],
        [texts / "b.txt.gz"],
        ["-"],
        [texts / "c.jsonl", "--text-column", "body"],
    ]
    files = []
    for number, words in enumerate(sources):
        out = tmp_path / f"{number}.json"
        done = clearhead(
            "train", *words, "--vocab-size", 280, "--output", out, stdin=TEXT.encode() * 20
        )
        assert done.status == 0, done.err
        assert "byte-level BPE, 280 tokens, 23 merges, 1 special token" in done.out
        assert "bytes per token" in done.out
        files.append(out.read_bytes())
    assert len(set(files)) == 1
    assert Tokenizer.load(tmp_path / "0.json").special_tokens == {END_TOKEN: 279}


@pytest.mark.parametrize(("kind", "size"), [("bpe", 280), ("characters", 20), ("bytes", 258)])
def test_trained_tokenizer_round_trips_and_has_special_tokens(
    clearhead, texts, tmp_path, kind, size
):
    words = [
        "--kind",
        kind,
        "--special-token",
        "<|user|>",
        "--special-token",
        END_TOKEN,
        "--output",
        tmp_path / "t.json",
    ]
    done = clearhead(
        "train", texts / "a.txt", *words, *(["--vocab-size", 280] if kind == "bpe" else [])
    )
    assert done.status == 0, done.err
    made = Tokenizer.load(tmp_path / "t.json")
    assert made.special_tokens == {END_TOKEN: size - 2, "<|user|>": size - 1}
    assert made.decode(made.encode(TEXT)) == TEXT
    assert len(made) == size


def test_replaces_only_tokenizers(clearhead, texts, tmp_path):
    out = tmp_path / "deep" / "t.json"
    assert clearhead("train", "--kind", "bytes", "--output", out).status == 0
    assert clearhead("train", texts / "a.txt", "--kind", "characters", "--output", out).status == 0
    assert len(Tokenizer.load(out)) == 19
    assert [path.name for path in out.parent.iterdir()] == ["t.json"]
    out.write_text('{"my": "notes"}')
    assert "is not a tokenizer" in clearhead("train", "--kind", "bytes", "--output", out).err
    assert out.read_text() == '{"my": "notes"}'


def test_malformed_lines_fail_or_are_skipped(clearhead, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"good\n\xff\ngood\n")
    failed = clearhead("train", tmp_path / "a.txt", "--output", tmp_path / "t.json")
    assert failed.status == 2
    assert "a.txt:2: the line is not valid UTF-8" in failed.err
    assert not (tmp_path / "t.json").exists()
    skipped = clearhead(
        "train", tmp_path / "a.txt", "--on-error", "skip", "--output", tmp_path / "t.json"
    )
    assert skipped.status == 0
    assert "a.txt:2" in skipped.err
    assert "too few distinct pairs" in skipped.out


def test_ctrl_c_ends_training(tmp_path):
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
def test_show_prints_tokens_ids_and_merges(clearhead, bpe):
    done = clearhead("show", bpe, "so thanks🐔")
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    loaded = Tokenizer.load(bpe)
    ids = loaded.encode("so thanks🐔")
    assert lines[0] == "│".join(loaded.to_str_tokens(ids))
    assert lines[2] == "ids " + " ".join(map(str, ids))
    assert lines[3].endswith(f"{13 / len(ids):.2f} bytes per token")
    merges = next(line for line in lines if line.endswith("→ ·thanks")).split("  ")[-1].split(" → ")
    assert merges[0] == "· t h a n k s"
    assert [len(step.split()) for step in merges] == [7, 6, 5, 4, 3, 2, 1]
    assert "".join(lines[0].split("│")) == "so·thanks‹f0›‹9f›‹90›‹94›"


def test_show_reads_stdin(clearhead, bpe):
    assert clearhead("show", bpe, "-", stdin=b"so\nthe fish\n").out.startswith(
        "so│↵\nthe│·fish│↵\n"
    )
    assert "UTF-8" in clearhead("show", bpe, "-", stdin=b"\xff").err
    assert "the text is empty" in clearhead("show", bpe, "-").err


def test_control_codes_are_never_printed(clearhead, bpe, tmp_path):
    inner = tk.Tokenizer.from_str(Tokenizer.load(bpe).backend.to_str())
    inner.add_special_tokens(["\x1b]0;title\x07"])
    inner.save(str(tmp_path / "t.json"))
    for words in (["a\x1b[31mb\x07\r\u202e\u0301"], []):
        out = clearhead("show", tmp_path / "t.json", *words).out
        assert all(character.isprintable() or character == "\n" for character in out)
    assert "‹1b›]0;title‹07›" in out


def on_terminal(*words, **env):
    """Run in a pseudoterminal and return what it receives."""
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "clearhead", "tokenizer", *map(str, words)]
    with subprocess.Popen(
        command, stdout=child, stderr=child, env=os.environ | {"TERM": "xterm"} | env
    ) as run:
        os.close(child)
        received = b""
        while part := read(parent):
            received += part
        assert run.wait() == 0, received
    os.close(parent)
    return received.decode()


def read(descriptor):
    try:
        return os.read(descriptor, 4096)
    except OSError:  # on Linux, the other end is closed
        return b""


def test_colors_alternate_in_a_terminal(bpe):
    output = on_terminal("show", bpe, "so fish", NO_COLOR="")
    first, second = output.split("\x1b[0m")[:2]
    assert first.startswith("\x1b[")
    assert first.endswith("so")
    assert second.endswith("·fish")
    assert first.removesuffix("so") != second.removesuffix("·fish")
    assert on_terminal("show", bpe, "so fish", NO_COLOR="1").startswith("so│·fish")


def test_training_shows_progress_in_a_terminal(texts, tmp_path):
    output = on_terminal(
        "train", texts / "a.txt", "--vocab-size", "300", "--output", tmp_path / "t.json"
    )
    assert "merging pairs" in output
    assert "(100%)" in output


def test_show_describes_a_tokenizer(clearhead, bpe):
    lines = dict(line.split(maxsplit=1) for line in clearhead("show", bpe).out.splitlines())
    assert lines["tokenizer"] == "byte-level BPE, 285 tokens, 28 merges, 1 special token"
    assert lines["special"] == f"tokens {END_TOKEN} 284"
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


@pytest.mark.parametrize(("make", "text", "tokens", "kind", "merges"), PUBLISHED)
def test_show_describes_published_tokenizers(clearhead, make, text, tokens, kind, merges, tmp_path):
    make().save(str(tmp_path / "tokenizer.json"))
    done = clearhead("show", tmp_path, text)
    assert done.out.startswith(f"{tokens}\n")
    assert merges in done.out
    assert ("merges" in done.out) == bool(merges)
    described = clearhead("show", tmp_path / "tokenizer.json").out
    assert described.split(None, 1)[1].startswith(f"{kind}, ")
    assert ("first merges" in described) == bool(merges)
    assert ("[CLS] …" in described) == (kind == "WordPiece")


def test_weights_are_not_read(clearhead, tmp_path):
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
    assert "tokenizer.json" in clearhead("show", tmp_path / "clearhead").err


def test_weights_are_not_downloaded(clearhead, tmp_path, monkeypatch):
    patterns = []
    unigram().save(str(tmp_path / "tokenizer.json"))
    fetch = lambda name, **options: patterns.append(options["allow_patterns"]) or str(tmp_path)  # noqa: E731
    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert clearhead("show", "owner/model", "fish").out.startswith("·fish\n")
    assert "*.json" in patterns[0]
    assert not any("safetensors" in pattern for pattern in patterns[0])


def test_source_and_target_tokenizers_are_both_shown(clearhead, tmp_path):
    model = ch.new("tiny-encoder-decoder", vocab_size=256, tokenizer=Tokenizer.bytes())
    model.source_tokenizer = Tokenizer.characters("ab")
    ch.save(model, tmp_path / "m")
    out = clearhead("show", tmp_path / "m").out
    assert (
        out.index("source\n") < out.index("characters") < out.index("target\n") < out.index("bytes")
    )


MISTAKES = [
    (["train"], "no training data"),
    (["train", "nowhere.txt"], "no such file"),
    (["train", "TEXTS", "--kind", "bbe"], "'bbe' is not one of"),
    (["train", "TEXTS", "--kind", "bytes", "--vocab-size", "300"], "applies only to bpe"),
    (["train", "TEXTS", "--vocab-size", "256"], "256"),
    (["train", "TEXTS", "--special-token", "a"], "'a'"),
    (["train", "TEXTS", "--on-error", "mend"], "'mend' is not one of"),
    (["train", "TEXTS", "--output", "."], "is a folder; name a file"),
    (["train", "-"], "no text"),
    (["show", "nowhere"], "nowhere"),
    (
        ["show", "TEXTS"],
        "a.txt is not a tokenizer",
    ),
    (["show", "CHARACTERS", "fish!"], "'!' (U+0021), which is not in the vocabulary"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_invalid_arguments_are_one_line_and_status_2(
    clearhead, words, message, texts, tmp_path, monkeypatch
):
    Tokenizer.characters("fish").save(tmp_path / "characters.json")
    paths = {"TEXTS": texts / "a.txt", "CHARACTERS": tmp_path / "characters.json"}
    monkeypatch.chdir(tmp_path)
    done = clearhead(*(paths.get(word, word) for word in words))
    assert (done.status, done.out) == (2, "")
    assert len(done.err.strip().splitlines()) == 1
    assert message in done.err


def test_tokenizer_lists_its_commands(clearhead):
    done = clearhead()
    assert done.status == 0
    assert all(word in done.out for word in ("train", "show"))
