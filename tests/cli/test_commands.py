"""The command line as a person uses it: real processes, their output and exit status."""

import subprocess
import sys
import tomllib

import pytest
import torch

import clearhead as ch
from clearhead.cli import main
from clearhead.config.model import Config


def clearhead(*words, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "clearhead", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    ch.save(ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes()), path)
    return str(path)


def test_presets_lists_all_and_prints_one_that_reads_back():
    listed = clearhead("presets").stdout
    assert all(name in listed for name in ch.presets)
    assert "such as Multi30k" in listed
    assert (
        "# learns from one text of about a million characters"
        in clearhead("presets", "shakespeare-char").stdout
    )
    assert (
        Config.from_dict(tomllib.loads(clearhead("presets", "whisper-tiny").stdout))
        == ch.presets["whisper-tiny"]
    )


def test_dotted_flags_change_a_preset():
    printed = clearhead(
        "presets", "tiny-decoder", "--model.position=rotary", "--model.position.theta", "500"
    ).stdout
    assert Config.from_dict(tomllib.loads(printed)).model.position.theta == 500.0
    done = clearhead("verify", "tiny-decoder", "--model.position=rotary")
    assert "holds only distance matters" in done.stdout


def test_generate_writes_on_and_repeats_itself(saved):
    one, two = (
        clearhead("generate", saved, "ab", "--max-tokens", "5", "--seed", "3") for _ in range(2)
    )
    assert one.returncode == 0
    assert one.stdout.startswith("ab")
    assert one.stdout == two.stdout


def test_see_draws_in_the_terminal_and_into_files(saved, tmp_path):
    assert "b" in clearhead("see", saved, "abc", "--layer", "1", "--head", "2").stdout
    for name, magic in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        assert clearhead("see", saved, "abc", "--out", str(tmp_path / name)).returncode == 0
        assert (tmp_path / name).read_bytes().startswith(magic)


def test_verify_prints_every_law_with_its_difference(saved):
    done = clearhead("verify", saved)
    assert done.returncode == 0
    assert "holds cached equals full: largest difference" in done.stdout
    assert "0 broken" in done.stdout


@pytest.mark.parametrize("width", ["4000000", "4000000000"])
def test_a_model_that_no_memory_can_hold_is_one_sentence(width):
    done = clearhead(
        "verify", "tiny-decoder", f"--model.d_model={width}", "--model.attention.n_heads=4"
    )
    assert done.returncode == 2
    assert done.stderr.startswith(
        "clearhead: this needs more memory than there is; a smaller model"
    )
    assert done.stderr.count("\n") == 1


def test_memory_of_a_gpu_that_is_full_is_one_sentence(monkeypatch, capsys):
    def full(**_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(main, "app", full)
    with pytest.raises(SystemExit, match="2"):
        main.main()
    assert capsys.readouterr().err.startswith("clearhead: this needs more memory than there is; ")


def test_get_lists_what_has_a_short_name():
    listed = clearhead("get").stdout
    assert "smollm2-135m-instruct" in listed
    assert "minilm-l6" in listed


@pytest.mark.parametrize("kind", ["clearhead", "hf"])
def test_export_writes_what_loads_again(saved, kind, tmp_path):
    done = clearhead("export", saved, str(tmp_path / "out"), "--format", kind)
    assert done.returncode == 0, done.stderr
    assert "model.safetensors" in done.stdout
    assert ch.load(tmp_path / "out").logits("ab").equal(ch.load(saved).logits("ab"))


def test_train_learns_from_texts_and_goes_on(tmp_path):
    (tmp_path / "texts").mkdir()
    for number in range(20):
        (tmp_path / "texts" / f"{number}.txt").write_text(
            f"{number} times the cat sat on the mat. " * 20
        )
    words = [
        "train",
        "tiny-decoder",
        "--data.train=texts",
        "--data.vocab_size=300",
        "--train.eval_every=5",
        "--train.save_every=5",
    ]
    first = clearhead(*words, "--train.max_steps=10", "--out", "run", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "done at step 10" in first.stdout
    second = clearhead(*words, "--train.max_steps=15", "--out", "run", cwd=tmp_path)
    assert "going on after step 10" in second.stdout
    assert "done at step 15" in second.stdout
    model = ch.load(tmp_path / "run" / "best")
    assert model.config.inference.eos_tokens == (model.tokenizer.special_tokens["<|end|>"],)
    assert (
        clearhead("generate", "run/best", "the cat", "--max-tokens", "3", cwd=tmp_path).returncode
        == 0
    )
    refused = clearhead(*words, "--train.optimizer=muon", "--out", "run", cwd=tmp_path)
    assert refused.returncode == 2
    assert "train.optimizer = 'adamw', not 'muon'" in refused.stderr
    assert (
        "holds a run already"
        in clearhead(*words, "--resume", "never", "--out", "run", cwd=tmp_path).stderr
    )


def test_masked_words_are_learned_too(tmp_path):
    (tmp_path / "a.txt").write_text("the cat sat on the mat. " * 200)
    changes = [
        "--data.vocab_size=300",
        "--train.max_steps=4",
        "--train.eval_every=2",
        "--train.save_every=2",
        "--out",
        "run",
    ]
    done = clearhead("train", "tiny-encoder", "--data.train=a.txt", *changes, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ch.load(tmp_path / "run" / "best").config.inference.mask_token


MISTAKES = [
    (["train", "tiny-decoder"], "there is nothing to learn from"),
    (["train", "tiny-decoder", "--data.train=/no/such/file"], "there is no such file"),
    (["train", "nothing.toml"], "there is no file nothing.toml"),
    (["train", "tiny-decoder", "--train.max_steps=0"], "must be at least 1"),
    (["train", "tiny-decoder", "--data.valid_fraction=1.5"], "must be at least 0 and less than 1"),
    (["train", "vaswani-base", "--data.train=x"], "holds no pairs"),
    (["get", "no-such-model"], "is no model to fetch"),
    (["export", "SAVED", "out", "--format", "hff"], "did you mean 'hf'?"),
    (
        ["export", "SAVED", "out", "--format", "gguf"],
        "llama.cpp has no model that computes the same",
    ),
    (["export", "SAVED", "SAVED/clearhead.json"], "is a file; choose another name"),
    (["export", "nowhere", "out"], "no such folder or file"),
    (["presets", "gpt2"], "is no preset"),
    (["prests"], "presets"),
    (["presets", "--colour"], "'--colour' is not an option"),
    (["presets", "tiny-decoder", "--model.widht=3"], "did you mean 'width'?"),
    (["presets", "tiny-decoder", "--model.d_model"], "needs a value"),
    (["presets", "tiny-decoder", "--layers=3"], "did you mean --model.n_layers=3?"),
    (["presets", "tiny-decoder", "--steps", "5"], "did you mean --train.max_steps=…?"),
    (["presets", "tiny-decoder", "--heads=5"], "did you mean --model.attention.n_heads=5?"),
    (
        ["presets", "tiny-decoder", "--trian.steps=5"],
        "--trian.steps is not an option; did you mean 'train.max_steps'?",
    ),
    (
        ["presets", "tiny-decoder", "--model.atention.heads=5"],
        "is not an option; did you mean 'attention'?\n",
    ),
    (["presets", "--model.n_layers=3"], "name one first"),
    (["see", "SAVED", "abc", "--out", "/no/such/a.png"], "there is no folder /no/such"),
    (["models", "stori"], "'stori' is no bundled model"),
    (
        ["verify", "tiny-decoder", "--model.d_model=31"],
        "does not split into 4 heads; choose model.attention.n_heads among its divisors, such as 1, or",
    ),
    (["generate", "--colour"], "No such option"),
    (["verify", "nowhere"], "a model on the hub is written owner/name"),
    (["generate", "nowhere", "a"], "is no clearhead model"),
    (["generate"], "Missing argument"),
    (["generate", "SAVED", ""], "the text is empty"),
    (["generate", "SAVED", "a", "--temperature", "-1"], "of at least 0"),
    (
        ["generate", "SAVED", "a", "--max-tokens", "many"],
        "Invalid value for '--max-tokens': it must be a whole number.\n",
    ),
    (
        ["generate", "SAVED", "a", "--temperature", "hot"],
        "Invalid value for '--temperature': it must be a number.\n",
    ),
    (
        ["generate", "SAVED", "a", "--beam", "-2"],
        "--beam = -2 must be a whole number of at least 0",
    ),
    (
        ["generate", "SAVED", "a", "b", "c"],
        ": 'b c' is left over; a text of several words stands in quotes.\n",
    ),
    (
        ["classify", "SAVED", "a.png", "b.png"],
        "and several texts or names of files on the lines of a file: --input.\n",
    ),
    (["models", "a", "b"], ": 'b' is left over.\n"),
    (["see", "SAVED", "abc", "--layer", "7"], "there is no layer 7; this model has layers 0 to 1"),
    (["see", "SAVED", "abc", "--head", "7"], "there is no head 7"),
    (
        ["see", "SAVED", "abc", "--out", "a.pdf"],
        "a.pdf must end in .png, .svg, .html, .csv or .npy",
    ),
    (["see", "SAVED", "abc" * 30], "more than this model's context"),
]


@pytest.mark.parametrize(("words", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence_and_status_2(saved, words, sentence, monkeypatch, capsys):
    """As `main` runs it, in this process: a new one would take seconds each time."""
    monkeypatch.setattr(
        sys, "argv", ["clearhead", *(word.replace("SAVED", saved) for word in words)]
    )
    with pytest.raises(SystemExit) as end:
        main.main()
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert sentence in err


def test_a_process_ends_with_that_status_too(saved):
    done = clearhead("generate", saved, "a", "--temperature", "-1")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
