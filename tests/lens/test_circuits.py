"""Circuits: the factored matrices say what the whole ones would, and neurons tell where they were excited."""

import re

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.lens import circuits

WORDS = {"vocabulary": 256, "tokenizer": ch.Tokenizer.bytes()}


def new(name="tiny-decoder", **changes):
    model = ch.new(name, seed=3, **WORDS, **changes)
    draw = torch.Generator().manual_seed(5)
    for module in model.net.modules():  # norms that do something
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            module.weight.data += 0.3 * torch.randn(module.weight.shape, generator=draw)
    return model.net.requires_grad_(False) and model


def centred(x, norm):
    return x - x.mean(dim=-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else x


def whole(model, layer, head, kind):
    """The matrix as the equations have it, vocabulary × vocabulary."""
    net = model.net
    m = model.config.model
    block = net.blocks[layer]
    d = m.d_head
    group = m.attention.n_heads // m.n_kv_heads
    rows = slice(head * d, (head + 1) * d)
    shared = slice(head // group * d, (head // group + 1) * d)
    read = centred(net.embed.tokens.weight, block.attn_norm) * block.attn_norm.weight
    if kind == "QK":
        return (
            (read @ block.attn.q.weight[rows].T) @ (read @ block.attn.k.weight[shared].T).T / d**0.5
        )
    written = read @ block.attn.v.weight[shared].T @ block.attn.out.weight[:, rows].T
    return (centred(written, net.norm) * net.norm.weight) @ net.head.unembed.weight.T


@pytest.mark.parametrize("kind", ["OV", "QK"])
@pytest.mark.parametrize("name", ["tiny-decoder", "tiny-llama"])
def test_rows_columns_and_pairs_are_those_of_the_whole_matrix(name, kind, monkeypatch):
    monkeypatch.setattr(circuits, "BLOCK", 7 * 256)  # several blocks
    model = new(name, attention__qk_norm=False) if name == "tiny-llama" else new(name)
    told = ch.lens.circuit(model, 1, 3, kind)
    matrix = whole(model, 1, 3, kind)
    pieces = model.tokenizer.to_str_tokens
    for view, want in ((told.row("a", 5), matrix[97]), (told.column(98, 5), matrix[:, 98])):
        best = want.topk(5)
        assert torch.allclose(view.values, best.values, atol=1e-5)
        assert list(view.axes[0].labels) == pieces(best.indices.tolist())
    best = matrix.flatten().topk(9)
    pairs = told.top_pairs(9)
    assert torch.allclose(pairs.values, best.values, atol=1e-5)
    first = int(best.indices[0])
    assert pairs.axes[0].labels[0] == " → ".join(pieces([first // 256, first % 256]))


def test_eigenvalues_are_those_of_the_whole_matrix():
    told = ch.lens.circuit(new(), 0, 1)
    matrix = whole(new(), 0, 1, "OV")
    found = torch.linalg.eigvals(matrix.double())
    want = found[found.abs().argsort(descending=True)][: len(told.eigenvalues)]
    assert torch.allclose(told.eigenvalues.abs(), want.abs().float(), atol=1e-3, rtol=1e-3)
    assert told.copying_score == pytest.approx(float(matrix.trace() / want.abs().sum()), abs=1e-3)
    assert torch.equal(told.spectrum().values[:, 0], told.eigenvalues.real)


def test_a_head_that_copies_has_only_positive_eigenvalues():
    model = new()
    attention = model.net.blocks[0].attn
    attention.v.weight[:8] = torch.eye(32)[:8]
    attention.out.weight[:, :8] = torch.eye(32)[:, :8]
    model.net.blocks[0].attn_norm.weight.fill_(1)
    model.net.final_norm.weight.fill_(1)
    assert ch.lens.circuit(model, 0, 0).copying_score > 0.99


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
@pytest.mark.parametrize("name", ["tiny-decoder", "tiny-llama"])
def test_composition_is_the_length_of_the_product(name, kind):
    from clearhead.lens.circuits import head_matrices

    model = new(name)
    one, two = (head_matrices(model.net, i) for i in (0, 1))
    told = ch.lens.composition(model, kind)
    heads = model.config.model.attention.n_heads
    for i in range(heads):
        for j in range(heads):
            written = one.o[i] @ one.v[i]
            read = {
                "Q": two.k[j].T @ two.q[j],
                "K": two.q[j].T @ two.k[j],
                "V": two.o[j] @ two.v[j],
            }[kind]
            want = (read @ written).norm() / (read.norm() * written.norm())
            assert float(told.values[i, heads + j]) == pytest.approx(float(want), rel=1e-4)
    assert not told.values[heads:].any()
    assert not told.values[:heads, :heads].any()


def test_neurons_tell_the_places_that_excite_them(tmp_path):
    model = new()
    texts = ["a first text", "and another one, longer than the others " * 5, "short", "four"] * 6
    told = ch.lens.max_activating_examples(model, 1, texts, [5, 17], top=4)
    room = model.config.model.context_length
    pieces = [text[i : i + room] for text in texts for i in range(0, len(text), room)]
    excited = [model.watch(piece, "blocks.1.ffn.post")["blocks.1.ffn.post"][0] for piece in pieces]
    for i, neuron in enumerate((5, 17)):
        want = torch.cat([value[:, neuron] for value in excited]).topk(4).values
        assert torch.allclose(told.values[i], want, atol=1e-5)
    best = max(range(len(pieces)), key=lambda i: float(excited[i][:, 5].max()))
    at = int(excited[best][:, 5].argmax())
    assert f"‹{pieces[best][at]}›".replace(" ", "") in told.table()[0]["text"].replace(" ", "")
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join([*texts, ""]))
    assert torch.equal(
        ch.lens.max_activating_examples(model, 1, path, [5, 17], top=4).values, told.values
    )


def test_a_classifiers_heads_are_asked_about_words_not_classes():
    model = new("tiny-encoder", head="classification")
    assert torch.equal(
        *(ch.lens.circuit(model, 0, 0, "QK").row(token).values for token in ("a", ord("a")))
    )


def test_what_is_normed_as_it_is_read_is_normed_here():
    model = new("tiny-encoder")
    embed = model.net.embed
    attention = model.net.blocks[0].attn
    with torch.no_grad():
        table = embed.tokens.weight
        read = (table - table.mean(dim=-1, keepdim=True)) * embed.norm.weight
        q, k = (read @ matrix.weight[8:16].T for matrix in (attention.q, attention.k))
    want = (q[5] @ k.T / 8**0.5).topk(10).values
    torch.testing.assert_close(ch.lens.circuit(model, 0, 1, "QK").row(5).values, want)


def test_a_corpus_that_is_no_text_is_told(tmp_path):
    (tmp_path / "corpus.txt").write_bytes("caf\xe9".encode("latin-1"))
    with pytest.raises(ch.ClearheadError, match=r"corpus\.txt:1: the line is not UTF-8"):
        ch.lens.max_activating_examples(new(), 0, tmp_path / "corpus.txt", 1)


MISTAKES = [
    (lambda m: ch.lens.max_activating_examples(m, 0, ["a"], None), "there is no neuron None"),
    (lambda m: ch.lens.circuit(m, 2, 0), "there is no layer 2"),
    (lambda m: ch.lens.circuit(m, 0, 4), "there is no head 4"),
    (lambda m: ch.lens.circuit(m, 0, 0, "VO"), "there is no circuit 'VO'; known: OV, QK."),
    (lambda m: ch.lens.circuit(m, 0, 0).row("word"), "'word' is 4 tokens here"),
    (lambda m: ch.lens.circuit(m, 0, 0).row(256), "there is no answer 256"),
    (lambda m: ch.lens.circuit(m, 0, 0).top_pairs(0), "top = 0 must be at least 1"),
    (lambda m: ch.lens.circuit(ch.new("tiny-pictures"), 0, 0), "OV goes from words to words"),
    (lambda m: ch.lens.composition(m, "X"), "heads compose by Q, K or V, not by 'X'."),
    (lambda m: ch.lens.max_activating_examples(m, 0, ["a"], 10**6), "there is no neuron 1000000"),
    (lambda m: ch.lens.max_activating_examples(m, 0, ["a"], ["b"]), "there is no neuron b"),
    (lambda m: ch.lens.max_activating_examples(m, 0, [5], 1), "a corpus is a list of texts"),
    (lambda m: ch.lens.max_activating_examples(m, 0, ["", " "], 1), "the corpus is empty"),
    (lambda m: ch.lens.max_activating_examples(m, 0, "/no/file", 1), "there is no file '/no/file'"),
    (lambda m: ch.lens.max_activating_examples(m, 9, ["a"], 1), "there is no layer 9"),
    (
        lambda m: ch.lens.max_activating_examples(ch.new("tiny-pictures"), 0, ["a"], 1),
        "reads text alone",
    ),
]


@pytest.mark.parametrize(("mistake", "words"), MISTAKES)
def test_a_mistake_gets_a_sentence(mistake, words):
    with pytest.raises(ch.ClearheadError, match=re.escape(words)):
        mistake(new())


def test_layers_and_heads_count_from_the_end_below_0():
    model = new()
    assert ch.lens.circuit(model, -1, -1).location == "layer 1, head 3"
    assert ch.lens.max_activating_examples(model, -1, ["a cat"], 1).values.equal(
        ch.lens.max_activating_examples(model, 1, ["a cat"], 1).values
    )
    seen = model.watch("abc", "blocks.1.attn.pattern")
    assert ch.lens.attention_figure(seen, layer=-1)
    row = ch.lens.softmax_steps(model, "abc", layer=-1, head=-1)
    assert row.title.startswith("layer 1, head 3")
    last, second = (ch.vectors(model, layer).similarity(["a", "b"]) for layer in (-1, 1))
    assert last.values.equal(second.values)


def test_a_circuit_is_told_in_a_line():
    assert repr(ch.lens.circuit(new(), 0, 1)) == "<OV of layer 0, head 1: logit, 256 × 256 tokens>"
