"""The lectures' own sentences, and files of bundled models, to be looked at with before anyone has typed."""

import base64
import shlex
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from clearhead import config as c
from clearhead.api import Model
from clearhead.errors import ClearheadError
from clearhead.io import read_json_lines
from clearhead.lens.activations import AttentionKind, output_labels
from clearhead.lens.attention import KIND_PREFIXES
from clearhead.lens.training_trace import TRACE_FOLDER, TRACE_INDEX, read_training_trace
from clearhead.lens.view import Axis, View
from clearhead.serve.explorer.runs import fingerprint
from clearhead.serve.explorer.serialize import view_to_dict
from clearhead.serve.explorer.service import ExplorerService
from clearhead.serve.registry import LoadedModel
from clearhead.tokenizers.tokenizer import MASK_PLACEHOLDER, Tokenizer
from clearhead.train.checkpoint import CHECKPOINTS_FOLDER, LOG_FILE
from clearhead.train.diagnosis import curve_of
from clearhead.train.report import downsample
from clearhead.weights import hub
from clearhead.weights.model_cards import bundled_path, read_card

# ---- examples: The lectures' own sentences, and files of bundled models, to be looked at with before anyone has typed.

FLUFFY_SENTENCE = "a fluffy blue creature roamed the verdant forest"
CHICKEN_SENTENCE = "The chicken didn't cross the road because it was too {}"
DEFAULT_PROMPT = "thanks for all the"
MOVIE_REVIEWS = "A warm, funny film with a heart.", "A cold, empty film with no heart."
QUEEN_SENTENCE = "The king and the queen had a daughter."
DEFAULT_SOURCE = "A little dog runs through the green grass."


def example_inputs(model: Model) -> dict[str, object]:
    """`text` (and `source`) to begin with, and the sentences of single views."""
    m = model.config.model
    both = isinstance(m.architecture, c.EncoderDecoder)
    return {
        "text": None
        if both and model.config.inference.decoder_start_tokens
        else _begin(model),  # None: what it writes itself
        "source": encodable_text(model, DEFAULT_SOURCE, source=True) if both else "",
        "fluffy": encodable_text(model, FLUFFY_SENTENCE),
        "asks": _asks(model),
        "beside": encodable_text(
            model, MOVIE_REVIEWS[1] if _judges(model) else FLUFFY_SENTENCE.replace("blue", "little")
        ),
        "pair": [
            encodable_text(model, CHICKEN_SENTENCE.format(word)) for word in ("tired", "wide")
        ],
        "predict": encodable_text(model, DEFAULT_PROMPT),
        "mole": [
            encodable_text(model, text, source=both)
            for text in (
                "American shrew mole",
                "one mole of carbon dioxide",
                "take a biopsy of the mole",
            )
        ],
        "others": [
            "mouse",
            "rat",
            "gram",
            "unit",
            "tumor",
            "skin",
            "spy",
        ],  # what may stand in the place of a mole
    }


def example_file(path: str) -> dict[str, str] | None:
    """The picture or sound that the card of a bundled model tries it with, in base64 as a browser sends its own."""
    folder = bundled_path(path)
    if folder is None or hub.find_model(path) != folder:  # somebody's model may have the same name
        return None
    words = (word for line in read_card(folder).usage for word in shlex.split(line))
    file = next(
        (file for file in map(Path, words) if file.parent == folder and file.is_file()), None
    )
    return (
        {"name": file.name, "data": base64.b64encode(file.read_bytes()).decode()} if file else None
    )


def _begin(model: Model) -> str:
    """A sentence; for a model that fills gaps, one with a gap, and for one that judges, something to be judged."""
    if _judges(model):
        return encodable_text(model, MOVIE_REVIEWS[0])
    fills = isinstance(model.config.model.head, c.MLMHead) and model.config.inference.mask_token
    return (
        QUEEN_SENTENCE.replace("queen", MASK_PLACEHOLDER)
        if fills and encodable_text(model, QUEEN_SENTENCE) == QUEEN_SENTENCE
        else encodable_text(model, FLUFFY_SENTENCE)
    )


def _judges(model: Model) -> bool:
    return isinstance(model.config.model.head, c.ClassificationHead)


def _asks(model: Model) -> list[int] | None:
    """In that sentence, where creature ends, which asks for adjectives, and fluffy, which answers from afar (L3.6)."""
    if model.tokenizer is None or encodable_text(model, FLUFFY_SENTENCE) != FLUFFY_SENTENCE:
        return None
    before = len(model.config.inference.bos_tokens) - 1
    return [
        before + len(model.tokenizer.encode(FLUFFY_SENTENCE.partition(word)[0] + word))
        for word in ("creature", "fluffy")
    ]


def encodable_text(model: Model, text: str, source: bool = False) -> str:
    """The text, or what of it this model's tokenizer has tokens for and its context has room for."""
    tokenizer = model.tokenizers[source]
    if tokenizer is None:
        return ""
    m = model.config.model
    use = model.config.inference
    room = (
        m.architecture.source_context_length
        if source and isinstance(m.architecture, c.EncoderDecoder)
        else m.context_length
    )
    room -= len(use.bos_tokens) + len(use.sep_tokens)
    known = "".join(letter for letter in text if _reads(tokenizer, letter))
    while known and len(tokenizer.encode(known)) > room:
        known = known[: len(known) * 3 // 4]
    return known


def _reads(tokenizer: Tokenizer, letter: str) -> bool:
    try:
        tokenizer.encode(letter)
    except ClearheadError:
        return False
    return True


# ---- training: How a model came to be: the film that `train --microscope` left beside it, and the curve of its loss.

JSONDict = dict[str, Any]


def training_routes(desk: ExplorerService) -> APIRouter:
    router = APIRouter(prefix="/api/models/{name}/training", tags=["page"])

    async def run(name: str) -> Path:
        async with desk.use_model(name) as held:
            return run_folder(held.path)

    @router.get("")
    async def told(name: str) -> JSONDict:
        """The curve, and what the film shows, if there is one."""
        return await desk.submit(training_summary, await run(name))

    @router.get("/attention")
    async def attention(
        name: str, step: int, probe: int = 0, part: AttentionKind = "attention"
    ) -> JSONDict:
        return await desk.submit(attention_at_step, await run(name), step, probe, part)

    @router.get("/lens")
    async def lens(name: str, step: int, probe: int = 0) -> JSONDict:
        return await desk.submit(lens_at_step, await run(name), step, probe)

    @router.get("/embeddings")
    async def embeddings(name: str, step: int, source: bool = False) -> JSONDict:
        return await desk.submit(embeddings_at_step, await run(name), step, source)

    return router


def run_folder(path: str) -> Path:
    """The folder of the run that a model is of: out itself, or a checkpoint: out/best, out/steps/00000200."""
    model = Path(path)
    for folder in (model, model.parent, model.resolve().parent.parent):
        if path and model.is_dir() and (folder / LOG_FILE).is_file():
            return folder
    raise ClearheadError(
        "nothing is known of this model's training; open a checkpoint in the folder of its run."
    )


def checkpoint_step(path: str) -> int | None:
    """The step that a model is the checkpoint of, if it is one."""
    folder = Path(path).resolve()
    return (
        int(folder.name)
        if path and folder.parent.name == CHECKPOINTS_FOLDER and folder.name.isdigit()
        else None
    )


def has_training_trace(path: str) -> bool:
    """Whether the run of a model left a film."""
    try:
        return (run_folder(path) / TRACE_FOLDER / TRACE_INDEX).is_file()
    except ClearheadError:
        return False


def training_summary(run: Path) -> JSONDict:
    lines = read_json_lines(run / LOG_FILE)
    curve = {
        key: [list(point) for point in downsample(curve_of(lines, key))]
        for key in ("loss", "valid", "accuracy")
    }
    return {
        "curve": curve,
        "film": _film(run) if (run / TRACE_FOLDER / TRACE_INDEX).is_file() else None,
    }


def _film(run: Path) -> JSONDict:
    film = read_training_trace(run)
    return {
        "steps": film.steps,
        "losses": film.losses,
        "parts": film.attention_kinds,
        "embeddings": film.embedding_tables,
        "probes": [vars(probe) for probe in film.probes],
    }


def attention_at_step(run: Path, step: int, probe: int, part: AttentionKind) -> JSONDict:
    """All heads at one step: layer × head × query × key."""
    film = read_training_trace(run)
    values = film.attention(step, probe, part)
    shown = film.probes[probe]
    queries = shown.source_tokens if part == "encoder" else shown.tokens
    keys = shown.tokens if part == "attention" else shown.source_tokens
    layers, heads = (
        Axis.from_labels(word, size)
        for word, size in zip(("layer", "head"), values.shape, strict=False)
    )
    axes = layers, heads, Axis.from_labels("query", queries), Axis.from_labels("key", keys)
    return view_to_dict(
        View(values, axes, f"{KIND_PREFIXES[part]}step {step:,}", "pattern", vmax=1.0)
    )


def lens_at_step(run: Path, step: int, probe: int) -> JSONDict:
    """What the model would have answered at that step, layer by layer."""
    return view_to_dict(read_training_trace(run).logit_lens(step, probe))


def embeddings_at_step(run: Path, step: int, source: bool) -> JSONDict:
    """Every token in a plane that is turned as little as may be from step to step."""
    found = read_training_trace(run).embeddings(step, source)
    axes = Axis.from_labels("token", found.all_tokens), Axis.from_labels("direction", ("x", "y"))
    return view_to_dict(
        View(found.projection, axes, f"embeddings at step {step:,}", "place", signed=True)
    )


# ---- cards: /api/models: what a model is, and which views it has something to show in.


def model_routes(desk: ExplorerService) -> APIRouter:
    router = APIRouter(prefix="/api/models", tags=["page"])

    @router.get("")
    async def models() -> list[dict[str, Any]]:
        """The models that are here by name, and the card of those that are loaded."""
        loaded = desk.registry.loaded
        return [
            model_card(loaded[name]) if name in loaded else {"name": name}
            for name in desk.registry.names
        ]

    @router.get("/{name}")
    async def model(name: str) -> dict[str, Any]:
        """What a model is."""
        async with desk.use_model(name) as held:
            return model_card(held)

    @router.get("/{name}/vocabulary")
    async def vocabulary(name: str) -> list[str]:
        """The text of every answer that the head can give, by id."""
        async with desk.use_model(name) as held:
            m = held.model.config.model
            outputs = (
                m.head.num_labels if isinstance(m.head, c.ClassificationHead) else m.vocab_size
            )
            return await desk.submit(
                output_labels, held.model.config, held.model.tokenizer, range(outputs)
            )

    return router


def model_card(held: LoadedModel) -> dict[str, Any]:
    model = held.model
    m = model.config.model
    use = model.config.inference
    both = m.architecture if isinstance(m.architecture, c.EncoderDecoder) else None
    reads = m.main_input
    return {
        "name": held.name,
        "path": held.path,
        "loaded": fingerprint(held),  # other weights under the same name have another
        "kind": model.architecture,
        "layers": m.n_layers,
        "encoder_layers": both.encoder_layers if both else 0,
        "heads": m.attention.n_heads,
        "kv_heads": m.n_kv_heads,
        "width": m.d_model,
        "d_head": m.d_head,
        "ffn_width": m.d_ff,
        "vocabulary": m.vocab_size,
        "parameters": model.num_parameters(),
        "context": m.context_length,
        "device": next(model.net.parameters()).device.type,
        "step": checkpoint_step(held.path),
        "position": m.position.kind,
        "norm": m.norm.kind,
        "wiring": m.norm_position,
        "activation": m.ffn.activation,
        "gated": m.ffn.is_gated,
        "window": m.attention.sliding_window,
        "scaled": m.attention.scale,
        "tied": getattr(m.head, "tied", isinstance(m.head, c.MLMHead)),
        "head": m.head.kind,
        "labels": list(use.labels),
        "mask": list(use.mask_token),
        "chat": bool(use.chat_template) and model.tokenizer is not None,
        "text": isinstance(reads, c.Tokens) and model.tokenizer is not None,
        "pictures": isinstance(reads, c.Images),
        "sound": isinstance(reads, c.MelSpectrogram),
        "microscope": has_training_trace(held.path),
        "views": available_views(model),
        "examples": example_inputs(model) | {"file": example_file(held.path)},
    }


def available_views(model: Model) -> list[str]:
    """The views that have something to show of such a model, in the order of the rail."""
    m = model.config.model
    use = model.config.inference
    both = isinstance(m.architecture, c.EncoderDecoder)
    reads = m.main_input
    text = isinstance(reads, c.Tokens)
    words = isinstance(m.input, c.Tokens) and model.tokenizer is not None
    language = isinstance(m.head, c.LMHead)
    shown = {
        "machine": True,
        "tokens": text,
        "position": True,
        "attention": True,
        "block": True,
        "predict": language and not both and model.architecture == "decoder",
        "lens": not isinstance(m.head, c.NoHead),
        "vectors": words,
        "translate": both,
        "classify": text and isinstance(m.head, c.ClassificationHead | c.RegressionHead),
        "fill": bool(use.mask_token) and isinstance(m.head, c.MLMHead),
        "chat": bool(use.chat_template) and words,
        "patches": not text,
        "compare": True,
        "tour": True,
    }
    return [view for view, here in shown.items() if here]
