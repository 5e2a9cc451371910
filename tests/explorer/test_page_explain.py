"""Explanations: the last step is the model's number, and the Python code prints it."""

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
from clearhead.serve.explorer.forward_passes import RunStore
from clearhead.serve.explorer.requests import RunRequest
from clearhead.serve.registry import ModelRegistry

WORDS = {"vocab_size": 256, "tokenizer": ch.Tokenizer.bytes()}
KINDS = {
    "lecture": ("tiny-decoder", {}),
    "llama": ("tiny-llama", {}),
    "t5": ("tiny-encoder-decoder", {"position": "t5"}),
    "marian": ("tiny-encoder-decoder", {"norm_position": "post", "position": "sinusoidal"}),
    "bert": (
        "tiny-encoder",
        {"norm_position": "post", "input__norm": True, "input__token_types": 2},
    ),
    "shaw": (
        "tiny-decoder",
        {"position": "shaw", "attention__qk_norm": True, "attention__sliding_window": 3},
    ),
    "alibi": ("tiny-decoder", {"position": "alibi", "ffn__activation": "swiglu"}),
    "classes": (
        "tiny-encoder",
        {"head": {"kind": "classification", "num_labels": 12, "pooler": True}},
    ),  # more than tokens
}


def run_of(kind, **more):
    name, changes = KINDS[kind]
    model = ch.new(name, seed=1, **WORDS, **changes)
    both = {"source": "the cat"} if model.architecture == "encoder-decoder" else {}
    runs = RunStore()
    registry = ModelRegistry.from_models({"m": model})
    return (
        runs,
        runs.get_or_create(
            registry.loaded["m"], RunRequest(model="m", text="hello", **both, **more)
        ),
        model,
    )


def places(run, seed=0):
    """One random place of every value."""
    dice = torch.Generator().manual_seed(seed)
    for name in run.trace.activations:
        yield name, [int(torch.randint(size, (), generator=dice)) for size in run.trace.shape(name)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_step_is_the_value(kind):
    runs, run, model = run_of(kind)
    both = {"source": "the cat"} if model.architecture == "encoder-decoder" else {}
    cache = model.watch("hello", **both)
    for name, index in places(run):
        explanation = explain_value(runs, run, name, index)
        assert cache[name].shape[1:] == torch.Size(explanation["shape"])
        real = float(cache[name][(0, *index)])
        if not math.isfinite(real):
            assert explanation["value"] is None
            assert explanation["non_finite"] == str(real) == explanation["steps"][-1]["non_finite"]
            continue
        assert explanation["value"] == pytest.approx(real, rel=1e-5, abs=1e-6), name
        assert explanation["steps"][-1]["value"] == pytest.approx(real, rel=1e-4, abs=2e-6), name
        assert len(explanation["labels"]) == len(index)


def test_terms_sum_to_their_step():
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
            {"name": "blocks.1.resid_pre", "op": "scale", "factor": 2.0},
            {"name": "blocks.0.attn.z", "op": "mean_ablate", "head": 0},
            {"name": "blocks.0.attn.z", "op": "scale", "head": 1, "token": 2, "factor": -1.0},
        ],
        [{"name": "blocks.0.ffn.out", "op": "patch", "token": 1}],
    ],
    ids=["none", "ablate", "three", "swap"],
)
def test_python_code_prints_the_value(tmp_path, edits):
    model = ch.new("tiny-decoder", seed=1, **WORDS)
    ch.save(model, tmp_path / "model")
    runs = RunStore()
    registry = ModelRegistry.from_models({"m": model})
    registry.loaded["m"].path = str(tmp_path / "model")
    run = runs.get_or_create(
        registry.loaded["m"],
        RunRequest(model="m", text='it\'s "so"', edits=edits, patch_from="the other"),
    )
    for name, index in list(places(run, seed=7))[::3]:
        explanation = explain_value(runs, run, name, index)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(explanation["python"], {})
        assert float(out.getvalue()) == pytest.approx(
            explanation["value"] or float(explanation.get("non_finite", 0)), abs=1e-6
        )


def test_invalid_indices_and_names_are_refused():
    runs, run, _ = run_of("lecture")
    with pytest.raises(ClearheadError, match="out of range"):
        explain_value(runs, run, "blocks.0.attn.pattern", [0, 0, 99])
    with pytest.raises(ClearheadError, match=r"did you mean 'blocks\.0\.attn\.pattern'"):
        explain_value(runs, run, "blocks.0.attn.patern", [0, 0, 0])


def test_logits_of_a_classifier_are_explained():
    runs, run, model = run_of("classes")
    for i, real in enumerate(model.logits("hello").tolist()):
        assert explain_value(runs, run, "logits", [i])["value"] == pytest.approx(real, abs=1e-6)


@pytest.mark.parametrize(("kind", "plain"), [("alibi", "silu"), ("lecture", "relu")])
def test_activation_function_is_explained_before_the_gate(kind, plain):
    runs, run, model = run_of(kind)
    first, *gate = explain_value(runs, run, "blocks.0.ffn.post", [1, 2])["steps"]
    name = "blocks.0.ffn.gate" if kind == "alibi" else "blocks.0.ffn.up"
    before = model.watch("hello", name)[name][0, 1, 2]
    assert first["description"].startswith(f"{plain}(")
    assert first["value"] == pytest.approx(
        float(getattr(torch.nn.functional, plain)(before)), abs=1e-6
    )
    assert len(gate) == (kind == "alibi")


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float64"])
def test_values_of_other_dtypes_are_explained(tmp_path, dtype):
    """Quantized matrices have no steps; 16-bit weights round."""
    ch.save(ch.new("tiny-llama", seed=1, **WORDS), tmp_path / "model")
    model = ch.load(tmp_path / "model", dtype=dtype)
    runs = RunStore()
    run = runs.get_or_create(
        ModelRegistry.from_models({"m": model}).loaded["m"], RunRequest(model="m", text="hello")
    )
    cache = model.watch("hello")
    for name, index in places(run):
        explanation = explain_value(runs, run, name, index)
        real = float(cache[name][(0, *index)])
        assert explanation["value"] is None or explanation["value"] == pytest.approx(
            real, rel=0.02, abs=0.02
        )


@pytest.mark.parametrize("kind", ["images", "spectrogram", "audio"])
def test_patch_embeddings_are_explained(kind):
    reads = {
        "images": {"kind": "images", "image_size": 8, "patch_size": 4, "num_channels": 1},
        "spectrogram": {
            "kind": "spectrogram",
            "n_mels": 16,
            "n_frames": 16,
            "patch_mels": 8,
            "patch_frames": 8,
        },
        "audio": {"kind": "audio", "n_mels": 16, "n_frames": 16},
    }[kind]
    head = {"kind": "classification", "num_labels": 3}
    model = ch.new(
        "tiny-encoder",
        seed=1,
        vocab_size=0,
        context_length=8 if kind == "audio" else 5,
        input=reads,
        head=head,
    )
    if kind == "images":
        file = io.BytesIO()
        Image.new("L", (8, 8), 90).save(file, "PNG")
        given = {"image": base64.b64encode(file.getvalue()).decode()}
    else:
        file = io.BytesIO()
        soundfile.write(file, torch.sin(torch.arange(4000) / 9).numpy(), 16000, format="WAV")
        given = {"audio": f"data:audio/wav;base64,{base64.b64encode(file.getvalue()).decode()}"}
    runs = RunStore()
    run = runs.get_or_create(
        ModelRegistry.from_models({"m": model}).loaded["m"], RunRequest(model="m", **given)
    )
    assert len(run.to_dict()["tokens"]) == run.trace.shape("full_embed")[0]
    for name, index in places(run):
        explanation = explain_value(runs, run, name, index)
        assert explanation["steps"][-1]["value"] == pytest.approx(
            explanation["value"], rel=1e-4, abs=2e-6
        ), name
