"""Tensors that a folder stores although the configuration implies them: used as transformers uses
them, or refused."""

import json

import pytest
import torch
from huggingface_models import CASES, hf_model
from safetensors.torch import load_file, save_file
from test_transformers import close, hf_output, logits, random_inputs

import clearhead as ch

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

# A case of each family with a language model head, and the names of the head and the embedding.
HEADS = {
    "gpt2": ("lm_head.weight", "transformer.wte.weight"),
    "llama-tied": ("lm_head.weight", "model.embed_tokens.weight"),
    "qwen2-sliding-window": ("lm_head.weight", "model.embed_tokens.weight"),
    "marian": ("lm_head.weight", "model.shared.weight"),
    "marian-own-vocab": ("lm_head.weight", "model.decoder.embed_tokens.weight"),
    "t5": ("lm_head.weight", "shared.weight"),
    "t5-gated": ("lm_head.weight", "shared.weight"),
    "whisper": ("proj_out.weight", "model.decoder.embed_tokens.weight"),
}


def save_with(case, folder, change):
    """Save a case after `change` has edited its tensors in place."""
    hf_model(case).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors", META)


META = {"format": "pt"}


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@torch.no_grad()
def assert_equal_to_transformers(case, folder):
    cls = getattr(transformers, CASES[case][0])
    theirs = cls.from_pretrained(folder, dtype=torch.float32).eval()
    model = ch.load(folder, device="cpu")
    hf_inputs, inputs = random_inputs(case, model)
    expected = hf_output(theirs(**hf_inputs))
    close(logits(model, inputs).reshape(expected.shape), expected)
    return model


@pytest.mark.parametrize("case", HEADS)
def test_a_stored_head_that_differs_from_the_embedding_is_used(case, tmp_path):
    head, embedding = HEADS[case]
    save_with(case, tmp_path, lambda t: t.update({head: t[embedding].roll(1, 0) * 1.5}))
    edit_config(tmp_path, tie_word_embeddings=True)
    model = assert_equal_to_transformers(case, tmp_path)
    assert not model.config.model.head.tie_embeddings


@pytest.mark.parametrize("case", [case for case in HEADS if case != "t5-gated"])
def test_a_stored_copy_of_the_embedding_stays_tied(case, tmp_path):
    head, embedding = HEADS[case]
    save_with(case, tmp_path, lambda t: t.update({head: t[embedding].clone()}))
    assert assert_equal_to_transformers(case, tmp_path).config.model.head.tie_embeddings


BERT_COPIES = {
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


@pytest.mark.parametrize("case", ["bert", "bert-pretraining", "roformer"])
@pytest.mark.parametrize("copy", BERT_COPIES)
def test_the_decoder_of_a_masked_language_model_must_be_tied(case, copy, tmp_path):
    original = BERT_COPIES[copy]
    if original.startswith("embeddings"):
        original = f"{case.split('-')[0]}.{original}"
    save_with(case, tmp_path, lambda t: t.update({copy: t[original].clone()}))
    assert_equal_to_transformers(case, tmp_path)
    save_with(case, tmp_path, lambda t: t.update({copy: t[original] + 1}))
    with pytest.raises(ch.ClearheadError, match=f"{copy} must equal"):
        ch.load(tmp_path)


def sinusoids(rows, d):
    angle = torch.arange(rows)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
    return torch.cat((angle.sin(), angle.cos()), dim=-1)


TABLES = {
    "bert": ("bert.embeddings.position_ids", torch.arange(32)[None]),
    "gpt2": ("transformer.h.0.attn.bias", torch.ones(1, 1, 32, 32).tril()),
    "llama-bare": ("layers.1.self_attn.rotary_emb.inv_freq", 10000 ** (-torch.arange(4) / 4)),
    "marian": ("model.decoder.embed_positions.weight", sinusoids(32, 24)),
    "roformer": ("roformer.encoder.embed_positions.weight", sinusoids(32, 8)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", TABLES)
def test_stored_tables_must_equal_those_of_the_configuration(case, dtype, tmp_path):
    name, table = TABLES[case]
    table = table.to(dtype) if table.is_floating_point() else table
    save_with(case, tmp_path, lambda t: t.update({name: table}))
    if dtype == torch.float32:
        assert_equal_to_transformers(case, tmp_path)
    ch.load(tmp_path)
    save_with(case, tmp_path, lambda t: t.update({name: table.roll(1, -1)}))
    with pytest.raises(ch.ClearheadError, match=f"{name} has other values"):
        ch.load(tmp_path)


def test_rope_scaling_replaces_rope_parameters(tmp_path):
    hf_model("llama").save_pretrained(tmp_path)
    edit_config(
        tmp_path,
        rope_theta=50.0,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        rope_scaling={"type": "linear", "factor": 4.0},
    )
    model = assert_equal_to_transformers("llama", tmp_path)
    assert (model.config.model.position.theta, model.config.model.position.scaling.factor) == (
        50.0,
        4.0,
    )


def test_sliding_layers_need_use_sliding_window(tmp_path):
    """transformers fails on them, because it then drops the window."""
    hf_model("qwen2-sliding-window").save_pretrained(tmp_path)
    edit_config(tmp_path, use_sliding_window=False)
    with pytest.raises(ch.ClearheadError, match="use_sliding_window = False"):
        ch.load(tmp_path)


def test_a_missing_sliding_window_is_the_default_of_transformers(tmp_path):
    hf_model("qwen2-sliding-window").save_pretrained(tmp_path)
    tree = json.loads((tmp_path / "config.json").read_text())
    del tree["sliding_window"]
    (tmp_path / "config.json").write_text(json.dumps(tree | {"max_position_embeddings": 5000}))
    assert ch.load(tmp_path).config.model.attention.sliding_window == 4096
    hf_model("mistral").save_pretrained(tmp_path)
    edit_config(tmp_path, sliding_window=0)
    with pytest.raises(ch.ClearheadError, match="sliding_window = 0"):
        ch.load(tmp_path)


def test_num_hidden_layers_must_be_the_number_of_encoder_layers(tmp_path):
    """It is another name of encoder_layers, and wins in transformers."""
    hf_model("marian").save_pretrained(tmp_path)
    edit_config(tmp_path, num_hidden_layers=3)
    assert_equal_to_transformers("marian", tmp_path)
    edit_config(tmp_path, num_hidden_layers=2)
    with pytest.raises(ch.ClearheadError, match="num_hidden_layers = 2"):
        ch.load(tmp_path)


def test_num_labels_wins_over_a_shorter_id2label(tmp_path):
    hf_model("bert-classification").save_pretrained(tmp_path)
    edit_config(tmp_path, num_labels=4, id2label={"0": "bad", "1": "good"})
    model = assert_equal_to_transformers("bert-classification", tmp_path)
    assert model.config.inference.labels == ()
    edit_config(tmp_path, num_labels=None, id2label={"0": "a", "1": "b", "2": "c", "4": "d"})
    with pytest.raises(ch.ClearheadError, match="id2label"):
        ch.load(tmp_path)


def test_export_chooses_a_family_that_transformers_accepts(tmp_path):
    """transformers refuses a Llama whose hidden size is no multiple of its heads."""
    model = ch.new(
        "tiny-llama", seed=1, attention__n_heads=5, attention__d_head=6, attention__n_kv_heads=5
    )
    assert model.config.model.d_model % 5
    ch.save(model, tmp_path / "hf", format="hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["model_type"] == "mistral"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    hf_inputs, inputs = random_inputs("", model)
    with torch.no_grad():
        close(hf_output(theirs(**hf_inputs)), logits(model, inputs))
    close(
        logits(ch.load(tmp_path / "hf", device="cpu"), inputs).detach(),
        logits(model, inputs).detach(),
    )


def test_the_activation_of_t5_must_follow_from_feed_forward_proj(tmp_path):
    hf_model("t5").save_pretrained(tmp_path)
    assert_equal_to_transformers("t5", tmp_path)
    edit_config(tmp_path, dense_act_fn="silu")
    with pytest.raises(ch.ClearheadError, match="dense_act_fn = 'silu'"):
        ch.load(tmp_path)
