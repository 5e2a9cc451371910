"""What a run leaves behind for people: curve.png, and report.html, which is one file that needs no other.

All of it is made from log.jsonl and from facts.json, the little that only the process knew.
"""

import math
import shlex
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from clearhead import __version__, count, reader
from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.files import json_lines, overwrite, write_json
from clearhead.lens.film import FOLDER
from clearhead.presets import presets
from clearhead.recipes import MEASURED_ON
from clearhead.train import curve
from clearhead.train.checkpoint import BEST, FREE, Checkpoints
from clearhead.train.diagnosis import Finding, Line, diagnose, points
from clearhead.train.pace import Speed, duration
from clearhead.train.run import Run
from clearhead.weights.fields import apart

Facts = dict[str, Any]
FACTS, LOG, PICTURE, PAGE = "facts.json", "log.jsonl", "curve.png", "report.html"
FILM = f"{FOLDER}/film.png"
ENDS = {
    "done": "all steps done",
    "stopped": "stopped by hand",
    "patience": "stopped, because it no longer got better",
    "running": "not at its end",
}

# Options of which a recipe's range is independent; with other steps the schedule is another.
SAME_LOSS = {"data.train", "data.valid", "data.field", "data.sides", "train.seed"}
SAME_LOSS |= {f"train.{name}" for name in FREE if name != "steps"}


def facts_of(run: Run, preset: str, speed: Speed) -> Facts:
    """What is known of a run besides its log, as plain values."""
    told = run.data.report
    return {
        "preset": preset,
        "config": run.model.config.tree(),
        "machine": f"{_device(run.device)}, {str(next(run.net.parameters()).dtype).removeprefix('torch.')}",
        "speed": asdict(speed),
        "share": run.data.share,
        "batches": run.data.epoch,
        "read": told.read,
        "skipped": [[why, n, told.places.get(why, [])] for why, n in told.skipped.items()],
        "end": "running",
    }


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def write(out: Path, facts: Facts | None = None) -> list[Finding]:
    """Both files, each in one step, and what they say about the curve. Without facts, those of the last time hold."""
    if facts is None:
        facts = reader.load(out / FACTS)
    lines = json_lines(out / LOG)
    if not lines:
        raise ClearheadError(f"{out / LOG} holds no report yet, so there is nothing to draw.")
    config = c.Config.of(facts["config"])
    expected, on = _expected(config, facts["preset"])
    findings = diagnose(lines, expected, on)
    write_json(out / FACTS, facts, 1)
    overwrite(out / PICTURE, curve.png(curve.figure(lines, expected)))
    overwrite(out / PAGE, page(out, facts, lines, findings).encode())
    return findings


def page(out: Path, facts: Facts, lines: list[Line], findings: list[Finding]) -> str:
    config = c.Config.of(facts["config"])
    expected, _ = _expected(config, facts["preset"])
    return rendered(
        Path(__file__).with_name("report.html"),
        name=out.resolve().name,
        wide=curve.svg(curve.figure(lines, expected), "wide"),
        narrow=curve.svg(curve.figure(lines, expected, (4.2, 4.6)), "narrow"),
        model=_model(config),
        tiles=_tiles(config, facts, lines),
        findings=findings,
        changed=_changed(config, facts["preset"]),
        preset=facts["preset"],
        data=_data(config, facts, lines),
        skipped=facts["skipped"],
        checks=_checks(config, facts, lines),
        speed=_speed(facts, lines),
        commands=commands(out, config),
        film=FILM if (out / FILM).is_file() else "",
    )


def rendered(template: Path, **values: object) -> str:
    """A page that is one file, in the style of all reports; all but our own drawings is escaped."""
    from jinja2 import Environment, StrictUndefined

    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return made.from_string(template.read_text(encoding="utf-8")).render(style=style, version=__version__, **values)


def _model(config: c.Config) -> list[tuple[str, str]]:
    m = config.model
    parts = {name: n for name, n in count.parts(m).items() if n}
    encoder = f", encoder of {m.shape.layers}" if isinstance(m.shape, c.EncoderDecoder) else ""
    return [
        ("shape", f"{m.shape.kind}, {m.head.kind} head"),
        ("parameters", f"{sum(parts.values()):,}"),
        ("of them", ", ".join(f"{name} {short(n)}" for name, n in parts.items())),
        ("size", f"{m.layers} layers{encoder}, width {m.width}, {m.attention.heads} heads, context {m.context:,}"),
        ("vocabulary", f"{m.vocabulary:,}" if m.vocabulary else "none"),
    ]


def _tiles(config: c.Config, facts: Facts, lines: list[Line]) -> list[tuple[str, str, str]]:
    """The few numbers that matter most: what, how much, and a word to it."""
    valid, last = points(lines, "valid"), lines[-1]
    found = []
    if valid:
        step, best = min(valid, key=lambda point: point[1])
        told = isinstance(config.model.head, c.Language | c.MaskedWord) and best < 20
        also = f" · perplexity {math.exp(best):.4g}" if told else ""
        found.append(("best validation loss", f"{best:.4g}", f"step {step:,}{also}"))
        if isinstance(config.model.head, c.Number):
            found.append(("typical error", f"{math.sqrt(best):.4g}", "root of it, in the label's own unit"))
    if accuracy := points(lines, "accuracy"):
        step, best = max(accuracy, key=lambda point: point[1])
        found.append(("best accuracy", f"{best:.1%}", f"step {step:,}"))
    found.append(("training loss", f"{last['loss']:.4g}", "at the end"))
    end = ENDS.get(facts["end"], "ended by a mistake")
    found.append(("steps", f"{last['step']:,}", end if facts["end"] == "done" else f"of {config.train.steps:,}; {end}"))
    speed, rate = Speed(**facts["speed"]), lessons_a_second(lines)
    share = f" · {speed.share(rate):.0%} of peak" if speed.peak else ""
    return [*found, ("speed", short(rate * speed.tokens), f"tokens a second{share}")]


def lessons_a_second(lines: list[Line]) -> float:
    """Of the report in the middle."""
    return statistics.median([line["lessons_per_second"] for line in lines])


def _changed(config: c.Config, preset: str) -> list[tuple[str, str, str]]:
    """Options that are not as in the preset, or, for a file, not the default; what follows from the data aside."""
    before = presets[preset] if preset in presets else c.Config()
    found = apart(before.tree(), config.tree(), "")
    own = [(name, now, was) for name, was, now in found if name != "model.vocabulary" and not name.startswith("use.")]
    return [(name, _plain(now), _plain(was)) for name, now, was in own]


def _expected(config: c.Config, preset: str) -> tuple[tuple[float, ...], str]:
    """The range to hold a run against, and the data it was measured on, unless the user gave a range.

    A recipe's range is none where an option that changes the loss is not the recipe's.
    """
    expected = config.train.expected
    if preset not in presets or expected != presets[preset].train.expected:
        return expected, ""
    own = {name for name, _, _ in _changed(config, preset)} - SAME_LOSS
    return (() if own else expected), MEASURED_ON.get(preset, "")


def _plain(value: object) -> str:
    return (", ".join(map(str, value)) or "–") if isinstance(value, list) else str(value) or "–"


def _data(config: c.Config, facts: Facts, lines: list[Line]) -> list[tuple[str, str]]:
    m, speed, epoch = config.model, facts["speed"], facts["batches"]
    pairs = isinstance(m.shape, c.EncoderDecoder)
    rows = isinstance(m.head, c.Classes | c.Number)
    seen = lines[-1]["step"] * config.train.accumulate
    tokens = speed["tokens"] * speed["lessons"]
    return [
        ("pairs read" if pairs else "rows read" if rows else "documents read", f"{facts['read']:,}"),
        ("cut or left out", f"{sum(n for _, n, _ in facts['skipped']):,}"),
        ("share of real tokens", f"{facts['share']:.1%}"),
        ("tokens an epoch", f"{short(tokens * epoch)} in {epoch / config.train.accumulate:,.4g} steps"),
        ("epochs seen", f"{seen / epoch:.3g} ({short(tokens * seen)} tokens)"),
    ]


def _checks(config: c.Config, facts: Facts, lines: list[Line]) -> list[dict[str, Any]]:
    """A row for each validation."""
    found = [line for line in lines if math.isfinite(line.get("valid", math.nan))]
    best = min((line["valid"] for line in found), default=None)
    steps = facts["batches"] / config.train.accumulate
    return [{"accuracy": None, **line, "epoch": line["step"] / steps, "best": line["valid"] == best} for line in found]


def _speed(facts: Facts, lines: list[Line]) -> list[tuple[str, str]]:
    speed, rate = Speed(**facts["speed"]), lessons_a_second(lines)
    found = [("machine", facts["machine"]), ("median", f"{rate * speed.tokens:,.0f} tokens a second")]
    if speed.peak:
        share = f"{speed.share(rate):.0%} of the {short(speed.peak)}FLOP/s that a matrix product reaches here"
        found.append(("share of peak", share))
    return [*found, ("time of all steps", f"{duration(seconds(facts, lines))}, without validations and saving")]


def seconds(facts: Facts, lines: list[Line]) -> float:
    """That all steps took, without validations and saving."""
    lessons = facts["config"]["train"]["accumulate"] * facts["speed"]["lessons"]
    starts = [0, *(line["step"] for line in lines)]
    return sum((line["step"] - start) * lessons / line["lessons_per_second"]
               for start, line in zip(starts, lines, strict=False) if line["lessons_per_second"])  # fmt: skip


def commands(out: Path, config: c.Config) -> list[tuple[str, str]]:
    """What can be done with the model now: a sentence and a line for the shell."""
    last = Checkpoints(out, 1).last()
    where = out / BEST if (out / BEST).exists() else last.folder if last else out
    folder, kind = shlex.quote(str(where)), config.model.shape.kind
    match config.model.head:
        case c.Language() if kind == "decoder":
            use = ("Write with it", f'clearhead generate {folder} "Once"')
        case c.Language():
            use = ("Translate with it", f'clearhead translate {folder} "A sentence."')
        case c.MaskedWord():
            use = ("Fill gaps with it", f'clearhead fill {folder} "The [MASK] is here."')
        case _:
            what = {"tokens": '"A text."', "pictures": "picture.png"}.get(config.model.input.kind, "sound.wav")
            use = ("Judge with it", f"clearhead classify {folder} {what}")
    see = [("See where a head looks", f'clearhead see {folder} "A sentence." --layer 0 --head 0')]
    return [
        use,
        *(see if config.model.vocabulary and kind != "encoder-decoder" else []),
        ("Check the laws that it must keep", f"clearhead verify {folder}"),
        ("Give it to another engine", f"clearhead export {folder} {shlex.quote(f'{out.name}-hf')} --format hf"),
    ]


def short(number: float) -> str:
    """1.2 M, 350 k, 12."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.3g}"
