"""Training from Python: `clearhead.train`."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from clearhead.api import Model, load
from clearhead.config import Config
from clearhead.errors import check_kind
from clearhead.train.begin import read_config
from clearhead.train.pace import Speed
from clearhead.train.run import Progress, Run
from clearhead.train.teach import teach


def train(
    what: str | Path | Config,
    out: str | Path = "run",
    *,
    resume: bool = True,
    device: str = "",
    compiled: bool | None = None,
    tensorboard: bool = False,
    microscope: bool = False,
    quiet: bool = False,
    **changes: object,
) -> Model:
    """Trains a preset, a run.toml or a configuration, and returns its best model; what it left behind is in `out`.

    Changes are options, two underscores for a dot: `data__train="texts/"`, `train__steps=500`, `width=64`. Where the
    folder holds a run already it is gone on with.
    """
    check_kind(out, str | Path, "a folder to train in")
    config, out = read_config(what, changes), Path(out)

    def display(run: Run, speed: Speed) -> AbstractContextManager[_Lines]:
        return nullcontext(_Lines(quiet))

    result = teach(
        config,
        out,
        display,
        (lambda line: None) if quiet else print,
        name=str(what) if isinstance(what, str | Path) else "",
        resume=resume,
        device=device,
        compiled=compiled,
        tensorboard=tensorboard,
        microscope=microscope,
    )
    best = out / "best"
    return load(best if best.exists() else result.folder, device=device)


@dataclass(frozen=True)
class _Lines:
    """One line for each validation, where a bar would be in the way: notebooks, logs."""

    quiet: bool

    def show(self, at: Progress) -> None:
        if at.valid is not None and not self.quiet:
            print(f"step {at.step:,} of {at.steps:,}: loss {at.loss:.4f}, validation {at.valid:.4f}", flush=True)
