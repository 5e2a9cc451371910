"""Every option of sentence-transformers that changes embeddings is honored, or refused by name."""

import pytest
import torch
from huggingface_models import hf_model
from test_huggingface_inference import load_and_round_trip, write_json

import clearhead as ch

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "query", ":", "a", "b", "A", "B", "c"]
TEXTS = ["a b c", "A B", "b", "a b c a b c a b c", ""]


def sentence_model(folder, modes=("mean",), modules=(), sentence_config=None, **config):
    """A folder as sentence-transformers saves it, with a tokenizer that keeps capital letters."""
    hf_model("bert-bare").save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    tokenizer_config = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    write_json(folder, "tokenizer_config.json", {**tokenizer_config, "model_max_length": 9})
    module = "sentence_transformers.models"
    listed = [("", "Transformer"), ("1_Pooling", "Pooling")]
    listed += [(f"{i}_{name}", name) for i, name in enumerate(modules, 2)]
    write_json(
        folder,
        "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": f"{module}.{name}"}
            for i, (path, name) in enumerate(listed)
        ],
    )
    pooling = {"word_embedding_dimension": 24}
    pooling |= {f"pooling_mode_{mode}_tokens": True for mode in modes}
    write_json(folder, "1_Pooling/config.json", pooling)
    write_json(folder, "sentence_bert_config.json", sentence_config or {})
    write_json(folder, "config_sentence_transformers.json", config)


@pytest.mark.slow
@pytest.mark.parametrize("sentence_config", [{}, {"do_lower_case": True}, {"max_seq_length": 4}])
def test_embeddings_equal_sentence_transformers(sentence_config, tmp_path):
    """Also without prompts, in lowercase, and truncated as the tokenizer's configuration says."""
    library = pytest.importorskip("sentence_transformers")
    prompts = {"query": "query: ", "document": ""}
    folder = tmp_path / "m"
    sentence_model(folder, sentence_config=sentence_config, prompts=prompts)
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    expected = torch.tensor(theirs.encode(TEXTS))
    for model in load_and_round_trip(folder, tmp_path):
        torch.testing.assert_close(model.embed(TEXTS), expected, atol=1e-5, rtol=1e-5)


def test_lowercase_and_length_of_sentence_transformers(tmp_path):
    sentence_model(tmp_path / "m", sentence_config={"do_lower_case": True})
    for model in load_and_round_trip(tmp_path / "m", tmp_path):
        assert model.tokenizer.encode("A b") == model.tokenizer.encode("a B") == [7, 8]
        assert model.config.inference.max_length == 9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"default_prompt_name": "query", "prompts": {"query": "query: "}}, "default_prompt_name"),
        ({"truncate_dim": 8}, "truncate_dim = 8"),
        ({"mystery": 1}, "mystery = 1"),
        ({"sentence_config": {"query_length": 32}}, "query_length = 32"),
        ({"sentence_config": {"tokenizer_args": {"use_fast": False}}}, "tokenizer_args"),
        ({"modules": ["Dense"]}, "Dense"),
        ({"modules": ["LayerNorm"]}, "LayerNorm"),
        ({"modules": ["WeightedLayerPooling"]}, "WeightedLayerPooling"),
        ({"modes": ["weightedmean"]}, "weightedmean"),
        ({"modes": ["mean", "max"]}, "max"),
    ],
)
def test_unsupported_sentence_transformers_options_are_refused(options, words, tmp_path):
    sentence_model(tmp_path, **options)
    with pytest.raises(ch.ClearheadError, match=words):
        ch.load(tmp_path)


def test_options_of_the_normalize_module_are_checked(tmp_path):
    sentence_model(tmp_path, modules=["Normalize"])
    assert ch.load(tmp_path).config.inference.normalize
    write_json(tmp_path, "2_Normalize/config.json", {"module_input_name": "token_embeddings"})
    with pytest.raises(ch.ClearheadError, match="module_input_name"):
        ch.load(tmp_path)
