"""Routes of a training run: its loss curve and its recorded activations."""

from pathlib import Path

from fastapi import APIRouter

from clearhead.errors import ClearheadError
from clearhead.io import read_log
from clearhead.lens.hook_points import AttentionKind
from clearhead.lens.training_trace import TRACE_FOLDER, TRACE_INDEX, read_training_trace
from clearhead.lens.view import View, label_axes
from clearhead.serve.errors import JSONDict
from clearhead.serve.explorer.executor import ExplorerExecutor
from clearhead.serve.explorer.serialize import view_to_dict
from clearhead.train.checkpoint import CHECKPOINTS_FOLDER, LOG_FILE
from clearhead.train.diagnosis import curve_of
from clearhead.train.plots import downsample


def training_routes(executor: ExplorerExecutor) -> APIRouter:
    router = APIRouter(prefix="/api/models/{name}/training", tags=["page"])

    async def find_run(name: str) -> Path:
        async with executor.use_model(name) as loaded_model:
            return run_folder(loaded_model.path)

    @router.get("")
    async def summary(name: str) -> JSONDict:
        """The loss curve, and an overview of the training trace if there is one."""
        return await executor.submit(training_summary, await find_run(name))

    @router.get("/attention")
    async def attention(
        name: str, step: int, probe: int = 0, part: AttentionKind = "attention"
    ) -> JSONDict:
        return await executor.submit(attention_at_step, await find_run(name), step, probe, part)

    @router.get("/lens")
    async def lens(name: str, step: int, probe: int = 0) -> JSONDict:
        return await executor.submit(lens_at_step, await find_run(name), step, probe)

    @router.get("/embeddings")
    async def embeddings(name: str, step: int, source: bool = False) -> JSONDict:
        return await executor.submit(embeddings_at_step, await find_run(name), step, source)

    return router


def run_folder(path: str) -> Path:
    """The training run of a model: OUT itself or a checkpoint like OUT/best."""
    model_path = Path(path)
    if path and model_path.is_dir():
        for folder in (model_path, model_path.parent, model_path.resolve().parent.parent):
            if (folder / LOG_FILE).is_file():
                return folder
    raise ClearheadError("No training log found; open a checkpoint in the folder of its run.")


def checkpoint_step(path: str) -> int | None:
    """The training step of a checkpoint."""
    folder = Path(path).resolve()
    if not path or folder.parent.name != CHECKPOINTS_FOLDER or not folder.name.isdigit():
        return None
    return int(folder.name)


def has_training_trace(path: str) -> bool:
    try:
        return _has_trace(run_folder(path))
    except ClearheadError:
        return False


def _has_trace(run: Path) -> bool:
    return (run / TRACE_FOLDER / TRACE_INDEX).is_file()


def training_summary(run: Path) -> JSONDict:
    lines = read_log(run / LOG_FILE)
    curve = {
        key: [list(point) for point in downsample(curve_of(lines, key))]
        for key in ("loss", "valid_loss", "accuracy")
    }
    if not _has_trace(run):
        return {"curve": curve, "trace": None}
    trace = read_training_trace(run)
    overview = {
        "steps": trace.steps,
        "losses": trace.losses,
        "parts": trace.attention_kinds,
        "embeddings": trace.embedding_tables,
        "probes": [vars(probe) for probe in trace.probes],
    }
    return {"curve": curve, "trace": overview}


def attention_at_step(run: Path, step: int, probe: int, part: AttentionKind) -> JSONDict:
    """All patterns at one step: layer × head × query × key."""
    return view_to_dict(read_training_trace(run).attention(step, probe, part))


def lens_at_step(run: Path, step: int, probe: int) -> JSONDict:
    return view_to_dict(read_training_trace(run).logit_lens(step, probe))


def embeddings_at_step(run: Path, step: int, source: bool) -> JSONDict:
    """All token embeddings in a plane that is aligned between steps."""
    embeddings = read_training_trace(run).embeddings(step, source)
    axes = label_axes({"token": embeddings.all_tokens, "direction": ("x", "y")})
    title = f"embeddings at step {step:,}"
    return view_to_dict(View(embeddings.projection, axes, title, "position", signed=True))
