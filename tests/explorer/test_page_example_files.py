"""Bundled image and audio models open with the example file of their card."""

import base64
import json

import pytest
from PIL import Image

import clearhead as ch
from clearhead.serve.registry import ModelRegistry
from clearhead.weights import bundled
from page_site import page_client

CARD = {
    "title": "Digits",
    "description": "Reads digits.",
    "datasets": [],
    "training_commands": [],
    "limitations": [],
}
USAGE = ["clearhead explore digits", "clearhead classify digits {model_dir}/seven.png"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(bundled, "BUNDLED_DIR", tmp_path / "bundled")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "bundled" / "digits"
    ch.save(ch.new("tiny-images"), folder)
    Image.linear_gradient("L").save(folder / "seven.png")
    Image.new("L", (8, 8)).save(folder / "another.png")
    (folder / "card.json").write_text(json.dumps(CARD | {"usage": USAGE}))
    return folder


def card(path):
    registry = ModelRegistry({"digits": str(path)}, 2**30, device="cpu")
    with page_client(registry) as client:
        response = client.get("/api/models/digits")
    assert response.status_code == 200, response.text
    return response.json()


def test_card_contains_the_example_file(folder):
    file = card("digits")["examples"]["file"]
    assert file["name"] == "seven.png"
    assert base64.b64decode(file["data"]) == (folder / "seven.png").read_bytes()


def test_card_may_have_no_example_file(folder):
    (folder / "card.json").write_text(json.dumps(CARD | {"usage": USAGE[:1]}))
    assert card("digits")["examples"]["file"] is None


def test_local_model_with_a_bundled_name_has_no_example_file(folder):
    ch.save(ch.new("tiny-images", seed=1), "digits")  # where the program was started
    assert card("digits")["examples"]["file"] is None
    assert card(folder)["examples"]["file"] is None
