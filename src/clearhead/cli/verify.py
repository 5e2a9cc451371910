"""`clearhead verify`: the laws, on this very model."""

import typer

Where = typer.Argument(
    help="Any saved or published model, or the name of a preset (then with random weights).", show_default=False
)


def verify(context: typer.Context, model: str = Where) -> None:
    """Check the laws that every model must keep.

    Each line gives the largest difference found.
    --model.position=rotary and the like change a preset before it is built.
    """
    from clearhead import api
    from clearhead.cli.flags import dotted
    from clearhead.errors import ClearheadError
    from clearhead.evaluate.verify import check
    from clearhead.presets import presets

    changes = dotted(context.args)
    if changes and model not in presets:
        raise ClearheadError(f"{model} is a saved model; only a preset can be changed.")
    subject = api.new(presets[model].change(**changes)) if model in presets else api.load(model)
    typer.echo(f"{model}: {subject!r}{' with random weights' if model in presets else ''}\n")
    results = []
    for result in check(subject):
        results.append(result)
        typer.echo(str(result))
    held, broken = (sum(r.difference is not None and r.holds is wanted for r in results) for wanted in (True, False))
    typer.echo(f"\n{held} laws hold, {broken} broken, {len(results) - held - broken} do not apply.")
    if broken:
        raise typer.Exit(1)
