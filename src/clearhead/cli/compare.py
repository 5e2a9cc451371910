"""`clearhead compare`: compare variants of a model over several seeds."""

import os
import shlex
import sys
from pathlib import Path

import typer

from clearhead.cli.common import DEVICE_OPTION, echo, parse_config_flags
from clearhead.cli.train import COMPILE_OPTION, LOGGER_OPTION, RECORD_ACTIVATIONS_OPTION, Logger
from clearhead.errors import ClearheadError


def compare(
    context: typer.Context,
    recipe: str = typer.Argument(
        metavar="RECIPE",
        help="A preset, a run.toml, or the folder of an experiment to resume.",
        show_default=False,
    ),
    vary: list[str] = typer.Option(
        [],
        metavar="OPTION=VALUES",
        help="An option and its values: model.position=learned,rotary. May be repeated.",
    ),
    seeds: str = typer.Option(
        "", help="Number of seeds (default 3), or a list: 1,5,9.", show_default=False
    ),
    output: Path = typer.Option(
        None, help="Folder of the experiment. Default: comparison.", show_default=False
    ),
    metric: str = typer.Option(
        "",
        help="best_loss (lowest validation loss), final_loss, or a metric of clearhead evaluate, "
        "such as bleu.",
        show_default=False,
    ),
    baseline: str = typer.Option(
        "", help="The variant to compare with. Default: the first.", show_default=False
    ),
    eval_lengths: str = typer.Option(
        "", help="Also measure the loss at these sequence lengths: 256,512.", show_default=False
    ),
    device: str = DEVICE_OPTION,
    compile: bool | None = COMPILE_OPTION,
    logger: Logger | None = LOGGER_OPTION,
    record_activations: bool = RECORD_ACTIVATIONS_OPTION,
) -> None:
    """Compare variants of a model over several seeds.

    Trains every combination of the --vary options, and reports differences with confidence
    intervals. Other options are those of clearhead train. Ctrl-C exits with status 130; the same
    command resumes. Under torchrun, the runs are distributed over the processes. The result is in
    report.html.
    """
    from clearhead.cli.training_display import TrainingDisplay
    from clearhead.lab.compare import plan_experiment, run_comparison
    from clearhead.lab.report import REPORT_FILE
    from clearhead.train.train import no_display

    for text in vary:
        _check_vary(text)
    experiment, folder = plan_experiment(
        recipe,
        tuple(vary),
        int(seeds) if seeds.isdecimal() else _parse_ints("--seeds", seeds) or None,
        output,
        _parse_options(context.args),
        metric,
        baseline,
        _parse_ints("--eval-lengths", eval_lengths),
        shlex.join(["clearhead", *sys.argv[1:]]),
    )
    # Read before the runs, for which each process is made independent of the others.
    is_main_process = os.environ.get("RANK", "0") == "0"
    is_single_process = os.environ.get("WORLD_SIZE", "1") in ("0", "1")
    shows_progress = is_single_process and sys.stdout.isatty()
    result = run_comparison(
        experiment,
        folder,
        echo=echo,
        make_display=TrainingDisplay if shows_progress else no_display,
        device=device,
        compile=compile,
        logger=logger,
        record_activations=record_activations,
    )
    if is_main_process:
        echo(f"\n{result}\n\nreport: {folder / REPORT_FILE}")
    if not result.completed:
        echo("stopped; run the same command to resume")
        raise typer.Exit(130)


def _parse_options(words: list[str]) -> dict[str, object]:
    if words and not words[0].startswith("-"):
        raise ClearheadError(
            f"unexpected argument {words[0]!r}: compare trains variants of one preset, such as "
            "--vary model.position=rotary,none. To compare trained models, run clearhead evaluate "
            "for each."
        )
    return parse_config_flags(words)


def _check_vary(text: str) -> None:
    """Raise unless the text is an option with values."""
    try:
        parse_config_flags([f"--{text}"] if "=" in text else [])
    except ClearheadError as error:
        raise ClearheadError(str(error).replace("--", "--vary ")) from None


def _parse_ints(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ClearheadError(
            f"{option} must be integers separated by commas, got {text!r}."
        ) from None
