"""`load(…, verify=True)` and `verify --against transformers` find what differs."""

import pytest
import tokenizers as tk
import torch
from huggingface_models import CASES, hf_model
from typer.testing import CliRunner

import clearhead as ch
from clearhead.cli.main import app
from clearhead.evaluate.against_transformers import compare_with_transformers, draw_texts

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TEXTS = ["the cat sat on the mat.", "don't stop", "3.14 and 1,000", "Wörter naïve 北京 🙂"] * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Llama with a byte-level tokenizer and a chat template, saved by transformers."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = transformers.LlamaConfig(
        vocab_size=320, intermediate_size=28, max_position_embeddings=64, **sizes
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    backend = tk.Tokenizer(tk.models.BPE())
    backend.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tk.decoders.ByteLevel()
    alphabet = tk.pre_tokenizers.ByteLevel.alphabet()
    special_tokens = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"]
    trainer = tk.trainers.BpeTrainer(
        vocab_size=310, initial_alphabet=alphabet, special_tokens=special_tokens
    )
    backend.train_from_iterator(TEXTS, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("case", [case for case in CASES if "-" not in case])
def test_every_family_passes(case, tmp_path, capsys):
    hf_model(case).save_pretrained(tmp_path)
    ch.load(tmp_path, device="cpu", verify=True)
    assert "pass  logits: largest difference" in capsys.readouterr().out


def results(model, folder):
    return {r.name: r for r in compare_with_transformers(model, folder)}


def test_logits_tokens_and_chat_template_are_compared(folder):
    model = ch.load(folder, device="cpu")
    passed = results(model, folder)
    assert list(passed) == ["logits", "tokens", "chat template"]
    assert all(r.passed and r.difference is not None for r in passed.values())
    net = ch.Model(model.net, model.config, ch.Tokenizer.bytes())
    config = model.config.replace(inference__chat_template=TEMPLATE.replace(" | trim", ""))
    chat = ch.Model(model.net, config, model.tokenizer)
    assert not results(net, folder)["tokens"].passed
    assert not results(chat, folder)["chat template"].passed
    refusal = model.config.replace(inference__chat_template="{{ raise_exception('no') }}")
    refusing = ch.Model(model.net, refusal, model.tokenizer)
    assert not results(refusing, folder)["chat template"].passed
    with torch.no_grad():
        model.net.blocks[1].attn.v.weight *= 1.01
    assert not results(model, folder)["logits"].passed


def test_a_difference_is_an_error(folder, tmp_path, monkeypatch):
    """Exit status 1 in the shell; `load` raises."""
    runner = CliRunner()
    done = runner.invoke(app, ["verify", str(folder), "--against", "transformers"])
    assert done.exit_code == 0
    assert "3 passed, 0 failed" in done.output

    original = transformers.LlamaForCausalLM.from_pretrained

    def scaled(*args, **options):
        model = original(*args, **options)
        model.model.norm.weight.data *= 1.01
        return model

    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", scaled)
    done = runner.invoke(app, ["verify", str(folder), "--against", "transformers"])
    assert done.exit_code == 1
    assert "FAIL  logits" in done.output
    with pytest.raises(ch.ClearheadError, match="logits: largest difference"):
        ch.load(folder, device="cpu", verify=True)


def test_only_hugging_face_folders_can_be_compared(tmp_path):
    ch.save(ch.new("tiny-decoder"), tmp_path / "own")
    with pytest.raises(ch.ClearheadError, match="not a Hugging Face folder"):
        ch.load(tmp_path / "own", verify=True)


def test_drawn_texts_are_reproducible():
    import random

    texts = draw_texts(random.Random(3))
    assert texts == draw_texts(random.Random(3)) != draw_texts(random.Random(4))
