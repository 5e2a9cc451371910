"""The inspector's arithmetic: its last step is the model's own number, and its Python prints that number."""

import base64
import contextlib
import io
import math

import pytest
import soundfile
import torch
from PIL import Image

import clearhead as ch
from clearhead.errors import ClearheadError
from clearhead.serve.explorer.explain import explain_value
from clearhead.serve.explorer.runs import RunRequest, RunStore
from clearhead.serve.registry import ModelRegistry

WORDS = {"vocabulary": 256, "tokenizer": ch.Tokenizer.bytes()}
KINDS = {
    "lecture": ("tiny-decoder", {}),
    "llama": ("tiny-llama", {}),
    "t5": ("tiny-encoder-decoder", {"position": "t5"}),
    "marian": ("tiny-encoder-decoder", {"wiring": "post", "position": "sinusoidal"}),
    "bert": ("tiny-encoder", {"wiring": "post", "input__norm": True, "input__token_types": 2}),
    "shaw": (
        "tiny-decoder",
        {"position": "shaw", "attention__qk_norm": True, "attention__sliding_window": 3},
    ),
    "alibi": ("tiny-decoder", {"position": "alibi", "ffn__activation": "swiglu"}),
    "classes": (
        "tiny-encoder",
        {"head": {"kind": "classification", "classes": 12, "pooler": True}},
    ),  # more than tokens
}


def run_of(kind, **more):
    name, changes = KINDS[kind]
    model = ch.new(name, seed=1, **WORDS, **changes)
    both = {"source": "the cat"} if model.architecture == "encoder-decoder" else {}
    runs = RunStore()
    shelf = ModelRegistry.from_models({"m": model})
    return (
        runs,
        runs.get_or_create(shelf.loaded["m"], RunRequest(model="m", text="hello", **both, **more)),
        model,
    )


def places(run, seed=0):
    """One random place of every value."""
    dice = torch.Generator().manual_seed(seed)
    for name in run.trace.table:
        yield name, [int(torch.randint(size, (), generator=dice)) for size in run.trace.shape(name)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_step_is_the_number(kind):
    runs, run, model = run_of(kind)
    both = {"source": "the cat"} if model.architecture == "encoder-decoder" else {}
    seen = model.watch("hello", **both)
    for name, index in places(run):
        told = explain_value(runs, run, name, index)
        assert seen[name].shape[1:] == torch.Size(told["shape"])
        real = float(seen[name][(0, *index)])
        if not math.isfinite(real):
            assert told["value"] is None
            assert told["special"] == str(real) == told["steps"][-1]["special"]
            continue
        assert told["value"] == pytest.approx(real, rel=1e-5, abs=1e-6), name
        assert told["steps"][-1]["value"] == pytest.approx(real, rel=1e-4, abs=2e-6), name
        assert len(told["labels"]) == len(index)


def test_terms_add_up_to_their_step():
    runs, run, _ = run_of("lecture")
    for name, index in places(run, seed=3):
        for step in explain_value(runs, run, name, index)["steps"]:
            if step["terms"]:
                assert sum(term[3] for term in step["terms"]) == pytest.approx(
                    step["value"], rel=1e-5, abs=1e-6
                ), name


@pytest.mark.parametrize(
    "edits",
    [
        [],
        [{"name": "blocks.0.attn.z", "op": "ablate", "head": 1}],
        [
            {"name": "blocks.1.resid_pre", "op": "scale", "by": 2.0},
            {"name": "blocks.0.attn.z", "op": "mean", "head": 0},
            {"name": "blocks.0.attn.z", "op": "scale", "head": 1, "token": 2, "by": -1.0},
        ],
        [{"name": "blocks.0.ffn.out", "op": "swap", "token": 1}],
    ],
    ids=["none", "ablate", "three", "swap"],
)
def test_copied_python_prints_the_same_number(tmp_path, edits):
    model = ch.new("tiny-decoder", seed=1, **WORDS)
    ch.save(model, tmp_path / "model")
    runs = RunStore()
    shelf = ModelRegistry.from_models({"m": model})
    shelf.loaded["m"].path = str(tmp_path / "model")
    run = runs.get_or_create(
        shelf.loaded["m"],
        RunRequest(model="m", text='it\'s "so"', edits=edits, patch_from="the other"),
    )
    for name, index in list(places(run, seed=7))[::3]:
        told = explain_value(runs, run, name, index)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(told["python"], {})
        assert float(out.getvalue()) == pytest.approx(
            told["value"] or float(told.get("special", 0)), abs=1e-6
        )


def test_a_place_that_is_not_there_is_told():
    runs, run, _ = run_of("lecture")
    with pytest.raises(ClearheadError, match="there is no"):
        explain_value(runs, run, "blocks.0.attn.pattern", [0, 0, 99])
    with pytest.raises(ClearheadError, match=r"did you mean 'blocks\.0\.attn\.pattern'"):
        explain_value(runs, run, "blocks.0.attn.patern", [0, 0, 0])


def test_every_class_has_its_arithmetic():
    runs, run, model = run_of("classes")
    for i, real in enumerate(model.logits("hello").tolist()):
        assert explain_value(runs, run, "logits", [i])["value"] == pytest.approx(real, abs=1e-6)


@pytest.mark.parametrize(("kind", "plain"), [("alibi", "silu"), ("lecture", "relu")])
def test_a_gated_layer_tells_the_function_before_its_gate(kind, plain):
    runs, run, model = run_of(kind)
    first, *gate = explain_value(runs, run, "blocks.0.ffn.post", [1, 2])["steps"]
    before = model.watch("hello", "blocks.0.ffn.pre")["blocks.0.ffn.pre"][0, 1, 2]
    assert first["words"].startswith(f"{plain} of ")
    assert first["value"] == pytest.approx(
        float(getattr(torch.nn.functional, plain)(before)), abs=1e-6
    )
    assert len(gate) == (kind == "alibi")


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float64"])
def test_weights_of_any_kind_are_explained(tmp_path, dtype):
    """Without a step where a matrix has numbers of its own, as int8 has; with rounding in 16 bits."""
    ch.save(ch.new("tiny-llama", seed=1, **WORDS), tmp_path / "model")
    model = ch.load(tmp_path / "model", dtype=dtype)
    runs = RunStore()
    run = runs.get_or_create(
        ModelRegistry.from_models({"m": model}).loaded["m"], RunRequest(model="m", text="hello")
    )
    seen = model.watch("hello")
    for name, index in places(run):
        told = explain_value(runs, run, name, index)
        real = float(seen[name][(0, *index)])
        assert told["value"] is None or told["value"] == pytest.approx(real, rel=0.02, abs=0.02)


@pytest.mark.parametrize("kind", ["pictures", "spectrogram", "sound"])
def test_patches_are_explained(kind):
    reads = {
        "pictures": {"kind": "pictures", "size": 8, "patch": 4, "channels": 1},
        "spectrogram": {
            "kind": "spectrogram",
            "mels": 16,
            "frames": 16,
            "patch_mels": 8,
            "patch_frames": 8,
        },
        "sound": {"kind": "sound", "mels": 16, "frames": 16},
    }[kind]
    head = {"kind": "classification", "classes": 3}
    model = ch.new(
        "tiny-encoder",
        seed=1,
        vocab_size=0,
        context_length=8 if kind == "sound" else 5,
        input=reads,
        head=head,
    )
    if kind == "pictures":
        file = io.BytesIO()
        Image.new("L", (8, 8), 90).save(file, "PNG")
        given = {"picture": base64.b64encode(file.getvalue()).decode()}
    else:
        file = io.BytesIO()
        soundfile.write(file, torch.sin(torch.arange(4000) / 9).numpy(), 16000, format="WAV")
        given = {"sound": f"data:audio/wav;base64,{base64.b64encode(file.getvalue()).decode()}"}
    runs = RunStore()
    run = runs.get_or_create(
        ModelRegistry.from_models({"m": model}).loaded["m"], RunRequest(model="m", **given)
    )
    assert len(run.to_dict()["tokens"]) == run.trace.shape("full_embed")[0]
    for name, index in places(run):
        told = explain_value(runs, run, name, index)
        assert told["steps"][-1]["value"] == pytest.approx(told["value"], rel=1e-4, abs=2e-6), name
