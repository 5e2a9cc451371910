"""`clearhead train`: train a model, or word vectors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import typer

from clearhead.cli.common import DEVICE_OPTION, echo, parse_config_flags
from clearhead.errors import ClearheadError

Logger = Literal["tensorboard"]

COMPILE_OPTION = typer.Option(
    None,
    "--compile/--no-compile",
    help="Use torch.compile. Default: on GPU only.",
    show_default=False,
)
LOGGER_OPTION = typer.Option(None, help="Also log to this tracker.", show_default=False)
RECORD_ACTIVATIONS_OPTION = typer.Option(
    False,
    "--record-activations",
    help="Record attention, logit lens and embeddings of a few texts during training.",
)


def train(
    context: typer.Context,
    recipe: str = typer.Argument(
        metavar="RECIPE",
        help="A preset, a run.toml, a run folder to resume, or vectors (word vectors).",
        show_default=False,
    ),
    output: Path | None = typer.Option(
        None, help="Output folder. Default: run, or the run folder.", show_default=False
    ),
    resume: Literal["auto", "never"] = typer.Option(
        "auto", help="auto: resume the run in this folder. never: fail if it is not empty."
    ),
    device: str = DEVICE_OPTION,
    compile: bool | None = COMPILE_OPTION,
    logger: Logger | None = LOGGER_OPTION,
    record_activations: bool = RECORD_ACTIVATIONS_OPTION,
) -> None:
    """Train a model, or word vectors.

    Requires --data.train FILE…. Every option that clearhead presets NAME prints can be set, such as
    --train.max_steps=500. Ctrl-C saves a checkpoint and exits with status 130; the same command
    resumes, as does clearhead train FOLDER. The output folder contains the best model (best/) and
    report.html.

    Word vectors are saved at the end only: after Ctrl-C, the same command starts anew.
    """
    options = parse_config_flags(context.args)
    if recipe == "vectors":
        model_options = {
            "resume": resume != "auto",
            "device": device,
            "compile": compile is not None,
            "logger": logger,
            "record-activations": record_activations,
        }
        for name, value in model_options.items():
            if value:
                raise ClearheadError(f"--{name} does not apply to word vectors.")
        train_vectors(options, output or Path("run"))
        return
    from clearhead.cli.training_display import TrainingDisplay
    from clearhead.train.train import load_config, locate_run, run_training

    source, folder, recipe_name = locate_run(recipe, output)
    result = run_training(
        load_config(source, options),
        folder,
        TrainingDisplay,
        echo,
        recipe=recipe_name,
        resume=resume == "auto",
        device=device,
        compile=compile,
        logger=logger,
        record_activations=record_activations,
    )
    if result.status == "interrupted":  # so that && does not continue with a half-trained model
        raise typer.Exit(130)


def train_vectors(options: Mapping[str, object], output: Path) -> None:
    from clearhead.config.parse import apply_overrides, dataclass_from_dict
    from clearhead.config.serialize import dataclass_to_dict
    from clearhead.word_vectors.skip_gram import Word2VecConfig, train_word_vectors

    defaults = dataclass_to_dict(Word2VecConfig())
    config = dataclass_from_dict(Word2VecConfig, apply_overrides(defaults, options))
    train_word_vectors(config, output, echo)
