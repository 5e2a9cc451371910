"""Training traces and loss curves on the page equal the files of the run."""

import base64
import json

import pytest
import torch

import clearhead as ch
from clearhead.lens.training_trace import read_training_trace
from clearhead.serve.explorer.routes.training import run_folder
from clearhead.serve.registry import ModelRegistry
from page_site import page_client

TEXT = "the cat sat on the mat and the dog sat on the log\n" * 30


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run with recorded activations."""
    folder = tmp_path_factory.mktemp("training")
    (folder / "text.txt").write_text(TEXT)
    ch.train(
        "tiny-decoder",
        folder / "run",
        data={"train": str(folder / "text.txt"), "tokenizer": "characters"},
        train={
            "probe_texts": ["the cat sat"],
            "max_steps": 6,
            "batch_size": 2,
            "seq_len": 16,
            "log_every": 2,
            "eval_every": 3,
            "save_every": 6,
        },
        device="cpu",
        record_activations=True,
    )
    return folder / "run"


@pytest.fixture(scope="module")
def client(run):
    paths = {
        "best": str(run / "best"),
        "run": str(run),
        "last": str(run / "checkpoints" / "00000006"),
    }
    with page_client(ModelRegistry(paths, max_bytes=2**30, device="cpu")) as client:
        yield client


def request(client, path="", name="best"):
    answer = client.get(f"/api/models/{name}/training{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def numbers(view):
    return torch.frombuffer(bytearray(base64.b64decode(view["values"])), dtype=torch.float32).view(
        view["shape"]
    )


def test_curve_equals_the_log(client, run):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    curve = request(client)["curve"]
    assert curve["loss"] == [
        [line["step"], pytest.approx(line["loss"])] for line in lines if "loss" in line
    ]
    assert curve["valid_loss"] == [
        [line["step"], pytest.approx(line["valid_loss"])] for line in lines if "valid_loss" in line
    ]


def test_all_checkpoints_find_the_trace(client, run):
    trace = read_training_trace(run)
    for name in ("best", "last", "run"):  # the run itself is its best checkpoint
        response = request(client, name=name)["trace"]
        assert response["steps"] == trace.steps
        assert response["parts"] == trace.attention_kinds
        assert response["probes"][0]["tokens"] == trace.probes[0].tokens


def test_steps_equal_the_trace(client, run):
    trace = read_training_trace(run)
    for step in (0, trace.steps[-1]):
        assert torch.equal(
            numbers(request(client, f"/attention?step={step}")), trace.attention(step).values
        )
        assert torch.equal(
            numbers(request(client, f"/embeddings?step={step}")), trace.embeddings(step).projection
        )
        lens = request(client, f"/lens?step={step}")
        assert torch.equal(numbers(lens), trace.logit_lens(step).values)
        assert lens["words"] == [list(row) for row in trace.logit_lens(step).words]


@pytest.mark.parametrize(
    "path",
    [
        "/attention?step=4444",
        "/attention?step=0&probe=9",
        "/attention?step=0&part=cross",
        "/embeddings?step=-1",
    ],
)
def test_invalid_steps_are_refused(client, path):
    answer = client.get(f"/api/models/best/training{path}")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].endswith(".")


@pytest.mark.parametrize("path", ["", "somewhere/else", "/"])
def test_models_without_a_run_are_refused(path):
    with pytest.raises(ch.ClearheadError, match="training"):
        run_folder(path)
