"""What differences between pairs of runs allow to claim: paired by seed, and corrected for how many are looked at.

    t = mean(d) / (s(d) / √n),  d the differences of pairs of the same seed

Student's t says how often chance alone gives so large a mean where differences spread normally. The exact test needs no
such assumption: if the variants were alike, each difference could as well have the other sign, so all 2ⁿ choices of
signs are counted; it can never give less than 2 / 2ⁿ. Where all differences are the same, as those of an accuracy on
few rows may be, they do not spread at all, and Student's t would be sure of anything: then the signs alone count.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEAST = 3  # pairs; of fewer nothing is claimed
MANY = 14  # pairs, from which on all choices of signs are too many to count
SURE = 0.05
SAME = 1e-9  # of the mean: a spread of less is that of rounding


@dataclass(frozen=True)
class Paired:
    """The mean difference of n pairs, its 95 % interval if they spread, and how likely chance alone gives so much."""

    n: int
    mean: float
    low: float | None
    high: float | None
    p: float  # by Student's t, where they spread
    exact: float | None  # by all choices of signs


def paired(differences: Sequence[float]) -> Paired | None:
    """None where there are too few to claim anything."""
    n = len(differences)
    if n < LEAST:
        return None
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(n)
    exact = _signs(differences) if n <= MANY else None
    if error <= SAME * abs(mean):
        return Paired(n, mean, None, None, 2 / 2**n if mean else 1.0, exact)
    half = error * bound(1 - SURE, n - 1)
    return Paired(n, mean, mean - half, mean + half, max(0.0, 1 - inside(abs(mean) / error, n - 1)), exact)


def inside(t: float, freedom: int) -> float:
    """The chance that Student's t lies between −t and t: for whole degrees of freedom a finite sum.

    With a = arctan(t / √ν), for even ν: sin a · (1 + ½ cos² a + ½·¾ cos⁴ a + …) up to cos^(ν−2);
    for odd ν: 2/π · (a + sin a · (cos a + ⅔ cos³ a + ⅔·⅘ cos⁵ a + …)) up to the same.
    """
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term, total = math.cos(angle) ** odd, 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def bound(share: float, freedom: int) -> float:
    """The t that this share lies inside of."""
    low, high = 0.0, 1e4
    while high - low > 1e-12 * (1 + high):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle, freedom) < share else (low, middle)
    return high


def _signs(differences: Sequence[float]) -> float:
    """The share of all choices of signs whose sum is at least as far from 0."""
    seen = abs(math.fsum(differences)) * (1 - 1e-12)
    choices = itertools.product((1, -1), repeat=len(differences))
    counted = [abs(math.fsum(s * d for s, d in zip(signs, differences, strict=True))) >= seen for signs in choices]
    return sum(counted) / len(counted)


def holm(chances: Sequence[float]) -> list[float]:
    """Each chance made larger, so that of all claims below a bound not even one is false more often than that bound.

    The smallest of m times m, the next times m − 1, …, and none below the one before.
    """
    found, least = [0.0] * len(chances), 0.0
    for rank, i in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        least = found[i] = max(least, min(1.0, chances[i] * (len(chances) - rank)))
    return found
