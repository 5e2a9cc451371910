"""`clearhead presets`: what can be built."""

import typer

Name = typer.Argument(None, help="Print this preset as a commented TOML file.", show_default=False)


def presets(context: typer.Context, name: str | None = Name) -> None:
    """List the presets, or print one as TOML.

    What is printed reads back to the same model.
    --model.position=rotary and the like change what is printed.
    """
    from clearhead.cli.flags import dotted
    from clearhead.errors import ClearheadError
    from clearhead.presets import presets as known
    from clearhead.recipes import EXPECTS

    if name is not None and name.startswith("-"):  # an option where a name was expected
        dotted([name, *context.args])
        raise ClearheadError(f"{name} changes a preset; name one first.")
    if name is not None:
        config = known[name].change(**dotted(context.args))
        learns = f"# learns from {EXPECTS[name]}\n" if name in EXPECTS else ""
        head = f"# {' '.join([name, *context.args])}: {config.parameters():,} parameters\n{learns}"
        typer.echo(f"{head}\n{config.toml()}", nl=False)
        return
    typer.echo(f"{'preset':<22} {'parameters':>15}  {'shape':<16} layers  width  heads  context  positions")
    for preset, config in known.items():
        m = config.model
        typer.echo(
            f"{preset:<22} {config.parameters():>15,}  {m.shape.kind:<16} {m.layers:>6} {m.width:>6} "
            f"{m.attention.heads:>6} {m.context:>8}  {m.position.kind}"
        )
    typer.echo("\nThese also say how they are trained; clearhead train NAME --data.train … learns from")
    for preset, data in EXPECTS.items():
        typer.echo(f"{preset:<22} {data}")
