"""Evaluate a bundled model and update its card: python recipes/measure.py NAME BUILD

BUILD is the output folder of prepare.py; for words, the file of Google's analogies; for sentences,
labels/glue.tar.xz.
"""

import math
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import clearhead as ch
from clearhead.evaluate.metrics import spearman
from clearhead.weights.bundled import BUNDLED_DIR, BUNDLED_NAMES
from clearhead.weights.model_cards import update_card
from clearhead.word_vectors.benchmark import evaluate_vectors

Z_95 = 1.96  # standard deviations of a 95% interval


class Evaluation(NamedTuple):
    files: tuple[str, ...]
    dataset: str
    metrics: tuple[str, ...]


EVALUATIONS = {
    "story": Evaluation(
        ("valid.txt",), "329 held-out TinyStories", ("bits_per_byte", "perplexity")
    ),
    "en-de": Evaluation(
        ("test.en", "test.de"), "the Tatoeba Challenge's test set v2020-05-31", ("bleu", "chrf")
    ),
    "fill": Evaluation(("valid.txt",), "held-out books and articles", ("accuracy", "perplexity")),
    "mood": Evaluation(("dev.tsv",), "SST-2's dev set", ("accuracy",)),
    "digits": Evaluation(("mnist/t10k-images-idx3-ubyte",), "MNIST's test set", ("accuracy",)),
    "spoken-digits": Evaluation(("takes/test",), "takes 0 to 4 of each speaker", ("accuracy",)),
}
TRANSLATION_TEXTS = (
    "Good morning! Did you sleep well?",
    "Where is the nearest train station?",
    "I would like a cup of coffee, please.",
    "How much does this shirt cost?",
    "My sister lives in a small house near the lake.",
    "It is raining, so we are staying at home today.",
    "Could you help me carry these boxes?",
    "He forgot his keys and had to wait outside.",
    "The children are playing football in the garden.",
    "I have been learning German for two years.",
    "What time does the shop close?",
    "She bought three apples and a loaf of bread.",
    "We missed the bus because we got up too late.",
    "Tom does not like fish.",
    "The old man told us a story about the sea.",
    "Please turn off the light when you leave.",
    "I think that this book is better than the film.",
    "The dog was so tired that it fell asleep at once.",
    "If the weather is good, we will go swimming tomorrow.",
    "Thank you very much for your letter.",
)
MASKED_TEXTS = (
    "The [MASK] barked at the cat.",
    "She opened the [MASK] and looked out into the garden.",
    "Paris is the capital of [MASK].",
    "He was very [MASK] because he had not slept all night.",
)
REVIEW_TEXTS = (
    "A warm, funny film with a heart.",
    "It is far too long, and nobody in it is worth caring about.",
    "I did not expect to like it, but I did.",
    "The actors are splendid; the story is not.",
    "Not bad at all.",
    "It could have been a masterpiece.",
    "The food was cold and the waiter was rude.",
    "The train leaves at nine.",
)


def measure(name: str, build: Path) -> list[dict[str, object]]:
    """The metrics of a model's card."""
    if name == "words":
        return [measure_analogies(build)]
    if name == "sentences":
        return [measure_similarity(build), measure_contrast("it"), measure_contrast("adjectives")]
    evaluation = EVALUATIONS[name]
    data = " ".join(f"build/{name}/{file}" for file in evaluation.files)
    command = f"clearhead evaluate {name} --data {data}"
    result = ch.evaluate(ch.load(name), [str(build / file) for file in evaluation.files])
    metrics = []
    for metric_name in evaluation.metrics:
        metric = result[metric_name]
        interval = (metric.low, metric.high)
        label = metric_name.replace("_", " ")
        metrics.append(to_card(label, metric.value, interval, evaluation.dataset, command))
    if name == "spoken-digits":
        metrics += measure_unseen_speakers(build)
    return metrics


def measure_analogies(questions: Path) -> dict[str, object]:
    result = evaluate_vectors(ch.vectors(BUNDLED_DIR / "words"), questions)
    accuracy = float(result.numpy()[-1])
    count = result.num_scored[-1]
    margin = Z_95 * math.sqrt(accuracy * (1 - accuracy) / count)
    dataset = f"Google's analogies, the {count:,} whose words all have vectors"
    command = "clearhead vectors words --benchmark questions-words.txt"
    interval = (accuracy - margin, accuracy + margin)
    return to_card("accuracy", accuracy, interval, dataset, command)


def measure_similarity(archive: Path) -> dict[str, object]:
    """Spearman correlation of cosines and human judgments, with Fieller's interval."""
    with tarfile.open(archive) as tar:
        (member,) = (name for name in tar.getnames() if name.endswith("STS-B/dev.tsv"))
        file = tar.extractfile(member)
        assert file is not None
        rows = [line.split("\t") for line in file.read().decode().splitlines()]
    columns = [rows[0].index(name) for name in ("sentence1", "sentence2", "score")]
    first, second, scores = zip(*([row[i] for i in columns] for row in rows[1:]), strict=True)
    model = ch.load("sentences")
    cosines = (model.embed(list(first)) * model.embed(list(second))).sum(dim=-1)
    correlation = spearman(cosines.numpy(), [float(score) for score in scores])
    margin = Z_95 * math.sqrt(1.06 / (len(scores) - 3))
    low, high = (math.tanh(math.atanh(correlation) + sign * margin) for sign in (-1, 1))
    command = "python recipes/measure.py sentences DATA/labels/glue.tar.xz"
    dataset = f"the {len(scores):,} pairs of STS-B's dev set"
    return to_card("Spearman correlation", correlation, (low, high), dataset, command)


def measure_contrast(contrast: str) -> dict[str, object]:
    result = ch.lens.find_heads(ch.load("sentences"), contrast)
    (layer, head), *_ = result.heads
    effect, control, difference, low, high = result.values[0].tolist()
    dataset = (
        f"head {layer}.{head}, found by the contrast {contrast} and measured on "
        f"{result.num_pairs} other pairs: {effect:.2f}, in the controls {control:.2f}"
    )
    command = f"clearhead see sentences --find-head {contrast}"
    return to_card("difference of attention", difference, (low, high), dataset, command)


def measure_unseen_speakers(build: Path) -> list[dict[str, object]]:
    """Accuracy on each speaker, of a model trained on the five others."""
    metrics = []
    for run in sorted(build.glob("run_*")):
        speaker = run.name.removeprefix("run_")
        folder = "build/spoken-digits"
        command = f"clearhead evaluate {folder}/{run.name} --data {folder}/{speaker}/test"
        dataset = f"all takes of {speaker}, by a model of the five other speakers"
        metric = ch.evaluate(ch.load(run), [str(build / speaker / "test")])["accuracy"]
        interval = (metric.low, metric.high)
        metrics.append(to_card("accuracy", metric.value, interval, dataset, command))
    return metrics


def to_card(
    name: str,
    value: float,
    interval: tuple[float | None, float | None],
    dataset: str,
    command: str,
) -> dict[str, object]:
    return {
        "name": name,
        "value": round(value, 4),
        "confidence_interval": [None if x is None else round(x, 4) for x in interval],
        "dataset": dataset,
        "command": command,
    }


def example_stories(model: ch.Model) -> list[tuple[str, str]]:
    prompt = "Once upon a time"
    return [
        (prompt, model.generate(prompt, 100, temperature=0.8, seed=seed).text) for seed in range(10)
    ]


def example_translations(model: ch.Model) -> list[tuple[str, str]]:
    translations = model.translate(list(TRANSLATION_TEXTS))
    return [
        (text, translation.text)
        for text, translation in zip(TRANSLATION_TEXTS, translations, strict=True)
    ]


def example_predictions(model: ch.Model) -> list[tuple[str, str]]:
    return [
        (text, ", ".join(word.word.strip() for word in model.fill(text).masks[0]))
        for text in MASKED_TEXTS
    ]


def example_classifications(model: ch.Model) -> list[tuple[str, str]]:
    results = model.classify(list(REVIEW_TEXTS))
    return [
        (text, f"{result.label}, {result.score:.1%}")
        for text, result in zip(REVIEW_TEXTS, results, strict=True)
    ]


def example_neighbors(model: ch.Model) -> list[tuple[str, str]]:
    """For each text, the other text with the most similar vector."""
    vectors = model.embed(list(TRANSLATION_TEXTS))
    values, nearest = (vectors @ vectors.mT).fill_diagonal_(-1).max(dim=1)
    return [
        (text, f"{TRANSLATION_TEXTS[i]} ({cosine:.2f})")
        for text, i, cosine in zip(
            TRANSLATION_TEXTS, nearest.tolist(), values.tolist(), strict=True
        )
    ]


EXAMPLES: dict[str, Callable[[ch.Model], list[tuple[str, str]]]] = {
    "story": example_stories,
    "en-de": example_translations,
    "fill": example_predictions,
    "mood": example_classifications,
    "sentences": example_neighbors,
}


def main(name: str, build: Path) -> None:
    pairs = EXAMPLES[name](ch.load(name)) if name in EXAMPLES else []
    examples = [{"input": text, "output": output} for text, output in pairs]
    fields = {"metrics": measure(name, build), "examples": examples}
    card = update_card(BUNDLED_DIR / name, fields)
    for metric in card.metrics:
        print(f"{metric.name} {metric.value} {metric.confidence_interval} on {metric.dataset}")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in BUNDLED_NAMES:
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]))
