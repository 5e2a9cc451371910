"""A model that tells a number of a text: how it goes along with the true one."""

import math
from collections.abc import Sequence

import numpy as np

from clearhead.evaluate.cases import answers, read_cases, unit_of
from clearhead.evaluate.figures import Counts, Evaluation, figures
from clearhead.evaluate.formulas import pearson, spearman
from clearhead.evaluate.task import Task

HOW = {
    "pearson": "correlation of true and predicted numbers",
    "spearman": "correlation of their ranks",
    "error": "root of the mean squared difference",
}


def tell_numbers(task: Task) -> Evaluation:
    cases = read_cases(task)
    true, told = np.array([case.truth for case in cases], np.float64), answers(task, cases)[:, 0].numpy()

    def statistics(counts: Counts) -> Sequence[float]:
        error = math.sqrt(counts @ (told - true) ** 2 / counts.sum())
        return [pearson(told, true, counts), spearman(told, true, counts), error]

    each = [case.told(predicted=number) for case, number in zip(cases, told.tolist(), strict=True)]
    return Evaluation(figures(HOW, statistics, len(cases), unit_of(task), task.seed), each)
