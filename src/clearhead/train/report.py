"""Training report: curve.png and the self-contained page report.html.

Both are made from log.jsonl and from report.json, which holds what only the training process knows.
"""

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
from clearhead.config.parse import diff_trees, read_config_file
from clearhead.config.presets import MEASURED_ON, presets
from clearhead.errors import ClearheadError
from clearhead.io import read_json_lines, write_atomic, write_json
from clearhead.lens.training_trace import TRACE_FOLDER
from clearhead.train.checkpoint import (
    LOG_FILE,
    MUTABLE_OPTIONS,
    REPORT_DATA_FILE,
    CheckpointManager,
)
from clearhead.train.diagnosis import Curve, Finding, Line, curve_of, diagnose, moving_average
from clearhead.train.throughput import Throughput, format_duration
from clearhead.train.trainer import Trainer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ReportData = dict[str, Any]
CURVE_FILE = "curve.png"
REPORT_FILE = "report.html"
TRACE_FIGURE_FILE = f"{TRACE_FOLDER}/training_trace.png"
STATUS_TEXT = {
    "completed": "completed",
    "interrupted": "interrupted",
    "early_stopped": "stopped early, without improvement",
    "running": "running",
    "failed": "failed",
}
MAX_PERPLEXITY_LOSS = 20  # perplexities of larger losses mean nothing

# Options that do not change the expected loss of a recipe. Other steps mean another schedule.
LOSS_NEUTRAL_OPTIONS = (MUTABLE_OPTIONS - {"train.max_steps"}) | {
    "data.train",
    "data.valid",
    "data.text_column",
    "data.source_column",
    "data.target_column",
    "train.seed",
}

MAX_POINTS = 1500  # per line of a plot; longer curves are averaged
MIN_SMOOTHED_POINTS = 12
MAX_MARKERS = 60
COLORS = {  # on white; a page replaces them by CSS variables
    "ink": "#1f2328",
    "quiet": "#6e7781",
    "grid": "#e7e9ec",
    "train": "#3b6fd4",
    "valid": "#d9480f",
    "range": "#2f9e60",
    "lr": "#9aa4b1",
}


# --- data of the report


def collect_report_data(trainer: Trainer, recipe: str, throughput: Throughput) -> ReportData:
    """Facts about a run that are not in its log, as plain values."""
    data = trainer.data.report
    dtype = str(next(trainer.net.parameters()).dtype).removeprefix("torch.")
    is_cuda = trainer.device.type == "cuda"
    device = torch.cuda.get_device_name(trainer.device) if is_cuda else trainer.device.type
    return {
        "recipe": recipe,
        "config": trainer.model.config.to_dict(),
        "machine": f"{device}, {dtype}",
        "throughput": asdict(throughput),
        "packing_efficiency": trainer.data.packing_efficiency,
        "batches_per_epoch": trainer.data.batches_per_epoch,
        "num_read": data.num_read,
        "skipped": [
            [reason, count, data.locations.get(reason, [])]
            for reason, count in data.skipped.items()
        ],
        "status": "running",
    }


def write_report(output: Path, data: ReportData | None = None) -> list[Finding]:
    """Write report and curve, and return the findings. Without data, read report.json."""
    if data is None:
        data = read_config_file(output / REPORT_DATA_FILE)
    lines = read_json_lines(output / LOG_FILE)
    if not lines:
        raise ClearheadError(f"{output / LOG_FILE} is empty: there is nothing to report yet.")
    config = c.Config.from_dict(data["config"])
    expected, reference_data = expected_loss(config, data["recipe"])
    findings = diagnose(lines, expected, reference_data)
    write_json(output / REPORT_DATA_FILE, data, 1)
    write_atomic(output / CURVE_FILE, to_png(plot_loss(lines, expected)))
    write_atomic(output / REPORT_FILE, render_page(output, data, lines, findings).encode())
    return findings


def expected_loss(config: c.Config, recipe: str) -> tuple[tuple[float, ...], str]:
    """Expected loss of a run, and the data it was measured on if that comes from the recipe.

    A recipe's expectation does not hold if an option that affects the loss was changed.
    """
    expected = config.train.expected_loss
    if recipe not in presets or expected != presets[recipe].train.expected_loss:
        return expected, ""
    changed = {name for name, _, _ in _changed_options(config, recipe)}
    reference_data = MEASURED_ON.get(recipe, "")
    return (() if changed - LOSS_NEUTRAL_OPTIONS else expected), reference_data


def median_targets_per_second(lines: list[Line]) -> float:
    return statistics.median([line["targets_per_second"] for line in lines])


def training_seconds(data: ReportData, lines: list[Line]) -> float:
    """Time of all steps, without validation and saving."""
    batches_per_step = data["config"]["train"]["grad_accum"]
    targets_per_step = batches_per_step * data["throughput"]["targets_per_batch"]
    total = 0.0
    previous_step = 0
    for line in lines:
        num_targets = (line["step"] - previous_step) * targets_per_step
        if line["targets_per_second"]:
            total += num_targets / line["targets_per_second"]
        previous_step = line["step"]
    return total


def next_commands(output: Path, config: c.Config) -> list[tuple[str, str]]:
    """Shell commands to use the model, each with its purpose."""
    checkpoints = CheckpointManager(output)
    latest = checkpoints.latest()
    model = checkpoints.best() or (latest.folder if latest else output)
    folder = shlex.quote(str(model))
    architecture = config.model.architecture.kind
    match config.model.head:
        case c.LMHead() if architecture == "decoder":
            use = ("Generate text", f'clearhead generate {folder} "Once"')
        case c.LMHead():
            use = ("Translate", f'clearhead translate {folder} "A sentence."')
        case c.MLMHead():
            use = ("Fill in masked tokens", f'clearhead fill {folder} "The [MASK] is here."')
        case _:
            examples = {"tokens": '"A text."', "images": "picture.png"}
            example = examples.get(config.model.input.kind, "sound.wav")
            use = ("Classify", f"clearhead classify {folder} {example}")
    commands = [use]
    if config.model.vocab_size and architecture != "encoder-decoder":
        see = f'clearhead see {folder} "A sentence." --layer 0 --head 0'
        commands.append(("Look at an attention head", see))
    export_folder = shlex.quote(f"{output.name}-hf")
    return [
        *commands,
        ("Check the model's invariants", f"clearhead verify {folder}"),
        (
            "Export to Hugging Face transformers",
            f"clearhead export {folder} {export_folder} --format hf",
        ),
    ]


# --- page


def render_page(output: Path, data: ReportData, lines: list[Line], findings: list[Finding]) -> str:
    config = c.Config.from_dict(data["config"])
    expected, _ = expected_loss(config, data["recipe"])
    return render_template(
        Path(__file__).with_name("report.html"),
        name=output.resolve().name,
        recipe=data["recipe"],
        tiles=_tiles(config, data, lines),
        findings=findings,
        wide_plot=to_svg(plot_loss(lines, expected), "wide"),
        narrow_plot=to_svg(plot_loss(lines, expected, (4.2, 4.6)), "narrow"),
        trace_figure=TRACE_FIGURE_FILE if (output / TRACE_FIGURE_FILE).is_file() else "",
        commands=next_commands(output, config),
        validations=_validation_rows(config, data, lines),
        model=_model_rows(config),
        data=_data_rows(config, data, lines),
        skipped=data["skipped"],
        throughput=_throughput_rows(data, lines),
        changed_options=_changed_options(config, data["recipe"]),
    )


def render_template(template: Path, **values: object) -> str:
    """Render a self-contained page with the style sheet of all reports; values are escaped."""
    from jinja2 import Environment, StrictUndefined

    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.from_string(template.read_text(encoding="utf-8"))
    return page.render(style=style, version=__version__, **values)


def _tiles(config: c.Config, data: ReportData, lines: list[Line]) -> list[tuple[str, str, str]]:
    """The most important numbers: label, value and note."""
    tiles = []
    last = lines[-1]
    if valid := curve_of(lines, "valid_loss"):
        step, best = min(valid, key=lambda point: point[1])
        note = f"step {step:,}"
        is_language_model = isinstance(config.model.head, c.LMHead | c.MLMHead)
        if is_language_model and best < MAX_PERPLEXITY_LOSS:
            note += f" · perplexity {math.exp(best):.4g}"
        tiles.append(("best validation loss", f"{best:.4g}", note))
        if isinstance(config.model.head, c.RegressionHead):
            tiles.append(("RMSE", f"{math.sqrt(best):.4g}", "in units of the label"))
    if accuracy := curve_of(lines, "accuracy"):
        step, best = max(accuracy, key=lambda point: point[1])
        tiles.append(("best accuracy", f"{best:.1%}", f"step {step:,}"))
    tiles.append(("training loss", f"{last['loss']:.4g}", "last report"))
    status = STATUS_TEXT[data["status"]]
    if data["status"] != "completed":
        status = f"of {config.train.max_steps:,}; {status}"
    tiles.append(("steps", f"{last['step']:,}", status))
    tiles.append(("speed", format_si(_tokens_per_second(data, lines)), "tokens per second"))
    return tiles


def _tokens_per_second(data: ReportData, lines: list[Line]) -> float:
    tokens_per_target = Throughput(**data["throughput"]).tokens_per_target
    return median_targets_per_second(lines) * tokens_per_target


def _model_rows(config: c.Config) -> list[tuple[str, str]]:
    model = config.model
    parts = {name: n for name, n in parameters_by_part(model).items() if n}
    layers = f"{model.n_layers} layers"
    if isinstance(model.architecture, c.EncoderDecoder):
        layers += f", {model.architecture.encoder_layers} encoder layers"
    return [
        ("architecture", f"{model.architecture.kind}, {model.head.kind} head"),
        ("parameters", f"{sum(parts.values()):,}"),
        ("by part", ", ".join(f"{name} {format_si(n)}" for name, n in parts.items())),
        (
            "size",
            f"{layers}, d_model {model.d_model}, {model.attention.n_heads} heads, "
            f"context length {model.context_length:,}",
        ),
        ("vocabulary", f"{model.vocab_size:,}" if model.vocab_size else "none"),
    ]


def _data_rows(config: c.Config, data: ReportData, lines: list[Line]) -> list[tuple[str, str]]:
    model = config.model
    throughput = Throughput(**data["throughput"])
    tokens_per_batch = throughput.tokens_per_target * throughput.targets_per_batch
    batches_per_epoch = data["batches_per_epoch"]
    num_batches = lines[-1]["step"] * config.train.grad_accum
    unit = "documents"
    if isinstance(model.architecture, c.EncoderDecoder):
        unit = "pairs"
    elif isinstance(model.head, c.ClassificationHead | c.RegressionHead):
        unit = "rows"
    steps_per_epoch = batches_per_epoch / config.train.grad_accum
    num_skipped = sum(count for _, count, _ in data["skipped"])
    return [
        (f"{unit} read", f"{data['num_read']:,}"),
        ("skipped or truncated", f"{num_skipped:,}"),
        ("tokens that are not padding", f"{data['packing_efficiency']:.1%}"),
        (
            "tokens per epoch",
            f"{format_si(tokens_per_batch * batches_per_epoch)} in {steps_per_epoch:,.4g} steps",
        ),
        (
            "epochs trained",
            f"{num_batches / batches_per_epoch:.3g} "
            f"({format_si(tokens_per_batch * num_batches)} tokens)",
        ),
    ]


def _validation_rows(config: c.Config, data: ReportData, lines: list[Line]) -> list[dict[str, Any]]:
    validations = [line for line in lines if math.isfinite(line.get("valid_loss", math.nan))]
    best_loss = min((line["valid_loss"] for line in validations), default=None)
    steps_per_epoch = data["batches_per_epoch"] / config.train.grad_accum
    return [
        {
            "accuracy": None,
            **line,
            "epoch": line["step"] / steps_per_epoch,
            "is_best": line["valid_loss"] == best_loss,
        }
        for line in validations
    ]


def _throughput_rows(data: ReportData, lines: list[Line]) -> list[tuple[str, str]]:
    seconds = format_duration(training_seconds(data, lines))
    return [
        ("machine", data["machine"]),
        ("median", f"{_tokens_per_second(data, lines):,.0f} tokens per second"),
        ("time of all steps", f"{seconds}, without validation and saving"),
    ]


def _changed_options(config: c.Config, recipe: str) -> list[tuple[str, str, str]]:
    """Options that differ from the recipe, or else from the defaults: name, value, default.

    Options that follow from the data are left out.
    """
    base = presets[recipe] if recipe in presets else c.Config()
    return [
        (name, _format_value(value), _format_value(default))
        for name, default, value in diff_trees(base.to_dict(), config.to_dict())
        if name != "model.vocab_size" and not name.startswith("inference.")
    ]


def _format_value(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text or "–"


def format_si(number: float) -> str:
    """1.2 M, 350 k, 12."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.3g}"


# --- plots


def plot_loss(
    lines: Sequence[Line], expected: Sequence[float] = (), size: tuple[float, float] = (8.0, 4.6)
) -> "Figure":
    """Training loss (raw and smoothed), validation loss, expected range and learning rate."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = Figure(figsize=size, layout="constrained", facecolor="none")
    loss_axes, lr_axes = figure.subplots(2, 1, sharex=True, height_ratios=(8, 1))
    train = curve_of(lines, "loss")
    valid = curve_of(lines, "valid_loss")
    is_wide = size[0] > 6

    _plot_expected(loss_axes, expected)
    _plot_training(loss_axes, downsample(train))
    _plot_validation(loss_axes, valid)
    loss_axes.set_ylim(*_loss_limits(train, valid, expected))
    loss_axes.grid(axis="y", color=COLORS["grid"], linewidth=0.8)
    loss_axes.set_axisbelow(True)

    lr_curve = downsample(curve_of(lines, "lr_factor"))
    lr_axes.fill_between(*_steps_and_values(lr_curve), color=COLORS["lr"], alpha=0.35, linewidth=0)
    lr_axes.set_ylim(0, 1.1)
    lr_axes.set_yticks([])
    lr_axes.set_xlim(0, max(lines[-1]["step"] * 1.01, *expected[::3], 1))
    lr_axes.set_xlabel("step", color=COLORS["quiet"], fontsize=9)
    locator = MaxNLocator(6 if is_wide else 4, integer=True, steps=[1, 2, 5, 10])
    lr_axes.xaxis.set_major_locator(locator)
    lr_axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))

    for axes, label in ((loss_axes, "loss"), (lr_axes, "lr")):
        axes.set_ylabel(label, color=COLORS["quiet"], fontsize=9)
        axes.set_facecolor("none")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelcolor=COLORS["quiet"], labelsize=9)
    figure.align_ylabels()
    handles = loss_axes.get_legend_handles_labels()[0]
    if handles:
        figure.legend(
            handles=handles,
            loc="outside upper left",
            ncols=4 if is_wide else 2,
            frameon=False,
            labelcolor=COLORS["ink"],
            fontsize=9,
            handlelength=1.6,
            columnspacing=1.6,
        )
    return figure


def _plot_expected(axes: "Axes", expected: Sequence[float]) -> None:
    steps = expected[::3]
    low = expected[1::3]
    high = expected[2::3]
    style: dict[str, Any] = {"color": COLORS["range"], "label": "expected"}
    if len(steps) > 1:
        axes.fill_between(steps, low, high, alpha=0.16, linewidth=0, **style)
    elif steps:
        axes.plot([*steps, *steps], [*low, *high], alpha=0.4, linewidth=7, **style)


def _plot_training(axes: "Axes", train: Curve) -> None:
    if not train:
        return
    style: dict[str, Any] = {"color": COLORS["train"]}
    if len(train) < MIN_SMOOTHED_POINTS:
        axes.plot(*_steps_and_values(train), linewidth=0.9, marker=".", label="training", **style)
        return
    axes.plot(*_steps_and_values(train), alpha=0.3, linewidth=0.9, **style)
    window = 2 * (len(train) // 120) + 3
    smooth = moving_average(moving_average(train, window), window)
    axes.plot(*_steps_and_values(smooth), linewidth=1.8, label="training", **style)


def _plot_validation(axes: "Axes", valid: Curve) -> None:
    if not valid:
        return
    style: dict[str, Any] = {"color": COLORS["valid"]}
    axes.plot(
        *_steps_and_values(downsample(valid)),
        linewidth=1.4,
        marker="o" if len(valid) <= MAX_MARKERS else "",
        markersize=4,
        label="validation",
        **style,
    )
    step, best = min(valid, key=lambda point: point[1])
    axes.plot(
        [step],
        [best],
        marker="o",
        markersize=9,
        markerfacecolor="none",
        markeredgewidth=1.4,
        linestyle="none",
        label=f"best: {best:.4g} at step {step:,}",
        **style,
    )


def _loss_limits(train: Curve, valid: Curve, expected: Sequence[float]) -> tuple[float, float]:
    """Limits that leave out the steep first values, so that the long flat part is legible."""
    points = [*moving_average(train), *valid]
    min_step = 0.03 * max(step for step, _ in points)
    values = [value for step, value in points if step > min_step]
    values += [*expected[1::3], *expected[2::3]]
    margin = 0.06 * (max(values) - min(values)) or 0.1
    return min(values) - margin, max(values) + margin


def _steps_and_values(curve: Curve) -> tuple[list[int], list[float]]:
    return [step for step, _ in curve], [value for _, value in curve]


def downsample(curve: Curve) -> Curve:
    """At most `MAX_POINTS` points, each the mean of equally many neighbors."""
    size = max(1, math.ceil(len(curve) / MAX_POINTS))
    groups = [curve[i : i + size] for i in range(0, len(curve), size)]
    return [(group[-1][0], statistics.fmean(value for _, value in group)) for group in groups]


def to_png(figure: "Figure") -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, facecolor="white")
    return buffer.getvalue()


def to_svg(figure: "Figure", prefix: str) -> str:
    """SVG for a page: text stays text, colors are the page's variables, ids have the prefix."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<(metadata|style).*?</\1>|<style[^>]*/>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    for name, color in COLORS.items():
        svg = svg.replace(color, f"var(--{name})")
    svg = re.sub(r"font-family:[^;\"]*;?", "", svg)  # the page's font
    # The page sizes the drawing: drop the width and height of the svg element.
    return re.sub(
        r'<svg ([^>]*?)width="[^"]*"|height="[\d.]+pt"',
        lambda match: f"<svg {match[1]}" if match[1] else "",
        svg,
        count=2,
    )
