"""From a configuration to a run: what is learned from, the model, in a folder that can be gone on with."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from clearhead import reader
from clearhead.config import Classes, Config, Language
from clearhead.data.labelled import Labelled
from clearhead.data.packed import Report
from clearhead.errors import ClearheadError, nearest, similar
from clearhead.files import write_json
from clearhead.model.transformer import Transformer, build
from clearhead.train.checkpoint import Checkpoints, Saved, check_same
from clearhead.train.lessons import prepare
from clearhead.train.run import Run
from clearhead.train.team import ALONE, Alone
from clearhead.train.tokenizers import Origin
from clearhead.train.unchanged import FILE, fingerprints
from clearhead.weights import bundled, formats
from clearhead.weights.checkpoint import Checkpoint, Home
from clearhead.weights.fields import apart

CONFIG = "run.json"


def begin(
    config: Config,
    out: Path,
    *,
    resume: bool,
    device: str,
    compiled: bool,
    team: Alone = ALONE,
    say: Callable[[str], None] = print,
) -> Run:
    """A run in `out`: a fresh one, or the one that is there."""
    if not config.data.train:
        raise ClearheadError("there is nothing to learn from; give --data.train a file, a folder or a glob.")
    for path in (*config.data.train, *config.data.valid):
        if Path(path).is_dir() and Path(path).resolve() == out.resolve():
            raise ClearheadError(f"--out {out} is the folder of the data; a run needs a folder of its own.")
    last = Checkpoints(out).last()
    if last is not None and not resume:
        raise ClearheadError(f"{out} holds a run already; --resume auto goes on with it, another --out starts anew.")
    if last is not None:  # before the tokens of other data take the place of this run's
        check_same(out / CONFIG, reader.load(out / CONFIG) | {name: config.tree()[name] for name in ("data", "train")})
    read = fingerprints(config.data, out, last is not None) if team.first else {}
    report = Report(config.data.broken)
    origin, start = _origin(config, out, last, ready=last is not None or not team.first)
    with team.in_turn():
        lessons = prepare(origin.config, origin, report)
    for line in report.told if team.first else ():
        say(line)
    config = lessons.config
    if last is not None:
        check_same(out / CONFIG, config.tree())
    if team.first:
        out.mkdir(parents=True, exist_ok=True)
        for name, tree in ((CONFIG, config.tree()), (FILE, read)):
            write_json(out / name, tree, 1)
    net = build(config.model, config.train.seed)
    if start is not None:
        take_over(net, config, start)
    if config.train.learns == "head":
        freeze_body(net)
    varied = isinstance(lessons.data, Labelled)  # batches of many lengths, each of which would be compiled
    model = Checkpoint(net, config, lessons.tokenizer, lessons.source_tokenizer)
    run = Run(model, lessons.data, out, device, compiled and not varied, team, say)
    run.resume()
    return run


def _origin(config: Config, out: Path, last: Saved | None, ready: bool) -> tuple[Origin, Checkpoint | None]:
    """Where tokenizers come from, with the configuration of what is trained, and the model of a fresh run's start."""
    if not config.train.start:
        if config.train.learns == "head":
            raise ClearheadError("train.learns = head needs train.start: a body of random weights would never learn.")
        return Origin(config, out, ready), None
    if last is not None:  # the model that it started from may be gone
        own = formats.tokenizers(last.folder)
        config = based_on(config, Config.of(reader.load(out / CONFIG)))
        return Origin(config, out, ready, own.tokenizer, own.source), None
    start = formats.read(config.train.start, Home("cpu", torch.float32))
    if start.config.model.vocabulary and start.tokenizer is None:
        raise ClearheadError(start.why or f"{config.train.start} has no tokenizer, so it cannot learn from files.")
    return Origin(based_on(config, start.config), out, ready, start.tokenizer, start.source_tokenizer), start


def based_on(config: Config, start: Config) -> Config:
    """The model that is started from, with the dropout asked for, and the head asked for where that is another kind."""
    old, new, name = start.model, config.model, config.train.start
    if old.shape.kind != new.shape.kind and isinstance(new.head, Language):
        raise ClearheadError(f"{name} is of shape {old.shape.kind}, but what is to be trained is {new.shape.kind}.")
    head = old.head if old.head.kind == new.head.kind else new.head
    model = replace(old, dropout=new.dropout, head=head)
    return replace(config, model=model, use=replace(start.use, labels=()))


def take_over(net: Transformer, config: Config, start: Checkpoint) -> None:
    """All weights of the model that is started from; a head of another kind or size, or for other classes, is fresh."""
    old = dict(start.net.named_parameters())
    before, now = start.config.use.labels, config.use.labels
    rows = [before.index(label) for label in now] if sorted(before) == sorted(now) else []
    with torch.no_grad():
        for name, p in net.named_parameters():
            fits = name in old and old[name].shape == p.shape
            if name.startswith("head.out.") and isinstance(config.model.head, Classes):
                if fits and rows:
                    p.copy_(old[name][rows])
            elif fits:
                p.copy_(old[name])
            elif not name.startswith("head."):
                raise ClearheadError(f"{name} of the model to start from does not fit.")


def freeze_body(net: Transformer) -> None:
    """Only the head may change."""
    own = [p for name, p in net.named_parameters() if name.startswith("head.")]
    if not own:
        raise ClearheadError("train.learns = head needs a head with weights of its own; this one shares the embedding.")
    for p in net.parameters():
        p.requires_grad_(False)
    for p in own:
        p.requires_grad_()


def read_config(what: str | Path | Config, changes: dict[str, object]) -> Config:
    """A preset by name, or a file of TOML or JSON, with changes on top; none of them may be without effect."""
    from clearhead.presets import presets

    if isinstance(what, Config):
        return changed(what, changes)
    name = str(what)
    if name not in presets and Path(name).suffix in (".toml", ".json"):
        if not Path(name).exists():
            missing = f"there is no file {name}{similar(name)}, and no preset of that name"
            raise ClearheadError(f"{missing}; {nearest(name, presets)}")
        return changed(Config.of(reader.load(name)), changes)
    if name not in presets and name in bundled.names():
        raise ClearheadError(f"{name} is a model that is trained already; clearhead presets lists what can be trained.")
    return changed(presets[name], changes)


def changed(before: Config, changes: Mapping[str, object]) -> Config:
    """With changes on top, none of which may be without effect."""
    config = before.change(**changes)
    if config.train.start:
        for path, _, new in apart(before.tree(), config.tree(), ""):
            if re.match(r"model\.(?!dropout|head)|data\.(tokenizer|vocabulary)$", path):
                raise ClearheadError(
                    f"{path} = {new!r} has no effect: train.start says which model it is; leave it out."
                )
    return config
