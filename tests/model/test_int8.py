"""int8: near to float32, the same whoever is beside, and refused where it cannot be."""

import copy

import pytest
import torch

import clearhead as ch
from clearhead.config.presets import presets
from clearhead.errors import ClearheadError
from clearhead.generate.tasks import score_texts
from clearhead.model import int8
from clearhead.model.transformer import build_transformer

SHAPES = ["tiny-decoder", "tiny-llama", "tiny-encoder", "tiny-encoder-decoder", "tiny-pictures"]


def pair(name: str):
    """The network in float32, and in int8."""
    net = build_transformer(presets[name].model, seed=3).eval()
    small = copy.deepcopy(net)
    int8.quantize(small)
    return net, small


def inputs(name: str, rows: int) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(5)
    if name == "tiny-pictures":
        return {"tokens": torch.randn(rows, 1, 8, 8, generator=chance)}
    read = {"tokens": torch.randint(1, 60, (rows, 7), generator=chance)}
    return read | (
        {"source": torch.randint(1, 60, (rows, 9), generator=chance)}
        if "-decoder" in name[8:]
        else {}
    )


def logits(net, read) -> torch.Tensor:
    return net.predict(net(**read))


@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_it_is_near_to_float32(name):
    exact, near = (logits(net, inputs(name, 4)) for net in pair(name))
    off = (near - exact).norm() / exact.norm()
    assert 0 < off < 0.05


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("rows", [2, 5, 40])
def test_a_product_does_not_depend_on_the_rows_beside_it(rows, grad):
    layer = int8.Int8Linear(torch.nn.Linear(96, 50))
    x = torch.randn(rows, 96) * torch.logspace(-3, 3, rows)[:, None]
    with torch.set_grad_enabled(grad):
        assert torch.equal(layer(x)[1], layer(x[1:2])[0])


def test_a_product_is_that_of_rounded_rows_and_rounded_tokens():
    layer = torch.nn.Linear(64, 33)
    made = int8.Int8Linear(layer)
    x = torch.randn(4, 64)
    t = x.abs().amax(dim=1, keepdim=True)
    rounded = (x / t * int8.ACTIVATION_LEVELS).round() / int8.ACTIVATION_LEVELS * t
    torch.testing.assert_close(made(x), rounded @ made.weight.mT + layer.bias)
    step = layer.weight.abs().amax(dim=1, keepdim=True) / 127
    assert ((made.weight - layer.weight).abs() <= step * 0.501).all()


def test_zeros_give_the_bias_and_what_is_no_number_stays_none():
    layer = torch.nn.Linear(8, 3)
    made = int8.Int8Linear(layer)
    assert torch.equal(made(torch.zeros(1, 8)), layer.bias[None].detach())
    assert made(torch.full((1, 8), torch.nan)).isnan().all()


def test_tied_words_are_one_table():
    _, small = pair("tiny-decoder")
    assert small.embed is small.head.unembed
    ids = torch.arange(64)
    torch.testing.assert_close(small.embed.tokens(ids), small.embed.tokens.weight)


@torch.no_grad()
def test_cached_equals_full():
    _, small = pair("tiny-llama")
    ids = inputs("tiny-llama", 2)["tokens"]
    memory = small.init_cache(2)
    steps = [small(ids[:, i : i + 1], memory=memory) for i in range(ids.shape[1])]
    torch.testing.assert_close(torch.cat(steps, dim=1), small(ids), rtol=0, atol=0.02)


@pytest.fixture
def folder(tmp_path):
    ch.save(ch.new("tiny-decoder"), tmp_path / "model")
    return tmp_path / "model"


def test_a_loaded_model_writes_and_is_watched(folder):
    model = ch.load(folder, device="cpu", dtype="int8")
    exact = ch.load(folder, device="cpu")
    assert len(model.generate([1, 2, 3], 5, temperature=0.0).tokens) == 5
    seen = model.watch([1, 2, 3], ["blocks.*.attn.q", "blocks.1.ffn.pre"])
    assert seen.keys() == exact.watch([1, 2, 3], ["blocks.*.attn.q", "blocks.1.ffn.pre"]).keys()
    assert not torch.equal(model.logits([1, 2, 3]), exact.logits([1, 2, 3]))


def test_matrices_take_a_quarter_of_the_memory():
    def held(net) -> int:
        return sum(
            x.nbytes for m in net.modules() for x in vars(m).values() if isinstance(x, torch.Tensor)
        ) + sum(p.nbytes for p in net.parameters())

    net, small = pair("tiny-decoder")
    assert not [p for p in small.parameters() if p.dim() > 1 and p is not small.position.table]
    assert held(small) < held(net) / 4


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (lambda model, there: model.net.train(), "cannot be trained"),
        (lambda model, there: ch.save(model, there), "is not saved"),
        (lambda model, there: ch.save(model, there, "hf"), "is not saved"),
        (lambda model, there: model.net.to(torch.bfloat16), "stays on the CPU"),
        (lambda model, there: model.net.to("meta"), "stays on the CPU"),
        (
            lambda model, there: model.net.blocks[0].ffn.up(torch.ones(1, 32, requires_grad=True)),
            "no gradients",
        ),
        (lambda model, there: ch.new("tiny-decoder", dtype="int8"), "made to be trained"),
        (
            lambda model, there: ch.load("anything", device="meta", dtype="int8"),
            "int8 is for CPUs, not for meta",
        ),
    ],
)
def test_what_int8_cannot_do_is_told(folder, tmp_path, act, sentence):
    with pytest.raises(ClearheadError, match=sentence):
        act(ch.load(folder, device="cpu", dtype="int8"), tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_on_another_cpu_it_is_refused(monkeypatch):
    monkeypatch.setattr(int8, "engine", lambda: "qnnpack")
    with pytest.raises(ClearheadError, match="x86"):
        int8.quantize(build_transformer(presets["tiny-decoder"].model))


def test_the_perplexity_of_texts_hardly_changes():
    chance = torch.Generator().manual_seed(0)
    texts = [torch.randint(1, 60, (length,), generator=chance).tolist() for length in (9, 50)]
    for exact, rounded in zip(
        *(score_texts(net, texts) for net in pair("tiny-decoder")), strict=True
    ):
        assert rounded.perplexity == pytest.approx(exact.perplexity, rel=0.05)
        assert rounded != exact
