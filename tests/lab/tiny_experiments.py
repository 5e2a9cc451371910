"""Experiments that take seconds: a short text, and the smallest model that reads it."""

import random

import clearhead as ch

OPTIONS = {
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


def write_text(folder):
    generator = random.Random(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "old", "house"]
    path = folder / "text.txt"
    path.write_text("\n".join(" ".join(generator.choices(words, k=8)) for _ in range(120)))
    return str(path)


def sections(options):
    """{"train": {"max_steps": 5}} from {"train.max_steps": 5}."""
    nested = {}
    for name, value in options.items():
        section, _, option = name.partition(".")
        nested.setdefault(section, {})[option] = value
    return nested


def compare(output, data, vary=POSITIONS, seeds=3, options=None, **arguments):
    """`ch.compare` of tiny models on a CPU, with dotted options."""
    all_options = {**OPTIONS, "data.train": data, **(options or {})}
    return ch.compare(
        "lm-small",
        vary,
        seeds,
        output,
        quiet=True,
        device="cpu",
        **sections(all_options),
        **arguments,
    )


def flags(**changes):
    options = {**OPTIONS, **changes}
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]
