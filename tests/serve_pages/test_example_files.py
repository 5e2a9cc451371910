"""A model that reads pictures or sounds opens on the example that its card names."""

import asyncio
import base64
import json

import pytest
from PIL import Image

import clearhead as ch
from clearhead.serve.app import create_app
from clearhead.serve.explorer.snapshot import asgi_request
from clearhead.serve.middleware import Limits
from clearhead.serve.registry import ModelRegistry
from clearhead.weights import model_cards

CARD = {"title": "Digits", "says": "Reads.", "data": [], "recipe": [], "limits": []}
TRIES = ["clearhead explore digits", "clearhead classify digits {here}/seven.png"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(model_cards, "ROOT", tmp_path / "bundled")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "bundled" / "digits"
    ch.save(ch.new("tiny-pictures"), folder)
    Image.linear_gradient("L").save(folder / "seven.png")
    Image.new("L", (8, 8)).save(folder / "another.png")
    (folder / "card.json").write_text(json.dumps(CARD | {"tries": TRIES}))
    return folder


def card(path):
    app = create_app(ModelRegistry({"digits": str(path)}, 2**30, device="cpu"), Limits(), page=True)
    status, _, content = asyncio.run(asgi_request(app, "GET", "/api/models/digits"))
    assert status == 200, content
    return json.loads(content)


def test_the_card_has_the_file_that_it_says_to_try(folder):
    file = card("digits")["examples"]["file"]
    assert file["name"] == "seven.png"
    assert base64.b64decode(file["data"]) == (folder / "seven.png").read_bytes()


def test_a_card_that_names_no_file_has_none(folder):
    (folder / "card.json").write_text(json.dumps(CARD | {"tries": TRIES[:1]}))
    assert card("digits")["examples"]["file"] is None


def test_a_model_of_somebody_has_no_example_of_ours(folder):
    ch.save(ch.new("tiny-pictures", seed=1), "digits")  # where the program was started
    assert card("digits")["examples"]["file"] is None
    assert card(folder)["examples"]["file"] is None
