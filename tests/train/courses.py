"""Losses that follow a course, as the lines of a log."""

import math
import random

STEPS = 2000
SEEDS = 40


def learned(step):
    return 1.5 + 3 * math.exp(-step / 150)


def log(train, valid=None, check=100, noise=0.01, seed=0, steps=STEPS):
    """Lines of a run whose losses follow two functions of the step, and noise."""
    draw = random.Random(seed)
    valid = valid or train
    lines = []
    for step in range(10, steps + 1, 10):
        lines.append({"step": step, "loss": train(step) + draw.gauss(0, 3 * noise), "factor": 1.0})
        lines[-1]["lessons_per_second"] = 1000
        if step % check == 0:
            lines[-1]["valid"] = valid(step) + draw.gauss(0, noise)
    return lines


def rising(step):
    return learned(step) + 0.0003 * max(0, step - 800)


def memorised(step):
    return 0.5 + 4 * math.exp(-step / 600)
