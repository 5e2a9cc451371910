"""Generate pages of the site from the code: reference pages, claims, benchmarks and notebooks.

The reference pages and the page of claims, without its figures, are committed, so that links work
in a clone; a test checks that they are up to date. `python docs/hooks.py` writes them. Notebooks
are executed while the site is built.
"""

import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
NOTEBOOKS = sorted((DOCS / "tour").glob("*.ipynb"))
COMPACT_TABLES = (
    "<style>.md-typeset table:not([class]) :is(td, th) "
    "{ padding: 0.35em 0.7em; min-width: 0; }</style>"
)


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the executed notebooks to the site."""
    from mkdocs.structure.files import File

    for notebook in NOTEBOOKS:
        page = execute_notebook(notebook.name, notebook.read_text(encoding="utf-8"))
        files.append(File.generated(config, f"tour/{notebook.stem}.md", content=page))
    return files


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Link to executed notebooks; insert the benchmark tables and the figures of the claims."""
    if page.file.src_uri in ("tour/README.md", "lectures.md"):
        return markdown.replace(".ipynb)", ".md)")
    if page.file.src_uri == "benchmarks.md":
        return markdown.replace("<!-- tables -->", benchmark_tables())
    if page.file.src_uri == "claims.md":
        return claims_page(figures=True)
    return markdown


def commands_page() -> str:
    """The output of --help for every command."""
    from typer.main import get_command

    from clearhead.cli.main import app

    parts = [
        "# Commands",
        "The output of `clearhead COMMAND --help`. Invalid input prints one sentence and exits with"
        " status 2.",
    ]
    for path, command in sorted(_commands("clearhead", get_command(app))):
        with command.make_context(path, [], resilient_parsing=True) as context:
            context.terminal_width = 100
            context.max_content_width = 100
            text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
            parts += [f"## {path}", f"```text\n{text.strip()}\n```"]
    return "\n\n".join(parts) + "\n"


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from _commands(f"{path} {name}", subcommand)


def presets_page() -> str:
    """Every preset with its size, and every option with its description."""
    import clearhead as ch

    rows = [
        f"| `{name}` | {preset.model.architecture.kind} | {preset.num_parameters() / 1e6:,.1f}M |"
        for name, preset in ch.presets.items()
    ]
    return "\n".join(
        [
            "# Presets and options",
            "",
            "A preset is a named configuration. Every option can be changed: `--model.n_layers=4`"
            ' in the shell, `ch.new("lecture-lm", n_layers=4)` in Python.',
            "",
            "| name | architecture | parameters |",
            "|---|---|---|",
            *rows,
            "",
            "## All options",
            "",
            "The output of `clearhead presets lm-small`, a TOML file that `clearhead train` reads:",
            "",
            "```toml",
            ch.presets["lm-small"].to_toml().rstrip(),
            "```",
            "",
        ]
    )


def activations_page() -> str:
    """The table of activations, for a model that has all of them."""
    import clearhead as ch
    from clearhead.lens.hook_points import activation_table

    preset = ch.presets["tiny-encoder-decoder"]
    model = preset.replace(position="learned", ffn__activation="swiglu").model
    rows = [
        f"| `{a.name.replace('.0.', '.{i}.')}` | {a.shape} | {a.formula} | {a.description} |"
        for a in activation_table(model).values()
        if not re.search(r"encoder\.|blocks\.[1-9]", a.name)
    ]
    return "\n".join(
        [
            "# Activation names",
            "",
            "Every activation that `model.watch` returns and that `edits=` can change. In a"
            " pattern, `*` matches one part of a name and `**` any number of parts. The encoder of"
            " an encoder-decoder has the prefix `encoder.`; only encoder-decoders have"
            " `cross_attn`, and only models that add positions to embeddings have `pos_embed`. The"
            " feed-forward layer of the table is gated; without a gate, `up` is the input of the"
            " activation function and `post` is f(up).",
            "",
            "| name | shape | formula | meaning |",
            "|---|---|---|---|",
            *(row.replace("batch|1", "batch or 1") for row in rows),
            "",
        ]
    )


def claims_page(figures: bool = False) -> str:
    """What the lectures claim and what the experiments in claims/results found."""
    sys.path.append(str(DOCS.parent / "claims"))
    from render_page import render_page

    return f"{COMPACT_TABLES}\n\n{render_page(figures=figures).rstrip()}\n"


COMMITTED_PAGES: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands_page,
    "reference/presets.md": presets_page,
    "reference/values.md": activations_page,
    "claims.md": claims_page,
}


def benchmark_tables() -> str:
    """Targets and measurements, from bench/targets.toml and bench/results."""
    sys.path.append(str(DOCS.parent / "bench"))
    from benchmark_tables import render_markdown

    return f"{COMPACT_TABLES}\n\n{render_markdown()}"


@cache  # while the site is served, an unchanged notebook is not executed again
def execute_notebook(name: str, text: str) -> str:
    """A notebook as Markdown, with the output of its cells."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.reads(text, as_version=4)
    resources = {"metadata": {"path": str(DOCS / "tour")}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    parts = [part for cell in notebook.cells for part in _render_cell(cell)]
    parts.insert(
        1, f"*This page is a notebook, [{name}]({name}), executed when the site was built.*"
    )
    return "\n\n".join(parts) + "\n"


def _render_cell(cell: Any) -> Iterator[str]:
    if cell.cell_type == "markdown":
        yield cell.source
        return
    yield f"```python\n{cell.source}\n```"
    for output in cell.outputs:
        data = output.get("data", {})
        if "text/html" in data:  # blank lines or indentation would end the HTML block
            lines = (line.strip() for line in data["text/html"].splitlines())
            yield f'<div class="drawn">{chr(10).join(line for line in lines if line)}</div>'
        elif "image/png" in data:
            yield f"![](data:image/png;base64,{data['image/png'].strip()})"
        elif plain := data.get("text/plain", output.get("text", "")).rstrip():
            yield f"```text\n{plain}\n```"


if __name__ == "__main__":
    for path, write in COMMITTED_PAGES.items():
        (DOCS / path).write_text(write(), encoding="utf-8")
