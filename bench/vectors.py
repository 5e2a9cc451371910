"""Training word vectors against gensim: speed, and scores on published benchmarks.

python bench/vectors.py TEXT QUESTIONS… [--gensim PYTHON] [--epochs 3] [--rounds 2] [--save]

TEXT has whitespace-separated words; PYTHON is an interpreter with gensim, if this one has none.
Both get the same words and options, in interleaved rounds. Total time is from lists of words to
vectors; training time excludes building the vocabulary. gensim uses --threads 2, ours one thread.
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

import benchmark_results


def read(text: str) -> list[list[str]]:
    return [line.split() for line in Path(text).read_text(encoding="utf-8").splitlines()]


def train_ours(lines: list[list[str]], out: str, epochs: int, _: int) -> tuple[float, float]:
    from clearhead.word_vectors.io import VectorTable, write_vectors
    from clearhead.word_vectors.skip_gram import Corpus, SkipGramConfig, SkipGramTrainer

    start = time.perf_counter()
    trainer = SkipGramTrainer(
        Corpus.from_lines(lines, SkipGramConfig().min_count), SkipGramConfig(epochs=epochs)
    )
    training_start = time.perf_counter()
    for _ in trainer:
        pass
    end = time.perf_counter()
    write_vectors(Path(out), VectorTable(trainer.corpus.words, trainer.input_vectors))
    return end - start, end - training_start


def train_gensim(
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
    training_start = time.perf_counter()
    model.train(lines, total_examples=model.corpus_count, epochs=epochs)
    end = time.perf_counter()
    model.wv.save_word2vec_format(out, binary=True)
    return end - start, end - training_start


TRAINERS = {"ours": train_ours, "gensim": train_gensim}


def run_in_subprocess(side: str, text: str, out: str, epochs: str, threads: str) -> None:
    """One training run in a separate process."""
    lines = read(text)
    total, training = TRAINERS[side](lines, out, int(epochs), int(threads))
    versions = {} if side == "ours" else {side: version(side)}
    print(
        json.dumps(
            {
                "total": total,
                "training": training,
                "words": sum(map(len, lines)),
                "versions": versions,
            }
        )
    )


def main() -> None:
    if sys.argv[1:2] == ["work"]:
        return run_in_subprocess(*sys.argv[2:])
    parser = argparse.ArgumentParser()
    parser.add_argument("text")
    parser.add_argument("questions", nargs="*")
    parser.add_argument("--gensim", default=sys.executable)
    for name, default in (("epochs", 3), ("rounds", 2), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    benchmark_results.add_save_argument(parser)
    args = parser.parse_args()
    pythons = {"ours": sys.executable, "gensim": args.gensim}
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in TRAINERS}
    with tempfile.TemporaryDirectory() as folder:
        for index in range(args.rounds):
            for side in list(TRAINERS) if index % 2 == 0 else list(TRAINERS)[::-1]:
                arguments = args.text, f"{folder}/{side}.bin", str(args.epochs), str(args.threads)
                command = [pythons[side], __file__, "work", side, *arguments]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                runs[side].append(json.loads(done.stdout))
        for part in ("total", "training"):
            rates = {
                side: [run["words"] * args.epochs / run[part] for run in side_runs]
                for side, side_runs in runs.items()
            }
            for side, rate in rates.items():
                spread = f"({min(rate):,.0f}–{max(rate):,.0f})"
                ratio = median(rate) / median(rates["gensim"])
                print(
                    f"{part:<9} {side:<7} {median(rate):12,.0f} words/s {spread:<24} x {ratio:.2f}"
                )
            if part == "total":
                title = "skip-gram with negative sampling"
                rows = benchmark_results.compare(f"{title}: throughput", "words/s", rates)
        for file, scores in _evaluate(folder, args.questions).items():
            values = [benchmark_results.measurement(scores[side]) for side in TRAINERS]
            ratio = benchmark_results.measurement(scores["ours"] / scores["gensim"])
            rows.append(
                benchmark_results.Row(
                    f"{title}: {file}", "score", values[0], "gensim", values[1], ratio, 1
                )
            )
    if args.save:
        benchmark_results.save(rows, **runs["gensim"][0]["versions"])
    return None


def _evaluate(folder: str, questions: list[str]) -> dict[str, dict[str, float]]:
    """The scores for each file of questions."""
    from clearhead.word_vectors.benchmark import evaluate_vectors
    from clearhead.word_vectors.vectors import vectors

    scores: dict[str, dict[str, float]] = {}
    for file in questions:
        for side in TRAINERS:
            result = evaluate_vectors(vectors(f"{folder}/{side}.bin"), file)
            scores.setdefault(Path(file).stem, {})[side] = float(result.values[-1])
            print(
                f"{Path(file).stem:<16} {side:<7} {result.value_name} "
                f"{float(result.values[-1]):.4f}"
            )
    return scores


if __name__ == "__main__":
    main()
