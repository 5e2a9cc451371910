"""What the site is made of beyond Markdown files: pages that the code itself writes while the site is built.

The notebooks of the tour are run, and their figures are what clearhead drew then. The reference of commands, presets
and visible values is asked from the program, so that it cannot be out of date. Benchmarks and the lectures' claims are
drawn from what was kept of them. mkdocs is imported only where a site is being built: the tests call the writers of the
pages without it.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

HERE = Path(__file__).parent
# Its tables are the longest of the site.
DENSE = "<style>.md-typeset table:not([class]) :is(td, th) { padding: 0.35em 0.7em; min-width: 0; }</style>"
TOUR = sorted((HERE / "tour").glob("*.ipynb"))


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """The generated pages join those that were written."""
    from mkdocs.structure.files import File

    for path, text in pages():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """What is put into written pages: links to the pages made of notebooks, and the tables of benchmarks."""
    if page.file.src_uri == "tour/README.md":
        return markdown.replace(".ipynb)", ".md)")
    if page.file.src_uri == "benchmarks.md":
        return markdown.replace("<!-- tables -->", benchmarks())
    return markdown


def pages() -> Iterator[tuple[str, str]]:
    """Every generated page: where it stands, and its Markdown."""
    yield "reference/commands.md", commands()
    yield "reference/presets.md", presets()
    yield "reference/values.md", values()
    yield "claims.md", claims()
    for notebook in TOUR:
        yield f"tour/{notebook.stem}.md", ran(notebook.name, notebook.read_text(encoding="utf-8"))


def commands() -> str:
    """What --help says of every command."""
    from typer.main import get_command

    from clearhead.cli.main import app

    parts = [
        "# Commands",
        "What `clearhead COMMAND --help` prints. Bad input ends with one sentence and status 2.",
    ]
    for path, command in sorted(_below("clearhead", get_command(app))):
        with command.make_context(path, [], resilient_parsing=True) as context:
            context.terminal_width = context.max_content_width = 100
            parts += [f"## {path}", f"```text\n{command.get_help(context).rstrip()}\n```"]
    return "\n\n".join(parts) + "\n"


def _below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from _below(f"{path} {name}", below)


def presets() -> str:
    """Every preset with its size, and every option with its sentence."""
    import clearhead as ch

    rows = [
        f"| `{name}` | {_kind(preset)} | {preset.num_parameters() / 1e6:,.1f}M |"
        for name, preset in ch.presets.items()
    ]
    return "\n".join(
        [
            "# Presets and options",
            "",
            "A preset is an exact name for a configuration. Any option can be changed: `--model.n_layers=4` in the",
            'shell, `ch.new("lecture-lm", layers=4)` in Python. Sizes are counted without building.',
            "",
            "| name | shape | parameters |",
            "|---|---|---|",
            *rows,
            "",
            "## All options",
            "",
            "What `clearhead presets lm-small` prints: a TOML file that `clearhead train` reads.",
            "",
            "```toml",
            ch.presets["lm-small"].to_toml().rstrip(),
            "```",
            "",
        ]
    )


def _kind(preset: Any) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", type(preset.model.architecture).__name__).lower()


def values() -> str:
    """The table of lens/names.py, for a model that has all of it."""
    import clearhead as ch
    from clearhead.lens.activations import activation_table

    model = (
        ch.presets["tiny-encoder-decoder"]
        .replace(position="learned", ffn__activation="swiglu")
        .model
    )
    shown = [
        name
        for name in activation_table(model).values()
        if not re.search(r"encoder\.|blocks\.[1-9]", name.name)
    ]
    rows = [
        f"| `{n.name.replace('.0.', '.{i}.')}` | {n.shape} | {n.formula} | {n.description} |"
        for n in shown
    ]
    return "\n".join(
        [
            "# Visible values",
            "",
            "Every value that `model.watch` can see and that `edits=` can change. `*` in a pattern is one part of a",
            "name, `**` any number. Those of a translator's encoder begin with `encoder.`; `cross` is only in",
            "encoder-decoders, `gate` only in gated feed-forward layers, `pos_embed` only where positions are",
            "added.",
            "",
            "| name | shape | formula | what it is |",
            "|---|---|---|---|",
            *(row.replace("batch|1", "batch or 1") for row in rows),
            "",
        ]
    )


def benchmarks() -> str:
    """Targets beside what was measured, from bench/targets.toml and bench/results."""
    sys.path.append(str(HERE.parent / "bench"))
    from shown import markdown

    return f"{DENSE}\n\n{markdown()}"


def claims() -> str:
    """What the lectures claim beside what experiments found, from claims/results."""
    sys.path.append(str(HERE.parent / "claims"))
    from tried import page

    return f"{DENSE}\n\n{page()}"


@cache  # while the site is served, a notebook that did not change is not run again
def ran(name: str, text: str) -> str:
    """A notebook as Markdown, with what its cells print and draw now."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.reads(text, as_version=4)
    NotebookClient(
        book,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(HERE / "tour")}},
    ).execute()
    parts = [part for cell in book.cells for part in _cell(cell)]
    parts.insert(1, f"*This page is a notebook, [{name}]({name}), run when the site was built.*")
    return "\n\n".join(parts) + "\n"


def _cell(cell: Any) -> Iterator[str]:
    if cell.cell_type == "markdown":
        yield cell.source
        return
    yield f"```python\n{cell.source}\n```"
    for output in cell.outputs:
        data = output.get("data", {})
        if "text/html" in data:  # a blank line or an indent would end the block of HTML
            html = "\n".join(
                line.strip() for line in data["text/html"].splitlines() if line.strip()
            )
            yield f'<div class="drawn">{html}</div>'
        elif "image/png" in data:
            yield f"![](data:image/png;base64,{data['image/png'].strip()})"
        elif plain := data.get("text/plain", output.get("text", "")).rstrip():
            yield f"```text\n{plain}\n```"
