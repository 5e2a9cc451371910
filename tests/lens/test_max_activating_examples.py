"""Max activating examples: the tokens of a corpus on which neurons are most active."""

import re

import pytest
import torch

import clearhead as ch
from clearhead.lens import max_activating_examples


def make_model():
    return ch.new("tiny-decoder", seed=3, vocab_size=256, tokenizer=ch.Tokenizer.bytes())


def test_examples_are_those_with_the_largest_activations(tmp_path):
    model = make_model()
    texts = ["a first text", "and another one, longer than the others " * 5, "short", "four"] * 6
    examples = max_activating_examples(model, 1, texts, [5, 17], top_k=4)
    length = model.config.model.context_length
    chunks = [text[i : i + length] for text in texts for i in range(0, len(text), length)]
    name = "blocks.1.ffn.post"
    activations = [model.watch(chunk, name)[name][0] for chunk in chunks]
    for i, neuron in enumerate((5, 17)):
        best = torch.cat([value[:, neuron] for value in activations]).topk(4).values
        assert torch.allclose(examples.values[i], best, atol=1e-5)
    chunk = max(range(len(chunks)), key=lambda i: float(activations[i][:, 5].max()))
    position = int(activations[chunk][:, 5].argmax())
    excerpt = examples.table()[0]["text"].replace(" ", "")
    assert f"‹{chunks[chunk][position]}›".replace(" ", "") in excerpt
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join([*texts, ""]))
    from_file = max_activating_examples(model, 1, path, [5, 17], top_k=4)
    assert torch.equal(from_file.values, examples.values)


def test_negative_layers_count_from_the_end():
    model = make_model()
    last = max_activating_examples(model, -1, ["a cat"], 1)
    assert last.values.equal(max_activating_examples(model, 1, ["a cat"], 1).values)


def test_corpus_that_is_not_utf8(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_bytes("caf\xe9".encode("latin-1"))
    with pytest.raises(ch.ClearheadError, match=r"corpus\.txt:1.*UTF-8"):
        max_activating_examples(make_model(), 0, path, 1)


ERRORS = [
    (lambda m: max_activating_examples(m, 0, ["a"], None), "there is no neuron None"),
    (lambda m: max_activating_examples(m, 0, ["a"], 10**6), "there is no neuron 1000000"),
    (lambda m: max_activating_examples(m, 0, ["a"], ["b"]), "there is no neuron 'b'"),
    (lambda m: max_activating_examples(m, 0, ["a"], []), "at least one neuron"),
    (lambda m: max_activating_examples(m, 0, [5], 1), "must be a list of texts"),
    (lambda m: max_activating_examples(m, 0, ["", " "], 1), "the corpus is empty"),
    (lambda m: max_activating_examples(m, 0, "/no/file", 1), "there is no file '/no/file'"),
    (lambda m: max_activating_examples(m, 9, ["a"], 1), "there is no layer 9"),
    (lambda m: max_activating_examples(ch.new("tiny-images"), 0, ["a"], 1), "of text"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ch.ClearheadError, match=re.escape(message)):
        call(make_model())
