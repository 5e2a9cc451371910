"""Vectors of words: near words, sums, directions; files in and out; published questions."""

import math
import re

import pytest
import torch
from safetensors import safe_open

import clearhead as ch
from clearhead.config.parse import read_config_file
from clearhead.io import write_atomic
from clearhead.weights.model_cards import BUNDLED_DIR
from clearhead.word_vectors import io
from clearhead.word_vectors.benchmark import evaluate_vectors, spearman
from clearhead.word_vectors.io import VectorTable, read_vectors, write_vectors
from clearhead.word_vectors.vectors import parse_terms

WORDS = ["king", "queen", "man", "woman", "apple"]
ROYAL, MALE, FEMALE, FRUIT = torch.eye(4)
TABLE = VectorTable(WORDS, torch.stack([ROYAL + MALE, ROYAL + FEMALE, MALE, FEMALE, FRUIT]))


@pytest.fixture
def known():
    return ch.vectors(TABLE)


@pytest.fixture(scope="module")
def model():
    texts = ["the king and the queen saw a man and a woman eat an apple"] * 3
    tokenizer = ch.Tokenizer.train_bpe(texts, 300)
    return ch.new("tiny-decoder", vocab_size=len(tokenizer), tokenizer=tokenizer, seed=1)


def test_an_analogy_is_solved_and_its_own_words_are_no_answer(known):
    solved = known.solve("king - man + woman", top=2)
    assert solved.axes[0].labels[0] == "queen"
    unit = torch.nn.functional.normalize(TABLE.vectors, dim=-1)
    goal = torch.nn.functional.normalize(unit[0] - unit[2] + unit[3], dim=0)
    torch.testing.assert_close(solved.values[0], unit[1] @ goal)
    assert not {"king", "man", "woman"} & {*solved.axes[0].labels}


def test_a_direction_says_how_far_each_word_lies_along_it(known):
    female = known.direction([("king", "queen"), ("man", "woman")])
    assert female.score("woman") == pytest.approx(1.0)
    assert female.score("man") == pytest.approx(-1.0)
    assert female.scores(["apple", "queen"]).table()[1] == {
        "word": "queen",
        "score": pytest.approx(1.0),
    }
    torch.testing.assert_close(female.agreement().values, torch.ones(2, 2))


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("king", [(1, "king")]),
        ("king - man + woman", [(1, "king"), (-1, "man"), (1, "woman")]),
        ("- man + New York − mother-in-law", [(-1, "man"), (1, "New York"), (-1, "mother-in-law")]),
    ],
)
def test_sums_are_read_as_people_write_them(written, found):
    assert parse_terms(written) == found


@pytest.mark.parametrize("written", ["king -", "king - + man", "+", "-"])
def test_half_a_sum_is_refused(written):
    with pytest.raises(ch.ClearheadError, match="write it as king - man"):
        parse_terms(written)


def test_mistakes_are_told_in_a_sentence(known, model):
    for ask, words in [
        (lambda: known.solve("qeen"), "did you mean 'queen'"),
        (lambda: known.solve(" "), "a word is needed"),
        (lambda: known.solve("king - king"), "adds up to nothing"),
        (lambda: known.solve("king", top=0), "top = 0 must be at least 1"),
        (lambda: known.direction([("cat",)]), "pairs of words"),
        (lambda: known.similarity("king"), "a list"),
        (lambda: ch.vectors(TABLE, layer=1), "has no layers"),
        (lambda: ch.vectors("no such"), "holds no vectors"),
        (lambda: known.nearest(torch.ones(3)), "a vector has 4 numbers here, not"),
        (lambda: known.nearest("king"), r"near\(word\) takes a word"),
        (lambda: ch.vectors(model, layer=9), "there is no layer 9; this model has layers 0 to"),
        (lambda: ch.vectors(ch.new("tiny-decoder")), "no tokenizer"),
        (lambda: ch.vectors(ch.new("tiny-pictures")), "reads no words"),
    ]:
        with pytest.raises(ch.ClearheadError, match=words):
            ask()


def test_a_word_of_several_tokens_is_their_mean_and_the_view_says_so(model):
    ids = model.tokenizer.encode(" zebra")
    assert len(ids) > 1
    of_model = ch.vectors(model)
    torch.testing.assert_close(
        of_model.vector("zebra"), model.net.embed.tokens.weight[ids].mean(dim=0).detach()
    )
    assert (
        f"'zebra' is the mean of {' '.join(model.tokenizer.pieces(ids))}"
        in of_model.most_similar("zebra", 3).note
    )


def test_a_layers_vectors_are_its_stream_with_the_word_alone(model):
    in_layer = ch.vectors(model, layer=1)
    ids = model.tokenizer.encode(" king")
    want = model.watch([ids], ["blocks.1.resid_post"])["blocks.1.resid_post"][0].mean(dim=0)
    torch.testing.assert_close(in_layer.vector("king"), want)
    one = model.tokenizer.encode("a")
    torch.testing.assert_close(
        in_layer.source.matrix[one[0]], model.watch([one], ["blocks.1.resid_post"])["blocks.1.resid_post"][0, 0]
    )  # fmt: skip


def test_an_encoder_decoder_is_asked_where_it_reads(model):
    both = ch.new(
        "tiny-encoder-decoder", vocab_size=len(model.tokenizer), tokenizer=model.tokenizer
    )
    ids = model.tokenizer.encode(" king")
    seen = both.watch([[0]], ["encoder.blocks.0.resid_post"], source=[ids])[
        "encoder.blocks.0.resid_post"
    ]
    torch.testing.assert_close(ch.vectors(both, layer=0).vector("king"), seen[0].mean(dim=0))


@pytest.mark.parametrize("name", ["folder", "x.bin", "x.txt", "x.vec"])
def test_what_was_saved_is_read_back(tmp_path, name):
    table = VectorTable(
        ["été", "a-b", "c"], torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    )
    write_vectors(tmp_path / name, table)
    read = read_vectors(tmp_path / name)
    assert read.words == table.words
    assert torch.equal(read.vectors, table.vectors)


def test_vectors_and_words_change_at_once(tmp_path, monkeypatch):
    def until_words(path, content):
        if path.name == "words.json":
            raise KeyboardInterrupt
        write_atomic(path, content)

    monkeypatch.setattr(io, "overwrite", until_words)
    for table in (VectorTable(["a", "b"], torch.eye(2)), VectorTable(["b", "a"], 2 * torch.eye(2))):
        with pytest.raises(KeyboardInterrupt):
            write_vectors(tmp_path / "folder", table)
        read = read_vectors(tmp_path / "folder")
        assert read.words == table.words
        assert torch.equal(read.vectors, table.vectors)


def test_folders_of_older_versions_whose_words_stand_beside_are_read():
    old = BUNDLED_DIR / "words"
    with safe_open(old / "vectors.safetensors", "pt") as stored:
        assert not stored.metadata()
    assert read_vectors(old).words == read_config_file(old / "words.json")["words"]


def test_binary_files_without_line_ends_are_read(tmp_path):
    rows = TABLE.vectors.numpy()
    body = b"".join(
        word.encode() + b" " + row.tobytes() for word, row in zip(WORDS, rows, strict=True)
    )
    (tmp_path / "x.bin").write_bytes(b"5 4\n" + body)
    assert torch.equal(read_vectors(tmp_path / "x.bin").vectors, TABLE.vectors)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.bin", b"5 4\nking 0000", "promises 5 words and ends after 0"),
        ("x.txt", b"2 2\na 1 2\nb 1\n", "line 3 has 1 numbers"),
        ("x.txt", b"9 2\na 1 2", "promises 9 words and holds 1"),
        ("x.txt", b"2 1\na 1\na 2\n", "'a' has two vectors"),
        ("x.txt", b"1 1\na nan\n", "not finite"),
        ("x.txt", b"hello\n", "must begin with two numbers"),
        ("x.txt", b"1 1\na b\n", "could not convert"),
    ],
)
def test_broken_files_are_refused_with_a_sentence(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ch.ClearheadError, match=words):
        read_vectors(tmp_path / name)


def test_vectors_take_the_place_of_nothing_but_vectors(tmp_path, known):
    (tmp_path / "full").mkdir()
    for name in ("text.txt", "file", "full/mine"):
        (tmp_path / name).write_text("my own words")
    for name in ("text.txt", "file", "full"):
        with pytest.raises(ch.ClearheadError, match="is there and holds no vectors"):
            known.save(tmp_path / name)
    with pytest.raises(ch.ClearheadError, match="cannot be written"):
        known.save(tmp_path / "file" / "x.txt")
    for name in ("new", "new", "new.txt", "new.txt"):
        known.save(tmp_path / name)
    assert (tmp_path / "text.txt").read_text() == "my own words"


def test_a_word_with_two_vectors_is_found_in_no_time():
    words = [*map(str, range(100_000)), "99999"]
    with pytest.raises(ch.ClearheadError, match="'99999' has two vectors"):
        VectorTable(words, torch.zeros(len(words), 1))


def test_a_word_is_missed_in_a_large_table_without_long_search():
    words = [f"{letter}ord{i}" for letter in "wxyz" for i in range(5_000)]
    with pytest.raises(
        ch.ClearheadError, match="'wrod77' is not one of the 20,000 words; did you mean 'word77'"
    ):
        ch.vectors(VectorTable(words, torch.ones(len(words), 1))).solve("wrod77")


def test_a_word_with_a_space_does_not_fit_word2vecs_format(tmp_path):
    with pytest.raises(ch.ClearheadError, match="save as a folder"):
        write_vectors(tmp_path / "x.bin", VectorTable(["New York"], torch.ones(1, 2)))


def test_spearman_gives_equals_the_mean_of_their_ranks():
    assert spearman(torch.tensor([1.0, 2, 3]), torch.tensor([10.0, 20, 90])) == pytest.approx(1)
    ranks = torch.tensor([1.0, 2.5, 2.5, 4])
    others = torch.tensor([4.0, 3, 2, 1])
    want = torch.corrcoef(torch.stack((ranks, others)))[0, 1]
    assert spearman(torch.tensor([0.0, 5, 5, 9]), others) == pytest.approx(float(want))


def test_analogies_are_counted_by_section_and_unknown_words_left_out(known, tmp_path):
    file = tmp_path / "questions.txt"
    file.write_text(
        ": royal\nMan King Woman Queen\nman king woman apple\n: other\nman king emu queen\n"
    )
    rows = {row["part"]: row for row in evaluate_vectors(known, file).table()}
    assert rows["royal"] == {"part": "royal", "accuracy": 0.5, "asked": 2, "left out": 0}
    assert rows["other"] == {
        "part": "other",
        "accuracy": pytest.approx(math.nan, nan_ok=True),
        "asked": 0,
        "left out": 1,
    }
    assert rows["all"]["asked"] == 2


@pytest.mark.parametrize(
    "text",
    [
        "king\tqueen\t9\nking\tapple\t1\nking\tman\t9\nking\temu\t3\n",
        "Word 1,Word 2,Human (mean)\nking,queen,9\nking,apple,1\nking,man,9\nking,emu,3\n",
        "word1\tword2\tPOS\tSimLex999\nking\tqueen\tN\t9\nking\tapple\tN\t1\nking\tman\tN\t9\nking\temu\tN\t3\n",
    ],
)
def test_similarities_are_read_in_each_published_form(known, tmp_path, text):
    (tmp_path / "pairs.txt").write_text(text)
    row = evaluate_vectors(known, tmp_path / "pairs.txt").table()[0]
    assert (row["asked"], row["left out"]) == (3, 1)
    assert row["correlation"] == pytest.approx(
        spearman(torch.tensor([0.5, 0, 2**-0.5]), torch.tensor([9.0, 1, 9]))
    )


def test_a_model_answers_analogies_among_the_words_of_the_file(model, tmp_path):
    (tmp_path / "q.txt").write_text(": a\nman king woman queen\n")
    assert "among 4 words" in evaluate_vectors(ch.vectors(model), tmp_path / "q.txt").note


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no questions"),
        (": a\nb c d\n", "has 3 words"),
        ("a\tb\tc\n", "two words and a number"),
        ("a\tb\tnan\n", "two words and a number"),
        (": a\nemu gnu elk ape\n", "none of the 1 questions"),
    ],
)
def test_broken_questions_are_refused_with_their_line(known, tmp_path, text, words):
    (tmp_path / "q.txt").write_text(text)
    with pytest.raises(ch.ClearheadError, match=words):
        evaluate_vectors(known, tmp_path / "q.txt")


def test_only_sums_are_solved():
    for sign in "*×·/÷^=":
        with pytest.raises(ch.ClearheadError, match=f"has {re.escape(repr(sign))} after a word"):
            parse_terms(f"king {sign} man")
    assert parse_terms("king - *") == [(1, "king"), (-1, "*")]  # a word like any other
    assert parse_terms("/") == [(1, "/")]
