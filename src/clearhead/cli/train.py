"""`clearhead train vectors`: a vector for each word of a text."""

from collections.abc import Mapping
from pathlib import Path

import typer

# ---- train_vectors: `clearhead train vectors`: a vector for each word of a text.


def train_vectors(flags: list[str], out: Path, others: Mapping[str, object]) -> None:
    """`flags` are the options of a `Lesson`, as --train.width; `others` are for models: none of them may be set."""
    from clearhead.cli.common import parse_config_flags
    from clearhead.config.parse import apply_overrides, dataclass_from_dict, dataclass_to_dict
    from clearhead.errors import ClearheadError
    from clearhead.word_vectors.skip_gram import Word2VecConfig, train_word_vectors

    if given := [name for name, value in others.items() if value]:
        raise ClearheadError(f"--{given[0]} is for models; vectors are learned without it.")
    lesson = dataclass_from_dict(
        Word2VecConfig,
        apply_overrides(dataclass_to_dict(Word2VecConfig()), parse_config_flags(flags)),
    )
    train_word_vectors(lesson, out, typer.echo)


# ---- train: `clearhead train`: from files to a model, in a folder that can be gone on with.

What = typer.Argument(
    help="A preset, or a run.toml; or vectors, of the words of a text.", show_default=False
)
Out = typer.Option(Path("run"), help="The folder of the run.")
Resume = typer.Option(
    "auto", help="auto goes on with what is in the folder; never refuses if there is something."
)
Device = typer.Option("", help="cpu, cuda …; the best there is without it.", show_default=False)
Compile = typer.Option(
    None, "--compile/--no-compile", help="Compiled, which pays on a GPU.", show_default=False
)
Board = typer.Option(
    False, "--tensorboard", help="Also write event files for TensorBoard into the folder."
)
Looks = typer.Option(
    False,
    "--microscope",
    help="Keep attention, lens and embeddings of a few texts at log-spaced steps.",
)


def train(
    context: typer.Context,
    recipe: str = What,
    output: Path = Out,
    resume: str = Resume,
    device: str = Device,
    compiled: bool = Compile,
    tensorboard: bool = Board,
    record_activations: bool = Looks,
) -> None:
    """Train a model on data of your own.

    --data.train FILES… says what it learns from; any option of clearhead presets NAME can be changed so.
    Ctrl-C saves and ends with status 130; the same command goes on. At the end report.html in the folder tells all.
    """
    if recipe == "vectors":
        looks = {"tensorboard": tensorboard, "microscope": record_activations}
        others = {
            "resume": resume != "auto",
            "device": device,
            "compile": compiled is not None,
            **looks,
        }
        train_vectors(context.args, output, others)
        return
    from clearhead.cli.common import parse_config_flags
    from clearhead.cli.progress_display import ProgressDisplay
    from clearhead.errors import ClearheadError
    from clearhead.train.train import load_config, run_training

    if resume not in ("auto", "never"):
        raise ClearheadError(f"--resume {resume} is unknown; it is auto or never.")
    result = run_training(
        load_config(recipe, parse_config_flags(context.args)),
        output,
        ProgressDisplay,
        typer.echo,
        recipe=recipe,
        resume=resume == "auto",
        device=device,
        compile=compiled,
        tensorboard=tensorboard,
        record_activations=record_activations,
    )
    if (
        result.status == "stopped"
    ):  # so that what stands after && does not take half a training for a whole one
        raise typer.Exit(130)
