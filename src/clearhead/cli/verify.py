"""`clearhead verify`: the laws, on this very model."""

import typer

Where = typer.Argument(
    help="A clearhead folder, or the name of a preset (then with random weights).", show_default=False
)


def verify(model: str = Where) -> None:
    """Check the laws every model must keep; each line gives the largest difference found."""
    from clearhead import api
    from clearhead.evaluate.verify import check
    from clearhead.presets import presets

    subject = api.new(model) if model in presets else api.load(model)
    typer.echo(f"{model}: {subject!r}{' with random weights' if model in presets else ''}\n")
    results = []
    for result in check(subject):
        results.append(result)
        typer.echo(str(result))
    held, broken = (sum(r.difference is not None and r.holds is wanted for r in results) for wanted in (True, False))
    typer.echo(f"\n{held} laws hold, {broken} broken, {len(results) - held - broken} do not apply.")
    if broken:
        raise typer.Exit(1)
