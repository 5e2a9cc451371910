"""What the site says is true of the code: its pages, links, words, commands and snippets. mkdocs is not needed."""

import ast
import contextlib
import importlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import unicodedata
from functools import cache, reduce
from pathlib import Path

import pytest
import yaml
from nbformat import v4
from typer.main import get_command
from typer.testing import CliRunner

import clearhead as ch
from clearhead.cli.common import parse_config_flags
from clearhead.cli.main import app
from clearhead.lens.activations import activation_table

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "clearhead"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
OURS = [
    page
    for page in PAGES
    if page.startswith("guides/") or page in ("index.md", "contributing.md", "faq.md")
]
FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


@cache
def text_of(page):
    return (DOCS / page).read_text(encoding="utf-8")


@cache
def hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def generated():
    """Pages that the code writes while the site is built; those of notebooks, which take long, by name only."""
    made = hooks()
    pages = {
        f"reference/{name}.md": getattr(made, name)() for name in ("commands", "presets", "values")
    }
    pages["claims.md"] = made.claims()
    return pages | {f"tour/{notebook.stem}.md": "" for notebook in made.TOUR}


def leaves(tree):
    match tree:
        case str():
            yield tree
        case dict():
            yield from (leaf for value in tree.values() for leaf in leaves(value))
        case list():
            yield from (leaf for value in tree for leaf in leaves(value))


def blocks(page, *kinds):
    return [body for kind, body in FENCED.findall(text_of(page)) if kind in kinds]


# ---------------------------------------------------------------- pages and links
def test_the_menu_has_every_page_once_and_no_other():
    menu = list(leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(menu) == sorted([*PAGES, *generated()])


def anchors(page):
    """What a link into a page may end with: its headings as mkdocs writes them, and the names of its reference."""
    text = generated().get(page) or text_of(page)
    found = set(re.findall(r"^::: ([\w.]+)", text, re.MULTILINE))
    for heading in re.findall(r"^#+ +(.+)$", FENCED.sub("", text), re.MULTILINE):
        plain = (
            unicodedata.normalize("NFKD", re.sub(r"[`*]", "", heading))
            .encode("ascii", "ignore")
            .decode()
        )
        found.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return found


@pytest.mark.parametrize("page", [*PAGES, "../CONTRIBUTING.md"])
def test_links_lead_somewhere(page):
    prose = re.sub(r"`[^`\n]*`", "", FENCED.sub("", text_of(page)))
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith("http"):
            continue
        where, _, anchor = target.partition("#")
        file = (DOCS / page).parent.joinpath(where).resolve() if where else DOCS / page
        name = file.relative_to(DOCS).as_posix() if file.is_relative_to(DOCS) else ""
        assert file.exists() or name in generated(), f"{page}: {target}"
        assert not anchor or anchor in anchors(name), f"{page}: {target}"


def test_every_command_is_in_the_reference_with_its_help():
    told = generated()["reference/commands.md"]
    for name, command in get_command(app).commands.items():
        assert f"## clearhead {name}\n" in told
        assert command.help.split("\n")[0][:40] in told


def test_every_public_name_is_in_the_reference():
    told = set(re.findall(r"^::: ([\w.]+)", text_of("reference/python.md"), re.MULTILINE))
    ends = {path.rpartition(".")[2] for path in told}
    assert set(ch.__all__) - {"lens", "presets"} <= ends
    assert set(ch.lens.__all__) <= ends


def test_what_the_reference_has_tells_what_it_is_or_the_site_would_hide_it():
    told = re.findall(r"^::: ([\w.]+)", text_of("reference/python.md"), re.MULTILINE)
    for path in told:
        home, _, name = path.rpartition(".")
        thing = getattr(importlib.import_module(home), name)
        assert thing.__doc__, path
        assert not thing.__doc__.startswith(f"{name}("), (
            path
        )  # what dataclasses and tuples say by themselves
        kin = [
            base
            for base in getattr(thing, "__mro__", ())
            if base.__module__.startswith("clearhead")
        ]
        for member, value in ((name, value) for base in kin for name, value in vars(base).items()):
            if not member.startswith("_") and (callable(value) or hasattr(value, "__get__")):
                assert value.__doc__, f"{path}.{member}"
    assert all(getattr(ch, name).__doc__ for name in ch.__all__)


def test_a_cell_of_a_notebook_becomes_markdown_with_what_it_drew():
    html = {"text/html": "<figure>\n\n  <svg/>\n</figure>", "text/plain": "View"}
    png = {"image/png": "aGk=\n"}
    outputs = [
        v4.new_output("display_data", data=data) for data in (html, png, {"text/plain": "3\n"})
    ]
    cell = v4.new_code_cell("draw()", outputs=[*outputs, v4.new_output("stream", text="said\n")])
    assert list(hooks()._cell(cell)) == [
        "```python\ndraw()\n```",
        '<div class="drawn"><figure>\n<svg/>\n</figure></div>',
        "![](data:image/png;base64,aGk=)",
        "```text\n3\n```",
        "```text\nsaid\n```",
    ]


# ---------------------------------------------------------------- words
ROWS = [line for line in text_of("glossary.md").splitlines() if line.startswith("|")]
CELLS = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in ROWS]
WORDS = [row for row in CELLS if row[2].startswith("`")]


def made_in(file):
    """The names that a file gives to something: classes, functions, fields, and attributes of its objects."""
    for node in ast.walk(ast.parse((SOURCE / file).read_text(encoding="utf-8"))):
        match node:
            case (
                ast.ClassDef(name=name)
                | ast.FunctionDef(name=name)
                | ast.AnnAssign(target=ast.Name(id=name))
            ):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


@cache
def seen_anywhere():
    shapes = [ch.presets[name] for name in ("tiny-decoder", "tiny-encoder-decoder")]
    some = [
        shape.replace(position="learned", ffn__activation=act)
        for shape in shapes
        for act in ("relu", "swiglu")
    ]
    return {path for config in some for path in activation_table(config.model)}


@pytest.mark.parametrize("row", WORDS, ids=lambda row: row[0])
def test_a_word_of_the_glossary_is_in_the_code(row):
    file, name, value = (cell.strip("`") for cell in row[2:])
    assert name in made_in(file)
    assert not value or value in seen_anywhere()


def test_every_id_of_the_lectures_can_be_looked_up():
    told = re.findall(r"^- \*\*(L\d\.\d)\*\* ", text_of("glossary.md"), re.MULTILINE)
    assert told == sorted(set(told))
    files = [
        path
        for kind in ("py", "js", "md")
        for folder in ("src", "docs")
        for path in (ROOT / folder).rglob(f"*.{kind}")
    ]
    used = {
        found for path in files for found in re.findall(r"\bL[1-6]\.\d\b", path.read_text("utf-8"))
    }
    assert used <= {*told}


def test_the_glossary_has_all_parts_of_the_lectures():
    assert re.findall(r"^## .*\((L\d)\)$", text_of("glossary.md"), re.MULTILINE) == [
        f"L{n}" for n in range(1, 7)
    ]
    assert len(WORDS) > 50


# ---------------------------------------------------------------- commands and snippets
def commands(page):
    """What a reader is told to type: lines of `sh`, and of `console` after a dollar; joined where they go on."""
    for block in blocks(page, "sh", "bash", "console"):
        prompted = re.search(r"^\$ ", block, re.MULTILINE)
        for line in block.replace("\\\n", " ").splitlines():
            if (prompted is None or line.startswith("$ ")) and re.search(r"\bclearhead\b", line):
                yield line.removeprefix("$ ").split("    #")[0]


@pytest.mark.parametrize("page", OURS)
def test_commands_are_such_as_the_shell_understands(page):
    for line in commands(page):
        words = shlex.split(line)
        if "clearhead" not in words or words[0].startswith("#"):
            continue
        rest = words[words.index("clearhead") + 1 :]
        command = get_command(app)
        while rest and getattr(command, "commands", None):
            assert rest[0] in command.commands, line
            command = command.commands[rest[0]]
            rest = rest[1:]
        with command.make_context("clearhead", rest) as context:  # reads the options, runs nothing
            known(context, line)


def known(context, line):
    """Options with dots are options of a configuration: of a recipe they must be its own."""
    options = parse_config_flags(list(context.args))
    if options and (recipe := context.params.get("what")) in ch.presets:
        try:
            ch.presets[recipe].replace(
                **{key.replace(".", "__"): value for key, value in options.items()}
            )
        except ch.ClearheadError as mistake:
            pytest.fail(f"{line}: {mistake}")


@pytest.mark.parametrize("page", OURS)
def test_snippets_use_names_that_exist(page):
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute):
                path = ast.unparse(node)
                if re.fullmatch(r"ch(\.\w+)+", path):
                    reduce(getattr, path.split(".")[1:], ch)
                elif re.fullmatch(r"(model|ch\.load\([^()]*\))\.\w+", path):
                    assert hasattr(ch.Model, node.attr) or node.attr in (
                        "config",
                        "tokenizer",
                        "net",
                    ), path


# ---------------------------------------------------------------- what is shown is what comes
def same(shown, came):
    """Word for word, numbers to a hundredth; not shades of cells, sizes of files, and what follows a line of …."""
    shown = shown.split("\n…")[0].strip()
    came = "\n".join(came.strip().splitlines()[: shown.count("\n") + 1])
    number = r"-?\d+\.\d+"
    texts = [
        re.sub(rf"{number}|[█-▏░-▓≡=-]+|(?m:^ +[\d,]+  )", "", text).split()
        for text in (shown, came)
    ]
    numbers = [[float(n) for n in re.findall(number, text)] for text in (shown, came)]
    assert texts[0] == texts[1]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.01)


LIVE = re.compile(r"```python\n[^`]*```\n```text")  # a snippet, and below it what it prints


@pytest.mark.parametrize("page", [page for page in OURS if LIVE.search(text_of(page))])
def test_snippets_print_what_the_page_shows(page):
    here = {}
    for kind, body in FENCED.findall(text_of(page)):
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(body, here)
        elif kind == "text" and here:
            same(body, printed.getvalue())


SHOWN = [(page, block) for page in OURS for block in blocks(page, "console")]
RUN = [
    (page, block)
    for page, block in SHOWN
    if re.match(r"\$ clearhead (generate|translate|see|vectors|classify|export)", block)
]


@pytest.mark.parametrize(("page", "block"), RUN)
def test_commands_print_what_the_page_shows(page, block, tmp_path, monkeypatch):
    shutil.copy(SOURCE / "bundled" / "digits" / "seven.png", tmp_path)
    shutil.copy(SOURCE / "bundled" / "spoken-digits" / "seven.wav", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    line, _, shown = block.removeprefix("$ ").partition("\n")
    done = CliRunner().invoke(app, shlex.split(line)[1:])
    same(shown, done.output + (f"clearhead: {done.exception}" if done.exception else ""))


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """A copy of the source with the diffs of the page for contributors applied."""
    if shutil.which("git") is None:
        pytest.skip("git is not here")
    tree = tmp_path_factory.mktemp("changed")
    shutil.copytree(
        SOURCE,
        tree / "src" / "clearhead",
        ignore=shutil.ignore_patterns("bundled", "__pycache__", "page"),
    )
    (tree / "all.diff").write_text("".join(blocks("contributing.md", "diff")))
    done = subprocess.run(
        ["git", "apply", "-p0", "all.diff"], cwd=tree, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return tree


def test_the_diffs_for_contributors_apply_and_work(changed):
    code = """
import clearhead as ch
from clearhead.weights.families.known import FAMILIES
model = ch.new("tiny-decoder", position="logarithmic", seed=0)
assert ch.__file__.startswith(PLACE)
assert all(law.holds for law in ch.verify(model))
assert ch.lens.spread(model, [1, 2, 3]).values.shape == (2, 4, 3)
assert "starcoder2" in [family.name for family in FAMILIES]
"""
    env = os.environ | {"PYTHONPATH": str(changed / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code.replace("PLACE", repr(str(changed)))],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("how", [["check"], ["format", "--check"]], ids=" ".join)
def test_the_diffs_for_contributors_are_in_the_style_of_the_house(changed, how):
    ruff = [
        sys.executable,
        "-m",
        "ruff",
        *how,
        "--no-cache",
        "--config",
        ROOT / "pyproject.toml",
        "src",
    ]
    done = subprocess.run(ruff, cwd=changed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
