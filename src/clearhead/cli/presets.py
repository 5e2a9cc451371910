"""`clearhead presets`: what can be built."""

import typer

Name = typer.Argument(None, help="Print this preset as a commented TOML file.", show_default=False)


def presets(name: str | None = Name) -> None:
    """List the presets, or print one as TOML that reads back to the same model."""
    from clearhead.errors import ClearheadError, nearest
    from clearhead.presets import presets as known

    if name is not None:
        if name not in known:
            raise ClearheadError(f"{name!r} is no preset; {nearest(name, known)}")
        typer.echo(f"# {name}: {known[name].parameters():,} parameters\n\n{known[name].toml()}", nl=False)
        return
    typer.echo(f"{'preset':<22} {'parameters':>15}  {'shape':<16} layers  width  heads  context  positions")
    for preset, config in known.items():
        m = config.model
        typer.echo(
            f"{preset:<22} {config.parameters():>15,}  {m.shape.kind:<16} {m.layers:>6} {m.width:>6} "
            f"{m.attention.heads:>6} {m.context:>8}  {m.position.kind}"
        )
