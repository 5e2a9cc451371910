"""Word vectors beside gensim's: the same words and options, in turn; speed, and published questions.

python bench/vectors.py TEXT QUESTIONS… [--gensim PYTHON] [--epochs 3] [--rounds 2] [--threads 2] [--keep]

TEXT has a line of words on each line; PYTHON is one that has gensim, if this one has not. Seconds are from lists of
words to vectors, and of those the learning alone; words are counted as they stand in the text. Threads are gensim's:
ours has one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

import kept


def read(text: str) -> list[list[str]]:
    return [line.split() for line in Path(text).read_text(encoding="utf-8").splitlines()]


def learn_ours(lines: list[list[str]], out: str, epochs: int, _: int) -> tuple[float, float]:
    from clearhead.word_vectors.io import VectorTable, write_vectors
    from clearhead.word_vectors.skip_gram import Corpus, SkipGramConfig, SkipGramTrainer

    start = time.perf_counter()
    learner = SkipGramTrainer(
        Corpus.from_lines(lines, SkipGramConfig().min_count), SkipGramConfig(epochs=epochs)
    )
    begun = time.perf_counter()
    for _ in learner:
        pass
    end = time.perf_counter()
    write_vectors(Path(out), VectorTable(learner.corpus.words, learner.input_vectors))
    return end - start, end - begun


def learn_gensim(
    lines: list[list[str]], out: str, epochs: int, threads: int
) -> tuple[float, float]:
    from gensim.models import Word2Vec

    start = time.perf_counter()
    model = Word2Vec(
        sg=1,
        vector_size=100,
        window=5,
        negative=5,
        sample=1e-3,
        min_count=5,
        alpha=0.025,
        workers=threads,
        seed=1,
    )
    model.build_vocab(lines)
    begun = time.perf_counter()
    model.train(lines, total_examples=model.corpus_count, epochs=epochs)
    end = time.perf_counter()
    model.wv.save_word2vec_format(out, binary=True)
    return end - start, end - begun


LEARN = {"ours": learn_ours, "gensim": learn_gensim}


def work(who: str, text: str, out: str, epochs: str, threads: str) -> None:
    """One training in a process of its own."""
    lines = read(text)
    whole, learning = LEARN[who](lines, out, int(epochs), int(threads))
    versions = {} if who == "ours" else {who: version(who)}
    print(
        json.dumps(
            {
                "whole": whole,
                "learning": learning,
                "words": sum(map(len, lines)),
                "versions": versions,
            }
        )
    )


def main() -> None:
    if sys.argv[1:2] == ["work"]:
        return work(*sys.argv[2:])
    parser = argparse.ArgumentParser()
    parser.add_argument("text")
    parser.add_argument("questions", nargs="*")
    parser.add_argument("--gensim", default=sys.executable)
    for name, default in (("epochs", 3), ("rounds", 2), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    kept.offer(parser)
    given = parser.parse_args()
    pythons = {"ours": sys.executable, "gensim": given.gensim}
    runs: dict[str, list[dict[str, float]]] = {who: [] for who in LEARN}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(given.rounds):
            for who in list(LEARN) if turn % 2 == 0 else list(LEARN)[::-1]:
                more = given.text, f"{folder}/{who}.bin", str(given.epochs), str(given.threads)
                command = [pythons[who], __file__, "work", who, *more]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                runs[who].append(json.loads(done.stdout))
        for part in ("whole", "learning"):
            speeds = {
                who: [run["words"] * given.epochs / run[part] for run in found]
                for who, found in runs.items()
            }
            for who, speed in speeds.items():
                spread = f"({min(speed):,.0f}–{max(speed):,.0f})"
                ratio = median(speed) / median(speeds["gensim"])
                print(
                    f"{part:<9} {who:<7} {median(speed):12,.0f} words/s {spread:<24} x {ratio:.2f}"
                )
            if part == "whole":
                title = "skip-gram with negative sampling"
                rows = kept.rows(f"{title}: speed", "words/s", speeds)
        for file, shares in _answer(folder, given.questions).items():
            figures = [kept.figure(shares[who]) for who in LEARN]
            ratio = kept.figure(shares["ours"] / shares["gensim"])
            rows.append(
                kept.Row(f"{title}: {file}", "score", figures[0], "gensim", figures[1], ratio, 1)
            )
    if given.keep:
        kept.write(rows, **runs["gensim"][0]["versions"])
    return None


def _answer(folder: str, questions: list[str]) -> dict[str, dict[str, float]]:
    """For each file of questions, the score of each."""
    from clearhead.word_vectors.benchmark import evaluate_vectors
    from clearhead.word_vectors.vectors import vectors

    found: dict[str, dict[str, float]] = {}
    for file in questions:
        for who in LEARN:
            result = evaluate_vectors(vectors(f"{folder}/{who}.bin"), file)
            found.setdefault(Path(file).stem, {})[who] = float(result.values[-1])
            print(
                f"{Path(file).stem:<16} {who:<7} {result.value_name} {float(result.values[-1]):.4f}"
            )
    return found


if __name__ == "__main__":
    main()
