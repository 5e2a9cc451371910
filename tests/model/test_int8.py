"""int8 is close to float32, independent of the batch around it, and refused where unsupported."""

import copy
import runpy

import pytest
import torch

import clearhead as ch
from clearhead.config.presets import presets
from clearhead.errors import ClearheadError
from clearhead.generate.tasks import score_texts
from clearhead.model import int8
from clearhead.model.transformer import build_transformer

PRESETS = ["tiny-decoder", "tiny-llama", "tiny-encoder", "tiny-encoder-decoder", "tiny-images"]


def float_and_int8(name: str):
    """The same network in float32 and in int8."""
    net = build_transformer(presets[name].model, seed=3).eval()
    quantized = copy.deepcopy(net)
    int8.quantize(quantized)
    return net, quantized


def random_inputs(name: str, rows: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    if name == "tiny-images":
        return {"tokens": torch.randn(rows, 1, 8, 8, generator=generator)}
    inputs = {"tokens": torch.randint(1, 60, (rows, 7), generator=generator)}
    if name == "tiny-encoder-decoder":
        inputs["source"] = torch.randint(1, 60, (rows, 9), generator=generator)
    return inputs


@pytest.mark.parametrize("name", PRESETS)
@torch.no_grad()
def test_int8_logits_are_close_to_float32(name):
    inputs = random_inputs(name, 4)
    exact, rounded = (net.compute_logits(net(**inputs)) for net in float_and_int8(name))
    error = (rounded - exact).norm() / exact.norm()
    assert 0 < error < 0.05


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("rows", [2, 5, 40])
def test_int8_linear_does_not_depend_on_the_other_rows(rows, grad):
    layer = int8.Int8Linear(torch.nn.Linear(96, 50))
    x = torch.randn(rows, 96) * torch.logspace(-3, 3, rows)[:, None]
    with torch.set_grad_enabled(grad):
        assert torch.equal(layer(x)[1], layer(x[1:2])[0])


def test_int8_linear_multiplies_quantized_weights_and_activations():
    layer = torch.nn.Linear(64, 33)
    quantized = int8.Int8Linear(layer)
    x = torch.randn(4, 64)
    scale = x.abs().amax(dim=1, keepdim=True)
    levels = int8.activation_levels()
    rounded = (x / scale * levels).round() / levels * scale
    torch.testing.assert_close(quantized(x), rounded @ quantized.weight.mT + layer.bias)
    step = layer.weight.abs().amax(dim=1, keepdim=True) / 127
    assert ((quantized.weight - layer.weight).abs() <= step * 0.501).all()


def test_int8_linear_of_zeros_is_the_bias_and_of_nan_is_nan():
    layer = torch.nn.Linear(8, 3)
    quantized = int8.Int8Linear(layer)
    assert torch.equal(quantized(torch.zeros(1, 8)), layer.bias[None].detach())
    assert quantized(torch.full((1, 8), torch.nan)).isnan().all()


def test_tied_embeddings_share_one_int8_table():
    _, quantized = float_and_int8("tiny-decoder")
    table = quantized.embed.tokens
    assert table is quantized.head.unembed
    torch.testing.assert_close(table(torch.arange(64)), table.weight)


@torch.no_grad()
def test_cached_equals_full():
    _, quantized = float_and_int8("tiny-llama")
    ids = random_inputs("tiny-llama", 2)["tokens"]
    cache = quantized.init_cache(2)
    steps = [quantized(ids[:, i : i + 1], cache=cache) for i in range(ids.shape[1])]
    torch.testing.assert_close(torch.cat(steps, dim=1), quantized(ids), rtol=0, atol=0.02)


@pytest.fixture
def folder(tmp_path):
    ch.save(ch.new("tiny-decoder"), tmp_path / "model")
    return tmp_path / "model"


def test_int8_model_generates_and_can_be_watched(folder):
    model = ch.load(folder, device="cpu", dtype="int8")
    exact = ch.load(folder, device="cpu")
    assert len(model.generate([1, 2, 3], 5, temperature=0.0).tokens) == 5
    names = ["blocks.*.attn.q", "blocks.1.ffn.up"]
    assert model.watch([1, 2, 3], names).keys() == exact.watch([1, 2, 3], names).keys()
    assert not torch.equal(model.logits([1, 2, 3]), exact.logits([1, 2, 3]))


def test_int8_takes_less_than_a_quarter_of_the_memory():
    def nbytes(net) -> int:
        attributes = (x for module in net.modules() for x in vars(module).values())
        tensors = [x for x in attributes if isinstance(x, torch.Tensor)]
        return sum(x.nbytes for x in (*tensors, *net.parameters()))

    net, quantized = float_and_int8("tiny-decoder")
    matrices = [p for p in quantized.parameters() if p.dim() > 1]
    assert len(matrices) == 1
    assert matrices[0] is quantized.position.table
    assert nbytes(quantized) < nbytes(net) / 4


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (lambda model, path: model.net.train(), "trained"),
        (lambda model, path: ch.save(model, path), "saved"),
        (lambda model, path: ch.save(model, path, "hf"), "saved"),
        (lambda model, path: model.net.to(torch.bfloat16), "bfloat16"),
        (lambda model, path: model.net.to("meta"), "meta"),
        (
            lambda model, path: model.net.blocks[0].ffn.up(torch.ones(1, 32, requires_grad=True)),
            "gradients",
        ),
        (lambda model, path: ch.new("tiny-decoder", dtype="int8"), "int8"),
        (lambda model, path: ch.load("any", device="meta", dtype="int8"), "meta"),
    ],
)
def test_unsupported_actions_are_refused(folder, tmp_path, action, error):
    with pytest.raises(ClearheadError, match=error):
        action(ch.load(folder, device="cpu", dtype="int8"), tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_private_check_of_the_cpu_is_optional(monkeypatch):
    """Importing the module, as every model does, works with a torch that lacks the function."""
    monkeypatch.delattr(torch.cpu, "_is_vnni_supported")
    assert runpy.run_path(int8.__file__)["activation_levels"]() == 63


def test_int8_is_refused_without_an_x86_cpu(monkeypatch):
    monkeypatch.setattr(int8, "quantization_engine", lambda: "qnnpack")
    with pytest.raises(ClearheadError, match="x86"):
        int8.quantize(build_transformer(presets["tiny-decoder"].model))


def test_int8_hardly_changes_the_perplexity():
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(1, 60, (n,), generator=generator).tolist() for n in (9, 50)]
    scores = (score_texts(net, texts) for net in float_and_int8("tiny-decoder"))
    for exact, rounded in zip(*scores, strict=True):
        assert rounded.perplexity == pytest.approx(exact.perplexity, rel=0.05)
        assert rounded != exact
