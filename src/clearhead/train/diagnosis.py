"""Diagnosis of loss curves: pure functions of the reports in log.jsonl."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Line = dict[str, Any]
Curve = list[tuple[int, float]]  # step and value

MIN_VALIDATIONS = 5  # fewer say nothing about the course of the validation loss
MIN_SMOOTHED_VALIDATIONS = 12  # from here on, means of three are compared
MIN_REPORTS = 5  # of the training loss
CHANGE_NOISE_RATIO = 4.0  # a change must exceed this many standard deviations of the noise
CHANGE_LOSS_FRACTION = 0.01  # and this fraction of the loss
SPIKE_NOISE_RATIO = 12.0  # a spike must exceed this many standard deviations of the noise
VISIBLE_FRACTION = 0.1  # and this fraction of the total decrease of the loss
STABILITY_HINT = (
    "a smaller learning rate (--train.optimizer.lr), a longer warmup (--train.warmup_steps) or a "
    "smaller --train.grad_clip would help"
)


@dataclass(frozen=True)
class Finding:
    """One observation about a run: its name, a sentence, and whether it is a problem."""

    name: str
    message: str
    is_problem: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


def curve_of(lines: Sequence[Line], key: str) -> Curve:
    """Finite values of a key by step."""
    return [
        (line["step"], line[key])
        for line in lines
        if line.get(key) is not None and math.isfinite(line[key])
    ]


def diagnose(
    lines: Sequence[Line], expected: Sequence[float] = (), reference_data: str = ""
) -> list[Finding]:
    """Findings about a run's log, the most urgent first.

    `reference_data` names the data on which `expected` was measured, if that is other data.

    The noise is the standard deviation of the values around a smooth curve through their neighbors
    (a median, so that neither the trend nor a single spike counts). From twelve validations on,
    means of three are compared. A change must exceed four times the noise (six times with fewer
    than twelve validations) and 1 % of the loss. By the validation loss, a run is

    - overfitting: it ends above its best, while the training loss has decreased since then;
    - unstable: it ends above its best, and the training loss did not decrease;
    - still improving: the last fifth of the steps improved it;
    - converged: none of these.

    With fewer than five validations, or few noisy ones, none of this is reported. Diverging means
    that the training loss, in medians of five, ends above its best by four times the noise and a
    tenth of its total decrease. A spike is a training loss that exceeds the median of the nine
    reports around it by twelve times the noise and such a tenth.
    """
    train = curve_of(lines, "loss")
    valid = curve_of(lines, "valid_loss")
    trend = _find_divergence(train) or _find_trend(train, valid)
    return [trend, *_find_spikes(train), *_compare_to_expected(valid, expected, reference_data)]


def noise_std(values: Sequence[float]) -> float:
    """Standard deviation of white noise on a smooth curve, from third differences.

    0 for fewer than four values.
    """
    windows = zip(values, values[1:], values[2:], values[3:], strict=False)
    differences = [abs(a - 3 * b + 3 * c - d) for a, b, c, d in windows]
    # The median of |x| is 0.6745 σ, and the coefficients have the norm √(1 + 9 + 9 + 1).
    return statistics.median(differences) / (0.6745 * math.sqrt(20)) if differences else 0.0


def moving_average(curve: Curve, window: int = 3) -> Curve:
    """Centered moving average, over fewer neighbors at the ends."""
    half = window // 2
    values = [value for _, value in curve]
    return [
        (step, statistics.fmean(values[max(0, i - half) : i + half + 1]))
        for i, (step, _) in enumerate(curve)
    ]


def expected_range(expected: Sequence[float], step: int) -> tuple[float, float] | None:
    """Expected range of the loss at a step, interpolated linearly; None outside the given steps."""
    points = list(zip(expected[::3], expected[1::3], expected[2::3], strict=True))
    for (step0, low0, high0), (step1, low1, high1) in zip(
        points, points[1:] or points, strict=False
    ):
        if step0 <= step <= step1:
            t = (step - step0) / (step1 - step0) if step1 > step0 else 0.0
            return low0 + t * (low1 - low0), high0 + t * (high1 - high0)
    return None


def _find_trend(train: Curve, valid: Curve) -> Finding:
    if len(valid) < MIN_VALIDATIONS:
        return _too_early(valid)
    is_smoothed = len(valid) >= MIN_SMOOTHED_VALIDATIONS
    means = moving_average(valid)[1:-1] if is_smoothed else valid
    best_step, best_loss = min(means, key=lambda point: point[1])
    last_step = valid[-1][0]
    last_loss = means[-1][1]
    noise_ratio = CHANGE_NOISE_RATIO if is_smoothed else 1.5 * CHANGE_NOISE_RATIO
    noise = noise_std([value for _, value in valid])
    min_change = max(noise_ratio * noise, CHANGE_LOSS_FRACTION * abs(best_loss))
    if last_loss - best_loss > min_change:
        return _describe_increase(train, valid, best_step)
    earlier = [value for step, value in means if step <= 0.8 * last_step]
    decrease = (earlier[-1] if earlier else means[0][1]) - last_loss
    if decrease > min_change:
        return Finding(
            "still improving",
            f"the last fifth of the steps lowered the validation loss by {decrease:.2g}; train "
            "longer (--train.max_steps) or use a larger model.",
        )
    if not is_smoothed and min_change > 3 * CHANGE_LOSS_FRACTION * abs(best_loss):
        return _too_early(valid)
    changed = [i for i, (_, value) in enumerate(means) if abs(value - last_loss) > min_change]
    converged_step = means[changed[-1] + 1][0] if changed else means[0][0]
    return Finding(
        "converged",
        f"the validation loss changed by less than {min_change:.2g} after step {converged_step:,}.",
    )


def _too_early(valid: Curve) -> Finding:
    if not valid:
        return Finding("too early to tell", "there was no validation yet.")
    count = f"{len(valid)} validation{'s' * (len(valid) > 1)}"
    return Finding(
        "too early to tell",
        f"{count} cannot show a trend; validate more often (a smaller --train.eval_every).",
    )


def _describe_increase(train: Curve, valid: Curve, best_step: int) -> Finding:
    """Overfitting if the training loss has decreased since the best validation."""
    lowest_step, lowest = min(valid, key=lambda point: point[1])
    increase = (
        f"the validation loss rose from {lowest:.4g} at step {lowest_step:,} to {valid[-1][1]:.4g}"
    )
    before = [value for step, value in train if step <= best_step][-9:]
    after = [value for _, value in train[-9:]]
    noise = noise_std([value for _, value in train]) / math.sqrt(len(after) or 1)
    if before:
        mean_before = statistics.fmean(before)
        mean_after = statistics.fmean(after)
        if mean_before - mean_after > CHANGE_NOISE_RATIO * noise:
            return Finding(
                "overfitting",
                f"{increase}, while the training loss fell from {mean_before:.4g} to "
                f"{mean_after:.4g}; use more data, more dropout (--model.dropout), fewer steps, or "
                "--train.patience to stop early. The best weights were kept.",
                is_problem=True,
            )
    message = f"{increase}, and the training loss hardly changed; {STABILITY_HINT}."
    return Finding("unstable", message)


def _find_divergence(train: Curve) -> Finding | None:
    if len(train) < MIN_REPORTS:
        return None
    # All are medians of five, also the last: on a falling curve a single last value is the lowest.
    values = [value for _, value in train]
    medians = [
        (train[i - 3][0], statistics.median(values[i - 5 : i])) for i in range(5, len(train) + 1)
    ]
    best_step, lowest = min(medians, key=lambda point: point[1])
    last = medians[-1][1]
    if last - lowest <= max(_visible_change(train), CHANGE_NOISE_RATIO * noise_std(values)):
        return None
    return Finding(
        "diverging",
        f"the training loss rose from {lowest:.4g} around step {best_step:,} to {last:.4g}; "
        f"{STABILITY_HINT}.",
        is_problem=True,
    )


def _visible_change(train: Curve) -> float:
    """A tenth of the total decrease of the training loss."""
    means = [value for _, value in moving_average(train, 5)]
    return VISIBLE_FRACTION * (train[0][1] - min(means))


def _find_spikes(train: Curve) -> list[Finding]:
    if len(train) < MIN_REPORTS:
        return []
    values = [value for _, value in train]
    min_height = max(SPIKE_NOISE_RATIO * noise_std(values), _visible_change(train))
    spikes: Curve = []
    for i, (step, value) in enumerate(train[2:-2], 2):  # not the steep start, nor the last reports
        neighborhood = values[max(0, i - 4) : i + 5]
        is_peak = value == max(values[i - 2 : i + 3])  # a spike may span several reports
        baseline = max(statistics.median(neighborhood), values[i - 2])
        if is_peak and value - baseline > min_height:
            spikes.append((step, value))
    if not spikes:
        return []
    step, value = max(spikes, key=lambda point: point[1])
    where = f"at step {step:,} (to {value:.4g})"
    if len(spikes) > 1:
        where = f"{len(spikes)} times, most {where}"
    message = f"the training loss spiked {where} and recovered; {STABILITY_HINT}."
    return [Finding("spikes", message, is_problem=True)]


def _compare_to_expected(
    valid: Curve, expected: Sequence[float], reference_data: str
) -> list[Finding]:
    """Compare the last validation within the expected steps; other data may differ."""
    comparable = [
        (step, value, loss_range)
        for step, value in valid
        if (loss_range := expected_range(expected, step)) is not None
    ]
    if not comparable:
        return []
    step, value, (low, high) = comparable[-1]
    observed = f"the validation loss of {value:.4g} at step {step:,}"
    if low <= value <= high:
        on_data = f", as on {reference_data}" if reference_data else ""
        message = f"{observed} is between {low:.4g} and {high:.4g}{on_data}."
        return [Finding("as expected", message)]
    comparison = f"should be {low:.4g} to {high:.4g}"
    hint = ""
    if reference_data:
        comparison = f"compares with {low:.4g} to {high:.4g} on {reference_data}"
        hint = "if that is your data too, "
    if value > high:
        message = f"{observed} {comparison}; {hint}check the data and the options that you changed."
        return [Finding("higher than expected", message, is_problem=not reference_data)]
    hint += "check that no validation data is in the training data"
    return [Finding("lower than expected", f"{observed} {comparison}; {hint}.")]
