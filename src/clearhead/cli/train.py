"""`clearhead train`: from texts to a model, in a folder that can be gone on with."""

import sys
from pathlib import Path
from typing import Any

import typer

What = typer.Argument(help="A preset, or a run.toml.", show_default=False)
Out = typer.Option(Path("run"), help="The folder of the run.")
Resume = typer.Option("auto", help="auto goes on with what is in the folder; never refuses if there is something.")
Device = typer.Option("", help="cpu, cuda …; the best there is without it.", show_default=False)
Compile = typer.Option(None, "--compile/--no-compile", help="Compiled, which pays on a GPU.", show_default=False)


def train(
    context: typer.Context,
    what: str = What,
    out: Path = Out,
    resume: str = Resume,
    device: str = Device,
    compiled: bool = Compile,
) -> None:
    """Train a model on texts of your own.

    --data.train=texts/ says what it learns from; any option of clearhead presets NAME can be changed so.
    Ctrl-C saves; the same command goes on.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from clearhead.cli.flags import dotted
    from clearhead.errors import ClearheadError
    from clearhead.train.begin import begin, read_config
    from clearhead.train.run import Progress as Step
    from clearhead.weights.checkpoint import Home

    if resume not in ("auto", "never"):
        raise ClearheadError(f"--resume {resume} is unknown; it is auto or never.")
    config = read_config(what, dotted(context.args))
    where = Home.of(device, "").device
    fast = where.startswith("cuda") if compiled is None else compiled
    run = begin(config, out, resume=resume == "auto", device=where, compiled=fast)
    if run.data.report.skipped:
        typer.echo(str(run.data.report), err=True)
    went_on = f", going on after step {run.step:,}" if run.step else ""
    size = sum(p.numel() for p in run.net.parameters())
    typer.echo(f"{size:,} parameters, {run.data.epoch:,} steps an epoch, on {where}{went_on}")
    words = (
        "step {task.completed:>6}  loss {task.fields[loss]:.3f}  valid {task.fields[valid]}  {task.fields[speed]} tok/s"
    )
    columns = (BarColumn(), TextColumn(words), TimeRemainingColumn())
    with Progress(*columns, console=Console(highlight=False), disable=not sys.stdout.isatty()) as bar:
        task = bar.add_task("", total=config.train.steps, completed=run.step, loss=0.0, valid="–", speed="–")

        def watch(at: Step) -> bool:
            more: dict[str, Any] = {} if at.valid is None else {"valid": f"{at.valid:.3f}"}
            bar.update(task, completed=at.step, loss=at.loss, speed=f"{at.tokens:,.0f}", **more)
            if not sys.stdout.isatty() and at.valid is not None:
                typer.echo(f"step {at.step:,}: loss {at.loss:.4f}, validation {at.valid:.4f}")
            return True

        result = run.train(watch)
    typer.echo(f"{result.end} at step {result.step:,}: loss {result.loss:.4f}, best validation {result.best:.4f}")
    if result.end == "stopped":
        typer.echo(f"the same command goes on from {result.folder}")
    best = out / "best" if (out / "best").exists() else result.folder
    typer.echo(f'the model is in {best}; clearhead generate {best} "…" writes with it')
