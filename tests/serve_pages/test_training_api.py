"""The training microscope on the page: the film and the curve that a run left behind, number for number."""

import base64
import json

import pytest
import torch
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient

import clearhead as ch
from clearhead.lens.training_trace import read_training_trace
from clearhead.serve.explorer.routes.models import run_folder, training_routes
from clearhead.serve.explorer.service import ExplorerService
from clearhead.serve.middleware import Limits
from clearhead.serve.registry import ModelRegistry

TEXT = "the cat sat on the mat and the dog sat on the log\n" * 30


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of some steps under the microscope."""
    there = tmp_path_factory.mktemp("training")
    (there / "text.txt").write_text(TEXT)
    data = {
        "data__train": str(there / "text.txt"),
        "data__tokenizer": "characters",
        "train__probe_texts": ["the cat sat"],
    }
    short = {"steps": 6, "rows": 2, "length": 16, "report": 2, "check": 3, "save": 6}
    options = {f"train__{name}": value for name, value in short.items()}
    ch.train(
        "tiny-decoder",
        output=there / "run",
        device="cpu",
        record_activations=True,
        **data,
        **options,
    )
    return there / "run"


@pytest.fixture(scope="module")
def client(run):
    paths = {"best": str(run / "best"), "run": str(run), "last": str(run / "steps" / "00000006")}
    app = FastAPI()
    desk = ExplorerService(ModelRegistry(paths, max_bytes=2**30, device="cpu"), Limits())
    app.include_router(training_routes(desk))

    @app.exception_handler(ch.ClearheadError)
    async def mistaken(request, error):
        return JSONResponse({"error": {"message": str(error)}}, 400)

    with TestClient(app) as client:
        yield client


def asked(client, path="", name="best"):
    answer = client.get(f"/api/models/{name}/training{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def numbers(view):
    return torch.frombuffer(bytearray(base64.b64decode(view["values"])), dtype=torch.float32).view(
        view["shape"]
    )


def test_the_curve_is_that_of_the_log(client, run):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    curve = asked(client)["curve"]
    assert curve["loss"] == [
        [line["step"], pytest.approx(line["loss"])] for line in lines if "loss" in line
    ]
    assert curve["valid"] == [
        [line["step"], pytest.approx(line["valid"])] for line in lines if "valid" in line
    ]


def test_a_run_and_every_checkpoint_of_it_finds_its_film(client, run):
    film = read_training_trace(run)
    for name in ("best", "last", "run"):  # the run itself is its best checkpoint
        told = asked(client, name=name)["film"]
        assert told["steps"] == film.steps
        assert told["parts"] == film.attention_kinds
        assert told["probes"][0]["tokens"] == film.probes[0].tokens


def test_what_is_shown_of_a_step_is_what_was_kept(client, run):
    film = read_training_trace(run)
    for step in (0, film.steps[-1]):
        assert torch.equal(numbers(asked(client, f"/attention?step={step}")), film.attention(step))
        assert torch.equal(
            numbers(asked(client, f"/embeddings?step={step}")), film.embeddings(step).projection
        )
        lens = asked(client, f"/lens?step={step}")
        assert torch.equal(numbers(lens), film.logit_lens(step).values)
        assert lens["words"] == [list(row) for row in film.logit_lens(step).words]


@pytest.mark.parametrize(
    "path",
    [
        "/attention?step=4444",
        "/attention?step=0&probe=9",
        "/attention?step=0&part=cross",
        "/embeddings?step=-1",
    ],
)
def test_what_the_film_does_not_show_is_told_in_a_sentence(client, path):
    answer = client.get(f"/api/models/best/training{path}")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].endswith(".")


@pytest.mark.parametrize("path", ["", "somewhere/else", "/"])
def test_a_model_that_is_no_checkpoint_of_a_run_has_no_training(path):
    with pytest.raises(ch.ClearheadError, match="training"):
        run_folder(path)
