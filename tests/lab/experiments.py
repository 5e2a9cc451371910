"""Experiments that take seconds: a text of few words, and the smallest model that reads it."""

import random

SMALL = {
    "model.width": 16,
    "model.layers": 1,
    "model.attention.heads": 2,
    "model.ffn.width": 32,
    "model.context": 16,
    "data.tokenizer": "bytes",
    "train.rows": 4,
    "train.steps": 6,
    "train.warmup": 1,
    "train.report": 2,
    "train.check": 2,
    "train.save": 2,
}
POSITIONS = {"model.position": ["none", "learned", "rotary"]}


def text(folder):
    draw, words = random.Random(0), ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "old", "house"]
    path = folder / "text.txt"
    path.write_text("\n".join(" ".join(draw.choices(words, k=8)) for _ in range(120)))
    return str(path)


def flags(**changes):
    return [word for name, value in {**SMALL, **changes}.items() for word in (f"--{name}", str(value))]
