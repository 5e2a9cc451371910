"""`clearhead train`: from files to a model, in a folder that can be gone on with."""

from pathlib import Path

import typer

What = typer.Argument(help="A preset, or a run.toml; or vectors, of the words of a text.", show_default=False)
Out = typer.Option(Path("run"), help="The folder of the run.")
Resume = typer.Option("auto", help="auto goes on with what is in the folder; never refuses if there is something.")
Device = typer.Option("", help="cpu, cuda …; the best there is without it.", show_default=False)
Compile = typer.Option(None, "--compile/--no-compile", help="Compiled, which pays on a GPU.", show_default=False)
Board = typer.Option(False, "--tensorboard", help="Also write event files for TensorBoard into the folder.")
Looks = typer.Option(
    False, "--microscope", help="Keep attention, lens and embeddings of a few texts at log-spaced steps."
)


def train(
    context: typer.Context,
    what: str = What,
    out: Path = Out,
    resume: str = Resume,
    device: str = Device,
    compiled: bool = Compile,
    tensorboard: bool = Board,
    microscope: bool = Looks,
) -> None:
    """Train a model on data of your own.

    --data.train FILES… says what it learns from; any option of clearhead presets NAME can be changed so.
    Ctrl-C saves and ends with status 130; the same command goes on. At the end report.html in the folder tells all.
    """
    if what == "vectors":
        from clearhead.cli.train_vectors import train_vectors

        looks = {"tensorboard": tensorboard, "microscope": microscope}
        others = {"resume": resume != "auto", "device": device, "compile": compiled is not None, **looks}
        train_vectors(context.args, out, others)
        return
    from clearhead.cli.display import Display
    from clearhead.cli.flags import dotted
    from clearhead.errors import ClearheadError
    from clearhead.train.begin import read_config
    from clearhead.train.teach import teach

    if resume not in ("auto", "never"):
        raise ClearheadError(f"--resume {resume} is unknown; it is auto or never.")
    result = teach(
        read_config(what, dotted(context.args)),
        out,
        Display,
        typer.echo,
        name=what,
        resume=resume == "auto",
        device=device,
        compiled=compiled,
        tensorboard=tensorboard,
        microscope=microscope,
    )
    if result.end == "stopped":  # so that what stands after && does not take half a training for a whole one
        raise typer.Exit(130)
