"""Import rules: layers import downward only, torch is imported late, and nothing executes files."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "clearhead"
FILES = sorted(SOURCE.rglob("*.py"))

# A package may import from its own layer and from the layers above it in this list.
LAYERS = [
    {"errors"},
    {"config", "hooks", "io", "progress_bar"},
    {"tokenizers", "data"},
    {"kernels"},
    {"model"},
    {"generate", "train", "weights", "lens", "evaluate", "word_vectors", "exercises"},
    {"api"},
    {"lab"},
    {"serve"},
    {"cli", "__main__"},
]
LAYER = {part: number for number, parts in enumerate(LAYERS) for part in parts}


def imported_parts(path):
    """Our packages that a file imports when it is imported: neither in functions nor for types."""
    tree = ast.parse(path.read_text())
    nested = (ast.FunctionDef, ast.AsyncFunctionDef)
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, nested)
        or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    parts = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "clearhead":
            _, *modules = node.module.split(".")
            parts |= {modules[0]} if modules else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            parts |= {name[1] for name in names if name[0] == "clearhead" and len(name) > 1}
    return parts & set(LAYER)


def part_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("part", sorted({part_of(path) for path in FILES} - {"__init__"}))
def test_imports_point_to_lower_layers(part):
    assert part in LAYER, f"{part} has no layer"
    for path in FILES:
        if part_of(path) == part:
            for other in imported_parts(path):
                assert LAYER[other] <= LAYER[part], f"{path} imports {other}"


@pytest.mark.parametrize(
    "part",
    ["errors", "config", "hooks", "io", "tokenizers", "data", "model"],
)
def test_foundations_do_not_import_each_other_in_a_cycle(part):
    allowed = {
        "errors": set(),
        "config": {"errors"},
        "hooks": {"errors"},
        "io": {"errors"},
        "tokenizers": {"errors", "config", "io"},
        "data": {"errors", "config", "io", "progress_bar", "tokenizers"},
        "model": {"errors", "config", "hooks", "kernels"},
    }[part]
    for path in FILES:
        if part_of(path) == part:
            assert imported_parts(path) <= allowed | {part}, path


@pytest.mark.parametrize(
    "statement",
    [
        "import clearhead",
        "import clearhead.cli.main",
        "import clearhead.config",
        "from clearhead import presets",
    ],
)
def test_import_is_light(statement):
    heavy = "{'torch', 'numpy', 'matplotlib', 'rich'}"
    code = f"{statement}; import sys; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_loading_a_model_does_not_import_the_compiler():
    """`torch._dynamo` takes about a second and 50 MB."""
    code = "import sys, clearhead; clearhead.load('story'); sys.exit('sympy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_lists_every_command_without_torch():
    code = "from clearhead.cli.main import app; app(['--help'], standalone_mode=False)"
    code = f"import sys; {code}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    for command in ("chat", "demo", "export", "generate", "get", "see", "train", "verify"):
        assert command in done.stdout


def test_nothing_executes_code_from_files():
    forbidden = {"eval", "exec", "torch.load", "pickle.load", "pickle.loads"}
    for path in FILES:
        tree = ast.parse(path.read_text())
        calls = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
        assert not calls & forbidden, path
