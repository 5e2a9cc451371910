"""Measures a bundled model and writes figures, and samples as they come, into its card: recipes/measure.py NAME BUILD

BUILD is what prepare.py made, a folder for each name; for words it is the file of Google's analogies.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path

import clearhead as ch
from clearhead.weights.model_cards import BUNDLED_DIR, BUNDLED_NAMES, update_card
from clearhead.word_vectors.benchmark import benchmark

WHAT = {  # the files, what they are, and the figures that are told
    "story": (("valid.txt",), "329 held-out TinyStories", ("bits per byte", "perplexity")),
    "en-de": (("test.en", "test.de"), "the Tatoeba Challenge's test set", ("bleu", "chrf")),
    "fill": (("valid.txt",), "held-out books and articles", ("accuracy", "perplexity")),
    "mood": (("dev.tsv",), "SST-2's dev set", ("accuracy",)),
    "digits": (("mnist/t10k-images-idx3-ubyte",), "MNIST's test set", ("accuracy",)),
    "spoken-digits": (("takes/test",), "takes 0 to 4 of each speaker", ("accuracy",)),
}
EVERYDAY = (
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
HIDDEN = (
    "The [MASK] barked at the cat.",
    "She opened the [MASK] and looked out into the garden.",
    "Paris is the capital of [MASK].",
    "He was very [MASK] because he had not slept all night.",
)
SAID = (
    "A warm, funny film with a heart.",
    "It is far too long, and nobody in it is worth caring about.",
    "I did not expect to like it, but I did.",
    "The actors are splendid; the story is not.",
    "Not bad at all.",
    "It could have been a masterpiece.",
    "The food was cold and the waiter was rude.",
    "The train leaves at nine.",
)


def figures(name: str, build: Path) -> list[dict[str, object]]:
    if name == "words":
        result = benchmark(ch.vectors(BUNDLED_DIR / name), build)
        share = float(result.numpy()[-1])
        count = result.asked[-1]
        apart = 1.96 * math.sqrt(share * (1 - share) / count)
        where = f"Google's analogies, the {count:,} whose words all have vectors"
        command = "clearhead vectors words --benchmark questions-words.txt"
        return [_told("accuracy", (share, share - apart, share + apart), where, command)]
    files, where, wanted = WHAT[name]
    command = (
        f"clearhead evaluate {name} --data {' '.join(f'build/{name}/{file}' for file in files)}"
    )
    found = _measured(ch.load(name), [str(build / file) for file in files])
    told = [_told(key, found[key], where, command) for key in wanted]
    return told + (unheard(build) if name == "spoken-digits" else [])


def unheard(build: Path) -> list[dict[str, object]]:
    """Each voice as it is understood by a model that was trained on the five others."""
    found = []
    for run in sorted(build.glob("run_*")):
        speaker = run.name.removeprefix("run_")
        command = f"clearhead evaluate build/spoken-digits/{run.name} --data build/spoken-digits/{speaker}/test"
        where = f"all takes of {speaker}, by a model of the five other voices"
        found.append(
            _told(
                "accuracy",
                _measured(ch.load(run), [str(build / speaker / "test")])["accuracy"],
                where,
                command,
            )
        )
    return found


def _measured(model: ch.Model, paths: list[str]) -> dict[str, tuple[float | None, ...]]:
    return {
        figure.name: (figure.value, figure.low, figure.high)
        for figure in ch.evaluate(model, paths).figures
    }


def _told(name: str, found: tuple[float | None, ...], on: str, command: str) -> dict[str, object]:
    value, *interval = (each if each is None else round(each, 4) for each in found)
    return {
        "name": name,
        "value": value,
        "confidence_interval": interval,
        "dataset": on,
        "command": command,
    }


def stories(model: ch.Model) -> list[tuple[str, str]]:
    begin = "Once upon a time"
    return [(begin, model.generate(begin, 100, temperature=0.8, seed=seed).text) for seed in range(10)]


def translations(model: ch.Model) -> list[tuple[str, str]]:
    return [
        (text, found.text)
        for text, found in zip(EVERYDAY, model.translate(list(EVERYDAY)), strict=True)
    ]


def guesses(model: ch.Model) -> list[tuple[str, str]]:
    return [
        (text, ", ".join(guess.word.strip() for guess in model.fill(text).masks[0])) for text in HIDDEN
    ]


def moods(model: ch.Model) -> list[tuple[str, str]]:
    told = zip(SAID, model.classify(list(SAID)), strict=True)
    return [(text, f"{judged.label}, {judged.score:.1%}") for text, judged in told]


SAMPLES: dict[str, Callable[[ch.Model], list[tuple[str, str]]]] = {
    "story": stories,
    "en-de": translations,
    "fill": guesses,
    "mood": moods,
}


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in BUNDLED_NAMES:
        sys.exit(__doc__)
    name = sys.argv[1]
    build = Path(sys.argv[2])
    sampled = SAMPLES[name](ch.load(name)) if name in SAMPLES else []
    examples = [{"input": given, "output": came} for given, came in sampled]
    card = update_card(
        BUNDLED_DIR / name, {"metrics": figures(name, build), "examples": examples}
    )
    for metric in card.metrics:
        print(f"{metric.name} {metric.value} {metric.confidence_interval} on {metric.dataset}")
