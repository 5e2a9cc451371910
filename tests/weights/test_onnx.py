"""onnxruntime computes from exported files what the network computes."""

import json
import subprocess
import sys

import pytest
import tokenizers
import torch
from onnx_sessions import (
    LENGTHS,
    SIDES,
    T5_POSITIONS,
    Session,
    as_past,
    assert_close,
    exporter,
    one_layer,
    padded_batch,
    save_without_shape_checks,
)

import clearhead as ch
from clearhead import config as c
from clearhead.config.model import InferenceConfig
from clearhead.generate.engine import BatchEngine
from clearhead.generate.sampling import SamplingConfig
from clearhead.generate.text_generation import GenerationStream
from clearhead.model.transformer import build_transformer
from clearhead.weights import export_onnx
from clearhead.weights.checkpoint import Checkpoint, export_tokenizers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return exporter(tmp_path_factory)


MODERN = ch.presets["tiny-llama"].replace(
    vocab_size=61,
    attention__sliding_window=4,
    attention__qk_norm=True,
    position={
        "kind": "rotary",
        "rotary_dim": 4,
        "scaling": {"kind": "llama3", "factor": 4.0, "original_context_length": 16},
    },
    head__tie_embeddings=False,
)
DECODERS = {
    "modern": MODERN,
    "learned": one_layer(
        "tiny-decoder",
        norm_position="post",
        vocab_size=61,
        head__bias=True,
        head__scale_logits=True,
    ),
    "shaw": one_layer(
        "tiny-decoder", position={"kind": "shaw", "max_distance": 3}, attention__n_kv_heads=1
    ),
    "alibi": one_layer(
        "tiny-decoder", position="alibi", attention__sliding_window=3, attention__scale=False
    ),
}


@pytest.mark.parametrize("config", DECODERS.values(), ids=DECODERS)
@torch.no_grad()
def test_padded_prompts_and_steps_equal_single_rows(config, exported):
    net, run = exported(config)
    for lengths in LENGTHS:
        for side in SIDES:
            (ids, real), (new, more) = (
                padded_batch(n, side, config.model.vocab_size)
                for n in (lengths, [4] * len(lengths))
            )
            ids = torch.cat((ids, new), dim=1)
            real = torch.cat((real, more), dim=1)
            at = (real.cumsum(dim=1) - 1).clamp(min=0)
            first = max(lengths)
            past = run.empty_past(len(ids))
            logits = []
            for begin, end in ((0, first), (first, first + 1), (first + 1, first + 4)):
                outputs = run(
                    input_ids=ids[:, begin:end],
                    attention_mask=real[:, :end],
                    position_ids=at[:, begin:end],
                    **past,
                )
                past = as_past(outputs)
                logits.append(outputs["logits"])
            for row, mask, got in zip(ids, real.bool(), torch.cat(logits, dim=1), strict=True):
                assert_close(got[mask], net.compute_logits(net(row[mask][None]))[0])


def test_greedy_decoding_is_equal(exported):
    net, run = exported(MODERN)
    prompt = torch.tensor([[5, 3, 60]])
    past = run.empty_past(1)
    ids = prompt
    tokens = []
    for count in range(3, 15):
        at = torch.arange(count)[None, -ids.shape[1] :]
        outputs = run(
            input_ids=ids, attention_mask=torch.ones(1, count).long(), position_ids=at, **past
        )
        past = as_past(outputs)
        ids = outputs["logits"][:, -1:].argmax(dim=-1)
        tokens.append(int(ids))
    greedy = GenerationStream(
        BatchEngine(net, InferenceConfig(), 1, 16),
        None,
        prompt.tolist(),
        SamplingConfig(max_tokens=12, temperature=0),
    )
    assert tokens == greedy.results()[0].tokens


SEQUENCE_MODELS = {
    "mlm": one_layer("tiny-encoder", vocab_size=61),
    "classification": one_layer(
        "tiny-encoder",
        position=T5_POSITIONS,
        input="tokens",
        norm="rmsnorm",
        head={"kind": "classification", "pooling": "mean"},
    ),
    "regression with a decoder": one_layer(
        "tiny-decoder",
        position={"kind": "sinusoidal", "layout": "halves"},
        head={"kind": "regression", "pooling": "mean", "pooler": True},
    ),
}


@pytest.mark.parametrize("config", SEQUENCE_MODELS.values(), ids=SEQUENCE_MODELS)
@torch.no_grad()
def test_padded_rows_equal_single_rows(config, exported):
    net, run = exported(config)
    for lengths in LENGTHS:
        for side in SIDES:
            ids, real = padded_batch(lengths, side, config.model.vocab_size)
            inputs = {"token_type_ids": ids % 2} if config.model.input.token_types else {}
            outputs = run(input_ids=ids, attention_mask=real, **inputs)
            for row, mask, got in zip(ids, real.bool(), outputs["logits"], strict=True):
                alone = row[mask][None]
                want = net.compute_logits(net(alone, token_type_ids=alone % 2 if inputs else None))[
                    0
                ]
                assert_close(got[mask] if want.dim() == 2 else got, want)


MEDIA = {
    "pixel_values": (one_layer("tiny-images"), "logits"),
    "input_features": (one_layer("tiny-audio", head="none"), "last_hidden_state"),
}
EXPORT = """
import json, sys
from pathlib import Path
from clearhead.config import Config
from clearhead.model.transformer import build_transformer
from clearhead.weights import export_onnx
from clearhead.weights.checkpoint import Checkpoint
for folder in map(Path, sys.argv[1:]):
    config = Config.from_dict(json.loads(folder.with_suffix(".json").read_text()))
    folder.mkdir()
    export_onnx.save_onnx(folder, Checkpoint(build_transformer(config.model), config))
"""


@pytest.fixture(scope="module")
def media_exports(tmp_path_factory):
    """Exported by another process, without the shape checks of the tests."""
    folder = tmp_path_factory.mktemp("dense")
    for name, (config, _) in MEDIA.items():
        (folder / f"{name}.json").write_text(json.dumps(config.to_dict()))
    command = [sys.executable, "-c", EXPORT, *(folder / name for name in MEDIA)]
    return folder, subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", MEDIA)
@torch.no_grad()
def test_images_and_audio_in_any_batch_size(name, media_exports):
    config, result = MEDIA[name]
    net = build_transformer(config.model).eval()
    run = Session(media_exports[0] / name / "model.onnx")
    for batch in (1, 3):
        x = torch.randn(batch, *run.shapes[name][1:], generator=torch.Generator().manual_seed(0))
        assert_close(run(**{name: x})[result], net.compute_logits(net(x)))


def test_export_is_silent_and_contains_no_local_paths(media_exports):
    folder, process = media_exports
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
    assert b".py" not in (folder / "pixel_values" / "model.onnx").read_bytes()


@pytest.fixture(scope="module")
def large_export(tmp_path_factory):
    """A bfloat16 model with tokenizers and a chat template, with weights outside the file."""
    folder = tmp_path_factory.mktemp("large")
    config = one_layer("tiny-decoder", vocab_size=256)
    config = config.replace(**{"inference.chat_template": "{{ messages }}"})
    net = build_transformer(config.model, dtype=torch.bfloat16).train()
    tokenizer = ch.Tokenizer.bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_onnx, "EXTERNAL_DATA_BYTES", 0)
        save_without_shape_checks(folder, Checkpoint(net, config, tokenizer, tokenizer))
    return net, config, folder


def test_export_writes_model_config_and_tokenizers(large_export):
    _, config, folder = large_export
    assert {path.name for path in folder.iterdir()} == {
        *("model.onnx", "model.onnx.data", "onnx_config.json"),
        *("tokenizer.json", "source_tokenizer.json", "chat_template.jinja"),
    }
    assert c.Config.from_dict(json.loads((folder / "onnx_config.json").read_text())) == config
    assert (folder / "chat_template.jinja").read_text() == "{{ messages }}"
    assert ch.Tokenizer.load(folder / "tokenizer.json").encode("ab") == [97, 98]


def test_exported_tokenizer_adds_special_tokens(tmp_path):
    """Users of `tokenizers` get special tokens from the post-processor; we add them ourselves."""
    for shape, own in (("tiny-encoder", None), ("tiny-encoder-decoder", ch.Tokenizer.bytes())):
        config = one_layer(shape, vocab_size=258).replace(
            **{"inference.bos_tokens": (10,), "inference.sep_tokens": (257,)}
        )
        reading = ch.Tokenizer.bytes(("<mask>", "<end>"))
        checkpoint = Checkpoint(
            build_transformer(config.model), config, own or reading, reading if own else None
        )
        export_tokenizers(tmp_path, checkpoint)
        name = "source_tokenizer.json" if own else "tokenizer.json"
        assert tokenizers.Tokenizer.from_file(str(tmp_path / name)).encode("ab").ids == [
            10,
            97,
            98,
            257,
        ]
        assert ch.Tokenizer.load(tmp_path / name).encode("ab") == [97, 98]
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("ab").ids == [
        97,
        98,
    ]


def test_bfloat16_is_exported_as_float32_and_the_network_is_unchanged(large_export):
    net, config, folder = large_export
    assert net.training
    assert net.embed.tokens.weight.dtype == torch.bfloat16
    full = build_transformer(config.model)
    full.load_state_dict(net.state_dict())
    ids = torch.arange(5)[None]
    run = Session(folder / "model.onnx")
    outputs = run(
        input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=ids, **run.empty_past(1)
    )
    assert_close(outputs["logits"], full.compute_logits(full(ids)).detach())
    assert (folder / "model.onnx").stat().st_size < (folder / "model.onnx.data").stat().st_size


def test_missing_package_is_reported(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    model = ch.new("tiny-decoder")
    with pytest.raises(ch.ClearheadError, match=r"pip install 'clearhead\[onnx\]'"):
        export_onnx.save_onnx(tmp_path, Checkpoint(model.net, model.config))
