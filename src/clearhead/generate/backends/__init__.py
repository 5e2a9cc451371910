"""Other engines behind the same calls, for those who have them: `model.through("ctranslate2")`, `"onnxruntime"`.

The model is exported into a folder that is gone when the engine has read it. onnxruntime computes the passes of the
network and nothing else, so every option of writing works there; CTranslate2 does all of it in its own way.
"""

from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from clearhead import config as c
from clearhead.errors import ClearheadError, suggest
from clearhead.generate.backends.ctranslate2 import CTranslate2Model
from clearhead.generate.backends.onnx import ONNXTransformer
from clearhead.generate.generation import check_can_generate
from clearhead.weights.checkpoint import Checkpoint
from clearhead.weights.load import save_model

if TYPE_CHECKING:
    from clearhead.api import Model


class ONNXRuntimeModel:
    """A model whose passes onnxruntime computes, in float32 on the CPU."""

    def __init__(self, model: "Model", folder: Path, dtype: str = "") -> None:
        if dtype not in ("", "float32"):
            raise ClearheadError(
                f"onnxruntime computes in float32 here, not in {dtype}; leave the dtype out."
            )
        net = ONNXTransformer(model.config.model, folder)
        self._inner = type(model)(net, model.config, model.tokenizer, model.source_tokenizer)

    def generate(self, *args: Any, **options: Any) -> Any:
        """As `Model.generate`, but for `edits`."""
        _refuse_inside(options)
        return self._inner.generate(*args, **options)

    def translate(self, *args: Any, **options: Any) -> Any:
        """As `Model.translate`, but for `align` and `edits`."""
        _refuse_inside(options)
        return self._inner.translate(*args, **options)


def _refuse_inside(options: dict[str, Any]) -> None:
    """What happens inside is not to be seen or changed there."""
    for name in ("align", "edits"):
        if options.get(name) is not None:
            raise ClearheadError(
                f"onnxruntime does not show what happens inside, as {name} asks; leave it or the engine out."
            )


BackendModel = CTranslate2Model | ONNXRuntimeModel
BACKENDS: dict[str, tuple[str, type[CTranslate2Model] | type[ONNXRuntimeModel]]]
BACKENDS = {
    "ctranslate2": ("ctranslate2", CTranslate2Model),
    "onnxruntime": ("onnx", ONNXRuntimeModel),
}  # formats, and who reads


def with_backend(model: "Model", backend: str, dtype: str = "") -> BackendModel:
    """A model whose texts another engine writes."""
    if backend not in BACKENDS:
        raise ClearheadError(f"engine {backend!r} is unknown; {suggest(str(backend), BACKENDS)}")
    kind, opened = BACKENDS[backend]
    if find_spec(backend) is None:
        raise ClearheadError(f"{backend} is not installed; pip install 'clearhead[{kind}]'.")
    if not isinstance(model.config.model.architecture, c.EncoderDecoder):
        check_can_generate(model.config.model)
    with TemporaryDirectory(prefix="clearhead-") as place:
        held = Checkpoint(model.net, model.config, model.tokenizer, model.source_tokenizer)
        save_model(Path(place) / kind, held, kind)
        return opened(model, Path(place) / kind, dtype)
