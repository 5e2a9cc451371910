"""What every question of the page has: the model it is for, and texts that can be read."""

import base64
import binascii
import hashlib
import io
import secrets
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Generic, Literal, Self, TypeVar
from weakref import WeakKeyDictionary

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from torch import Tensor

from clearhead import config as c
from clearhead.api import Model
from clearhead.data.batch import Batch
from clearhead.errors import ClearheadError, suggest
from clearhead.generate.chat import encode_chat
from clearhead.hooks import Hooks, Recorder, force_eager
from clearhead.lens.activations import (
    ActivationInfo,
    activation_table,
    answer_position,
    matching_names,
    output_labels,
)
from clearhead.lens.edits import ActivationEdit, ablate, chain_edits, checked_edit, replace, scale
from clearhead.model.attention import NO_MASK
from clearhead.model.kv_cache import NO_CACHE
from clearhead.model.transformer import Block, BlockInputs, Stack
from clearhead.serve.explorer.serialize import describe_tokens, finite_or_none
from clearhead.serve.middleware import APIError, Limits
from clearhead.serve.openai import TokenIds
from clearhead.serve.registry import LoadedModel
from clearhead.tokenizers.media import read_audio

# ---- asked: What every question of the page has: the model it is for, and texts that can be read.

UPLOAD_FIELDS = {"image", "audio"}  # files in base64, which the size of a request bounds


class ExplorerRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str = ""

    @property
    def num_chars(self) -> int:
        """Characters of all that is to be read."""
        return len(self.model_dump_json(exclude=UPLOAD_FIELDS))

    @model_validator(mode="after")
    def check_unicode(self) -> Self:
        """JSON can spell one half of a pair of surrogates, which nothing could write down again."""
        try:
            self.model_dump_json()
        except ValueError:
            raise ClearheadError(
                "a text holds half of a character (a lone surrogate), which cannot be read."
            ) from None
        return self


# ---- uploads: Pictures and sounds that a browser sends, in base64, as what `model.logits` takes.

MAX_PIXELS = 40_000_000
IMAGE_FORMATS = (
    "PNG",
    "JPEG",
    "GIF",
    "WEBP",
)  # pillow knows more, and hands some of them to other programs


def decode_base64(written: str) -> bytes:
    """The bytes of base64, or of a data: URL."""
    try:
        return base64.b64decode(written.partition(";base64,")[2] or written, validate=True)
    except (binascii.Error, ValueError):
        raise ClearheadError("what was sent is not base64.") from None


def decode_image(written: str) -> Any:
    """As pillow has it; one that would unfold to something huge is refused before it is unfolded."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(decode_base64(written)), formats=IMAGE_FORMATS)
    except UnidentifiedImageError:
        raise ClearheadError(
            "what was sent is not a picture; a PNG, JPEG, GIF or WebP is needed."
        ) from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ClearheadError(f"the picture cannot be read: {error}.") from None
    if image.width * image.height > MAX_PIXELS:
        raise ClearheadError(
            f"the picture has {image.width} × {image.height} pixels; {MAX_PIXELS:,} are the most."
        )
    return image


def decode_audio(written: str, reads: c.MelSpectrogram) -> Any:
    """As samples at the model's rate."""
    with NamedTemporaryFile(prefix="clearhead.", suffix=".sound") as file:
        file.write(decode_base64(written))
        file.flush()
        try:
            return read_audio(file.name, reads)
        except ClearheadError as error:
            raise ClearheadError(str(error).replace(file.name, "what was sent")) from None


# ---- kept: Things that are kept while there is room, the least recently used going first.

CacheValue = TypeVar("CacheValue")


class LRUCache(Generic[CacheValue]):
    """A mapping that holds at most so many bytes; the newest entry always stays."""

    def __init__(self, max_bytes: int, size: Callable[[CacheValue], int]) -> None:
        self._most = max_bytes
        self._size = size
        self._held = 0
        self._entries: OrderedDict[str, CacheValue] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> CacheValue | None:
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key]

    def put(self, key: str, value: CacheValue) -> CacheValue:
        with self._lock:
            if key in self._entries:
                self._held -= self._size(self._entries.pop(key))
            self._entries[key] = value
            self._held += self._size(value)
            while self._held > self._most and len(self._entries) > 1:
                _, gone = self._entries.popitem(last=False)
                self._held -= self._size(gone)
        return value

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_bytes(self) -> int:
        return self._held


# ---- loaded: Which weights stand behind a name: what tells a model from one that had its name before.

_fingerprints: WeakKeyDictionary[Model, str] = WeakKeyDictionary()


def fingerprint(held: LoadedModel) -> str:
    """The same after a restart, until its files are written anew; of a model that was never a file, only its own."""
    return _fingerprints.get(held.model) or _fingerprints.setdefault(
        held.model, _compute_fingerprint(held)
    )


def _compute_fingerprint(held: LoadedModel) -> str:
    place = Path(held.path).resolve()
    if not held.path or not place.exists():
        return secrets.token_hex(8)
    files = sorted(
        file for file in (place.iterdir() if place.is_dir() else [place]) if file.is_file()
    )
    written = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    parameter = next(held.model.net.parameters())
    return hashlib.sha256(
        repr((place, written, parameter.device.type, parameter.dtype)).encode()
    ).hexdigest()[:16]


# ---- trace: One text's way through a model: the stream between blocks is kept, all else is computed again when it is asked for.

Edits = dict[str, Callable[..., Tensor]]
RESIDUAL_NAMES = (
    "full_embed",
    "blocks.*.resid_post",
    "final_norm",
)  # what enters each block, after edits; and what the head reads
ENCODER_PREFIX = "encoder."


class Trace:
    """Takes the way once. `value` gives any value of the table of names, without the dimension of the batch."""

    def __init__(self, model: Model, batch: Batch, edits: Edits | None = None) -> None:
        if len(batch.inputs) != 1:
            raise ClearheadError(f"a run is of one text, not of {len(batch.inputs)}.")
        self._model = weakref.ref(model)
        self.batch = batch
        self.edits = edits or {}
        for name in self.edits:
            matching_names(model.config.model, name)
        hooks = self._watch(
            [
                *RESIDUAL_NAMES,
                *(ENCODER_PREFIX + name for name in RESIDUAL_NAMES if batch.source is not None),
            ]
        )
        with _eager_no_grad():
            model.run_batch(batch, hooks)
        self.residuals = hooks.values
        self.last_logits = self._answer(-1)

    @property
    def model(self) -> Model:
        """The model, which may have been dropped meanwhile: a run does not keep it."""
        model = self._model()
        if model is None:
            raise GoneError("the model of this run is no longer loaded.")
        return model

    def is_of(self, model: Model) -> bool:
        """Whether that is the very model the way was taken through."""
        return self._model() is model

    @property
    def config(self) -> c.ModelConfig:
        return self.model.config.model

    @property
    def is_pooled(self) -> bool:
        """Whether the head answers once for the whole text."""
        return isinstance(self.config.head, c.ClassificationHead | c.RegressionHead)

    @cached_property
    def activations(self) -> Mapping[str, ActivationInfo]:
        return activation_table(self.config)

    @property
    def nbytes(self) -> int:
        read = [value for value in vars(self.batch).values() if isinstance(value, Tensor)]
        return sum(value.nbytes for value in (*self.residuals.values(), self.last_logits, *read))

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a value, without the batch; known before the value is."""
        m = self.config
        words = self._named(name).shape.split()[1:]
        source = self.residuals.get(f"{ENCODER_PREFIX}embed")
        own = self.residuals["full_embed"].shape[1]
        other = source.shape[1] if source is not None else 0
        tokens = other if name.startswith(ENCODER_PREFIX) else own
        sizes = {
            "token": tokens,
            "key": other if ".cross_attn." in name else tokens,
            "head": m.attention.n_heads,
            "kv_head": m.n_kv_heads,
            "d_head": m.d_head,
            "width": m.d_model,
            "ffn_width": m.d_ff,
            "vocabulary": m.vocab_size,
            "outputs": self.last_logits.shape[-1],
        }
        return tuple(sizes[word] for word in words)

    def stack(self, name: str) -> Stack:
        """The blocks that a value is of."""
        net = self.model.net
        return net.encoder if name.startswith(ENCODER_PREFIX) and net.encoder is not None else net

    def value(self, name: str) -> Tensor:
        """A value as the model had it in this run."""
        return self.values([name])[name]

    def values(self, wanted: Iterable[str]) -> dict[str, Tensor]:
        """Several values of one block (or of none), from one pass through it."""
        wanted = list(wanted)
        for name in wanted:
            self._named(name)
        found = {name: self.residuals[name] for name in wanted if name in self.residuals}
        rest = [name for name in wanted if name not in found]
        if rest:
            with _eager_no_grad():
                found |= self._again(rest)
        return {name: found[name][0] for name in wanted}

    @staticmethod
    def select_head(value: Tensor, head: int | None, name: str) -> Tensor:
        if head is None:
            return value
        if value.dim() != 3:
            raise ClearheadError(f"{name} is not split by head; leave out head={head}.")
        if not 0 <= head < len(value):
            raise ClearheadError(f"{name} has {len(value)} heads; there is no head {head}.")
        return value[head]

    def logits(self, at: int = -1) -> Tensor:
        """What the model answers at one token; the whole answer where there is one for all."""
        if isinstance(self.config.head, c.NoHead):
            raise ClearheadError("this model has no head, so it has no logits.")
        tokens = self.residuals["final_norm"].shape[1]
        if not -tokens <= at < tokens:
            raise ClearheadError(f"there is no token {at}; the text has tokens 0 to {tokens - 1}.")
        return self.last_logits if self.is_pooled or at % tokens == tokens - 1 else self._answer(at)

    def _answer(self, at: int) -> Tensor:
        hidden = self.residuals["final_norm"]
        with _eager_no_grad():
            if (
                self.is_pooled or "logits" in self.edits
            ):  # an edit may be of one token, and counts them all
                whole = self._head(hidden)[0]
                return (whole if self.is_pooled else whole[at]).float()
            at %= hidden.shape[1]
            return self._head(hidden[:, at : at + 1])[0, 0].float()

    def _named(self, name: str) -> ActivationInfo:
        if name not in self.activations:
            raise ClearheadError(
                f"{name!r:.60} names no value of this model; {suggest(name, self.activations)}"
            )
        return self.activations[name]

    def _watch(self, wanted: Iterable[str]) -> Recorder:
        return Recorder(wanted, {name: checked_edit(edit) for name, edit in self.edits.items()})

    def _head(self, hidden: Tensor) -> Tensor:
        return self.model.net.compute_logits(hidden, None, self._watch(()))

    def _again(self, wanted: list[str]) -> dict[str, Tensor]:
        """Values that were not kept, by the code that made them."""
        hooks = self._watch(wanted)
        if wanted == ["logits"]:
            return {"logits": self._head(self.residuals["final_norm"])}
        encoder = wanted[0].startswith(ENCODER_PREFIX)
        stack = self.stack(wanted[0])
        within = hooks.scope("encoder") if encoder else hooks
        path = wanted[0].removeprefix(ENCODER_PREFIX).split(".")
        if path[0] == "full_embed":
            self._embed(stack, within, encoder)
        else:
            self._block(stack, int(path[1]), within, encoder)
        missing = set(wanted) - hooks.values.keys()
        if missing:
            raise ClearheadError(
                f"{', '.join(sorted(missing))} are not of one block; ask for each block's apart."
            )
        return hooks.values

    def _embed(self, stack: Stack, hooks: Hooks, encoder: bool) -> None:
        ids = self.batch.source if encoder else self.batch.inputs
        assert ids is not None
        x = (
            stack.embed(ids)
            if encoder or self.batch.token_type_ids is None
            else stack.embed(ids, self.batch.token_type_ids)
        )
        at, _, _ = stack.positions_and_mask(x, None, None, None)
        stack.embed.add_positions(x, stack.position.embed(at, x.dtype), hooks)

    def _block(self, stack: Stack, layer: int, hooks: Hooks, encoder: bool) -> None:
        side = ENCODER_PREFIX if encoder else ""
        x = self.residuals[f"{side}blocks.{layer - 1}.resid_post" if layer else f"{side}embed"]
        at, keys, mask = stack.positions_and_mask(x, None, None, None)
        place = stack.position.layer_positions(at, keys, len(stack.blocks))[layer]
        source = None if encoder else self.residuals.get(f"{ENCODER_PREFIX}norm")
        block: Block = stack.blocks[layer]  # type: ignore[assignment]
        block(
            x,
            BlockInputs(place, mask, NO_CACHE, source, NO_MASK, NO_CACHE),
            hooks.scope("blocks", layer),
        )


class GoneError(APIError):
    """What was asked about is no longer kept; the same request makes it again."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, 410)


@contextmanager
def _eager_no_grad() -> Iterator[None]:
    """Without gradients, never compiled."""
    with torch.no_grad(), force_eager():
        yield


# ---- edits: Causal clicks: edits as the page writes them, as functions that change a run, and as Python to copy.

MAX_EDITS = 64  # edits of one run


class Edit(BaseModel):
    """Switch off a value (or set it to its mean), scale it, or swap in that of another text: of one head, one token."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=200)
    op: Literal["ablate", "mean", "scale", "swap"] = "ablate"
    head: int | None = None
    token: int | None = None
    factor: float = Field(0.0, allow_inf_nan=False)  # what `scale` multiplies with

    @field_validator("name")
    @classmethod
    def check_single_name(cls, name: str) -> str:
        if "*" in name:
            raise ClearheadError(f"an edit changes one value; {name!r:.60} may name several.")
        return name

    def to_function(self, swapped: Mapping[str, Tensor]) -> ActivationEdit:
        match self.op:
            case "ablate":
                return ablate(self.head, self.token)
            case "mean":
                return ablate(self.head, self.token, mean=True)
            case "scale":
                return scale(self.factor, self.head, self.token)
            case "swap":
                return replace(swapped, self.head, self.token)

    def to_python(self) -> str:
        where = [
            f"{word}={n}"
            for word, n in (("head", self.head), ("token", self.token))
            if n is not None
        ]
        first = {"ablate": [], "mean": [], "scale": [repr(self.factor)], "swap": ["with_=other"]}[
            self.op
        ]
        last = ["mean=True"] if self.op == "mean" else []
        verb = {"mean": "ablate", "swap": "replace"}.get(self.op, self.op)
        return f"ch.{verb}({', '.join([*first, *where, *last])})"


class EditableRequest(ExplorerRequest):
    """A question about a model that may be changed on the way."""

    edits: list[Edit] = Field(default=[], max_length=MAX_EDITS)
    patch_from: str = Field(default="", description="the text whose values `swap` takes")

    @property
    def patched_names(self) -> set[str]:
        """The values that are taken from the other text."""
        return {edit.name for edit in self.edits if edit.op == "swap"}


def build_edits(edits: list[Edit], swapped: Mapping[str, Tensor]) -> Edits:
    """For `model.logits(edits=…)`: several changes of one value follow each other."""
    grouped: dict[str, list[ActivationEdit]] = {}
    for edit in edits:
        grouped.setdefault(edit.name, []).append(edit.to_function(swapped))
    return {name: chain_edits(changes) for name, changes in grouped.items()}


def edits_to_python(edits: list[Edit]) -> str:
    """`{"blocks.2.attn.z": ch.ablate(head=3)}`, as `edits=` takes it."""
    grouped: dict[str, list[str]] = {}
    for edit in edits:
        grouped.setdefault(edit.name, []).append(edit.to_python())
    return (
        "{"
        + ", ".join(f'"{name}": {_nested(name, written)}' for name, written in grouped.items())
        + "}"
    )


def _nested(name: str, written: list[str]) -> str:
    if len(written) == 1:
        return written[0]
    inner = "value"
    for change in written:
        inner = f'{change}({inner}, "{name}")'
    return f"lambda value: {inner}"


# ---- runs: Runs: what the page asks a model to do with a text, by an id that the same question always gets.

MAX_RUN_BYTES = 1 << 30  # of runs that are kept
MAX_RECOMPUTED_BYTES = 256 << 20  # of values that were computed again
NUM_TOP_ANSWERS = 10
MAX_TARGET_TOKENS = 96  # tokens of a target that the model writes itself
DEFAULT_NUM_BEAMS = 4  # texts that a translator follows at once, unless it is told otherwise


class RunRequest(EditableRequest):
    """What to read, and what to change on the way."""

    text: str | None = None
    ids: TokenIds | None = None
    messages: list[dict[str, str]] | None = None
    source: str | None = None
    image: str | None = Field(default=None, description="a picture in base64")
    audio: str | None = Field(default=None, description="a sound in base64")

    def run_id(self, held: LoadedModel) -> str:
        """The same for the same question to the same weights."""
        return hashlib.sha256(f"{fingerprint(held)} {self.model_dump_json()}".encode()).hexdigest()[
            :20
        ]

    def without_uploads(self) -> Self:
        """Only that there were some: they may be large, and what was read of them is kept elsewhere."""
        return self.model_copy(
            update={name: "" for name in UPLOAD_FIELDS if getattr(self, name) is not None}
        )

    def model_inputs(self, model: Model) -> dict[str, Any]:
        """As `model.watch` takes it."""
        m = model.config.model
        reads = m.main_input
        found: dict[str, Any] = (
            {"source": self.source or None} if isinstance(m.architecture, c.EncoderDecoder) else {}
        )
        if self.image is not None:
            found["images"] = decode_image(self.image)
        if self.audio is not None and isinstance(reads, c.MelSpectrogram):
            found["audio"] = decode_audio(self.audio, reads)
        if self.messages is not None:
            return {
                "x": encode_chat(
                    model.config.inference.chat_template, self.messages, model.tokenizer
                ),
                **found,
            }
        x: object = self.text if self.ids is None else self.ids
        if x is None and isinstance(m.architecture, c.EncoderDecoder):
            x = generate_target(model, found)
        return {"x": x or None if found else x, **found}


@dataclass(frozen=True)
class Run:
    """A request, what was read of it, the trace of that, and how long it took."""

    id: str
    request: RunRequest
    inputs: dict[str, Any]
    trace: Trace
    patched_values: dict[str, Tensor]  # values of another text
    model_path: str  # of the model
    milliseconds: float

    @property
    def nbytes(self) -> int:
        values = [
            value
            for value in (*self.inputs.values(), *self.patched_values.values())
            if isinstance(value, Tensor)
        ]
        return (
            self.trace.nbytes
            + sum(value.untyped_storage().nbytes() for value in values)
            + self.request.num_chars
        )

    def lens_inputs(self) -> dict[str, Any]:
        """For functions of the lens: `lens.atlas(model, **run.given())`, edits included."""
        return {**self.inputs, **({"edits": self.trace.edits} if self.trace.edits else {})}

    def resolve_token(self, at: int = -1) -> int:
        """The token that is asked about; of −1, the one that holds the answer: the first gap, or else the last."""
        given = {name: value for name, value in self.inputs.items() if name != "x"}
        return answer_position(self.trace.model, None if at == -1 else at, self.inputs["x"], given)

    def to_dict(self) -> dict[str, Any]:
        """What the page learns of it at once."""
        trace = self.trace
        model = self.trace.model
        at = self.resolve_token()
        return {
            "id": self.id,
            "tokens": describe_trace_tokens(model, trace.batch.inputs, trace, source=False),
            "source": None
            if trace.batch.source is None
            else describe_trace_tokens(model, trace.batch.source, trace, source=True),
            "names": {
                path: {
                    "shape": trace.shape(path),
                    "formula": name.formula,
                    "sentence": name.description,
                }
                for path, name in trace.activations.items()
            },
            "gap": at if at >= 0 else None,
            "top": top_answers(model, trace.logits(at), NUM_TOP_ANSWERS),
            "milliseconds": round(self.milliseconds, 2),
        }


class RunStore:
    """The runs that are kept, and values of theirs that were computed again."""

    def __init__(self, max_length: int = Limits.max_context_length) -> None:
        self.max_length = max_length  # tokens of a text: what a head says of it costs their square
        self._runs: LRUCache[Run] = LRUCache(MAX_RUN_BYTES, lambda run: run.nbytes)
        self._values: LRUCache[Tensor] = LRUCache(
            MAX_RECOMPUTED_BYTES, lambda value: value.untyped_storage().nbytes()
        )

    def get_or_create(self, held: LoadedModel, request: RunRequest) -> Run:
        """The run of a request: the one that is kept, or a new one."""
        name = request.run_id(held)
        found = self._runs.get(name)
        if found is not None and found.trace.is_of(held.model):
            return found
        swapped = self._swapped(held, request, request.source)
        start = time.perf_counter()
        given = request.model_inputs(held.model)
        batch = held.model.make_batch(**given)
        self._check(batch)
        trace = Trace(held.model, batch, build_edits(request.edits, swapped))
        taken = 1000 * (time.perf_counter() - start)
        path = held.path or held.name
        return self._runs.put(
            name,
            Run(
                name,
                request.without_uploads(),
                replayable_inputs(batch, given),
                trace,
                swapped,
                path,
                taken,
            ),
        )

    def _check(self, batch: Batch) -> None:
        for side in (batch.inputs, batch.source):
            if (
                side is not None
                and not side.is_floating_point()
                and side.shape[1] > self.max_length
            ):
                raise APIError(
                    f"{side.shape[1]:,} tokens are more than the {self.max_length:,} of a text that is shown here."
                )

    def edits_for(
        self, held: LoadedModel, asked: EditableRequest, source: str | None = None
    ) -> Edits:
        """The changes that a question asks for, as `model.logits` takes them."""
        return build_edits(asked.edits, self._swapped(held, asked, source))

    def _swapped(
        self, held: LoadedModel, asked: EditableRequest, source: str | None
    ) -> dict[str, Tensor]:
        """What the other text has where values are swapped, with the batch as first dimension."""
        if not asked.patched_names:
            return {}
        if not asked.patch_from:
            raise ClearheadError("to swap a value in, give the other text it comes from (against).")
        return {
            name: self._other(held, asked, source, name).value(name)[None]
            for name in asked.patched_names
        }

    def _other(
        self, held: LoadedModel, asked: EditableRequest, source: str | None, name: str
    ) -> Trace:
        """The run of the other text: as the source, where the value is the encoder's."""
        encoder = name.startswith(ENCODER_PREFIX)
        start = list(held.model.config.inference.decoder_start_tokens)
        sides: dict[str, Any] = (
            {"ids": start, "source": asked.patch_from}
            if encoder
            else {"text": asked.patch_from, "source": source}
        )
        return self.get_or_create(held, RunRequest(model=asked.model, **sides)).trace

    def get(self, name: str) -> Run:
        found = self._runs.get(name)
        if found is None:
            raise GoneError(f"run {name!r:.30} is no longer kept; ask for it again.")
        return found

    def values(self, run: Run, names: Iterable[str]) -> dict[str, Tensor]:
        """Values of one block of a run; what was computed again stays at hand for the next look."""
        names = list(names)
        found = {name: self._values.get(f"{run.id} {name}") for name in names}
        missing = [name for name in names if found[name] is None]
        for name, value in (run.trace.values(missing) if missing else {}).items():
            found[name] = self._values.put(f"{run.id} {name}", value)
        return {name: value for name, value in found.items() if value is not None}


def replayable_inputs(batch: Batch, given: dict[str, Any]) -> dict[str, Any]:
    """What was given, such that `model.watch` neither cuts nor unpacks nor writes it again."""
    sides = {"x": batch.inputs, "source": batch.source}
    found: dict[str, Any] = {"x": None}
    for name, side in sides.items():
        if side is not None and not side.is_floating_point():
            found[name] = side[0].tolist()
        elif side is not None and "images" in given:
            found["images"] = side[0]
    return {**found, **({"audio": given["audio"]} if "audio" in given else {})}


def generate_target(model: Model, given: dict[str, Any]) -> list[int]:
    """What an encoder-decoder makes of its source itself: a target to look at where none was given."""
    use = model.config.inference
    room = min(MAX_TARGET_TOKENS, model.config.model.context_length - len(use.decoder_start_tokens))
    best = model.translate(
        given["source"], num_beams=DEFAULT_NUM_BEAMS, max_tokens=room, audio=given.get("audio")
    )[0].tokens
    return [*use.decoder_start_tokens, *(token for token in best if token not in use.eos_tokens)]


def describe_trace_tokens(
    model: Model, ids: Tensor | None, trace: Trace, source: bool
) -> list[dict[str, Any]]:
    """Each token for people to read; patches have numbers."""
    assert ids is not None
    if ids.is_floating_point():
        count = trace.residuals["encoder.full_embed" if source else "full_embed"].shape[1]
        return [{"id": None, "text": str(i), "special": False} for i in range(count)]
    tokenizer = model.tokenizers[source]
    return describe_tokens(tokenizer, ids[0].tolist())


def top_answers(model: Model, logits: Tensor, top: int) -> list[dict[str, Any]]:
    """The best answers with their probabilities; of a head that gives a number, the number."""
    config = model.config
    if isinstance(config.model.head, c.NoHead):
        return []
    if isinstance(config.model.head, c.RegressionHead):
        return [
            {
                "id": 0,
                "text": "number",
                "logit": finite_or_none(logits[0]),
                "prob": None,
                "logprob": None,
            }
        ]
    logits = torch.atleast_2d(logits)[-1].float().cpu()
    logprobs = logits.log_softmax(dim=-1)
    best = logits.topk(min(top, len(logits))).indices.tolist()
    names = output_labels(config, model.tokenizer, best)
    return [
        {
            "id": i,
            "text": text,
            "logit": finite_or_none(logits[i]),
            "prob": finite_or_none(logprobs[i].exp()),
            "logprob": finite_or_none(logprobs[i]),
        }
        for i, text in zip(best, names, strict=True)
    ]
