"""Backends: `model.with_backend("ctranslate2" or "onnxruntime")` uses another inference engine.

The model is exported to a temporary folder, which the backend reads. ONNX Runtime computes only the
forward passes, so all generation options work; CTranslate2 does everything itself.
"""

from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from clearhead import config as c
from clearhead.errors import ClearheadError, suggest
from clearhead.generate.backends.ctranslate2 import CTranslate2Model
from clearhead.generate.backends.onnx import ONNXRuntimeModel
from clearhead.generate.text_generation import check_can_generate
from clearhead.weights.load import save_model

if TYPE_CHECKING:
    from clearhead.api import Model

BackendModel = CTranslate2Model | ONNXRuntimeModel
# The name of the Python package, the export format (also the extra to install), and the class.
BACKENDS: dict[str, tuple[str, type[CTranslate2Model] | type[ONNXRuntimeModel]]] = {
    "ctranslate2": ("ctranslate2", CTranslate2Model),
    "onnxruntime": ("onnx", ONNXRuntimeModel),
}


def with_backend(model: "Model", backend: str, dtype: str = "") -> BackendModel:
    """Export the model and open it in another engine."""
    if backend not in BACKENDS:
        raise ClearheadError(f"backend {backend!r} is unknown; {suggest(str(backend), BACKENDS)}")
    export_format, model_class = BACKENDS[backend]
    if find_spec(backend) is None:
        raise ClearheadError(
            f"{backend} is not installed; run pip install 'clearhead[{export_format}]'."
        )
    if not isinstance(model.config.model.architecture, c.EncoderDecoder):
        check_can_generate(model.config.model)
    with TemporaryDirectory(prefix="clearhead-") as folder:
        path = Path(folder) / export_format
        save_model(path, model, export_format)
        return model_class(model, path, dtype)
