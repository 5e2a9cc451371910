"""What a loss curve says, in words: pure functions of the lines of a log."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Line = dict[str, Any]
Curve = list[tuple[int, float]]  # step and value

# validations: fewer say nothing about their course, more let means be taken
FEW = 5
MANY = 12
# a change is one if it is more than so many wobbles, and than this share of the loss
SURE = 4.0
LEAST = 0.01
# a spike is higher than so many wobbles, and than this share of all that was learned
SPIKE = 12.0
VISIBLE = 0.1


@dataclass(frozen=True)
class Finding:
    """One thing that a curve shows: its name, a sentence, and whether something should be done about it."""

    name: str
    message: str
    is_problem: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


def curve_of(lines: Sequence[Line], key: str) -> Curve:
    return [
        (line["step"], line[key])
        for line in lines
        if line.get(key) is not None and math.isfinite(line[key])
    ]


def diagnose(
    lines: Sequence[Line], expected: Sequence[float] = (), reference_data: str = ""
) -> list[Finding]:
    """What a run's log shows, the most urgent first. `on` is the data that `expected` was measured on, if others.

    The rule. A *wobble* is the standard deviation of the noise, taken from how far values lie off a curve through their
    neighbours (the median, so that neither the course nor a single spike counts). From twelve validations on, means of
    three are compared. A change is only called one if it is more than four wobbles (six with fewer than twelve) and
    more than 1 % of the loss. Then, by validation:

    - overfitting: it ends above its best while the training loss went down from there by more than its own noise;
    - unsteady: it ends above its best, and the training loss did not go down;
    - still falling: the last fifth of the steps brought a change for the better;
    - settled: none of these.

    With fewer than five validations, or few that wobble by much, nothing of this is said. Diverging: the training loss
    itself, in medians of five, ends above its best by four wobbles and a tenth of all that was learned. A spike is a
    report of the training loss that stands twelve wobbles and such a tenth above the median of the nine around it.
    """
    train = curve_of(lines, "loss")
    valid = curve_of(lines, "valid")
    return [
        _diverging(train) or _course(train, valid),
        *_spikes(train),
        *_against(valid, expected, reference_data),
    ]


def noise_std(values: Sequence[float]) -> float:
    """The standard deviation of white noise on a smooth course, from third differences; 0 for fewer than four."""
    four = zip(values, values[1:], values[2:], values[3:], strict=False)
    jumps = [abs(a - 3 * b + 3 * c - d) for a, b, c, d in four]
    return statistics.median(jumps) / (0.6745 * math.sqrt(20)) if jumps else 0.0


def moving_average(found: Curve, width: int = 3) -> Curve:
    """Means of so many neighbours (fewer at the ends), each at its own step."""
    half = width // 2
    values = [value for _, value in found]
    return [
        (step, statistics.fmean(values[max(0, i - half) : i + half + 1]))
        for i, (step, _) in enumerate(found)
    ]


def _course(train: Curve, valid: Curve) -> Finding:
    if len(valid) < FEW:
        return _too_few(valid)
    last = valid[-1][0]
    means = moving_average(valid)[1:-1] if len(valid) >= MANY else valid
    best, lowest = min(means, key=lambda point: point[1])
    sure = SURE if len(valid) >= MANY else 1.5 * SURE  # a wobble of few is uncertain
    least = max(sure * noise_std([value for _, value in valid]), LEAST * abs(lowest))
    if means[-1][1] - lowest > least:
        return _rising(train, valid, best)
    before = [value for step, value in means if step <= 0.8 * last]
    fall = (before[-1] if before else means[0][1]) - means[-1][1]
    if fall > least:
        much = f"the last fifth of the steps still lowered the validation loss by {fall:.2g}"
        return Finding(
            "still falling",
            f"{much}; more steps (train.max_steps), or a larger model, would bring more.",
        )
    if len(valid) < MANY and least > 3 * LEAST * abs(lowest):
        return _too_few(valid)
    return Finding(
        "settled",
        f"the validation loss changed by less than {least:.2g} after step {_since(means, least):,}.",
    )


def _too_few(valid: Curve) -> Finding:
    say = f"{len(valid)} validation{' says' if len(valid) == 1 else 's say'} little about the course; more of them"
    say = (
        f"{say} (a smaller train.eval_every) tell whether it overfits"
        if valid
        else "nothing was validated yet"
    )
    return Finding("too early to tell", f"{say}.")


def _since(means: Curve, least: float) -> int:
    """The step from which on no mean was further than that from the last."""
    far = [i for i, (_, value) in enumerate(means) if abs(value - means[-1][1]) > least]
    return means[far[-1] + 1][0] if far else means[0][0]


def _rising(train: Curve, valid: Curve, best: int) -> Finding:
    """The validation loss rises; whether that is overfitting, the training loss tells."""
    lowest_at, lowest = min(valid, key=lambda point: point[1])
    rise = f"the validation loss has risen from {lowest:.4g} at step {lowest_at:,} to {valid[-1][1]:.4g}"
    then = [value for step, value in train if step <= best][-9:]
    now = [value for _, value in train[-9:]]
    noise = noise_std([value for _, value in train]) / math.sqrt(len(now) or 1)
    if then and statistics.fmean(then) - statistics.fmean(now) > SURE * noise:
        fell = f"while the training loss fell from {statistics.fmean(then):.4g} to {statistics.fmean(now):.4g}"
        helps = "more data, more dropout (model.dropout), fewer steps, or train.patience to stop in time, would help"
        return Finding(
            "overfitting", f"{rise}, {fell}; {helps}. The best weights were kept.", is_problem=True
        )
    return Finding("unsteady", f"{rise}, though the training loss hardly moved; {_CALM}.")


_CALM = "a smaller rate (train.optimizer.lr), a longer warm-up or train.grad_clip would help"


def _diverging(train: Curve) -> Finding | None:
    if len(train) < FEW:
        return None
    # Medians of five reports each, the last too: of a curve that falls, the last is the lowest.
    values = [value for _, value in train]
    middles = [
        (train[i - 3][0], statistics.median(values[i - 5 : i])) for i in range(5, len(train) + 1)
    ]
    (best, lowest), (_, high) = min(middles, key=lambda point: point[1]), middles[-1]
    if high - lowest <= max(_visible(train), SURE * noise_std(values)):
        return None
    rise = f"the training loss has risen from {lowest:.4g} around step {best:,} to {high:.4g}"
    return Finding("diverging", f"{rise}; {_CALM}.", is_problem=True)


def _visible(train: Curve) -> float:
    """A tenth of all that was learned."""
    means = [value for _, value in moving_average(train, 5)]
    return VISIBLE * (train[0][1] - min(means))


def _spikes(train: Curve) -> list[Finding]:
    values = [value for _, value in train]
    least = max(SPIKE * noise_std(values), _visible(train)) if len(train) >= FEW else math.inf
    found: Curve = []
    for i, (step, value) in enumerate(
        train[2:-2], 2
    ):  # the steep start and the last reports have no neighbours
        around = values[max(0, i - 4) : i + 5]
        summit = value == max(values[i - 2 : i + 3])  # a spike may last for some reports
        if summit and value - max(statistics.median(around), values[i - 2]) > least:
            found.append((step, value))
    if not found:
        return []
    top = max(found, key=lambda point: point[1])
    where = f"at step {top[0]:,} (to {top[1]:.4g})"
    where = f"{len(found)} times, most {where}" if len(found) > 1 else where
    return [
        Finding(
            "spikes", f"the training loss shot up {where} and came back; {_CALM}.", is_problem=True
        )
    ]


def expected_range(expected: Sequence[float], step: int) -> tuple[float, float] | None:
    """The range at a step, straight between the ones that are given; None before the first and after the last."""
    given = list(zip(expected[::3], expected[1::3], expected[2::3], strict=True))
    for (a, low, high), (b, lower, higher) in zip(given, given[1:] or given, strict=False):
        if a <= step <= b:
            way = (step - a) / (b - a) if b > a else 0.0
            return low + way * (lower - low), high + way * (higher - high)
    return None


def _against(valid: Curve, expected: Sequence[float], on: str) -> list[Finding]:
    """Where the last validation for which a range is known lies; other data than it was measured on are no mistake."""
    for step, value in reversed(valid):
        if (found := expected_range(expected, step)) is not None:
            low, high = found
            here = f"the validation loss of {value:.4g} at step {step:,}"
            should = (
                f"compares with {low:.4g} to {high:.4g} on {on}"
                if on
                else f"should be {low:.4g} to {high:.4g}"
            )
            same = "if that is your data too, " if on else ""
            if value > high:
                look = (
                    f"{same}something else differs"
                    if on
                    else "the data or a changed option may be why"
                )
                return [
                    Finding(
                        "above what is expected", f"{here} {should}; {look}.", is_problem=not on
                    )
                ]
            if value < low:
                look = f"{same}check that what is held out is not in the training data"
                return [Finding("better than expected", f"{here} {should}; {look}.")]
            return [
                Finding(
                    "as expected",
                    f"{here} is between {low:.4g} and {high:.4g}{f', as on {on}' if on else ''}.",
                )
            ]
    return []
