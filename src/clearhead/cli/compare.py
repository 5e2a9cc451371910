"""`clearhead compare`: variants against each other, with several seeds, and what can be said of them."""

from pathlib import Path

import typer

from clearhead.errors import ClearheadError

What = typer.Argument(
    help="A preset, or a run.toml; or the folder of an experiment, to go on.", show_default=False
)
Varied = typer.Option(
    [], help="An option and its values: model.position=learned,rotary. May be repeated."
)
Seeds = typer.Option("", help="How many seeds (3), or which: 1,5,9.", show_default=False)
Out = typer.Option(None, help="The folder of the experiment (comparison).", show_default=False)
Metric = typer.Option(
    "", help="loss (lowest), last, or a figure of clearhead evaluate: bleu …", show_default=False
)
Against = typer.Option(
    "", help="The variant that the others are held against; the first without.", show_default=False
)
Lengths = typer.Option(
    "", help="Also measure the loss at these lengths: 256,512,1024.", show_default=False
)
Device = typer.Option("", help="cpu, cuda …; the best there is without it.", show_default=False)
Compile = typer.Option(
    None, "--compile/--no-compile", help="Compiled, which pays on a GPU.", show_default=False
)
Board = typer.Option(
    False, "--tensorboard", help="Also write event files for TensorBoard for each run."
)
Looks = typer.Option(
    False,
    "--microscope",
    help="Keep attention, lens and embeddings of each run at log-spaced steps.",
)


def compare(
    context: typer.Context,
    recipe: str = What,
    vary: list[str] = Varied,
    seeds: str = Seeds,
    output: Path = Out,
    metric: str = Metric,
    baseline: str = Against,
    lengths: str = Lengths,
    device: str = Device,
    compiled: bool = Compile,
    tensorboard: bool = Board,
    record_activations: bool = Looks,
) -> None:
    """Train variants with several seeds, and tell what can be said.

    Every combination of all --vary is trained; all other options are as for clearhead train. Ctrl-C ends with status
    130, and the same command goes on. Under torchrun each process takes whole runs. report.html tells what came out.
    """
    import os
    import shlex
    import sys

    from clearhead.cli.common import parse_config_flags
    from clearhead.cli.progress_display import ProgressDisplay
    from clearhead.lab.compare import plan_experiment, run_comparison
    from clearhead.lab.report import REPORT_FILE
    from clearhead.lab.runner import no_display

    for text in vary:
        try:
            parse_config_flags(
                [f"--{text}"] if "=" in text else []
            )  # which knows how options are written
        except ClearheadError as error:
            raise ClearheadError(str(error).replace("--", "--vary ")) from None
    experiment, place = plan_experiment(
        recipe,
        tuple(vary),
        int(seeds) if seeds.isdecimal() else _numbers("--seeds", seeds) or None,
        output,
        parse_config_flags(context.args),
        metric,
        baseline,
        _numbers("--lengths", lengths),
        shlex.join(["clearhead", *sys.argv[1:]]),
    )
    rank, size = (os.environ.get(name, "0") for name in ("RANK", "WORLD_SIZE"))
    result = run_comparison(
        experiment,
        place,
        echo=typer.echo,
        make_display=ProgressDisplay if size in ("0", "1") and sys.stdout.isatty() else no_display,
        device=device,
        compiled=compiled,
        tensorboard=tensorboard,
        microscope=record_activations,
    )
    if rank == "0":
        typer.echo(f"\n{result}\n\nreport: {place / REPORT_FILE}")
    if not result.completed:
        typer.echo("stopped; the same command goes on")
        raise typer.Exit(130)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    """(1, 5, 9) of 1,5,9."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ClearheadError(
            f"{option} {text} must be whole numbers with commas between them."
        ) from None
