"""The course of a run as a picture: one drawing, for a file of pixels and for a page that has light and dark."""

import io
import math
import re
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from clearhead import __version__
from clearhead import config as c
from clearhead.config.model import parameters_by_part
from clearhead.config.parse import read_config_file
from clearhead.config.presets import MEASURED_ON, presets
from clearhead.errors import ClearheadError
from clearhead.io import read_json_lines, write_atomic, write_json
from clearhead.lens.training_trace import TRACE_FOLDER
from clearhead.train.checkpoint import BEST_LINK, LOG_FILE, MUTABLE_OPTIONS, CheckpointManager
from clearhead.train.diagnosis import Curve, Finding, Line, curve_of, diagnose, moving_average
from clearhead.train.throughput import Throughput, format_duration
from clearhead.train.trainer import Trainer
from clearhead.weights.mapping import diff_trees

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# ---- curve: The course of a run as a picture: one drawing, for a file of pixels and for a page that has light and dark.

MAX_POINTS = 1500  # points of a line; a longer run is drawn as means
COLORS = {  # roles and their colours on white; a page puts its own in their place
    "ink": "#1f2328",
    "quiet": "#6e7781",
    "grid": "#e7e9ec",
    "train": "#3b6fd4",
    "valid": "#d9480f",
    "range": "#2f9e60",
    "rate": "#9aa4b1",
}


def plot_loss(
    lines: Sequence[Line], expected: Sequence[float] = (), size: tuple[float, float] = (8.0, 4.6)
) -> "Figure":
    """Training loss (thin, and smoothed), validations, the best of them, what is expected, and the schedule below."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    drawn = Figure(figsize=size, layout="constrained", facecolor="none")
    above, below = drawn.subplots(2, 1, sharex=True, height_ratios=(8, 1))
    train = curve_of(lines, "loss")
    valid = curve_of(lines, "valid")
    _plot_expected(above, expected)
    _plot_training(above, downsample(train))
    _plot_validation(above, valid)
    above.set_ylim(*_y_limits(train, valid, expected))
    rate = downsample(curve_of(lines, "factor"))
    below.fill_between(*_columns(rate), color=COLORS["rate"], alpha=0.35, linewidth=0)
    below.set_ylim(0, 1.1)
    below.set_yticks([])
    below.set_xlim(0, max(lines[-1]["step"] * 1.01, *expected[::3], 1))
    below.set_xlabel("step", color=COLORS["quiet"], fontsize=9)
    below.xaxis.set_major_locator(
        MaxNLocator(6 if size[0] > 6 else 4, integer=True, steps=[1, 2, 5, 10])
    )
    below.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    for axes, name in ((above, "loss"), (below, "rate")):
        axes.set_ylabel(name, color=COLORS["quiet"], fontsize=9)
        axes.set_facecolor("none")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelcolor=COLORS["quiet"], labelsize=9)
    drawn.align_ylabels()
    above.grid(axis="y", color=COLORS["grid"], linewidth=0.8)
    above.set_axisbelow(True)
    handles = above.get_legend_handles_labels()[0]
    if handles:
        drawn.legend(handles=handles, loc="outside upper left", ncols=2 if size[0] < 6 else 4, frameon=False,
                     labelcolor=COLORS["ink"], fontsize=9, handlelength=1.6, columnspacing=1.6)  # fmt: skip
    return drawn


def _plot_expected(axes: "Axes", expected: Sequence[float]) -> None:
    steps = expected[::3]
    lowest = expected[1::3]
    highest = expected[2::3]
    if len(steps) > 1:
        axes.fill_between(
            steps, lowest, highest, color=COLORS["range"], alpha=0.16, linewidth=0, label="expected"
        )
    elif steps:
        axes.plot(
            [*steps, *steps],
            [*lowest, *highest],
            color=COLORS["range"],
            alpha=0.4,
            linewidth=7,
            label="expected",
        )


def _plot_training(axes: "Axes", train: Curve) -> None:
    if not train:
        return
    few = len(train) < 12
    axes.plot(*_columns(train), color=COLORS["train"], alpha=1.0 if few else 0.3, linewidth=0.9, marker="." if few else "",
              label="training" if few else None)  # fmt: skip
    if not few:
        width = 2 * (len(train) // 120) + 3
        axes.plot(
            *_columns(moving_average(moving_average(train, width), width)),
            color=COLORS["train"],
            linewidth=1.8,
            label="training",
        )


def _plot_validation(axes: "Axes", valid: Curve) -> None:
    if not valid:
        return
    dots = "o" if len(valid) <= 60 else ""
    axes.plot(
        *_columns(downsample(valid)),
        color=COLORS["valid"],
        linewidth=1.4,
        marker=dots,
        markersize=4,
        label="validation",
    )
    step, best = min(valid, key=lambda point: point[1])
    axes.plot([step], [best], color=COLORS["valid"], marker="o", markersize=9, markerfacecolor="none", linestyle="none",
              markeredgewidth=1.4, label=f"best: {best:.4g} at step {step:,}")  # fmt: skip


def _y_limits(train: Curve, valid: Curve, expected: Sequence[float]) -> tuple[float, float]:
    """What all but the steep first values need, so that the long flat part can be read."""
    found = [*moving_average(train), *valid]
    start = 0.03 * max(step for step, _ in found)
    every = [*(value for step, value in found if step > start), *expected[1::3], *expected[2::3]]
    low = min(every)
    high = max(every)
    room = 0.06 * (high - low) or 0.1
    return low - room, high + room


def _columns(found: Curve) -> tuple[list[int], list[float]]:
    return [step for step, _ in found], [value for _, value in found]


def downsample(found: Curve) -> Curve:
    """At most so many points: means of equal numbers of neighbours."""
    width = -(-len(found) // MAX_POINTS)
    groups = (found[i : i + width] for i in range(0, len(found), max(1, width)))
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def to_png(drawn: "Figure") -> bytes:
    held = io.BytesIO()
    drawn.savefig(held, format="png", dpi=160, facecolor="white")
    return held.getvalue()


def to_svg(drawn: "Figure", name: str) -> str:
    """For a page: text stays text, and colours are the page's variables; ids begin with a name of their own."""
    from matplotlib import rc_context

    held = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        drawn.savefig(held, format="svg", metadata={"Date": None, "Creator": None})
    text = held.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<(metadata|style).*?</\1>|<style[^>]*/>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    for role, colour in COLORS.items():
        text = text.replace(colour, f"var(--{role})")
    text = re.sub(r"font-family:[^;\"]*;?", "", text)  # it has the page's
    return re.sub(
        r'<svg ([^>]*?)width="[^"]*"|height="[\d.]+pt"',
        lambda m: f"<svg {m[1]}" if m[1] else "",
        text,
        count=2,
    )


# ---- report: What a run leaves behind for people: curve.png, and report.html, which is one file that needs no other.

ReportData = dict[str, Any]
REPORT_DATA_FILE = "facts.json"
CURVE_FILE = "curve.png"
REPORT_FILE = "report.html"
TRACE_FIGURE_FILE = f"{TRACE_FOLDER}/film.png"
STATUS_TEXT = {
    "done": "all steps done",
    "stopped": "stopped by hand",
    "patience": "stopped, because it no longer got better",
    "running": "not at its end",
}

# Options of which a recipe's range is independent; with other steps the schedule is another.
LOSS_NEUTRAL_OPTIONS = {
    "data.train",
    "data.valid",
    "data.text_column",
    "data.source_column",
    "data.target_column",
    "train.seed",
}
LOSS_NEUTRAL_OPTIONS |= {f"train.{name}" for name in MUTABLE_OPTIONS if name != "max_steps"}


def report_data(run: Trainer, preset: str, speed: Throughput) -> ReportData:
    """What is known of a run besides its log, as plain values."""
    told = run.data.report
    return {
        "preset": preset,
        "config": run.model.config.to_dict(),
        "machine": f"{_device_name(run.device)}, {str(next(run.net.parameters()).dtype).removeprefix('torch.')}",
        "speed": asdict(speed),
        "share": run.data.packing_efficiency,
        "batches": run.data.batches_per_epoch,
        "read": told.num_read,
        "skipped": [[why, n, told.locations.get(why, [])] for why, n in told.skipped.items()],
        "end": "running",
    }


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def write_report(out: Path, facts: ReportData | None = None) -> list[Finding]:
    """Both files, each in one step, and what they say about the curve. Without facts, those of the last time hold."""
    if facts is None:
        facts = read_config_file(out / REPORT_DATA_FILE)
    lines = read_json_lines(out / LOG_FILE)
    if not lines:
        raise ClearheadError(f"{out / LOG_FILE} holds no report yet, so there is nothing to draw.")
    config = c.Config.from_dict(facts["config"])
    expected, on = _expected_for(config, facts["preset"])
    findings = diagnose(lines, expected, on)
    write_json(out / REPORT_DATA_FILE, facts, 1)
    write_atomic(out / CURVE_FILE, to_png(plot_loss(lines, expected)))
    write_atomic(out / REPORT_FILE, render_page(out, facts, lines, findings).encode())
    return findings


def render_page(out: Path, facts: ReportData, lines: list[Line], findings: list[Finding]) -> str:
    config = c.Config.from_dict(facts["config"])
    expected, _ = _expected_for(config, facts["preset"])
    return render_template(
        Path(__file__).with_name("report.html"),
        name=out.resolve().name,
        wide=to_svg(plot_loss(lines, expected), "wide"),
        narrow=to_svg(plot_loss(lines, expected, (4.2, 4.6)), "narrow"),
        model=_model_rows(config),
        tiles=_tiles(config, facts, lines),
        findings=findings,
        changed=_changed_options(config, facts["preset"]),
        preset=facts["preset"],
        data=_data_rows(config, facts, lines),
        skipped=facts["skipped"],
        checks=_validation_rows(config, facts, lines),
        speed=_throughput_rows(facts, lines),
        commands=next_commands(out, config),
        film=TRACE_FIGURE_FILE if (out / TRACE_FIGURE_FILE).is_file() else "",
    )


def render_template(template: Path, **values: object) -> str:
    """A page that is one file, in the style of all reports; all but our own drawings is escaped."""
    from jinja2 import Environment, StrictUndefined

    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    made = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return made.from_string(template.read_text(encoding="utf-8")).render(
        style=style, version=__version__, **values
    )


def _model_rows(config: c.Config) -> list[tuple[str, str]]:
    m = config.model
    parts = {name: n for name, n in parameters_by_part(m).items() if n}
    encoder = (
        f", encoder of {m.architecture.encoder_layers}"
        if isinstance(m.architecture, c.EncoderDecoder)
        else ""
    )
    return [
        ("shape", f"{m.architecture.kind}, {m.head.kind} head"),
        ("parameters", f"{sum(parts.values()):,}"),
        ("of them", ", ".join(f"{name} {format_si(n)}" for name, n in parts.items())),
        (
            "size",
            f"{m.n_layers} layers{encoder}, width {m.d_model}, {m.attention.n_heads} heads, context {m.context_length:,}",
        ),
        ("vocabulary", f"{m.vocab_size:,}" if m.vocab_size else "none"),
    ]


def _tiles(config: c.Config, facts: ReportData, lines: list[Line]) -> list[tuple[str, str, str]]:
    """The few numbers that matter most: what, how much, and a word to it."""
    valid = curve_of(lines, "valid")
    last = lines[-1]
    found = []
    if valid:
        step, best = min(valid, key=lambda point: point[1])
        told = isinstance(config.model.head, c.LMHead | c.MLMHead) and best < 20
        also = f" · perplexity {math.exp(best):.4g}" if told else ""
        found.append(("best validation loss", f"{best:.4g}", f"step {step:,}{also}"))
        if isinstance(config.model.head, c.RegressionHead):
            found.append(
                ("typical error", f"{math.sqrt(best):.4g}", "root of it, in the label's own unit")
            )
    if accuracy := curve_of(lines, "accuracy"):
        step, best = max(accuracy, key=lambda point: point[1])
        found.append(("best accuracy", f"{best:.1%}", f"step {step:,}"))
    found.append(("training loss", f"{last['loss']:.4g}", "at the end"))
    end = STATUS_TEXT.get(facts["end"], "ended by a mistake")
    found.append(
        (
            "steps",
            f"{last['step']:,}",
            end if facts["end"] == "done" else f"of {config.train.max_steps:,}; {end}",
        )
    )
    speed = Throughput(**facts["speed"])
    rate = median_targets_per_second(lines)
    share = f" · {speed.utilization(rate):.0%} of peak" if speed.peak_flops else ""
    return [*found, ("speed", format_si(rate * speed.tokens_per_target), f"tokens a second{share}")]


def median_targets_per_second(lines: list[Line]) -> float:
    """Of the report in the middle."""
    return statistics.median([line["lessons_per_second"] for line in lines])


def _changed_options(config: c.Config, preset: str) -> list[tuple[str, str, str]]:
    """Options that are not as in the preset, or, for a file, not the default; what follows from the data aside."""
    before = presets[preset] if preset in presets else c.Config()
    found = diff_trees(before.to_dict(), config.to_dict(), "")
    own = [
        (name, now, was)
        for name, was, now in found
        if name != "model.vocab_size" and not name.startswith("use.")
    ]
    return [(name, _format_value(now), _format_value(was)) for name, now, was in own]


def _expected_for(config: c.Config, preset: str) -> tuple[tuple[float, ...], str]:
    """The range to hold a run against, and the data it was measured on, unless the user gave a range.

    A recipe's range is none where an option that changes the loss is not the recipe's.
    """
    expected = config.train.expected_loss
    if preset not in presets or expected != presets[preset].train.expected_loss:
        return expected, ""
    own = {name for name, _, _ in _changed_options(config, preset)} - LOSS_NEUTRAL_OPTIONS
    return (() if own else expected), MEASURED_ON.get(preset, "")


def _format_value(value: object) -> str:
    return (", ".join(map(str, value)) or "–") if isinstance(value, list) else str(value) or "–"


def _data_rows(config: c.Config, facts: ReportData, lines: list[Line]) -> list[tuple[str, str]]:
    m = config.model
    speed = facts["speed"]
    epoch = facts["batches"]
    pairs = isinstance(m.architecture, c.EncoderDecoder)
    rows = isinstance(m.head, c.ClassificationHead | c.RegressionHead)
    seen = lines[-1]["step"] * config.train.grad_accum
    tokens = speed["tokens"] * speed["lessons"]
    return [
        (
            "pairs read" if pairs else "rows read" if rows else "documents read",
            f"{facts['read']:,}",
        ),
        ("cut or left out", f"{sum(n for _, n, _ in facts['skipped']):,}"),
        ("share of real tokens", f"{facts['share']:.1%}"),
        (
            "tokens an epoch",
            f"{format_si(tokens * epoch)} in {epoch / config.train.grad_accum:,.4g} steps",
        ),
        ("epochs seen", f"{seen / epoch:.3g} ({format_si(tokens * seen)} tokens)"),
    ]


def _validation_rows(
    config: c.Config, facts: ReportData, lines: list[Line]
) -> list[dict[str, Any]]:
    """A row for each validation."""
    found = [line for line in lines if math.isfinite(line.get("valid", math.nan))]
    best = min((line["valid"] for line in found), default=None)
    steps = facts["batches"] / config.train.grad_accum
    return [
        {"accuracy": None, **line, "epoch": line["step"] / steps, "best": line["valid"] == best}
        for line in found
    ]


def _throughput_rows(facts: ReportData, lines: list[Line]) -> list[tuple[str, str]]:
    speed = Throughput(**facts["speed"])
    rate = median_targets_per_second(lines)
    found = [
        ("machine", facts["machine"]),
        ("median", f"{rate * speed.tokens_per_target:,.0f} tokens a second"),
    ]
    if speed.peak_flops:
        share = f"{speed.utilization(rate):.0%} of the {format_si(speed.peak_flops)}FLOP/s that a matrix product reaches here"
        found.append(("share of peak", share))
    return [
        *found,
        (
            "time of all steps",
            f"{format_duration(training_seconds(facts, lines))}, without validations and saving",
        ),
    ]


def training_seconds(facts: ReportData, lines: list[Line]) -> float:
    """That all steps took, without validations and saving."""
    lessons = facts["config"]["train"]["accumulate"] * facts["speed"]["lessons"]
    starts = [0, *(line["step"] for line in lines)]
    return sum((line["step"] - start) * lessons / line["lessons_per_second"]
               for start, line in zip(starts, lines, strict=False) if line["lessons_per_second"])  # fmt: skip


def next_commands(out: Path, config: c.Config) -> list[tuple[str, str]]:
    """What can be done with the model now: a sentence and a line for the shell."""
    last = CheckpointManager(out, 1).latest()
    where = out / BEST_LINK if (out / BEST_LINK).exists() else last.directory if last else out
    folder = shlex.quote(str(where))
    kind = config.model.architecture.kind
    match config.model.head:
        case c.LMHead() if kind == "decoder":
            use = ("Write with it", f'clearhead generate {folder} "Once"')
        case c.LMHead():
            use = ("Translate with it", f'clearhead translate {folder} "A sentence."')
        case c.MLMHead():
            use = ("Fill gaps with it", f'clearhead fill {folder} "The [MASK] is here."')
        case _:
            what = {"tokens": '"A text."', "images": "picture.png"}.get(
                config.model.input.kind, "sound.wav"
            )
            use = ("Judge with it", f"clearhead classify {folder} {what}")
    see = [("See where a head looks", f'clearhead see {folder} "A sentence." --layer 0 --head 0')]
    return [
        use,
        *(see if config.model.vocab_size and kind != "encoder-decoder" else []),
        ("Check the laws that it must keep", f"clearhead verify {folder}"),
        (
            "Give it to another engine",
            f"clearhead export {folder} {shlex.quote(f'{out.name}-hf')} --format hf",
        ),
    ]


def format_si(number: float) -> str:
    """1.2 M, 350 k, 12."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.3g}"
