"""Models as folders: `clearhead.json`, `model.safetensors` and tokenizers. No pickle anywhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from clearhead.config.model import Config
from clearhead.config.parse import read_config_file
from clearhead.errors import ClearheadError
from clearhead.io import atomic_folder, is_temporary, write_json
from clearhead.model.transformer import Transformer
from clearhead.tokenizers.huggingface import PretrainedTokenizer, with_post_processor
from clearhead.tokenizers.tokenizer import TOKENIZER_FILE, Tokenizer
from clearhead.weights.tensors import Placement, SafetensorsReader, load_weights, meta_model

CONFIG_FILE = "clearhead.json"
HF_CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
SOURCE_TOKENIZER_FILE = "source_tokenizer.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
EXPORT_FILE = "clearhead_export.json"  # marks a folder that clearhead exported

# Every file that some export format writes. A folder with any other file is never replaced.
MODEL_FILES = {
    "1_Pooling", "chat_template.jinja", "clearhead.json", "clearhead_export.json", "config.json",
    "decoder_model.onnx", "decoder_model.onnx.data", "encoder_model.onnx",
    "encoder_model.onnx.data", "generation_config.json", "model.bin", "model.gguf", "model.onnx",
    "model.onnx.data", "model.safetensors", "modules.json", "onnx_config.json",
    "preprocessor_config.json", "sentence_bert_config.json", "shared_vocabulary.json",
    "source_tokenizer.json", "source_vocabulary.json", "special_tokens_map.json",
    "target_tokenizer.json", "target_vocabulary.json", "tokenizer.json", "tokenizer_config.json",
    "vocabulary.json",
}  # fmt: skip


@dataclass(eq=False)
class Checkpoint:
    """A network with its configuration and tokenizers, as it is loaded and saved."""

    net: Transformer
    config: Config
    tokenizer: Tokenizer | None = None
    source_tokenizer: Tokenizer | None = None  # if the source has a tokenizer of its own
    no_tokenizer_reason: str = ""  # why the model cannot read text, if it has no tokenizer

    @property
    def tokenizers(self) -> tuple[Tokenizer | None, Tokenizer | None]:
        """The tokenizers of the target and of the source; usually the same."""
        return self.tokenizer, self.source_tokenizer or self.tokenizer


# --- clearhead's own format
def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write clearhead's own format into an existing folder."""
    parameters = {n: p.detach().contiguous() for n, p in checkpoint.net.named_parameters()}
    save_file(parameters, folder / WEIGHTS_FILE)
    write_json(folder / CONFIG_FILE, checkpoint.config.to_dict(), 1)
    save_tokenizers(folder, checkpoint)


def save_tokenizers(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the tokenizers into an existing folder."""
    if checkpoint.tokenizer is not None:
        checkpoint.tokenizer.save(folder / TOKENIZER_FILE)
    if checkpoint.source_tokenizer is not None:
        checkpoint.source_tokenizer.save(folder / SOURCE_TOKENIZER_FILE)


def export_tokenizers(folder: Path, checkpoint: Checkpoint) -> None:
    """Save tokenizers and chat template for engines that have no format of their own for them.

    The input tokenizer gets a post-processor that adds the model's special tokens.
    """
    save_tokenizers(folder, checkpoint)
    inference = checkpoint.config.inference
    if input_tokenizer := checkpoint.tokenizers[1]:
        name = SOURCE_TOKENIZER_FILE if checkpoint.source_tokenizer else TOKENIZER_FILE
        with_post_processor(input_tokenizer, inference).save(folder / name)
    if inference.chat_template:
        (folder / CHAT_TEMPLATE_FILE).write_text(inference.chat_template, encoding="utf-8")


def load_checkpoint(folder: Path, placement: "Placement") -> Checkpoint:
    """Read clearhead's own format."""
    config = Config.read(folder / CONFIG_FILE)
    reader = SafetensorsReader([folder / WEIGHTS_FILE])
    tensors = ((name, reader.get_tensor(name)) for name in reader.shapes)
    net = meta_model(config.model, len(reader.shapes))
    load_weights(net, tensors, placement, str(folder / WEIGHTS_FILE))
    pretrained = load_checkpoint_tokenizers(folder)
    return Checkpoint(net, config, pretrained.tokenizer, pretrained.source_tokenizer)


def load_checkpoint_tokenizers(folder: Path) -> PretrainedTokenizer:
    """Read the tokenizers and special tokens of clearhead's own format, without its weights."""
    inference = Config.read(folder / CONFIG_FILE).inference
    tokenizer, source_tokenizer = (
        Tokenizer.load(path) if path.exists() else None
        for path in (folder / TOKENIZER_FILE, folder / SOURCE_TOKENIZER_FILE)
    )
    return PretrainedTokenizer(
        tokenizer,
        source_tokenizer,
        inference.bos_tokens,
        inference.sep_tokens,
        inference.chat_template,
        missing_reason=f"{folder} has no {TOKENIZER_FILE}.",
    )


# --- replacing a model's folder
@contextmanager
def atomic_model_folder(folder: str | Path, format: str = "clearhead") -> Iterator[Path]:
    """Yield a temporary folder that atomically replaces the model in `folder` on success."""
    folder = Path(folder).resolve()
    try:
        check_replaceable(folder, format)
        with atomic_folder(folder) as new:
            yield new
            if format != "clearhead":
                marker = new / EXPORT_FILE
                inference = read_config_file(marker) if marker.is_file() else {}
                write_json(marker, {"format": format, **inference})
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ClearheadError(f"cannot save to {folder}: {reason}.") from None


def check_replaceable(folder: Path, format: str = "clearhead") -> None:
    """Refuse to replace anything but a model that clearhead saved in the same format."""
    for path in (folder, *folder.absolute().parents):
        if path.exists() and not path.is_dir():
            raise ClearheadError(f"{path} is a file. Choose another folder for the model.")
    paths = folder.iterdir() if folder.exists() else ()
    names = {path.name for path in paths if not is_temporary(path)}
    if foreign := names - MODEL_FILES:
        raise ClearheadError(
            f"{folder} contains {min(foreign)}, which is not a model file. Choose another folder."
        )
    if names and export_format(folder) != format:
        old = export_format(folder) or "foreign"
        raise ClearheadError(
            f"{folder} contains a model in {old} format and would be replaced by one in"
            f" {format} format. Choose another folder."
        )


def export_format(folder: Path) -> str:
    """The format in which clearhead saved a folder; empty if it did not."""
    if (folder / CONFIG_FILE).is_file():
        return "clearhead"
    try:
        return str(read_config_file(folder / EXPORT_FILE)["format"])
    except (ClearheadError, KeyError):
        return ""
