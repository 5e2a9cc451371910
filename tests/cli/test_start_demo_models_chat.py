"""What new users run first: the start page, the demo, the list of models, and a chat."""

import json
import os
import pty
import re
import shlex
import subprocess
import sys

import pytest

import clearhead as ch
from clearhead.cli import chat, demo
from clearhead.cli.examples import FIRST_COMMANDS, start_page
from clearhead.cli.main import app
from clearhead.errors import ClearheadError
from clearhead.weights import bundled, hub, model_cards

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("story" not in bundled.bundled_models(), reason="story is not bundled"),
]


def clearhead(*words, cwd=None, stdin=""):
    command = [sys.executable, "-m", "clearhead", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, input=stdin
    )


# ---------------------------------------------------------------- clearhead
def test_start_page_lists_bundled_models_and_first_commands():
    done = clearhead()
    assert done.returncode == 0
    assert done.stdout == start_page(ch.__version__)
    assert all(name in done.stdout for name in bundled.bundled_models())
    assert len(re.findall(r"^  clearhead ", done.stdout, re.MULTILINE)) == 3


@pytest.mark.parametrize(
    "command", [command for command in FIRST_COMMANDS if command != "clearhead demo"]
)
def test_first_commands_of_the_start_page_run(command, tmp_path):
    if "en-de" in command and "en-de" not in bundled.bundled_models():
        pytest.skip("en-de is not bundled")
    done = clearhead(*shlex.split(command)[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("command", ["train", "compare"])
def test_trained_model_is_not_a_recipe(command, tmp_path):
    done = clearhead(command, "story", cwd=tmp_path)
    assert done.returncode == 2
    assert "story" in done.stderr
    assert "preset" in done.stderr


# ---------------------------------------------------------------- clearhead demo
@pytest.fixture
def commands(monkeypatch):
    """The commands that the demo would run."""
    commands = []
    monkeypatch.setattr(demo, "run_command", commands.append)
    return commands


def test_demo_without_a_terminal_saves_a_page(tmp_path):
    done = clearhead("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Once upon a time" in done.stdout.split("$ clearhead")[1].splitlines()[1]
    assert "·she" in done.stdout
    assert "saved demo/page.html" in done.stdout
    assert (
        (tmp_path / "demo" / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    )


def test_demo_in_a_terminal_opens_the_page(commands, monkeypatch, capsys):
    monkeypatch.setattr(demo, "is_interactive", lambda: True)
    demo.demo()
    assert [command.split()[:2] for command in commands] == [["clearhead", "explore"]]
    assert f"layer {demo.LAYER}, head {demo.HEAD}" in capsys.readouterr().out


def test_demo_skips_commands_of_missing_models(commands, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bundled, "BUNDLED_NAMES", ("story",))
    demo.demo(tmp_path)
    assert not any("en-de" in command for command in commands)
    assert len(commands) == 3
    monkeypatch.setattr(bundled, "BUNDLED_NAMES", ())
    demo.demo(tmp_path)
    assert "is not installed" in capsys.readouterr().out


# ---------------------------------------------------------------- clearhead models
def models(*words, capsys):
    app(["models", *words], standalone_mode=False)
    return capsys.readouterr().out


def test_models_lists_bundled_and_downloaded_models(capsys, monkeypatch):
    monkeypatch.setattr(hub, "downloaded_models", lambda: {"owner/name": 5_000_000})
    listed = models(capsys=capsys)
    for name in bundled.bundled_models():
        assert re.search(rf"^{name} +\S+, [\d.]+M \w+, [\d.]+ MB$", listed, re.MULTILINE)
        assert bundled.bundled_card(name).usage[0] in listed
    assert re.search(r"^owner/name +downloaded, 5 MB$", listed, re.MULTILINE)


def test_downloaded_models_are_found_with_their_sizes(monkeypatch, tmp_path):
    monkeypatch.setenv("CLEARHEAD_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert hub.downloaded_models() == {}
    (tmp_path / "models" / "minilm-l6" / "1_Pooling").mkdir(parents=True)
    (tmp_path / "models" / "minilm-l6" / "1_Pooling" / "config.json").write_text("{}")
    assert hub.downloaded_models() == {"minilm-l6": 2}


def test_card_is_printed_literally(capsys, monkeypatch):
    from dataclasses import replace

    metric = model_cards.Metric(
        "accuracy", 0.5, (0.25, 0.75), "[coins]", "clearhead evaluate story --data coins.tsv"
    )
    card = replace(
        bundled.bundled_card("story"),
        metrics=(metric,),
        examples=(model_cards.Example("[MASK]?", "yes"),),
    )
    monkeypatch.setattr(bundled, "bundled_card", lambda name: card)
    output = models("story", capsys=capsys)
    for line in (
        *card.usage,
        *card.training_commands,
        metric.command,
        card.sha256,
        "[MASK]? → yes",
    ):
        assert line in output
    assert "accuracy 0.5 (0.25 to 0.75) on [coins]" in output
    assert all(data.license in output for data in card.datasets)


def test_models_json_has_the_cards(capsys):
    assert (
        json.loads(models("story", "--json", capsys=capsys))["sha256"]
        == bundled.bundled_card("story").sha256
    )
    assert set(json.loads(models("--json", capsys=capsys))["bundled"]) == set(
        bundled.bundled_models()
    )


# ---------------------------------------------------------------- clearhead chat
@pytest.fixture
def no_downloads(monkeypatch, tmp_path):
    monkeypatch.setenv("CLEARHEAD_HOME", str(tmp_path))


def test_chat_without_a_template_continues_the_text():
    done = clearhead(
        "chat",
        "story",
        "--max-tokens",
        "8",
        "--temperature",
        "0",
        stdin="Once upon a time\n/prompt\n",
    )
    assert done.returncode == 0, done.stderr
    assert "no chat template" in done.stderr
    expected = ch.load("story").generate("Once upon a time", 8, temperature=0).text
    answer, prompt = done.stdout.splitlines()
    assert answer == expected
    assert prompt.endswith(f"Once upon a time {expected.strip()}")


def test_chat_without_a_model_or_terminal_is_an_error(no_downloads):
    done = clearhead("chat", stdin="Hello\n")
    assert done.returncode == 2
    assert "clearhead get smollm2-135m-instruct" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_downloaded_chat_model_is_the_default(no_downloads, monkeypatch):
    (hub.cache_dir() / chat.DEFAULT_CHAT_MODEL).mkdir(parents=True)
    assert chat.default_model(is_interactive=False) == chat.DEFAULT_CHAT_MODEL


@pytest.mark.parametrize(("answer", "name"), [("y", chat.DEFAULT_CHAT_MODEL), ("n", "story")])
def test_download_question_selects_the_chat_model(no_downloads, monkeypatch, answer, name):
    monkeypatch.setattr(hub, "download_model", lambda name, say: (hub.cache_dir() / name, name))
    monkeypatch.setattr("typer.confirm", lambda question: answer == "y")
    assert chat.default_model(is_interactive=True) == name


def test_failed_download_is_reported(no_downloads, monkeypatch):
    def fails(name, say):
        raise ClearheadError("the hub cannot be reached.")

    monkeypatch.setattr(hub, "download_model", fails)
    monkeypatch.setattr("typer.confirm", lambda question: True)
    with pytest.raises(ClearheadError, match="cannot be reached"):
        chat.default_model(is_interactive=True)


def test_declined_download_chats_with_story(no_downloads):
    ours, theirs = pty.openpty()
    os.write(ours, b"n\nOnce upon a time\n/quit\n")
    command = [sys.executable, "-m", "clearhead", "chat", "--max-tokens", "5"]
    done = subprocess.run(
        command, stdin=theirs, capture_output=True, text=True, check=False, timeout=120
    )
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 0, done.stderr
    assert chat.DOWNLOAD_QUESTION in done.stdout
    assert "no chat template" in done.stderr
