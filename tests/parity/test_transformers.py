"""Parity with transformers: logits, hidden states, cached steps, generation and saved files."""

import pytest
import torch
from huggingface_models import CASES, hf_model

import clearhead as ch
from beams import beam_search
from clearhead.hooks import Recorder

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

GENERATING_CASES = [
    case
    for case in CASES
    if not case.startswith(("bert", "roformer", "vit")) and "bare" not in case
]
TEXT_CASES = [case for case in CASES if not case.startswith(("vit", "whisper"))]
# GGUF cannot hold the biases, activations and windows of the others.
GGUF_CASES = ["llama", "qwen2", "llama-3", "llama-linear"]
AUTO_CLASSES = {
    "lm decoder": "AutoModelForCausalLM",
    "lm encoder-decoder": "AutoModelForSeq2SeqLM",
    "mlm encoder": "AutoModelForMaskedLM",
    "classification encoder": "AutoModelForSequenceClassification",
    "regression encoder": "AutoModelForSequenceClassification",
}


@pytest.fixture(scope="module")
def load_pair(tmp_path_factory):
    """A case as the model of transformers, and as loaded by clearhead from its folder."""
    loaded = {}

    def load(case):
        if case not in loaded:
            folder = tmp_path_factory.mktemp(case)
            hf_model(case).save_pretrained(folder)
            loaded[case] = ch.load(folder, device="cpu")
        return hf_model(case), loaded[case]

    return load


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def random_inputs(case, model, rows=3, length=11):
    """The same inputs as arguments of transformers and of clearhead."""
    torch.manual_seed(1)
    ids = torch.randint(6, 41, (rows, length))  # no special tokens
    if case.startswith("vit"):
        images = torch.randn(rows, 2, 12, 12)
        return {"pixel_values": images}, {"tokens": images}
    if model.architecture != "encoder-decoder":
        return {"input_ids": ids}, {"tokens": ids}
    if case.startswith("whisper"):
        source = torch.randn(rows, 8, 20)
        hf_source = {"input_features": source}
    else:
        source = torch.randint(6, 41, (rows, length - 2))
        hf_source = {"input_ids": source}
    return {**hf_source, "decoder_input_ids": ids}, {"source": source, "tokens": ids}


def hf_output(output):
    """Logits, or hidden states without a head."""
    for name in ("logits", "prediction_logits", "last_hidden_state"):
        if name in output:
            return output[name]
    raise AssertionError(output.keys())


@torch.no_grad()
def logits(model, inputs, **more):
    hidden = model.net(**inputs, **more)
    return model.net.compute_logits(hidden, more.get("segment_ids"))


def assert_same_parameters(model, other):
    parameters = dict(other.net.named_parameters())
    assert parameters.keys() == dict(model.net.named_parameters()).keys()
    for name, p in model.net.named_parameters():
        assert torch.equal(p, parameters[name]), name


# --- forward
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_logits_equal_transformers(case, load_pair):
    theirs, model = load_pair(case)
    hf_inputs, inputs = random_inputs(case, model)
    expected = hf_output(theirs(**hf_inputs))
    assert expected.abs().max() > 0.5  # otherwise anything is close
    close(logits(model, inputs).reshape(expected.shape), expected)


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_hidden_states_of_every_layer_equal_transformers(case, load_pair):
    theirs, model = load_pair(case)
    hf_inputs, inputs = random_inputs(case, model)
    output = theirs(**hf_inputs, output_hidden_states=True)
    hooks = Recorder(["**"])
    logits(model, inputs, hooks=hooks)
    stacks = {"": output.get("hidden_states") or output.get("decoder_hidden_states")}
    if model.architecture == "encoder-decoder":
        stacks["encoder."] = output["encoder_hidden_states"]
    for prefix, hidden_states in stacks.items():
        n_layers = len(hidden_states) - 1
        names = ["full_embed", *(f"blocks.{i}.resid_post" for i in range(n_layers))]
        if not case.startswith("vit"):  # the others return the final norm as the last state
            names[-1] = "final_norm"
        for name, hidden in zip(names, hidden_states, strict=True):
            close(hooks.values[prefix + name], hidden)


@pytest.mark.parametrize("case", TEXT_CASES)
@torch.no_grad()
def test_padded_rows_equal_transformers(case, load_pair):
    theirs, model = load_pair(case)
    hf_inputs, inputs = random_inputs(case, model)
    is_token = torch.arange(11) < torch.tensor([[11], [7], [3]])
    mask = is_token.long()
    if model.architecture == "encoder-decoder":
        masks = {"attention_mask": mask[:, :9], "decoder_attention_mask": mask}
        segment_ids = {"segment_ids": mask, "source_segment_ids": mask[:, :9]}
    else:
        masks = {"attention_mask": mask}
        segment_ids = {"segment_ids": mask}
    expected = hf_output(theirs(**hf_inputs, **masks))
    actual = logits(model, inputs, **segment_ids).reshape(expected.shape)
    if expected.dim() == 3:
        close(actual[is_token], expected[is_token])
    else:
        close(actual, expected)


# --- generation
@pytest.mark.parametrize("case", GENERATING_CASES)
@torch.no_grad()
def test_cached_steps_equal_transformers(case, load_pair):
    theirs, model = load_pair(case)
    hf_inputs, inputs = random_inputs(case, model)
    expected = hf_output(theirs(**hf_inputs))
    cache = model.net.init_cache(3, 11)
    encoder_output = model.net.encode(inputs["source"]) if "source" in inputs else None
    hidden = [
        model.net(tokens, cache=cache, encoder_output=encoder_output)
        for tokens in inputs["tokens"].split((4, 1, 1, 5), dim=1)
    ]
    close(model.net.compute_logits(torch.cat(hidden, dim=1)), expected)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("case", GENERATING_CASES)
@torch.no_grad()
def test_greedy_and_beam_search_generate_the_same_tokens(case, num_beams, load_pair):
    theirs, model = load_pair(case)
    hf_inputs, inputs = random_inputs(case, model, rows=2)
    inference = model.config.inference
    prompt = inputs["tokens"]
    if model.architecture == "encoder-decoder":
        prompt = torch.tensor([inference.decoder_start_tokens] * 2)
        hf_inputs["decoder_input_ids"] = prompt
    sequences = transformers.GenerationMixin.generate(
        theirs,
        **hf_inputs,
        num_beams=num_beams,
        num_return_sequences=num_beams,
        do_sample=False,
        max_new_tokens=12,
    )
    results = beam_search(
        model.net,
        prompt.tolist(),
        source=inputs.get("source"),
        num_beams=num_beams,
        n_best=num_beams,
        max_tokens=12,
        eos_tokens=inference.eos_tokens,
        forced_eos=inference.forced_eos,
    )
    hypotheses = [hypothesis for row in results for hypothesis in row]
    for sequence, hypothesis in zip(sequences, hypotheses, strict=True):
        expected = sequence[prompt.shape[1] :].tolist()
        length = len(hypothesis.tokens)
        assert hypothesis.tokens == expected[:length]
        assert set(expected[length:]) <= {0, 5}  # padding: the pad or the end token


# --- files
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_saved_model_loads_in_transformers_and_in_clearhead(case, load_pair, tmp_path):
    theirs, model = load_pair(case)
    ch.save(model, tmp_path / "saved", format="hf")
    loaded = ch.load(tmp_path / "saved", device="cpu")
    assert loaded.config == model.config
    assert_same_parameters(loaded, model)
    kind = f"{model.config.model.head.kind} {model.architecture}"
    auto_class = AUTO_CLASSES.get(kind, "AutoModel")
    if case.startswith("vit") and auto_class != "AutoModel":
        auto_class = "AutoModelForImageClassification"
    if case.startswith("whisper"):
        auto_class = "AutoModelForSpeechSeq2Seq"
    hf_loaded = getattr(transformers, auto_class).from_pretrained(tmp_path / "saved").eval()
    hf_inputs, _ = random_inputs(case, model)
    close(hf_output(hf_loaded(**hf_inputs)), hf_output(theirs(**hf_inputs)))


@pytest.mark.parametrize(
    ("case", "format"),
    [*((case, "clearhead") for case in CASES), *((case, "gguf") for case in GGUF_CASES)],
)
def test_other_formats_keep_the_model(case, format, load_pair, tmp_path):
    _, model = load_pair(case)
    if case == "llama-3":  # llama.cpp only has this activation
        model = ch.Model(model.net, model.config.replace(ffn__activation="swiglu"))
    ch.save(model, tmp_path / "saved", format=format)
    loaded = ch.load(tmp_path / "saved", device="cpu")
    no_dropout = dict.fromkeys(
        ("dropout__embedding", "dropout__residual", "dropout__attention"), 0.0
    )
    expected, actual = (x.config.replace(**no_dropout).model for x in (model, loaded))
    assert actual == expected
    assert loaded.config.inference == model.config.inference
    assert_same_parameters(loaded, model)


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
        ("tiny-encoder", {"head": {"kind": "classification", "num_labels": 3, "pooler": True}}),
        ("tiny-encoder-decoder", {"position": {"kind": "sinusoidal", "layout": "halves"}}),
    ],
)
@torch.no_grad()
def test_our_own_models_load_in_transformers(preset, changes, tmp_path):
    model = ch.new(preset, seed=3, **changes)
    for p in model.net.parameters():
        p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))
    ch.save(model, tmp_path / "saved", format="hf")
    auto_class = AUTO_CLASSES[f"{model.config.model.head.kind} {model.architecture}"]
    hf_loaded = getattr(transformers, auto_class).from_pretrained(tmp_path / "saved").eval()
    hf_inputs, inputs = random_inputs("", model)
    expected = logits(model, inputs)
    close(hf_output(hf_loaded(**hf_inputs)), expected)
    close(logits(ch.load(tmp_path / "saved", device="cpu"), inputs), expected)
