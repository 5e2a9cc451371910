"""Commands as processes: output and exit status."""

import re
import subprocess
import sys
import tomllib

import pytest
import torch

import clearhead as ch
from clearhead.cli import main
from clearhead.config.model import Config
from clearhead.tokenizers.tokenizer import END_TOKEN


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


def test_presets_prints_valid_configurations():
    listed = clearhead("presets").stdout
    assert all(name in listed for name in ch.presets)
    assert "such as Multi30k" in listed
    assert (
        "# data: one text of about a million characters"
        in clearhead("presets", "shakespeare-char").stdout
    )
    assert (
        Config.from_dict(tomllib.loads(clearhead("presets", "whisper-tiny").stdout))
        == ch.presets["whisper-tiny"]
    )


@pytest.mark.slow
def test_config_flags_change_a_preset():
    printed = clearhead(
        "presets", "tiny-decoder", "--model.position=rotary", "--model.position.theta", "500"
    ).stdout
    assert Config.from_dict(tomllib.loads(printed)).model.position.theta == 500.0
    done = clearhead("verify", "tiny-decoder", "--model.position=rotary")
    assert "27,520 parameters> with random weights" in done.stdout


@pytest.mark.slow
def test_generate_is_deterministic(saved):
    one, two = (
        clearhead("generate", saved, "ab", "--max-tokens", "5", "--seed", "3") for _ in range(2)
    )
    assert one.returncode == 0
    assert one.stdout.startswith("ab")
    assert one.stdout == two.stdout


@pytest.mark.slow
def test_see_prints_and_saves(saved, tmp_path):
    assert "b" in clearhead("see", saved, "abc", "--layer", "1", "--head", "2").stdout
    for name, magic in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        assert clearhead("see", saved, "abc", "--output", str(tmp_path / name)).returncode == 0
        assert (tmp_path / name).read_bytes().startswith(magic)


@pytest.mark.slow
def test_verify_prints_every_invariant(saved):
    done = clearhead("verify", saved)
    assert done.returncode == 0
    assert re.search(r"cached.*: largest difference", done.stdout)
    assert " 0 failed" in done.stdout


@pytest.mark.parametrize("width", ["4000000", "4000000000"])
@pytest.mark.slow
def test_out_of_memory_is_one_line(width):
    done = clearhead(
        "verify", "tiny-decoder", f"--model.d_model={width}", "--model.attention.n_heads=4"
    )
    assert done.returncode == 2
    assert done.stderr.startswith("clearhead: out of memory; use a smaller model")
    assert done.stderr.count("\n") == 1


def test_gpu_out_of_memory_is_one_line(monkeypatch, capsys):
    def full(**_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(main, "app", full)
    with pytest.raises(SystemExit, match="2"):
        main.main()
    assert capsys.readouterr().err.startswith("clearhead: out of memory")


def test_get_lists_short_names():
    listed = clearhead("get").stdout
    assert "smollm2-135m-instruct" in listed
    assert "minilm-l6" in listed


@pytest.mark.parametrize("kind", ["clearhead", "hf"])
@pytest.mark.slow
def test_exported_model_has_equal_logits(saved, kind, tmp_path):
    done = clearhead("export", saved, str(tmp_path / "out"), "--format", kind)
    assert done.returncode == 0, done.stderr
    assert "model.safetensors" in done.stdout
    assert ch.load(tmp_path / "out").logits("ab").equal(ch.load(saved).logits("ab"))


@pytest.mark.slow
def test_train_resumes_in_the_same_folder(tmp_path):
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
    first = clearhead(*words, "--train.max_steps=10", "--output", "run", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "step 10" in first.stdout
    second = clearhead(*words, "--train.max_steps=15", "--output", "run", cwd=tmp_path)
    assert "resum" in second.stdout
    assert "step 15" in second.stdout
    model = ch.load(tmp_path / "run" / "best")
    assert model.config.inference.eos_tokens == (model.tokenizer.special_tokens[END_TOKEN],)
    assert (
        clearhead("generate", "run/best", "the cat", "--max-tokens", "3", cwd=tmp_path).returncode
        == 0
    )
    refused = clearhead(*words, "--train.optimizer=muon", "--output", "run", cwd=tmp_path)
    assert refused.returncode == 2
    assert "train.optimizer" in refused.stderr
    refused = clearhead(*words, "--resume", "never", "--output", "run", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr


@pytest.mark.slow
def test_trained_masked_language_model_fills_masks(tmp_path):
    (tmp_path / "a.txt").write_text("the cat sat on the mat. " * 200)
    changes = [
        "--data.vocab_size=300",
        "--train.max_steps=4",
        "--train.eval_every=2",
        "--train.save_every=2",
        "--output",
        "run",
    ]
    done = clearhead("train", "tiny-encoder", "--data.train=a.txt", *changes, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ch.load(tmp_path / "run" / "best").config.inference.mask_token


MISTAKES = [
    (["train", "tiny-decoder"], "--data.train"),
    (["train", "tiny-decoder", "--data.train=/no/such/file"], "no such file"),
    (["train", "nothing.toml"], "nothing.toml"),
    (["train", "tiny-decoder", "--train.max_steps=0"], "must be a positive integer"),
    (["train", "tiny-decoder", "--data.valid_fraction=1.5"], "must be at least 0 and less than 1"),
    (["train", "vaswani-base", "--data.train=x"], "does not contain pairs"),
    (["get", "no-such-model"], "cannot be downloaded"),
    (["export", "SAVED", "out", "--format", "hff"], "'hff' is not one of"),
    (["export", "SAVED", "out", "--format", "gguf"], "GGUF"),
    (["export", "SAVED", "SAVED/clearhead.json"], "is a file"),
    (["export", "nowhere", "out"], "nowhere"),
    (["presets", "gpt2"], "there is no preset 'gpt2'"),
    (["prests"], "presets"),
    (["presets", "--color"], "'--color' is not an option"),
    (["presets", "tiny-decoder", "--model.d_modle=3"], "did you mean 'd_model'?"),
    (["presets", "tiny-decoder", "--model.d_model"], "needs a value"),
    (["presets", "tiny-decoder", "--layers=3"], "did you mean --model.n_layers=3?"),
    (["train", "lm-small", "--data", "my.txt"], "did you mean --data.train=…?"),
    (["train", "lm-small", "--learning_rate=1e-3"], "did you mean --train.optimizer.lr=1e-3?"),
    (["train", "lm-small", "--learning-rate", "1e-3"], "did you mean --train.optimizer.lr=…?"),
    (["train", "lm-small", "--train.learning_rate=1e-3"], "did you mean 'train.optimizer.lr'?"),
    (["train", "lm-small", "--num_train_epochs=3"], "use train.max_steps"),
    (["train", "lm-small", "--resume_from_checkpoint=run"], "the same --output"),
    (["presets", "tiny-decoder", "--steps", "5"], "did you mean --train.max_steps=…?"),
    (["presets", "tiny-decoder", "--heads=5"], "did you mean --model.attention.n_heads=5?"),
    (
        ["presets", "tiny-decoder", "--trian.max_steps=5"],
        "--trian.max_steps is not an option; did you mean 'train.max_steps'?",
    ),
    (
        ["presets", "tiny-decoder", "--model.atention.n_heads=5"],
        "is not an option; did you mean 'attention'?\n",
    ),
    (["presets", "--model.n_layers=3"], "give its name first"),
    (["see", "SAVED", "abc", "--output", "/no/such/a.png"], "no folder /no/such"),
    (["models", "stori"], "did you mean 'story'?"),
    (
        ["verify", "tiny-decoder", "--model.d_model=31"],
        "not divisible by model.attention.n_heads = 4; choose a divisor such as 1, or",
    ),
    (["generate", "--color"], "No such option"),
    (["generate", "SAVED", "a", "--do_sample"], "Use --temperature."),
    (["generate", "SAVED", "a", "--max-new-tokens", "3"], "Use --max-tokens."),
    (["compare", "story", "fill"], "clearhead evaluate"),
    (["compare", "story"], "clearhead evaluate"),
    (["verify", "nowhere"], "nowhere"),
    (["generate", "nowhere", "a"], "nowhere"),
    (["generate"], "Missing argument"),
    (["generate", "SAVED", ""], "the text is empty"),
    (["generate", "SAVED", "a", "--temperature", "-1"], "temperature"),
    (
        ["generate", "SAVED", "a", "--max-tokens", "many"],
        "Invalid value for '--max-tokens'",
    ),
    (
        ["generate", "SAVED", "a", "--temperature", "hot"],
        "Invalid value for '--temperature'",
    ),
    (
        ["generate", "SAVED", "a", "--num-beams", "-2"],
        "--num-beams must be a non-negative integer",
    ),
    (
        ["generate", "SAVED", "a", "b", "c"],
        "(b c). Put a text of several words in quotes. Try 'clearhead generate --help'.",
    ),
    (
        ["classify", "SAVED", "a.png", "b.png"],
        "For several texts, use --input FILE",
    ),
    (["models", "a", "b"], "(b). Try 'clearhead models --help'."),
    (["score", "SAVED", "a", "--overflow", "cut"], "'cut' is not one of"),
    (["embed", "SAVED", "a", "--pooling", "max"], "'max' is not one of"),
    (["see", "SAVED", "abc", "--layer", "7"], "layer"),
    (["see", "SAVED", "abc", "--head", "7"], "head"),
    (
        ["see", "SAVED", "abc", "--output", "a.pdf"],
        "a.pdf must end in .png, .svg, .html, .csv or .npy",
    ),
    (["see", "SAVED", "abc" * 30], "context"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_usage_errors_are_one_line_and_status_2(saved, words, message, monkeypatch, capsys):
    """Run `main` in this process; a new process would take seconds for each case."""
    monkeypatch.setattr(
        sys, "argv", ["clearhead", *(word.replace("SAVED", saved) for word in words)]
    )
    with pytest.raises(SystemExit) as end:
        main.main()
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert message in err


def test_process_exits_with_the_status_of_main(saved):
    done = clearhead("generate", saved, "a", "--temperature", "-1")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
