"""Published families: what transformers computes with a model is what clearhead computes with it, both ways."""

import pytest
import torch
from published_models import CASES, theirs

import clearhead as ch
from clearhead.generate.beam_search import beam_search
from clearhead.hooks import Recorder

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

WRITING = [
    case
    for case in CASES
    if not case.startswith(("bert", "roformer", "vit")) and "bare" not in case
]
AUTO = {
    "language decoder": "AutoModelForCausalLM",
    "language encoder-decoder": "AutoModelForSeq2SeqLM",
    "masked-word encoder": "AutoModelForMaskedLM",
    "classes encoder": "AutoModelForSequenceClassification",
    "number encoder": "AutoModelForSequenceClassification",
}


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """A case as both see it: theirs, and ours out of the folder that theirs was saved to."""
    kept = {}

    def pair(case):
        if case not in kept:
            folder = tmp_path_factory.mktemp(case)
            theirs(case).save_pretrained(folder)
            kept[case] = ch.load(folder, device="cpu")
        return theirs(case), kept[case]

    return pair


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def inputs(case, m, rows=3, length=11):
    """Their arguments and ours; ids come with lengths that differ from row to row."""
    torch.manual_seed(1)
    ids = torch.randint(6, 41, (rows, length))  # no id that ends a text
    if case.startswith("vit"):
        pictures = torch.randn(rows, 2, 12, 12)
        return {"pixel_values": pictures}, {"tokens": pictures}
    if m.kind != "encoder-decoder":
        return {"input_ids": ids}, {"tokens": ids}
    if case.startswith("whisper"):
        frames = torch.randn(rows, 8, 20)
        return {"input_features": frames, "decoder_input_ids": ids}, {
            "source": frames,
            "tokens": ids,
        }
    source = torch.randint(6, 41, (rows, length - 2))
    return {"input_ids": source, "decoder_input_ids": ids}, {"source": source, "tokens": ids}


def result(output):
    """Logits, or hidden states where there is no head."""
    for name in ("logits", "prediction_logits", "last_hidden_state"):
        if name in output:
            return output[name]
    raise AssertionError(output.keys())


@torch.no_grad()
def ours(m, arguments, **more):
    arguments = dict(arguments)
    return m.net.predict(m.net(arguments.pop("tokens"), **arguments, **more), more.get("segments"))


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_logits_equal(case, read):
    model, m = read(case)
    their_inputs, our_inputs = inputs(case, m)
    want = result(model(**their_inputs))
    assert want.abs().max() > 0.5  # else anything is close
    close(ours(m, our_inputs).reshape(want.shape), want)


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_hidden_states_of_every_layer_equal(case, read):
    model, m = read(case)
    their_inputs, our_inputs = inputs(case, m)
    output = model(**their_inputs, output_hidden_states=True)
    hooks = Recorder(["**"])
    ours(m, our_inputs, hooks=hooks)
    sides = {"": output.get("hidden_states") or output.get("decoder_hidden_states")}
    if m.kind == "encoder-decoder":
        sides["encoder."] = output["encoder_hidden_states"]
    for prefix, states in sides.items():
        last = len(states) - 2
        for layer, state in enumerate(states):
            closed = layer > last and not case.startswith(
                "vit"
            )  # theirs end with the norm, except ViT's
            name = "embed" if layer == 0 else "norm" if closed else f"blocks.{layer - 1}.resid_post"
            close(hooks.values[prefix + name], state)


@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.startswith(("vit", "whisper"))]
)
@torch.no_grad()
def test_padded_rows_equal_theirs(case, read):
    model, m = read(case)
    their_inputs, our_inputs = inputs(case, m)
    real = torch.arange(11) < torch.tensor([[11], [7], [3]])
    if m.kind == "encoder-decoder":
        shown = real[:, :9]
        want = result(
            model(**their_inputs, attention_mask=shown.long(), decoder_attention_mask=real.long())
        )
        got = ours(m, our_inputs, segment_ids=real.long(), source_segment_ids=shown.long())
    else:
        want = result(model(**their_inputs, attention_mask=real.long()))
        got = ours(m, our_inputs, segment_ids=real.long())
    keep = real if want.dim() == 3 else torch.ones(3, dtype=torch.bool)
    close(got.reshape(want.shape)[keep], want[keep])


@pytest.mark.parametrize("case", WRITING)
@torch.no_grad()
def test_cached_steps_equal_theirs(case, read):
    model, m = read(case)
    their_inputs, our_inputs = inputs(case, m)
    want = result(model(**their_inputs))
    memory = m.net.remember(3, 11)
    encoded = m.net.encode(our_inputs["source"]) if "source" in our_inputs else None
    steps = [
        m.net(part, cache=memory, encoder_output=encoded)
        for part in our_inputs["tokens"].split((4, 1, 1, 5), dim=1)
    ]
    close(m.net.predict(torch.cat(steps, dim=1)), want)


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("case", WRITING)
@torch.no_grad()
def test_greedy_and_beam_search_write_the_same_tokens(case, beams, read):
    model, m = read(case)
    their_inputs, our_inputs = inputs(case, m, rows=2)
    use = m.config.inference
    prompt = our_inputs["tokens"]
    if m.kind == "encoder-decoder":
        prompt = their_inputs["decoder_input_ids"] = torch.tensor(
            [use.decoder_start_tokens] * 2
        )
    settings = {
        "num_beams": beams,
        "do_sample": False,
        "max_new_tokens": 12,
        "num_return_sequences": beams,
    }
    written = transformers.GenerationMixin.generate(model, **their_inputs, **settings)
    ends = {"stop": use.eos_tokens, "closed": use.forced_eos}
    best = beam_search(
        m.net,
        prompt,
        source=our_inputs.get("source"),
        beams=beams,
        max_tokens=12,
        n_best=beams,
        **ends,
    )
    for row, hypothesis in zip(written, [h for found in best for h in found], strict=True):
        tokens = row[prompt.shape[1] :].tolist()
        assert hypothesis.tokens == tokens[: len(hypothesis.tokens)]
        assert set(tokens[len(hypothesis.tokens) :]) <= {
            0,
            5,
        }  # they fill up with the pad or the stop token


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_what_is_written_loads_in_transformers_and_comes_back_the_same(case, read, tmp_path):
    model, m = read(case)
    ch.save(m, tmp_path / "out", format="hf")
    again = ch.load(tmp_path / "out", device="cpu")
    assert again.config == m.config
    for (name, ours_), (_, theirs_) in zip(
        m.net.named_parameters(), again.net.named_parameters(), strict=True
    ):
        assert torch.equal(ours_, theirs_), name
    auto = AUTO.get(f"{m.config.model.head.kind} {m.kind}", "AutoModel")
    if case.startswith("vit") and auto != "AutoModel":
        auto = "AutoModelForImageClassification"
    if case.startswith("whisper"):
        auto = "AutoModelForSpeechSeq2Seq"
    loaded = getattr(transformers, auto).from_pretrained(tmp_path / "out").eval()
    their_inputs, _ = inputs(case, m)
    close(result(loaded(**their_inputs)), result(model(**their_inputs)))


GGUF = [
    "llama",
    "qwen2",
    "llama-3",
    "llama-linear",
]  # the others have biases, activations, windows it has not


@pytest.mark.parametrize(
    ("case", "kind"), [*((case, "clearhead") for case in CASES), *((case, "gguf") for case in GGUF)]
)
def test_through_another_format_and_back_is_the_same(case, kind, read, tmp_path):
    _, m = read(case)
    if case == "llama-3":
        m = ch.Model(
            m.net, m.config.change(ffn__activation="swiglu")
        )  # an activation that llama.cpp has
    ch.save(m, tmp_path / "out", format=kind)
    again = ch.load(tmp_path / "out", device="cpu")
    assert again.config.model == m.config.model.__class__(
        **vars(m.config.model) | {"dropout": again.config.model.dropout}
    )
    assert again.config.inference == m.config.inference
    for (name, ours_), (_, theirs_) in zip(
        m.net.named_parameters(), again.net.named_parameters(), strict=True
    ):
        assert torch.equal(ours_, theirs_), name


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("tiny-decoder", {}),
        ("tiny-decoder", {"attention__bias": [], "ffn__bias": False, "norm__bias": False}),
        ("tiny-decoder", {"ffn__activation": "relu2"}),
        ("tiny-llama", {"attention__qk_norm": True}),
        ("tiny-llama", {"attention__sliding_window": 5}),
        ("tiny-encoder", {}),
        ("tiny-encoder", {"position": "rotary"}),
        ("tiny-encoder", {"head": {"kind": "classification", "classes": 3, "pooler": True}}),
        ("tiny-encoder-decoder", {"position": {"kind": "sinusoidal", "layout": "halves"}}),
    ],
)
@torch.no_grad()
def test_a_model_of_our_own_loads_in_transformers(preset, changes, tmp_path):
    m = ch.new(preset, seed=3, **changes)
    for p in m.net.parameters():
        p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))
    ch.save(m, tmp_path / "out", format="hf")
    auto = AUTO[f"{m.config.model.head.kind} {m.architecture}"]
    loaded = getattr(transformers, auto).from_pretrained(tmp_path / "out").eval()
    their_inputs, our_inputs = inputs("", m)
    close(result(loaded(**their_inputs)), ours(m, our_inputs))
    close(ours(ch.load(tmp_path / "out", device="cpu"), our_inputs), ours(m, our_inputs))
