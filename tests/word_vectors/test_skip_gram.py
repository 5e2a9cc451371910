"""Skip-gram: steps follow the gradient, vectors separate words, seeds make runs repeatable."""

import os
import random
import signal

import pytest
import torch
from torch.nn import functional as F

import clearhead as ch
from clearhead import io
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
    """Lines that contain either animals or tools."""
    pick = random.Random(0)
    groups = [["cat", "dog", "cow", "hen", "fox"], ["saw", "axe", "nail", "drill", "file"]]
    return [pick.choices(pick.choice(groups), k=12) for _ in range(count)]


def train(settings, corpus=None):
    trainer = SkipGramTrainer(corpus or Corpus.from_lines(lines(), settings.min_count), settings)
    for _ in trainer:
        pass
    return trainer


def test_corpus_sorts_words_by_frequency_and_drops_rare_ones():
    corpus = Corpus.from_lines(split_words("A b B c!\nb c, it's mother-in-law\n\nc c"), min_count=2)
    assert corpus.words == ["c", "b"]
    assert corpus.counts.tolist() == [4, 3]
    assert corpus.ids.tolist() == [1, 1, 0, 1, 0, 0, 0]
    assert corpus.line_ids.tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_step_follows_the_gradient_of_the_loss(monkeypatch):
    monkeypatch.setattr(skip_gram, "MAX_UPDATES_PER_WORD", 10**6)  # no limit
    monkeypatch.setattr(skip_gram, "MAX_UPDATE_NORM", 10**6)
    generator = torch.Generator().manual_seed(0)
    settings = SkipGramConfig(vector_size=6, window=2, min_count=1, subsample=0.0)
    trainer = SkipGramTrainer(Corpus.from_lines([list("abcdefgh") * 9], 1), settings)
    trainer.input_vectors, trainer.output_vectors = (
        torch.randn(8, 6, generator=generator).double() for _ in range(2)
    )
    trainer.counts_in_step = trainer.counts_in_step.double()
    blocks = 2
    rate = 0.1
    size = blocks * trainer.block_words
    ids = torch.randint(0, 8, (size + 2 * settings.window,), generator=generator)
    before, after = (
        torch.randint(0, 3, (blocks, trainer.block_words, 1), generator=generator) for _ in range(2)
    )
    drawn = torch.randint(0, 8, (blocks, skip_gram.BLOCK_WORDS), generator=generator)
    inner, outer = (
        table.clone().requires_grad_() for table in (trainer.input_vectors, trainer.output_vectors)
    )
    loss = torch.zeros((), dtype=torch.float64)
    for t in range(size):
        b, place = divmod(t, trainer.block_words)
        reach = range(-int(before[b, place]), int(after[b, place]) + 1)
        near = [t + settings.window + away for away in reach if away]
        x = inner[ids[t + settings.window]]
        for other in near:
            loss = loss - F.logsigmoid(x @ outer[ids[other]])
            loss = (
                loss
                - F.logsigmoid(-(outer[drawn[b]] @ x)).sum()
                * settings.negative_samples
                / skip_gram.BLOCK_WORDS
            )
    loss.backward()
    trainer._train_step(ids, before, after, drawn, rate)
    torch.testing.assert_close(
        trainer.input_vectors, inner.detach() - rate * inner.grad, atol=1e-6, rtol=1e-6
    )
    torch.testing.assert_close(
        trainer.output_vectors, outer.detach() - rate * outer.grad, atol=1e-6, rtol=1e-6
    )
    assert not trainer.counts_in_step.any()


def test_words_of_similar_contexts_become_similar():
    settings = SkipGramConfig(vector_size=16, window=3, epochs=20, min_count=1, subsample=0.0)
    trainer = train(settings)
    alike = F.normalize(trainer.input_vectors, dim=-1)
    alike = alike @ alike.mT
    animal = torch.tensor(
        [word in ("cat", "dog", "cow", "hen", "fox") for word in trainer.corpus.words]
    )
    same = animal[:, None] == animal
    assert alike[same & ~torch.eye(10, dtype=torch.bool)].min() > alike[~same].max()


def test_very_frequent_words_do_not_diverge():
    corpus = Corpus.from_lines([["rb", "rt"] * 400 + ["cat", "dog"] * 5] * 10, 1)
    trainer = train(SkipGramConfig(vector_size=16, epochs=20, min_count=1, subsample=0.0), corpus)
    assert trainer.input_vectors.norm(dim=-1).max() < 20


def test_windows_do_not_cross_lines():
    settings = SkipGramConfig(vector_size=8, epochs=2, min_count=1, subsample=0.0)
    trainer = train(settings, Corpus.from_lines([["a"], ["b"]] * 300, 1))
    start = SkipGramTrainer(trainer.corpus, settings)
    assert torch.equal(
        trainer.input_vectors, start.input_vectors
    )  # words alone on their lines have no neighbors to learn from


def test_seed_determines_the_vectors():
    settings = SkipGramConfig(vector_size=8, epochs=1, min_count=1)
    first, again, other = (
        train(h).input_vectors
        for h in (settings, settings, SkipGramConfig(vector_size=8, epochs=1, min_count=1, seed=1))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_vectors_are_trained_from_files(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(" ".join(line) for line in lines(50)))
    config = Word2VecConfig(
        VectorDataConfig((str(tmp_path / "text.txt"),)), SkipGramConfig(vector_size=8, epochs=1)
    )
    vectors = train_word_vectors(config, tmp_path / "out", log=lambda line: None)
    assert torch.equal(ch.vectors(tmp_path / "out")["cat"], vectors["cat"])


@pytest.mark.parametrize(
    "change", [{"vector_size": 0}, {"epochs": 0}, {"lr": -0.1}, {"subsample": 2.0}]
)
def test_invalid_options_are_rejected(change):
    with pytest.raises(ch.ClearheadError, match=r"train\.\w+"):
        SkipGramConfig(**change)


@pytest.mark.parametrize("suffix", ["", ".vec"])
def test_training_that_was_killed_while_it_wrote_can_be_repeated(suffix, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("so long and thanks for all the fish\n" * 20)
    config = Word2VecConfig(VectorDataConfig((str(tmp_path / "a.txt"),)), SkipGramConfig(epochs=1))
    output = tmp_path / f"words{suffix}"
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(io, "fsync", lambda path: os.kill(os.getpid(), signal.SIGKILL))
        train_word_vectors(config, output, print)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    train_word_vectors(config, output, print)
    assert ch.vectors(output)["fish"].isfinite().all()
    folder = tmp_path if suffix else output
    assert not list(folder.glob(".*"))


def test_invalid_training_runs_are_rejected(tmp_path):
    (tmp_path / "text.txt").write_text("one two three")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    texts = VectorDataConfig((str(tmp_path / "text.txt"),))
    for config, output, message in [
        (Word2VecConfig(), "out", "data.train is empty"),
        (Word2VecConfig(texts), "out", "lower train.min_count"),
        (Word2VecConfig(texts), "full", "does not contain word vectors"),
    ]:
        with pytest.raises(ch.ClearheadError, match=message):
            train_word_vectors(config, tmp_path / output)
