"""`clearhead presets`: what can be built."""

import typer

Name = typer.Argument(None, help="Print this preset as a commented TOML file.", show_default=False)


def presets(context: typer.Context, name: str | None = Name) -> None:
    """List the presets, or print one as TOML.

    What is printed reads back to the same model.
    --model.position=rotary and the like change what is printed.
    """
    from clearhead.cli.common import parse_config_flags
    from clearhead.config.presets import RECIPE_DATA
    from clearhead.config.presets import presets as known
    from clearhead.errors import ClearheadError

    if name is not None and name.startswith("-"):  # an option where a name was expected
        parse_config_flags([name, *context.args])
        raise ClearheadError(f"{name} changes a preset; name one first.")
    if name is not None:
        config = known[name].replace(**parse_config_flags(context.args))
        learns = f"# learns from {RECIPE_DATA[name]}\n" if name in RECIPE_DATA else ""
        head = (
            f"# {' '.join([name, *context.args])}: {config.num_parameters():,} parameters\n{learns}"
        )
        typer.echo(f"{head}\n{config.to_toml()}", nl=False)
        return
    typer.echo(
        f"{'preset':<22} {'parameters':>15}  {'shape':<16} layers  width  heads  context  positions"
    )
    for preset, config in known.items():
        m = config.model
        typer.echo(
            f"{preset:<22} {config.num_parameters():>15,}  {m.architecture.kind:<16} {m.n_layers:>6} {m.d_model:>6} "
            f"{m.attention.n_heads:>6} {m.context_length:>8}  {m.position.kind}"
        )
    typer.echo(
        "\nThese also say how they are trained; clearhead train NAME --data.train … learns from"
    )
    for preset, data in RECIPE_DATA.items():
        typer.echo(f"{preset:<22} {data}")
