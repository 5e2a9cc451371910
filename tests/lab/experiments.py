"""Experiments that take seconds: a text of few words, and the smallest model that reads it."""

import random

SMALL = {
    "model.d_model": 16,
    "model.n_layers": 1,
    "model.attention.n_heads": 2,
    "model.ffn.d_ff": 32,
    "model.context_length": 16,
    "data.tokenizer": "bytes",
    "train.batch_size": 4,
    "train.max_steps": 6,
    "train.warmup_steps": 1,
    "train.log_every": 2,
    "train.eval_every": 2,
    "train.save_every": 2,
}
POSITIONS = {"model.position": ["none", "learned", "rotary"]}


def text(folder):
    draw = random.Random(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "old", "house"]
    path = folder / "text.txt"
    path.write_text("\n".join(" ".join(draw.choices(words, k=8)) for _ in range(120)))
    return str(path)


def flags(**changes):
    return [
        word for name, value in {**SMALL, **changes}.items() for word in (f"--{name}", str(value))
    ]
