"""A model as a folder of clearhead's own: `clearhead.json`, `model.safetensors`, and its tokenizers.

Nothing in it can run.
"""

from pathlib import Path

from safetensors.torch import save_file

from clearhead import reader
from clearhead.config import Config
from clearhead.files import write_json
from clearhead.model.transformer import build
from clearhead.tokens.published import Published
from clearhead.tokens.text import Tokenizer
from clearhead.weights.checkpoint import SOURCE_TOKENIZER, TOKENIZER, Checkpoint, Home, fill
from clearhead.weights.store import Safetensors

CONFIG, WEIGHTS = "clearhead.json", "model.safetensors"


def write(folder: Path, model: Checkpoint) -> None:
    save_file({name: p.detach().contiguous() for name, p in model.net.named_parameters()}, folder / WEIGHTS)
    write_json(folder / CONFIG, model.config.tree(), 1)
    model.save_tokenizers(folder)


def read(folder: Path, home: Home) -> Checkpoint:
    config = Config.of(reader.load(folder / CONFIG))
    stored = Safetensors([folder / WEIGHTS])
    tensors = ((name, stored.read(name)) for name in stored.shapes)
    net = fill(build(config.model, seed=None), tensors, home, str(folder / WEIGHTS))
    own = tokenizers(folder)
    return Checkpoint(net, config, own.tokenizer, own.source)


def tokenizers(folder: Path) -> Published:
    """How the model reads text."""
    use = Config.of(reader.load(folder / CONFIG)).use
    tokenizer, source = (
        Tokenizer.load(path) if path.exists() else None for path in (folder / TOKENIZER, folder / SOURCE_TOKENIZER)
    )
    return Published(tokenizer, source, use.begin, use.end, use.chat, why=f"{folder} holds no {TOKENIZER}.")
