"""Requests of the page: schemas, edits and uploads."""

import base64
import binascii
import hashlib
import io
from collections.abc import Callable, Mapping
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypedDict

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)
from torch import Tensor

from clearhead import config as c
from clearhead.api import Model
from clearhead.errors import ClearheadError
from clearhead.generate.chat import check_messages, encode_chat
from clearhead.lens.edits import ActivationEdit, ablate, chain_edits, replace, scale
from clearhead.serve.explorer.cost import check_num_tokens
from clearhead.serve.openai import FAIL_FAST, TokenIds, unknown_field_error
from clearhead.serve.registry import LoadedModel
from clearhead.tokenizers.media import open_image, read_audio

if TYPE_CHECKING:
    from PIL.Image import Image


UPLOAD_FIELDS = {"image", "audio"}  # base64 files, limited by the size of a request
UPLOAD_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")  # others are decoded slowly or need much memory
MAX_UPLOAD_PIXELS = 16_000_000
MAX_UPLOAD_SIDE = 8192  # resizing a long narrow image takes gigabytes
MAX_EDITS = 64  # per run
MAX_TARGET_TOKENS = 96  # of a translation generated as the target of a run
DEFAULT_NUM_BEAMS = 4
Edits = dict[str, Callable[..., Tensor]]


def check_message(message: object) -> object:
    """Report the first invalid value of a message, not thousands of them."""
    check_messages([message])
    return message


Messages = Annotated[list[Annotated[dict[str, str], BeforeValidator(check_message)]], FAIL_FAST]


class StrictFields(BaseModel):
    """Base class of requests and their parts, without unknown fields."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})

    @model_validator(mode="before")
    @classmethod
    def check_names(cls, fields: Any) -> Any:
        """Reject the first unknown field; `extra="forbid"` would report thousands of them."""
        for name in fields if isinstance(fields, dict) else ():
            if name not in cls.model_fields:
                raise unknown_field_error(name, cls.model_fields)
        return fields


class ExplorerRequest(StrictFields):
    """Base class of the page's requests."""

    model: str = ""

    @property
    def num_chars(self) -> int:
        """Size of the request without uploads."""
        return len(self.model_dump_json(exclude=UPLOAD_FIELDS))

    @model_validator(mode="after")
    def check_unicode(self) -> Self:
        """Reject lone surrogates, which JSON can spell but UTF-8 cannot encode."""
        try:
            self.model_dump_json()
        except ValueError:
            raise ClearheadError(
                "Text contains a lone surrogate, which is invalid Unicode."
            ) from None
        return self


class Edit(StrictFields):
    """An edit of an activation, optionally of one head or one token."""

    name: str = Field(max_length=200)
    op: Literal["ablate", "mean_ablate", "scale", "patch"] = "ablate"
    head: int | None = None
    token: int | None = None
    factor: float = Field(0.0, allow_inf_nan=False)  # of op "scale"

    @field_validator("name")
    @classmethod
    def check_single_name(cls, name: str) -> str:
        if "*" in name:
            raise ClearheadError(f"An edit needs the name of one activation, got {name!r:.60}.")
        return name

    def to_function(self, patched_values: Mapping[str, Tensor]) -> ActivationEdit:
        match self.op:
            case "ablate":
                return ablate(self.head, self.token)
            case "mean_ablate":
                return ablate(self.head, self.token, mean=True)
            case "scale":
                return scale(self.factor, self.head, self.token)
            case "patch":
                return replace(patched_values, self.head, self.token)

    def to_python(self) -> str:
        """The call that creates this edit, such as `ch.ablate(head=3)`."""
        function = {"mean_ablate": "ablate", "patch": "replace"}.get(self.op, self.op)
        arguments = []
        if self.op == "scale":
            arguments.append(repr(self.factor))
        if self.op == "patch":
            arguments.append("with_=other")
        if self.head is not None:
            arguments.append(f"head={self.head}")
        if self.token is not None:
            arguments.append(f"position={self.token}")
        if self.op == "mean_ablate":
            arguments.append("mean=True")
        return f"ch.{function}({', '.join(arguments)})"


class EditableRequest(ExplorerRequest):
    """A request to a model with edits."""

    edits: Annotated[list[Edit], FAIL_FAST] = Field(default=[], max_length=MAX_EDITS)
    patch_from: str = Field(default="", description="the text whose activations `patch` uses")

    @property
    def patched_names(self) -> set[str]:
        """Activations that are taken from the other text."""
        return {edit.name for edit in self.edits if edit.op == "patch"}


def build_edits(edits: list[Edit], patched_values: Mapping[str, Tensor]) -> Edits:
    """Edits for `model.logits(edits=…)`; several edits of one activation are chained."""
    functions: dict[str, list[ActivationEdit]] = {}
    for edit in edits:
        functions.setdefault(edit.name, []).append(edit.to_function(patched_values))
    return {name: chain_edits(chain) for name, chain in functions.items()}


def edits_to_python(edits: list[Edit]) -> str:
    """Edits as Python code: `{"blocks.2.attn.z": ch.ablate(head=3)}`."""
    calls: dict[str, list[str]] = {}
    for edit in edits:
        calls.setdefault(edit.name, []).append(edit.to_python())
    items = []
    for name, chain in calls.items():
        code = chain[0]
        if len(chain) > 1:
            nested = "value"
            for call in chain:
                nested = f'{call}({nested}, "{name}")'
            code = f"lambda value: {nested}"
        items.append(f'"{name}": {code}')
    return "{" + ", ".join(items) + "}"


class ModelInputs(TypedDict, total=False):
    """Inputs of `model.watch` and `model.logits`: texts, ids, tensors or images."""

    x: Any
    source: Any
    images: Any
    audio: Any


class LensInputs(ModelInputs):
    """Inputs of functions of the lens."""

    edits: Edits


class RunRequest(EditableRequest):
    """The input of a run, and its edits."""

    text: str | None = None
    ids: TokenIds | None = None
    messages: Messages | None = None
    source: str | None = None
    image: str | None = Field(default=None, description="an image file in base64")
    audio: str | None = Field(default=None, description="an audio file in base64")

    def run_id(self, loaded_model: LoadedModel) -> str:
        """The same for the same request to the same weights."""
        identity = f"{loaded_model.fingerprint} {self.model_dump_json()}"
        return hashlib.sha256(identity.encode()).hexdigest()[:20]

    def without_uploads(self) -> Self:
        """A copy in which uploads, which may be large, are empty strings."""
        uploads = {name: "" for name in UPLOAD_FIELDS if getattr(self, name) is not None}
        return self.model_copy(update=uploads)

    def model_inputs(self, model: Model) -> ModelInputs:
        """Inputs for `model.watch`; an encoder-decoder without target gets its own translation."""
        m = model.config.model
        is_encoder_decoder = isinstance(m.architecture, c.EncoderDecoder)
        inputs: ModelInputs = {}
        if is_encoder_decoder:
            inputs["source"] = self.source or None
        if self.image is not None:
            inputs["images"] = decode_image(self.image)
        if self.audio is not None and isinstance(m.main_input, c.MelSpectrogram):
            inputs["audio"] = decode_audio(self.audio, m.main_input)
        x: str | list[int] | None = self.text if self.ids is None else self.ids
        if self.messages is not None:
            x = encode_chat(model.chat_template, self.messages, model.tokenizer)
        elif x is None and is_encoder_decoder:
            x = generate_target(model, inputs)
        inputs["x"] = None if inputs and not x else x
        return inputs


def decode_base64(text: str) -> bytes:
    """Decode base64, or a base64 data: URL."""
    try:
        return base64.b64decode(text.partition(";base64,")[2] or text, validate=True)
    except (binascii.Error, ValueError):
        raise ClearheadError("Upload is not valid base64.") from None


def decode_image(text: str) -> "Image":
    """Open a base64 image, unless decoding it could take long."""
    file = io.BytesIO(decode_base64(text))
    image = open_image(file, "the upload", formats=UPLOAD_FORMATS, max_pixels=MAX_UPLOAD_PIXELS)
    if max(image.size) > MAX_UPLOAD_SIDE:
        raise ClearheadError(
            f"the upload is too large: {image.width} × {image.height} pixels; at most"
            f" {MAX_UPLOAD_SIDE:,} per side are allowed."
        )
    return image


def decode_audio(text: str, audio_input: c.MelSpectrogram) -> Tensor:
    """Decode a base64 audio file into samples at the model's rate."""
    with NamedTemporaryFile(prefix="clearhead.", suffix=".audio") as file:
        file.write(decode_base64(text))
        file.flush()
        try:
            return read_audio(file.name, audio_input)
        except ClearheadError as error:
            raise ClearheadError(str(error).replace(file.name, "the upload")) from None


def check_source(model: Model, inputs: ModelInputs) -> None:
    """Raise an error if a text is too long to be translated in one turn."""
    text = inputs.get("source")
    tokenizer = model.tokenizers[1]
    if text and tokenizer:
        check_num_tokens(model, [len(tokenizer.encode(text))])


def generate_target(model: Model, inputs: ModelInputs) -> list[int]:
    """Translate the source of an encoder-decoder, to have a target to look at."""
    check_source(model, inputs)
    inference = model.config.inference
    start_tokens = inference.decoder_start_tokens
    max_tokens = min(MAX_TARGET_TOKENS, model.config.model.context_length - len(start_tokens))
    translation = model.translate(
        inputs.get("source"),
        num_beams=DEFAULT_NUM_BEAMS,
        max_tokens=max_tokens,
        audio=inputs.get("audio"),
    )
    if isinstance(translation, list):
        translation = translation[0]
    tokens = [token for token in translation.tokens if token not in inference.eos_tokens]
    return [*start_tokens, *tokens]
