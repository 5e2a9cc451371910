"""Models: cards with example inputs, vocabulary, sampling rules, and training traces."""

import base64
import shlex
from pathlib import Path

from fastapi import APIRouter

from clearhead import config as c
from clearhead.api import Model
from clearhead.errors import ClearheadError
from clearhead.io import read_log
from clearhead.lens.hook_points import AttentionKind
from clearhead.lens.tokens import output_labels
from clearhead.lens.training_trace import TRACE_FOLDER, TRACE_INDEX, read_training_trace
from clearhead.lens.view import View, label_axes
from clearhead.serve.errors import JSONDict
from clearhead.serve.explorer.executor import ExplorerExecutor
from clearhead.serve.explorer.serialize import view_to_dict
from clearhead.serve.registry import LoadedModel
from clearhead.tokenizers.tokenizer import MASK_PLACEHOLDER, Tokenizer
from clearhead.train.checkpoint import CHECKPOINTS_FOLDER, LOG_FILE
from clearhead.train.diagnosis import curve_of
from clearhead.train.plots import downsample
from clearhead.weights import hub
from clearhead.weights.bundled import bundled_path
from clearhead.weights.model_cards import read_card

FLUFFY_SENTENCE = "a fluffy blue creature roamed the verdant forest"
CHICKEN_SENTENCE = "The chicken didn't cross the road because it was too {}"
DEFAULT_PROMPT = "thanks for all the"
MOVIE_REVIEWS = ("A warm, funny film with a heart.", "A cold, empty film with no heart.")
QUEEN_SENTENCE = "The king and the queen had a daughter."
DEFAULT_SOURCE = "A little dog runs through the green grass."
MOLE_SENTENCES = (
    "American shrew mole",
    "one mole of carbon dioxide",
    "take a biopsy of the mole",
)
MOLE_SUBSTITUTES = ("mouse", "rat", "gram", "unit", "tumor", "skin", "spy")


# Routes


def model_routes(executor: ExplorerExecutor) -> APIRouter:
    router = APIRouter(prefix="/api/models", tags=["page"])

    @router.get("")
    async def models() -> list[JSONDict]:
        """All models by name, with the cards of loaded ones."""
        loaded = executor.registry.loaded
        return [
            model_card(loaded[name]) if name in loaded else {"name": name}
            for name in executor.registry.names
        ]

    @router.get("/{name}")
    async def model(name: str) -> JSONDict:
        async with executor.use_model(name) as loaded_model:
            return model_card(loaded_model)

    @router.get("/{name}/vocabulary")
    async def vocabulary(name: str) -> list[str]:
        """The label of every output of the head, by id."""
        async with executor.use_model(name) as loaded_model:
            config = loaded_model.model.config
            m = config.model
            num_outputs = m.vocab_size
            if isinstance(m.head, c.ClassificationHead):
                num_outputs = m.head.num_labels
            tokenizer = loaded_model.model.tokenizer
            return await executor.submit(output_labels, config, tokenizer, range(num_outputs))

    @router.get("/{name}/sampling")
    async def sampling(name: str) -> JSONDict:
        """What sampling needs besides logits: vocabulary size, suppressed and end tokens."""
        async with executor.use_model(name) as loaded_model:
            model = loaded_model.model
            inference = model.config.inference
            tokenizer = model.tokenizer
            return {
                "vocab_size": len(tokenizer) if tokenizer else model.config.model.vocab_size,
                "suppress_tokens": inference.suppress_tokens,
                "begin_suppress_tokens": inference.begin_suppress_tokens,
                "eos_tokens": inference.eos_tokens,
            }

    return router


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


# Cards


def model_card(loaded_model: LoadedModel) -> JSONDict:
    model = loaded_model.model
    path = loaded_model.path
    m = model.config.model
    inference = model.config.inference
    architecture = m.architecture
    has_tokenizer = model.tokenizer is not None
    views = available_views(model)
    encoder_layers = (
        architecture.encoder_layers if isinstance(architecture, c.EncoderDecoder) else 0
    )
    return {
        "name": loaded_model.name,
        "path": path,
        "fingerprint": loaded_model.fingerprint,
        "architecture": model.architecture,
        "n_layers": m.n_layers,
        "encoder_layers": encoder_layers,
        "n_heads": m.attention.n_heads,
        "n_kv_heads": m.n_kv_heads,
        "d_model": m.d_model,
        "d_head": m.d_head,
        "d_ff": m.d_ff,
        "vocab_size": m.vocab_size,
        "num_parameters": model.num_parameters(),
        "context_length": m.context_length,
        "device": next(model.net.parameters()).device.type,
        "step": checkpoint_step(path),
        "position": m.position.kind,
        "norm": m.norm.kind,
        "norm_position": m.norm_position,
        "activation": m.ffn.activation,
        "is_gated": m.ffn.is_gated,
        "sliding_window": m.attention.sliding_window,
        "scale_scores": m.attention.scale,
        "tie_embeddings": _has_tied_embeddings(m.head),
        "head": m.head.kind,
        "labels": list(inference.labels),
        "mask_token": list(inference.mask_token),
        "has_chat": "chat" in views,
        "reads_text": isinstance(m.main_input, c.Tokens) and has_tokenizer,
        "reads_images": isinstance(m.main_input, c.Images),
        "reads_audio": isinstance(m.main_input, c.MelSpectrogram),
        "has_training_trace": has_training_trace(path),
        "views": views,
        "examples": {**example_inputs(model), "file": example_file(path)},
    }


def _has_tied_embeddings(head: c.Head) -> bool:
    if isinstance(head, c.LMHead):
        return head.tie_embeddings
    return isinstance(head, c.MLMHead)


def available_views(model: Model) -> list[str]:
    """The views that this model supports, in the order of the navigation."""
    m = model.config.model
    inference = model.config.inference
    has_encoder = isinstance(m.architecture, c.EncoderDecoder)
    reads_text = isinstance(m.main_input, c.Tokens)
    has_words = isinstance(m.input, c.Tokens) and model.tokenizer is not None
    is_language_model = isinstance(m.head, c.LMHead) and isinstance(m.architecture, c.Decoder)
    is_classifier = isinstance(m.head, c.ClassificationHead | c.RegressionHead)
    views = {
        "machine": True,
        "tokens": reads_text,
        "position": True,
        "attention": True,
        "block": True,
        "predict": is_language_model,
        "lens": not isinstance(m.head, c.NoHead),
        "vectors": has_words,
        "translate": has_encoder,
        "classify": reads_text and is_classifier,
        "fill": bool(inference.mask_token) and isinstance(m.head, c.MLMHead),
        "chat": bool(model.chat_template) and has_words and is_language_model,
        "patches": not reads_text,
        "compare": True,
        "tour": True,
    }
    return [view for view, is_available in views.items() if is_available]


def example_inputs(model: Model) -> JSONDict:
    """Default inputs of the page, and of single views, as far as the model can encode them."""
    m = model.config.model
    has_encoder = isinstance(m.architecture, c.EncoderDecoder)
    is_classifier = isinstance(m.head, c.ClassificationHead)
    comparison = MOVIE_REVIEWS[1] if is_classifier else FLUFFY_SENTENCE.replace("blue", "little")
    generates_target = has_encoder and bool(model.config.inference.decoder_start_tokens)
    return {
        "text": None if generates_target else _default_text(model),
        "source": encodable_text(model, DEFAULT_SOURCE, is_source=True) if has_encoder else "",
        "attention_text": encodable_text(model, FLUFFY_SENTENCE),
        "attention_tokens": _attention_tokens(model),
        "comparison": encodable_text(model, comparison),
        "coreference": [
            encodable_text(model, CHICKEN_SENTENCE.format(word)) for word in ("tired", "wide")
        ],
        "prompt": encodable_text(model, DEFAULT_PROMPT),
        "context_texts": [
            encodable_text(model, text, is_source=has_encoder) for text in MOLE_SENTENCES
        ],
        "substitutes": list(MOLE_SUBSTITUTES),
    }


def _default_text(model: Model) -> str:
    """A sentence; with a mask for a masked language model, a review for a classifier."""
    head = model.config.model.head
    if isinstance(head, c.ClassificationHead):
        return encodable_text(model, MOVIE_REVIEWS[0])
    fills_masks = isinstance(head, c.MLMHead) and bool(model.config.inference.mask_token)
    if fills_masks and encodable_text(model, QUEEN_SENTENCE) == QUEEN_SENTENCE:
        return QUEEN_SENTENCE.replace("queen", MASK_PLACEHOLDER)
    return encodable_text(model, FLUFFY_SENTENCE)


def _attention_tokens(model: Model) -> list[int] | None:
    """Tokens of "creature" (query) and "fluffy" (key), a non-adjacent adjective (L3.6)."""
    if model.tokenizer is None or encodable_text(model, FLUFFY_SENTENCE) != FLUFFY_SENTENCE:
        return None
    num_bos = len(model.config.inference.bos_tokens)
    tokens = []
    for word in ("creature", "fluffy"):
        end = FLUFFY_SENTENCE.index(word) + len(word)
        tokens.append(num_bos + len(model.tokenizer.encode(FLUFFY_SENTENCE[:end])) - 1)
    return tokens


def encodable_text(model: Model, text: str, is_source: bool = False) -> str:
    """The characters of a text that the tokenizer knows, truncated to the context length."""
    tokenizer = model.tokenizers[is_source]
    if tokenizer is None:
        return ""
    m = model.config.model
    inference = model.config.inference
    max_tokens = m.context_length
    if is_source and isinstance(m.architecture, c.EncoderDecoder):
        max_tokens = m.architecture.source_context_length
    max_tokens -= len(inference.bos_tokens) + len(inference.sep_tokens)
    text = "".join(character for character in text if _can_encode(tokenizer, character))
    while text and len(tokenizer.encode(text)) > max_tokens:
        text = text[: len(text) * 3 // 4]
    return text


def _can_encode(tokenizer: Tokenizer, text: str) -> bool:
    try:
        tokenizer.encode(text)
    except ClearheadError:
        return False
    return True


def example_file(path: str) -> dict[str, str] | None:
    """The example image or audio file of a bundled model, in base64."""
    folder = bundled_path(path)
    if folder is None or hub.find_model(path) != folder:  # a local model may have the same name
        return None
    for command in read_card(folder).usage:
        for argument in shlex.split(command):
            file = Path(argument)
            if file.parent == folder and file.is_file():
                return {"name": file.name, "data": base64.b64encode(file.read_bytes()).decode()}
    return None


# Training


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
