"""`clearhead presets`: list and print configurations."""

import typer


def presets(
    context: typer.Context,
    name: str | None = typer.Argument(
        None, metavar="NAME", help="Print this preset as commented TOML.", show_default=False
    ),
) -> None:
    """List the presets, or print one as TOML.

    Options such as --model.position=rotary change the preset.
    """
    from clearhead.cli.common import echo, parse_config_flags
    from clearhead.config.presets import RECIPE_DATA
    from clearhead.config.presets import presets as configs
    from clearhead.errors import ClearheadError

    if name is not None and name.startswith("-"):  # an option in place of the name
        parse_config_flags([name, *context.args])
        raise ClearheadError(f"{name} changes a preset; give its name first.")
    if name is not None:
        config = configs[name].replace(**parse_config_flags(context.args))
        echo(f"# {' '.join([name, *context.args])}: {config.num_parameters():,} parameters")
        if name in RECIPE_DATA:
            echo(f"# data: {RECIPE_DATA[name]}")
        echo(f"\n{config.to_toml()}", nl=False)
        return
    echo(
        f"{'preset':<22} {'parameters':>15}  {'architecture':<16} n_layers d_model n_heads "
        "context_length  position"
    )
    for preset, config in configs.items():
        m = config.model
        echo(
            f"{preset:<22} {config.num_parameters():>15,}  {m.architecture.kind:<16} "
            f"{m.n_layers:>8} {m.d_model:>7} {m.attention.n_heads:>7} {m.context_length:>14}  "
            f"{m.position.kind}"
        )
    echo("\nRecipes also include training options; clearhead train NAME --data.train … needs")
    for preset, data in RECIPE_DATA.items():
        echo(f"{preset:<22} {data}")
