"""Word vectors: nearest words, sums, directions, files and benchmarks."""

import math
import re

import pytest
import torch

import clearhead as ch
from clearhead.errors import ClearheadWarning
from clearhead.word_vectors import io
from clearhead.word_vectors.benchmark import evaluate_vectors, spearman
from clearhead.word_vectors.io import VectorTable, read_vectors, write_vectors
from clearhead.word_vectors.vectors import UnknownWordError, parse_terms

WORDS = ["king", "queen", "man", "woman", "apple"]
ROYAL, MALE, FEMALE, FRUIT = torch.eye(4)
TABLE = VectorTable(WORDS, torch.stack([ROYAL + MALE, ROYAL + FEMALE, MALE, FEMALE, FRUIT]))


@pytest.fixture
def vectors():
    return ch.vectors(TABLE)


@pytest.fixture(scope="module")
def model():
    texts = ["the king and the queen saw a man and a woman eat an apple"] * 3
    tokenizer = ch.Tokenizer.train_bpe(texts, 300)
    return ch.new("tiny-decoder", vocab_size=len(tokenizer), tokenizer=tokenizer, seed=1)


def test_analogy_excludes_its_own_words(vectors):
    solved = vectors.solve("king - man + woman", top_k=2)
    assert solved.axes[0].labels[0] == "queen"
    unit = torch.nn.functional.normalize(TABLE.vectors, dim=-1)
    goal = torch.nn.functional.normalize(unit[0] - unit[2] + unit[3], dim=0)
    torch.testing.assert_close(solved.values[0], unit[1] @ goal)
    assert not {"king", "man", "woman"} & {*solved.axes[0].labels}


def test_direction_scores_words(vectors):
    female = vectors.direction([("king", "queen"), ("man", "woman")])
    assert female.score("woman") == pytest.approx(1.0)
    assert female.score("man") == pytest.approx(-1.0)
    assert female.scores(["apple", "queen"]).table()[1] == {
        "word": "queen",
        "score": pytest.approx(1.0),
    }
    torch.testing.assert_close(female.agreement().values, torch.ones(2, 2))


@pytest.mark.parametrize(
    ("expression", "terms"),
    [
        ("king", [(1, "king")]),
        ("king - man + woman", [(1, "king"), (-1, "man"), (1, "woman")]),
        ("E(king) - E(man) + E(woman)", [(1, "king"), (-1, "man"), (1, "woman")]),
        ("- man + New York − mother-in-law", [(-1, "man"), (1, "New York"), (-1, "mother-in-law")]),
    ],
)
def test_expressions_are_parsed(expression, terms):
    assert parse_terms(expression) == terms


@pytest.mark.parametrize("expression", ["king -", "king - + man", "+", "-"])
def test_incomplete_expressions_are_rejected(expression):
    with pytest.raises(ch.ClearheadError, match="write it as king - man"):
        parse_terms(expression)


def test_invalid_queries_are_rejected(vectors, model):
    for call, message in [
        (lambda: vectors.solve("qeen"), "did you mean 'queen'"),
        (lambda: vectors.solve(" "), "expected a word"),
        (lambda: vectors.solve("king - king"), "cancel out"),
        (lambda: vectors.solve("king", top_k=0), "top"),
        (lambda: vectors.direction([("cat",)]), "list of pairs"),
        (lambda: vectors.similarity("king"), "must be a non-empty list"),
        (lambda: ch.vectors(TABLE, layer=1), "have no layers"),
        (lambda: ch.vectors("no such"), "no word vectors"),
        (lambda: vectors.nearest(torch.ones(3)), r"must have shape \(4,\)"),
        (lambda: vectors.nearest("king"), r"most_similar\(word\)"),
        (lambda: ch.vectors(model, layer=9), "there is no layer 9; this model has layers 0 to"),
        (lambda: ch.vectors(ch.new("tiny-decoder")), "no tokenizer"),
        (lambda: ch.vectors(ch.new("tiny-images")), "does not read text"),
    ]:
        with pytest.raises(ch.ClearheadError, match=message):
            call()


@pytest.mark.parametrize(
    "expression",
    ["king-man+woman", "king -man + woman", "king- man+woman", "E(king)−E(man)+E(woman)"],
)
def test_operators_need_no_spaces(vectors, model, expression):
    for source in (vectors, ch.vectors(model), ch.vectors(model, layer=1)):
        words, total = source.evaluate_expression(expression)
        assert [word.text for word in words] == ["king", "man", "woman"]
        _, expected = source.evaluate_expression("king - man + woman")
        torch.testing.assert_close(total, expected)


def test_hyphenated_words_of_a_table_stay_whole():
    table = VectorTable(["mother-in-law", "law", "C++"], torch.eye(3))
    words, _ = ch.vectors(table).evaluate_expression("mother-in-law + C++")
    assert [word.text for word in words] == ["mother-in-law", "C++"]


def test_two_sides_are_compared(vectors):
    for equation in ("queen - king = woman - man", "E(queen)-E(king) ≈ E(woman)-E(man)"):
        comparison = vectors.compare(equation, top_k=1)
        unit = torch.nn.functional.normalize(TABLE.vectors, dim=-1)
        left = unit[1] - unit[0]
        right = unit[3] - unit[2]
        cosine = float(left @ right / (left.norm() * right.norm()))
        assert comparison.table()[0]["cosine"] == pytest.approx(cosine)
        assert comparison.lengths == pytest.approx((float(left.norm()), float(right.norm())))
        assert (
            comparison.neighbors[0].axes[0].labels
            == vectors.nearest(left, 1, ["queen", "king"]).axes[0].labels
        )


def test_a_shared_word_alone_does_not_exceed_the_control():
    """Each word of the right side in turn is random: a - b and a - c have only a in common."""
    torch.manual_seed(0)
    names = [f"word{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(300)]
    vectors = torch.randn(300, 50)
    vectors[4] = vectors[1] - vectors[0] + vectors[3] + 0.3 * torch.randn(50)
    table = ch.vectors(VectorTable(names, vectors))
    shared = table.compare(f"{names[0]} - {names[1]} = {names[0]} - {names[2]}")
    given, mean, low, high = shared.values.tolist()
    assert 0.3 < given < high
    assert low < mean < given
    assert [low, high] == pytest.approx(
        shared.control.quantile(torch.tensor([0.025, 0.975])).tolist(), abs=1e-6
    )
    parallel = table.compare(f"{names[1]} - {names[0]} = {names[4]} - {names[3]}")
    assert parallel.values[0] > parallel.control.quantile(0.99)  # some draws are the word itself
    assert torch.equal(shared.control, table.compare(shared.title).control)


@pytest.mark.parametrize("equation", ["king = ", "king = man = woman", "king - man", "="])
def test_a_comparison_has_two_sides(vectors, equation):
    with pytest.raises(ch.ClearheadError, match="two sides"):
        vectors.compare(equation)


def test_unknown_words_are_left_out_with_a_warning(vectors):
    with pytest.warns(ClearheadWarning, match="'qeen'"):
        view = vectors.similarity(["king", "qeen", "man"])
    assert view.axes[0].labels == ("king", "man")
    with pytest.warns(ClearheadWarning, match="'dgo'"):
        direction = vectors.direction([("dgo", "dogs"), ("king", "queen")])
    assert direction.pairs == (("king", "queen"),)
    with pytest.warns(ClearheadWarning, match="'frog'"):
        assert direction.scores(["frog", "woman"]).axes[0].labels == ("woman",)
    with pytest.raises(UnknownWordError, match="frog"):
        direction.scores(["frog"])
    with pytest.warns(ClearheadWarning), pytest.raises(ch.ClearheadError, match="each pair"):
        vectors.direction([("king", "dgo")])


def test_subscription_is_that_of_a_mapping(vectors):
    torch.testing.assert_close(vectors["Apple"], FRUIT)
    with pytest.raises(KeyError, match="did you mean 'queen'"):
        vectors["qeen"]


@pytest.mark.parametrize("expression", ["well-known", "C++", "king - well-known"])
def test_hyphens_are_parts_of_words(model, expression):
    assert ch.vectors(model).solve(expression, top_k=1)


def test_word_of_several_tokens_is_their_mean(model):
    ids = model.tokenizer.encode(" zebra")
    assert len(ids) > 1
    of_model = ch.vectors(model)
    torch.testing.assert_close(
        of_model["zebra"], model.net.embed.tokens.weight[ids].mean(dim=0).detach()
    )
    assert (
        f"'zebra' is the mean of {' '.join(model.tokenizer.to_str_tokens(ids))}"
        in of_model.most_similar("zebra", 3).note
    )


def test_layer_vectors_are_the_residual_stream_of_single_words(model):
    in_layer = ch.vectors(model, layer=1)
    ids = model.tokenizer.encode(" king")
    expected = model.watch([ids], ["blocks.1.resid_post"])["blocks.1.resid_post"][0].mean(dim=0)
    torch.testing.assert_close(in_layer["king"], expected)
    ids = model.tokenizer.encode("a")
    resid = model.watch([ids], ["blocks.1.resid_post"])["blocks.1.resid_post"]
    torch.testing.assert_close(in_layer.source.matrix[ids[0]], resid[0, 0])


def test_layer_vectors_of_many_words_are_read_in_one_pass(model, monkeypatch):
    in_layer = ch.vectors(model, layer=1)
    words = ["king", "zebra", "a", "uncharacteristically", "zebra"]
    expected = torch.stack([in_layer[word] for word in words])
    passes = []
    run_batch = ch.Model.run_batch
    monkeypatch.setattr(
        ch.Model, "run_batch", lambda *args: passes.append(args) or run_batch(*args)
    )
    read = in_layer.lookup(words)
    assert len(passes) == 1
    torch.testing.assert_close(torch.stack([word.vector for word in read]), expected)


def test_encoder_decoder_uses_its_encoder(model):
    both = ch.new(
        "tiny-encoder-decoder", vocab_size=len(model.tokenizer), tokenizer=model.tokenizer
    )
    ids = model.tokenizer.encode(" king")
    resid = both.watch([[0]], ["encoder.blocks.0.resid_post"], source=[ids])[
        "encoder.blocks.0.resid_post"
    ]
    torch.testing.assert_close(ch.vectors(both, layer=0)["king"], resid[0].mean(dim=0))


@pytest.mark.parametrize("name", ["folder", "x.bin", "x.txt", "x.vec"])
def test_saved_vectors_round_trip(tmp_path, name):
    table = VectorTable(
        ["été", "a-b", "c"], torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    )
    write_vectors(tmp_path / name, table)
    read = read_vectors(tmp_path / name)
    assert read.words == table.words
    assert torch.equal(read.vectors, table.vectors)


def test_vectors_and_words_change_together(tmp_path, monkeypatch):
    def interrupt(path, value, indent):
        raise KeyboardInterrupt

    monkeypatch.setattr(io, "write_json", interrupt)
    for table in (VectorTable(["a", "b"], torch.eye(2)), VectorTable(["b", "a"], 2 * torch.eye(2))):
        with pytest.raises(KeyboardInterrupt):
            write_vectors(tmp_path / "folder", table)
        read = read_vectors(tmp_path / "folder")
        assert read.words == table.words
        assert torch.equal(read.vectors, table.vectors)


def test_vectors_are_indexed_by_word(vectors):
    assert torch.equal(vectors["king"], TABLE.vectors[0])


def test_binary_files_may_lack_line_ends(tmp_path):
    rows = TABLE.vectors.numpy()
    body = b"".join(
        word.encode() + b" " + row.tobytes() for word, row in zip(WORDS, rows, strict=True)
    )
    (tmp_path / "x.bin").write_bytes(b"5 4\n" + body)
    assert torch.equal(read_vectors(tmp_path / "x.bin").vectors, TABLE.vectors)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.bin", b"5 4\nking " + bytes(16), "expected 5 words, found 1"),
        ("x.txt", b"2 2\na 1 2\nb 1\n", "line 3: expected 2 numbers, found 1"),
        ("x.txt", b"9 2\na 1 2" + b" " * 20, "expected 9 words, found 1"),
        ("x.txt", b"2 1\na 1\na 2\n", "'a' has more than one vector"),
        ("x.txt", b"1 1\na nan\n", "NaN or infinity"),
        ("x.txt", b"hello\n", "not a word2vec file"),
        ("x.txt", b"1 1000000000000\na 1\n", "too short for 1 words"),
        ("x.bin", b"1000000000 1000\na " + bytes(99), "too short for 1,000,000,000 words"),
        ("x.txt", b"1 1\na b\n", "could not convert"),
    ],
)
def test_invalid_vector_files_are_rejected(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ch.ClearheadError, match=message):
        read_vectors(tmp_path / name)


def test_only_word_vectors_are_overwritten(tmp_path, vectors):
    (tmp_path / "full").mkdir()
    for name in ("text.txt", "file", "full/mine"):
        (tmp_path / name).write_text("my own words")
    for name in ("text.txt", "file", "full"):
        with pytest.raises(ch.ClearheadError, match="does not contain word vectors"):
            vectors.save(tmp_path / name)
    with pytest.raises(ch.ClearheadError, match="cannot write"):
        vectors.save(tmp_path / "file" / "x.txt")
    for name in ("new", "new", "new.txt", "new.txt"):
        vectors.save(tmp_path / name)
    assert (tmp_path / "text.txt").read_text() == "my own words"


def test_duplicate_words_are_found_quickly():
    names = [*map(str, range(100_000)), "99999"]
    with pytest.raises(ch.ClearheadError, match="'99999' has more than one vector"):
        VectorTable(names, torch.zeros(len(names), 1))


def test_unknown_words_get_a_suggestion_quickly():
    names = [f"{letter}ord{i}" for letter in "wxyz" for i in range(5_000)]
    with pytest.raises(
        ch.ClearheadError, match=r"'wrod77' is not among the 20,000 words \(did you mean 'word77'"
    ):
        ch.vectors(VectorTable(names, torch.ones(len(names), 1))).solve("wrod77")


def test_word2vec_format_rejects_spaces(tmp_path):
    with pytest.raises(ch.ClearheadError, match="save a folder"):
        write_vectors(tmp_path / "x.bin", VectorTable(["New York"], torch.ones(1, 2)))


def test_spearman_averages_the_ranks_of_ties():
    assert spearman(torch.tensor([1.0, 2, 3]), torch.tensor([10.0, 20, 90])) == pytest.approx(1)
    ranks = torch.tensor([1.0, 2.5, 2.5, 4])
    others = torch.tensor([4.0, 3, 2, 1])
    expected = torch.corrcoef(torch.stack((ranks, others)))[0, 1]
    assert spearman(torch.tensor([0.0, 5, 5, 9]), others) == pytest.approx(float(expected))


def test_analogies_are_scored_by_section(vectors, tmp_path):
    file = tmp_path / "questions.txt"
    file.write_text(
        ": royal\nMan King Woman Queen\nman king woman apple\n: other\nman king emu queen\n"
    )
    rows = {row["part"]: row for row in evaluate_vectors(vectors, file).table()}
    assert rows["royal"] == {"part": "royal", "accuracy": 0.5, "scored": 2, "skipped": 0}
    assert rows["other"] == {
        "part": "other",
        "accuracy": pytest.approx(math.nan, nan_ok=True),
        "scored": 0,
        "skipped": 1,
    }
    assert rows["all"]["scored"] == 2


@pytest.mark.parametrize(
    "text",
    [
        "king\tqueen\t9\nking\tapple\t1\nking\tman\t9\nking\temu\t3\n",
        "Word 1,Word 2,Human (mean)\nking,queen,9\nking,apple,1\nking,man,9\nking,emu,3\n",
        "word1\tword2\tPOS\tSimLex999\nking\tqueen\tN\t9\nking\tapple\tN\t1\nking\tman\tN\t9\nking\temu\tN\t3\n",
    ],
)
def test_similarities_in_published_formats(vectors, tmp_path, text):
    (tmp_path / "pairs.txt").write_text(text)
    row = evaluate_vectors(vectors, tmp_path / "pairs.txt").table()[0]
    assert (row["scored"], row["skipped"]) == (3, 1)
    assert row["correlation"] == pytest.approx(
        spearman(torch.tensor([0.5, 0, 2**-0.5]), torch.tensor([9.0, 1, 9]))
    )


def test_model_candidates_are_the_words_of_the_file(model, tmp_path):
    (tmp_path / "q.txt").write_text(": a\nman king woman queen\n")
    assert "among 4 candidate words" in evaluate_vectors(ch.vectors(model), tmp_path / "q.txt").note


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no questions"),
        (": a\nb c d\n", "four words, got 3"),
        ("a\tb\tc\n", "two words and a number"),
        ("a\tb\tnan\n", "two words and a number"),
        (": a\nemu gnu elk ape\n", "each of the 1 questions"),
    ],
)
def test_invalid_questions_are_rejected_by_line(vectors, tmp_path, text, message):
    (tmp_path / "q.txt").write_text(text)
    with pytest.raises(ch.ClearheadError, match=message):
        evaluate_vectors(vectors, tmp_path / "q.txt")


def test_other_operators_are_rejected():
    for sign in "*×·/÷^=":
        with pytest.raises(ch.ClearheadError, match=f"contains {re.escape(repr(sign))}"):
            parse_terms(f"king {sign} man")
    assert parse_terms("king - *") == [(1, "king"), (-1, "*")]
    assert parse_terms("/") == [(1, "/")]
