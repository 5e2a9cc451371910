"""Exports to ONNX, and onnxruntime sessions of them."""

import jaxtyping
import pytest
import torch

import clearhead as ch
from clearhead.model.transformer import build_transformer
from clearhead.weights import export_onnx
from clearhead.weights.checkpoint import Checkpoint

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

LENGTHS = [[1], [5], [6, 2, 4]]  # lengths of the rows of batches
SIDES = ["left", "right"]  # of padding


class Session:
    """An ONNX file, called with named tensors."""

    def __init__(self, path):
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(str(path), options)
        self.shapes = {i.name: i.shape for i in self.session.get_inputs()}
        self.outputs = [o.name for o in self.session.get_outputs()]

    def __call__(self, **inputs):
        arrays = self.session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        return dict(zip(self.outputs, map(torch.from_numpy, arrays), strict=True))

    def empty_past(self, batch):
        """The past before the first token."""
        pasts = {name: shape for name, shape in self.shapes.items() if "past" in shape}
        return {
            name: torch.zeros(batch, heads, 0, width)
            for name, (_, heads, _, width) in pasts.items()
        }


def as_past(outputs):
    return {
        name.replace("present", "past_key_values"): outputs[name]
        for name in outputs
        if name.startswith("present")
    }


def save_without_shape_checks(*args):
    jaxtyping.config.update("jaxtyping_disable", True)  # dynamic sizes are not integers
    try:
        export_onnx.save_onnx(*args)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def exporter(tmp_path_factory):
    """Networks with every parameter random, and the sessions of their files; exported once."""
    exports = {}

    def export(config):
        if config not in exports:
            net = build_transformer(config.model).eval()
            generator = torch.Generator().manual_seed(1)
            for p in net.parameters():
                p.data += 0.3 * torch.randn(p.shape, generator=generator)
            folder = tmp_path_factory.mktemp("onnx")
            save_without_shape_checks(folder, Checkpoint(net, config))
            exports[config] = (net, *map(Session, sorted(folder.glob("*.onnx"), reverse=True)))
        return exports[config]

    return export


def padded_batch(lengths, side, vocab_size):
    """Ids and an attention mask; padding is random tokens, so that attending to it shows."""
    ids = torch.randint(
        vocab_size,
        (len(lengths), max(lengths)),
        generator=torch.Generator().manual_seed(len(lengths)),
    )
    position = torch.arange(max(lengths))
    length = torch.tensor(lengths)[:, None]
    return ids, (position < length if side == "right" else position >= max(lengths) - length).long()


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def one_layer(preset, **changes):
    return ch.presets[preset].replace(n_layers=1, **changes)


T5_POSITIONS = {"kind": "t5", "num_buckets": 8, "max_distance": 12}
