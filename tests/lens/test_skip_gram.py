"""Skip-gram: one step is the gradient of its loss; what is learned tells words apart; seeds decide everything."""

import random

import pytest
import torch
from torch.nn import functional as F

import clearhead as ch
from clearhead.word_vectors import skip_gram
from clearhead.word_vectors.skip_gram import (
    Corpus,
    SkipGramConfig,
    SkipGramTrainer,
    VectorDataConfig,
    Word2VecConfig,
    split_words,
    train_word_vectors,
)


def lines(count=400):
    """Animals keep company with animals, tools with tools."""
    pick = random.Random(0)
    groups = [["cat", "dog", "cow", "hen", "fox"], ["saw", "axe", "nail", "drill", "file"]]
    return [pick.choices(pick.choice(groups), k=12) for _ in range(count)]


def learned(how, corpus=None):
    learner = SkipGramTrainer(corpus or Corpus.from_lines(lines(), how.least), how)
    for _ in learner:
        pass
    return learner


def test_words_are_numbered_by_how_often_they_occur_and_rare_ones_are_left_out():
    corpus = Corpus.from_lines(split_words("A b B c!\nb c, it's mother-in-law\n\nc c"), min_count=2)
    assert corpus.words == ["c", "b"]
    assert corpus.counts.tolist() == [4, 3]
    assert corpus.ids.tolist() == [1, 1, 0, 1, 0, 0, 0]
    assert corpus.line_ids.tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_a_step_is_the_gradient_of_the_loss_written_out(monkeypatch):
    monkeypatch.setattr(skip_gram, "OFTEN", 10**6)  # nothing is held back
    monkeypatch.setattr(skip_gram, "FAR", 10**6)
    generator = torch.Generator().manual_seed(0)
    how = SkipGramConfig(vector_size=6, window=2, min_count=1, subsample=0.0)
    learner = SkipGramTrainer(Corpus.from_lines([list("abcdefgh") * 9], 1), how)
    learner.input_vectors, learner.output_vectors = (
        torch.randn(8, 6, generator=generator).double() for _ in range(2)
    )
    learner.counts_in_step = learner.counts_in_step.double()
    blocks = 2
    rate = 0.1
    size = blocks * learner.block_words
    ids = torch.randint(0, 8, (size + 2 * how.window,), generator=generator)
    before, after = (
        torch.randint(0, 3, (blocks, learner.block_words, 1), generator=generator) for _ in range(2)
    )
    drawn = torch.randint(0, 8, (blocks, skip_gram.BLOCK_WORDS), generator=generator)
    inner, outer = (
        table.clone().requires_grad_() for table in (learner.input_vectors, learner.output_vectors)
    )
    loss = torch.zeros((), dtype=torch.float64)
    for t in range(size):
        b, place = divmod(t, learner.block_words)
        reach = range(-int(before[b, place]), int(after[b, place]) + 1)
        near = [t + how.window + away for away in reach if away]
        x = inner[ids[t + how.window]]
        for other in near:
            loss = loss - F.logsigmoid(x @ outer[ids[other]])
            loss = (
                loss
                - F.logsigmoid(-(outer[drawn[b]] @ x)).sum()
                * how.negative_samples
                / skip_gram.BLOCK_WORDS
            )
    loss.backward()
    learner._train_step(ids, before, after, drawn, rate)
    torch.testing.assert_close(
        learner.input_vectors, inner.detach() - rate * inner.grad, atol=1e-6, rtol=1e-6
    )
    torch.testing.assert_close(
        learner.output_vectors, outer.detach() - rate * outer.grad, atol=1e-6, rtol=1e-6
    )
    assert not learner.counts_in_step.any()


def test_words_of_like_company_become_alike():
    how = SkipGramConfig(vector_size=16, window=3, epochs=20, min_count=1, subsample=0.0)
    learner = learned(how)
    alike = F.normalize(learner.input_vectors, dim=-1)
    alike = alike @ alike.mT
    animal = torch.tensor(
        [word in ("cat", "dog", "cow", "hen", "fox") for word in learner.corpus.words]
    )
    same = animal[:, None] == animal
    assert alike[same & ~torch.eye(10, dtype=torch.bool)].min() > alike[~same].max()


def test_a_word_that_fills_the_text_does_not_blow_up():
    corpus = Corpus.from_lines([["rb", "rt"] * 400 + ["cat", "dog"] * 5] * 10, 1)
    learner = learned(SkipGramConfig(vector_size=16, epochs=20, min_count=1, subsample=0.0), corpus)
    assert learner.input_vectors.norm(dim=-1).max() < 20


def test_windows_end_where_lines_end():
    how = SkipGramConfig(vector_size=8, epochs=2, min_count=1, subsample=0.0)
    learner = learned(how, Corpus.from_lines([["a"], ["b"]] * 300, 1))
    start = SkipGramTrainer(learner.corpus, how)
    assert torch.equal(
        learner.input_vectors, start.input_vectors
    )  # words alone on their lines have no neighbours to learn from


def test_the_seed_decides_the_vectors():
    how = SkipGramConfig(vector_size=8, epochs=1, min_count=1)
    first, again, other = (
        learned(h).input_vectors
        for h in (how, how, SkipGramConfig(vector_size=8, epochs=1, min_count=1, seed=1))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_vectors_are_learned_from_files_and_read_back(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(" ".join(line) for line in lines(50)))
    lesson = Word2VecConfig(
        VectorDataConfig((str(tmp_path / "text.txt"),)), SkipGramConfig(vector_size=8, epochs=1)
    )
    made = train_word_vectors(lesson, tmp_path / "out", log=lambda line: None)
    assert torch.equal(ch.vectors(tmp_path / "out").vector("cat"), made.vector("cat"))


@pytest.mark.parametrize("change", [{"width": 0}, {"epochs": 0}, {"rate": -0.1}, {"sample": 2.0}])
def test_impossible_options_are_refused(change):
    with pytest.raises(ch.ClearheadError, match=r"train\.\w+ = .* must be at least"):
        SkipGramConfig(**change)


def test_what_cannot_be_learned_from_is_told(tmp_path):
    (tmp_path / "text.txt").write_text("one two three")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    texts = VectorDataConfig((str(tmp_path / "text.txt"),))
    for lesson, out, words in [
        (Word2VecConfig(), "out", "nothing to learn from"),
        (Word2VecConfig(texts), "out", "give more text, or a lower least"),
        (Word2VecConfig(texts), "full", "holds no vectors; choose another"),
    ]:
        with pytest.raises(ch.ClearheadError, match=words):
            train_word_vectors(lesson, tmp_path / out)
