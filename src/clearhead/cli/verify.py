"""`clearhead verify`: the laws, on this very model."""

import typer

Where = typer.Argument(
    help="Any saved or published model, or the name of a preset (then with random weights).",
    show_default=False,
)


def verify(context: typer.Context, model: str = Where) -> None:
    """Check the laws that every model must keep.

    Each line gives the largest difference found.
    --model.position=rotary and the like change a preset before it is built.
    """
    from clearhead.api import load, new
    from clearhead.cli.common import parse_config_flags
    from clearhead.config.presets import presets
    from clearhead.errors import ClearheadError
    from clearhead.evaluate.invariants import iter_invariants

    changes = parse_config_flags(context.args)
    if changes and model not in presets:
        raise ClearheadError(f"{model} is a saved model; only a preset can be changed.")
    subject = new(presets[model].replace(**changes)) if model in presets else load(model)
    typer.echo(f"{model}: {subject!r}{' with random weights' if model in presets else ''}\n")
    results = []
    for result in iter_invariants(subject):
        results.append(result)
        typer.echo(str(result))
    held, broken = (
        sum(r.difference is not None and r.passed is wanted for r in results)
        for wanted in (True, False)
    )
    typer.echo(f"\n{held} laws hold, {broken} broken, {len(results) - held - broken} do not apply.")
    if broken:
        raise typer.Exit(1)
