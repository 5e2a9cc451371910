"""The house stays in shape: who imports whom, how long files get, how many options there are."""

import ast
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from clearhead.config import model

SOURCE = Path(__file__).parents[2] / "src" / "clearhead"
FILES = sorted(SOURCE.rglob("*.py"))

# A part may import from its own row and from the rows above it.
LAYERS = [
    {"called", "errors"},
    {"files", "reader", "tap", "variants"},
    {"check", "count", "optimisers", "schedule"},
    {"training"},
    {"config"},
    {"recipes"},
    {"presets"},
    {"tokens", "data"},
    {"kernels"},
    {"batch", "model"},
    {"generate", "train", "weights", "lens", "evaluate", "words"},
    {"inside"},
    {"api"},
    {"learn"},
    {"lab"},
    {"serve"},
    {"cli", "__main__"},
]
HEIGHT = {part: height for height, layer in enumerate(LAYERS) for part in layer}
LONGEST_FILE = 250

# Growth is a decision: whoever adds an option writes the new number down here.
CONFIG_FIELDS = 126
CLI_OPTIONS = 164


def imported(path: Path) -> set[str]:
    """Our parts that a file imports when it runs (imports for type checkers aside)."""
    found = set()
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "clearhead":
            parts = node.module.split(".")[1:2]
            found |= set(parts) if parts else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("clearhead.")}
    return found & set(HEIGHT)


@pytest.mark.parametrize(
    "path", [f for f in FILES if f.parent != SOURCE or f.stem != "__init__"], ids=str
)
def test_imports_point_one_way(path):
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert part in HEIGHT, f"{part} has no place in the order of imports"
    for other in imported(path):
        assert HEIGHT[other] <= HEIGHT[part], (
            f"{path.name} of {part} imports {other}, which stands above it"
        )


def test_tokens_and_data_never_import_the_model():
    for path in FILES:
        if path.relative_to(SOURCE).parts[0] in ("tokens", "data"):
            assert "model" not in imported(path)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_files_stay_readable(path):
    assert len(path.read_text().splitlines()) <= LONGEST_FILE


def test_number_of_config_fields_is_written_down():
    seen = {
        c for module in (model, model) for c in vars(module).values() if dataclasses.is_dataclass(c)
    }
    assert sum(len(c.__annotations__.keys() - {"kind"}) for c in seen) == CONFIG_FIELDS


def test_number_of_command_line_options_is_written_down():
    from clearhead.cli.main import app

    commands = [*app.registered_commands]
    for group in app.registered_groups:
        commands += group.typer_instance.registered_commands
    counted = sum(
        len([p for p in c.callback.__annotations__ if p not in ("return", "context")])
        for c in commands
    )
    assert counted == CLI_OPTIONS


@pytest.mark.parametrize(
    "code",
    [
        "import clearhead",
        "import clearhead.cli.main",
        "from clearhead.config.presets import presets",
    ],
)
def test_torch_is_not_imported_until_it_is_needed(code):
    check = f"{code}; import sys; sys.exit(bool({{'torch', 'numpy', 'matplotlib', 'rich'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_help_lists_every_command_without_torch():
    code = "from clearhead.cli.main import app; app(['--help'], standalone_mode=False)"
    code = f"import sys; {code}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    for command in (
        "chat",
        "demo",
        "export",
        "generate",
        "get",
        "see",
        "train",
        "verify",
        "presets",
    ):
        assert command in done.stdout


def test_nothing_can_run_from_a_file():
    for path in FILES:
        calls = {
            ast.unparse(n.func)
            for n in ast.walk(ast.parse(path.read_text()))
            if isinstance(n, ast.Call)
        }
        assert not calls & {"eval", "exec", "torch.load", "pickle.load", "pickle.loads"}, path
