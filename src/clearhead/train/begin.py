"""From a configuration to a run: what is learned from, the model, in a folder that can be gone on with."""

import json
from dataclasses import replace
from pathlib import Path

import torch

from clearhead import reader
from clearhead.config import Config, Language
from clearhead.data.labelled import Labelled
from clearhead.data.packed import Report
from clearhead.errors import ClearheadError
from clearhead.model.transformer import Transformer, build
from clearhead.train.checkpoint import Checkpoints, check_same
from clearhead.train.lessons import Words, prepare
from clearhead.train.report import replace as replace_file
from clearhead.train.run import Run
from clearhead.train.team import ALONE, Alone
from clearhead.weights import formats
from clearhead.weights.checkpoint import Checkpoint, Home

CONFIG = "run.json"


def begin(config: Config, out: Path, *, resume: bool, device: str, compiled: bool, team: Alone = ALONE) -> Run:
    """A run in `out`: a fresh one, or the one that is there."""
    if not config.data.train:
        raise ClearheadError("there is nothing to learn from; give --data.train a file, a folder or a glob.")
    if out.exists() and not out.is_dir():
        raise ClearheadError(f"{out} is a file; choose another --out.")
    held = Checkpoints(out, 1).last() is not None
    if held and not resume:
        raise ClearheadError(f"{out} holds a run already; --resume auto goes on with it, another --out starts anew.")
    if held:  # before the tokens of other data take the place of this run's
        check_same(out / CONFIG, reader.load(out / CONFIG) | {name: config.tree()[name] for name in ("data", "train")})
    report, start, ready = Report(config.data.broken), None, held or not team.first
    words = Words(config, out, ready)
    if config.train.learns == "head" and not config.train.start:
        raise ClearheadError("train.learns = head needs train.start: a body of random weights would never learn.")
    if config.train.start:
        start = formats.read(config.train.start, Home("cpu", torch.float32))
        config = based_on(config, start)
        words = Words(config, out, ready, start.tokenizer, start.source_tokenizer)
    with team.in_turn():
        lessons = prepare(config, words, report)
    config = lessons.config
    if held:
        check_same(out / CONFIG, config.tree())
    if team.first:
        out.mkdir(parents=True, exist_ok=True)
        replace_file(out / CONFIG, (json.dumps(config.tree(), indent=1) + "\n").encode())
    net = build(config.model, config.train.seed)
    if start is not None:
        take_over(net, start)
    if config.train.learns == "head":
        freeze_body(net)
    varied = isinstance(lessons.data, Labelled)  # batches of many lengths, each of which would be compiled
    model = Checkpoint(net, config, lessons.tokenizer, lessons.source_tokenizer)
    run = Run(model, lessons.data, out, device, compiled and not varied, team)
    if held:
        run.resume()
    return run


def based_on(config: Config, start: Checkpoint) -> Config:
    """The model that is started from, with the dropout asked for, and the head asked for where that is another kind."""
    old, new, name = start.config.model, config.model, config.train.start
    if old.shape.kind != new.shape.kind and isinstance(new.head, Language):
        raise ClearheadError(f"{name} is of shape {old.shape.kind}, but what is to be trained is {new.shape.kind}.")
    if old.vocabulary and start.tokenizer is None:
        raise ClearheadError(start.why or f"{name} has no tokenizer, so it cannot learn from files.")
    head = old.head if old.head.kind == new.head.kind else new.head
    model = replace(old, dropout=new.dropout, head=head)
    return replace(config, model=model, use=replace(start.config.use, labels=()))


def take_over(net: Transformer, start: Checkpoint) -> None:
    """All weights of the model that is started from; a head of another kind or size starts fresh."""
    old = dict(start.net.named_parameters())
    with torch.no_grad():
        for name, p in net.named_parameters():
            if name in old and old[name].shape == p.shape:
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


def read_config(name: str, changes: dict[str, object]) -> Config:
    """A preset by name, or a file of TOML or JSON, with changes on top."""
    from clearhead.presets import presets

    if name not in presets and Path(name).suffix in (".toml", ".json"):
        return Config.of(reader.load(name)).change(**changes)
    return presets[name].change(**changes)
