"""Training report: curve.png and the self-contained page report.html.

Both are made from log.jsonl and from report.json, which holds what only the training process knows.
"""

import math
import shlex
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from clearhead import __version__
from clearhead import config as c
from clearhead.config.model import parameters_by_part
from clearhead.config.parse import Schema, read_json_as
from clearhead.config.presets import MEASURED_ON, presets
from clearhead.config.serialize import diff_trees
from clearhead.errors import ClearheadError
from clearhead.io import read_log, write_atomic, write_json
from clearhead.lens.training_trace import TRACE_FOLDER
from clearhead.train.checkpoint import (
    LOG_FILE,
    MUTABLE_OPTIONS,
    REPORT_DATA_FILE,
    CheckpointManager,
)
from clearhead.train.diagnosis import Finding, Line, curve_of, diagnose
from clearhead.train.plots import plot_loss, to_png, to_svg
from clearhead.train.throughput import Throughput, format_duration
from clearhead.train.trainer import Trainer

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
REPORT_SCHEMA: Schema = {
    "recipe": str,
    "config": {},
    "machine": str,
    "throughput": {"tokens_per_target": int | float, "targets_per_batch": int | float},
    "packing_efficiency": int | float,
    "batches_per_epoch": int | float,
    "num_read": int,
    "skipped": [[str | int | list]],
    "status": str,
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
        data = read_report_data(output)
    lines = read_log(output / LOG_FILE)
    if not lines:
        raise ClearheadError(f"{output / LOG_FILE} is empty: there is nothing to report yet.")
    if not all("targets_per_second" in line for line in lines):
        raise ClearheadError(f"{output / LOG_FILE} is damaged: a line has no targets_per_second.")
    config = c.Config.from_dict(data["config"])
    expected, reference_data = expected_loss(config, data["recipe"])
    findings = diagnose(lines, expected, reference_data)
    write_json(output / REPORT_DATA_FILE, data, 1)
    write_atomic(output / CURVE_FILE, to_png(plot_loss(lines, expected)))
    write_atomic(output / REPORT_FILE, render_page(output, data, lines, findings).encode())
    return findings


def read_report_data(output: Path) -> ReportData:
    """Read report.json."""
    path = output / REPORT_DATA_FILE
    data = read_json_as(path, REPORT_SCHEMA)
    if data["status"] not in STATUS_TEXT:
        raise ClearheadError(f"{path} is damaged: {data['status']!r:.60} is not a status.")
    if any(len(entry) != 3 for entry in data["skipped"]):
        raise ClearheadError(f"{path} is damaged: skipped needs reasons, counts and locations.")
    try:
        c.Config.from_dict(data["config"])
    except ClearheadError as error:
        raise ClearheadError(f"{path} is damaged: {error}") from None
    return data


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
            "raw_valid_loss": None,
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
