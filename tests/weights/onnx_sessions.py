"""Networks as ONNX files, and onnxruntime's sessions of them."""

import jaxtyping
import pytest
import torch

import clearhead as ch
from clearhead.model.transformer import build_transformer
from clearhead.weights import onnx
from clearhead.weights.checkpoint import Checkpoint

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

LENGTHS = [[1], [5], [6, 2, 4]]  # of the rows of a batch
SIDES = ["left", "right"]  # where they are padded


class Session:
    """A file that is called with tensors, by name."""

    def __init__(self, path):
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.inner = ort.InferenceSession(str(path), options)
        self.shapes = {i.name: i.shape for i in self.inner.get_inputs()}
        self.outputs = [o.name for o in self.inner.get_outputs()]

    def __call__(self, **given):
        arrays = self.inner.run(None, {name: tensor.numpy() for name, tensor in given.items()})
        return dict(zip(self.outputs, map(torch.from_numpy, arrays), strict=True))

    def empty(self, batch):
        """The past before the first token."""
        pasts = {name: shape for name, shape in self.shapes.items() if "past" in shape}
        return {
            name: torch.zeros(batch, heads, 0, width)
            for name, (_, heads, _, width) in pasts.items()
        }


def as_past(made):
    return {
        name.replace("present", "past_key_values"): made[name]
        for name in made
        if name.startswith("present")
    }


def write(*args):
    jaxtyping.config.update("jaxtyping_disable", True)  # a size that may vary is no int
    try:
        onnx.save_onnx(*args)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def exporter(tmp_path_factory):
    """Each network, random in every parameter lest one be forgotten, with the sessions of its files."""
    kept = {}

    def export(config):
        if config not in kept:
            net = build_transformer(config.model).eval()
            generator = torch.Generator().manual_seed(1)
            for p in net.parameters():
                p.data += 0.3 * torch.randn(p.shape, generator=generator)
            folder = tmp_path_factory.mktemp("onnx")
            write(folder, Checkpoint(net, config))
            kept[config] = (net, *map(Session, sorted(folder.glob("*.onnx"), reverse=True)))
        return kept[config]

    return export


def padded(lengths, side, vocabulary):
    """Ids and an attention mask; what fills up is tokens like any others, so that it shows if someone sees it."""
    ids = torch.randint(
        vocabulary,
        (len(lengths), max(lengths)),
        generator=torch.Generator().manual_seed(len(lengths)),
    )
    place = torch.arange(max(lengths))
    length = torch.tensor(lengths)[:, None]
    return ids, (place < length if side == "right" else place >= max(lengths) - length).long()


def assert_close(got, want):
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def one_layer(preset, **changes):
    return ch.presets[preset].replace(n_layers=1, **changes)


RELATIVE = {"kind": "relative", "buckets": 8, "distance": 12}
