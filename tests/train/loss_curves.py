"""Reports of runs whose losses follow given functions of the step."""

import math
import random

STEPS = 2000
SEEDS = 40


def converging(step):
    return 1.5 + 3 * math.exp(-step / 150)


def rising(step):
    return converging(step) + 0.0003 * max(0, step - 800)


def memorizing(step):
    return 0.5 + 4 * math.exp(-step / 600)


def log_lines(train, valid=None, eval_every=100, noise=0.01, seed=0, steps=STEPS):
    """Lines of a log with noisy losses."""
    generator = random.Random(seed)
    valid = valid or train
    lines = []
    for step in range(10, steps + 1, 10):
        line = {
            "step": step,
            "loss": train(step) + generator.gauss(0, 3 * noise),
            "lr_factor": 1.0,
            "targets_per_second": 1000,
        }
        if step % eval_every == 0:
            line["valid_loss"] = valid(step) + generator.gauss(0, noise)
        lines.append(line)
    return lines
