"""The first minutes: the greeting, the demo, the list of models, and a conversation."""

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
from clearhead.cli.help_texts import FIRST_COMMANDS, greeting
from clearhead.cli.main import app
from clearhead.errors import ClearheadError
from clearhead.weights import hub, model_cards

pytestmark = pytest.mark.skipif(
    "story" not in model_cards.bundled_models(), reason="the bundled model story is not here"
)


def clearhead(*words, cwd=None, typed=""):
    command = [sys.executable, "-m", "clearhead", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, input=typed
    )


# clearhead


def test_the_greeting_tells_what_is_here():
    done = clearhead()
    assert done.returncode == 0
    assert done.stdout == greeting(ch.__version__)
    assert all(name in done.stdout for name in model_cards.bundled_models())
    assert len(re.findall(r"^  clearhead ", done.stdout, re.MULTILINE)) == 3


@pytest.mark.parametrize(
    "command", [command for command in FIRST_COMMANDS if command != "clearhead demo"]
)  # see below
def test_its_commands_work(command, tmp_path):
    if "en-de" in command and "en-de" not in model_cards.bundled_models():
        pytest.skip("the bundled model en-de is not here")
    done = clearhead(*shlex.split(command)[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_model_is_no_preset(command, tmp_path):
    done = clearhead(command, "story", cwd=tmp_path)
    assert done.returncode == 2
    assert (
        "story is a model that is trained already; clearhead presets lists what can be trained"
        in done.stderr
    )


# clearhead demo


@pytest.fixture
def ran(monkeypatch):
    """The commands that the demo would run."""
    commands = []
    monkeypatch.setattr(demo, "run", commands.append)
    return commands


def test_where_nobody_looks_it_writes_draws_and_saves_the_page(tmp_path):
    done = clearhead("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Once upon a time" in done.stdout.split("$ clearhead")[1].splitlines()[1]
    assert "·creature" in done.stdout
    assert "saved demo/page.html" in done.stdout
    assert (
        (tmp_path / "demo" / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    )


def test_where_somebody_looks_it_opens_the_page_and_says_what_to_try(ran, monkeypatch, capsys):
    monkeypatch.setattr(demo, "somebody_looks", lambda: True)
    demo.demo()
    assert [command.split()[:2] for command in ran] == [["clearhead", "explore"]]
    layer, head = demo.find_adjective_head()
    assert f"layer {layer}, head {head}" in capsys.readouterr().out


def test_what_is_missing_is_left_out(ran, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(model_cards, "NAMES", ("story",))
    demo.demo(tmp_path)
    assert not any("en-de" in command for command in ran)
    assert len(ran) == 3
    monkeypatch.setattr(model_cards, "NAMES", ())
    demo.demo(tmp_path)
    assert "did not come with this installation" in capsys.readouterr().out


# clearhead models


def models(*words, capsys):
    app(["models", *words], standalone_mode=False)
    return capsys.readouterr().out


def test_the_list_has_every_model_with_a_command(capsys, monkeypatch):
    monkeypatch.setattr(hub, "fetched", lambda: {"owner/name": 5_000_000})
    listed = models(capsys=capsys)
    for name in model_cards.bundled_models():
        assert re.search(rf"^{name} +\S+, [\d.]+M \w+, [\d.]+ MB$", listed, re.MULTILINE)
        assert model_cards.bundled_card(name).usage[0] in listed
    assert re.search(r"^owner/name +fetched, 5 MB$", listed, re.MULTILINE)


def test_what_was_fetched_is_counted(monkeypatch, tmp_path):
    monkeypatch.setenv("CLEARHEAD_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert hub.downloaded_models() == {}
    (tmp_path / "models" / "minilm-l6" / "1_Pooling").mkdir(parents=True)
    (tmp_path / "models" / "minilm-l6" / "1_Pooling" / "config.json").write_text("{}")
    assert hub.downloaded_models() == {"minilm-l6": 2}


def test_a_card_tells_everything(capsys, monkeypatch):
    from dataclasses import replace

    figure = model_cards.Metric(
        "accuracy", 0.5, (0.25, 0.75), "[coins]", "clearhead evaluate story --data coins.tsv"
    )
    card = replace(
        model_cards.bundled_card("story"),
        figures=(figure,),
        samples=(model_cards.Example("[MASK]?", "yes"),),
    )
    monkeypatch.setattr(model_cards, "card", lambda name: card)
    told = models("story", capsys=capsys)
    for line in (
        *card.usage,
        *card.training_commands,
        figure.command,
        card.sha256,
        "[MASK]? → yes",
    ):
        assert line in told
    assert "accuracy 0.5, 0.25 to 0.75, on [coins]" in told
    assert all(data.license in told for data in card.datasets)


def test_json_is_the_card(capsys):
    assert (
        json.loads(models("story", "--json", capsys=capsys))["sha256"]
        == model_cards.bundled_card("story").sha256
    )
    assert set(json.loads(models("--json", capsys=capsys))["bundled"]) == set(
        model_cards.bundled_models()
    )


# clearhead chat


@pytest.fixture
def nothing_fetched(monkeypatch, tmp_path):
    monkeypatch.setenv("CLEARHEAD_HOME", str(tmp_path))


def test_a_model_that_was_not_made_for_it_goes_on_with_what_is_written():
    done = clearhead(
        "chat", "story", "--max-tokens", "8", "--temperature", "0", typed="Once upon a time\n/see\n"
    )
    assert done.returncode == 0, done.stderr
    assert "story was not made for conversations: it goes on with what you write" in done.stderr
    alone = ch.load("story").generate("Once upon a time", 8, temperature=0).text
    said, seen = done.stdout.splitlines()
    assert said == alone
    assert seen == f"<|end|>Once upon a time {alone.strip()}"


def test_without_a_terminal_it_says_how_to_get_a_model(nothing_fetched):
    done = clearhead("chat", typed="Hello\n")
    assert done.returncode == 2
    assert "clearhead get smollm2-135m-instruct fetches one" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_was_fetched_is_talked_with_at_once(nothing_fetched, monkeypatch):
    (hub.cache_dir() / chat.DEFAULT_CHAT_MODEL).mkdir(parents=True)
    assert chat.default_model(inviting=False) == chat.DEFAULT_CHAT_MODEL


@pytest.mark.parametrize(("answer", "name"), [("y", chat.DEFAULT_CHAT_MODEL), ("n", "story")])
def test_in_a_terminal_one_question_decides(nothing_fetched, monkeypatch, answer, name):
    monkeypatch.setattr(hub, "get", lambda name, say: (hub.cache_dir() / name, name))
    monkeypatch.setattr("typer.confirm", lambda question: answer == "y")
    assert chat.default_model(inviting=True) == name


def test_a_fetch_that_fails_is_told(nothing_fetched, monkeypatch):
    def fails(name, say):
        raise ClearheadError("the hub cannot be reached.")

    monkeypatch.setattr(hub, "get", fails)
    monkeypatch.setattr("typer.confirm", lambda question: True)
    with pytest.raises(ClearheadError, match="cannot be reached"):
        chat.default_model(inviting=True)


def test_in_a_real_terminal_no_is_the_story(nothing_fetched):
    ours, theirs = pty.openpty()
    os.write(ours, b"n\nOnce upon a time\n/quit\n")
    command = [sys.executable, "-m", "clearhead", "chat", "--max-tokens", "5"]
    done = subprocess.run(
        command, stdin=theirs, capture_output=True, text=True, check=False, timeout=120
    )
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 0, done.stderr
    assert chat.OFFER in done.stdout
    assert "story was not made for conversations" in done.stderr
