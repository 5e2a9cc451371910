"""The small worlds of the tour: texts made up by rules, and models that learn them in seconds.

A model is trained when a notebook first asks for it, and found again after that: it lies in the folder for temporary
files. The texts are simple enough that one knows what there is to be learned, and so what to look for inside.
"""

import random
import tempfile
from itertools import product
from pathlib import Path

import torch

import clearhead as ch

torch.set_num_threads(1)  # these models are so small that more would only wait for each other
HERE = Path(tempfile.gettempdir()) / f"clearhead-tour-{ch.__version__}"

ANIMALS = {"cat": "cats", "dog": "dogs", "cow": "cows", "horse": "horses", "chicken": "chickens"}
VERBS = {"sees": "see", "likes": "like", "hears": "hear"}
PLACES = ("road", "river", "field", "garden")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SHAPE = {
    "width": 48, "layers": 2, "attention__n_heads": 4, "ffn__d_ff": 96, "context": 32, "dropout__embedding": 0.0,
    "dropout__residual": 0.0, "data__valid_fraction": 0.02, "train__batch_size": 16, "train__warmup_steps": 10,
    "train__seq_len": 32,
}  # fmt: skip


def copies(count: int = 3000) -> list[str]:
    """A string of letters, then the same again: what comes next can only be found by looking back."""
    draw = random.Random(0)
    words = ["".join(draw.sample("abcdefghijkl", draw.randint(3, 8))) for _ in range(count)]
    return [f"{word}-{word}" for word in words]


def sentences(count: int = 3000) -> list[str]:
    """Simple English: one cat sees, two cats see; it was too tired, it was too wide; three meanings of mole."""
    draw = random.Random(0)

    def verb() -> str:
        one = draw.choice([*ANIMALS.items()])
        other = draw.choice([*ANIMALS.items()])
        number = draw.randrange(2)
        sees = draw.choice([*VERBS.items()])
        near = (
            f" near the {draw.choice([*ANIMALS.items()])[draw.randrange(2)]}"
            if draw.random() < 0.5
            else ""
        )
        return f"the {one[number]}{near} {sees[number]} the {other[draw.randrange(2)]} ."

    def crossing() -> str:
        why = draw.choice(("tired", "wide"))
        return f"the {draw.choice([*ANIMALS])} didn't cross the {draw.choice(PLACES)} because it was too {why} ."

    def mole() -> str:
        return draw.choice(
            (
                f"the mole digs in the {draw.choice(PLACES)} .",
                "the mole on the skin is small .",
                "the doctor looks at the mole on the skin .",
                "one mole of carbon dioxide weighs 44 grams .",
            )
        )

    return [draw.choice((verb, verb, verb, crossing, mole))() for _ in range(count)]


def stories() -> list[str]:
    """Men and women, royal or not, young or not; one thing and several: for vectors of words."""
    people = {
        "king": "he crown palace", "queen": "she crown palace", "man": "he work street", "woman": "she work street",
        "prince": "he crown school", "princess": "she crown school", "boy": "he toys school", "girl": "she toys school",
    }  # fmt: skip
    things = {
        **ANIMALS,
        "student": "students",
        "teacher": "teachers",
        "apple": "apples",
        "tree": "trees",
    }
    said = ("the {} says what {} wants", "the {} has the {}", "the {} goes to the {}")
    lines = [
        line.format(one, word)
        for one, x in people.items()
        for line, word in zip(said, x.split(), strict=True)
    ]
    lines += [f"{number} {one} is here" for number, one in product(("one", "a", "this"), things)]
    lines += [
        f"{number} {many} are here"
        for number, many in product(("two", "many", "these"), things.values())
    ]
    return random.Random(0).sample(lines, len(lines)) * 60


def copier() -> ch.Model:
    """Two layers that have learned `copies`, letter by letter."""
    return _trained("copier", "lm-small", copies(), 250, data__tokenizer="characters")


def teller() -> ch.Model:
    """Two layers that have learned `sentences`, to tell the next word."""
    return _trained("teller", "lm-small", sentences(), 200, data__vocab_size=400)


def reader() -> ch.Model:
    """An encoder that has learned `sentences`, to fill in hidden words."""
    return _trained(
        "reader",
        "mlm-small",
        sentences(),
        400,
        rate=0.01,
        data__vocab_size=400,
        train__batch_size=32,
    )


def translator() -> ch.Model:
    """An encoder-decoder that has learned to say figures as words."""
    draw = random.Random(0)
    rows = [draw.sample(range(10), draw.randint(2, 6)) for _ in range(3000)]
    pairs = [f"{' '.join(map(str, row))}\t{' '.join(NUMBERS[n] for n in row)}" for row in rows]
    return _trained(
        "translator",
        "mt-small",
        pairs,
        300,
        data__vocab_size=400,
        architecture__encoder_layers=2,
        position="learned",
    )


def vectors() -> "ch.lens.vectors.Vectors":
    """A vector for each word of the stories."""
    from clearhead.word_vectors.skip_gram import (
        SkipGramConfig,
        VectorDataConfig,
        Word2VecConfig,
        train_word_vectors,
    )

    text = _written("stories.txt", stories())
    how = SkipGramConfig(vector_size=24, window=4, epochs=10, lr=0.05, subsample=0.0)
    return train_word_vectors(
        Word2VecConfig(VectorDataConfig((str(text),)), how), HERE / "vectors", log=lambda line: None
    )


def _trained(
    name: str, recipe: str, lines: list[str], steps: int, rate: float = 0.03, **changes: object
) -> ch.Model:
    """A recipe made small; where it was trained before, it is only read."""
    text = _written(f"{name}.tsv" if "\t" in lines[0] else f"{name}.txt", lines)
    rates = {"train__optimizer__lr": rate, "train__optimizer__adam__lr": rate / 3}
    often = {f"train__{word}": steps for word in ("steps", "check", "save", "report")}
    options = {**SHAPE, **rates, **often, **changes, "data__train": str(text)}
    return ch.train(recipe, HERE / name, quiet=True, compile=False, device="cpu", **options)


def _written(name: str, lines: list[str]) -> Path:
    HERE.mkdir(exist_ok=True)
    path = HERE / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
