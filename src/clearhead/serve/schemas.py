"""What may be asked, field by field. What is unknown, or cannot be done here, is refused by its name."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from clearhead.errors import nearest
from clearhead.generate.sampling import LARGEST_COUNT
from clearhead.serve.refused import Refused

# Fields of OpenAI's that change nothing here.
IDLE = {
    "metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "safety_identifier", "service_tier", "store", "user",
}  # fmt: skip
# Those that nothing here can honour, but for the values that ask for nothing.
BEYOND: dict[str, tuple[Any, ...]] = {
    "audio": (), "best_of": (1,), "function_call": ("none",), "functions": ([],), "modalities": (["text"],),
    "moderation": (), "prediction": (), "reasoning_effort": ("none",), "response_format": ({"type": "text"},),
    "suffix": ("",), "tool_choice": ("none", "auto"), "tools": ([],), "verbosity": (), "web_search_options": (),
}  # fmt: skip


class FirstMistake(FailFast):
    """The first mistake of a list is told, not all million of them."""

    __hash__ = object.__hash__  # parts of unions need one


FIRST = FirstMistake()
Texts = Annotated[list[str], FIRST]
Ids = Annotated[list[int], FIRST]
Prompt = str | Texts | Ids | Annotated[list[Ids], FIRST]
Pair = Annotated[list[str], Field(min_length=2, max_length=2)]


class Asked(BaseModel):
    """What every request has."""

    model_config = ConfigDict(extra="ignore", strict=True, json_schema_extra={"additionalProperties": False})
    model: str = Field(description="A name that /v1/models tells.")

    @model_validator(mode="before")
    @classmethod
    def only_what_is_done(cls, given: Any) -> Any:
        """A field that is null is as good as none."""
        if not isinstance(given, dict):
            return given
        told = {name: value for name, value in given.items() if value is not None}
        for name, value in told.items():
            if name in cls.model_fields or name in IDLE or value in BEYOND.get(name, ()):
                continue
            if name in BEYOND:
                raise Refused(f"{name} is not done here; leave it out.", param=name)
            known = nearest(name[:80], cls.model_fields)
            raise Refused(f"{name[:80]!r} is no field of this request; {known}", param=name[:80])
        return told


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore")
    include_usage: bool = False


class Drawn(Asked):
    """How texts are drawn; the fields are those of `model.generate`."""

    temperature: float = Field(1.0, description="0 takes the likeliest token.")
    top_p: float = 1.0
    top_k: int = Field(0, le=LARGEST_COUNT, description="Ours, not OpenAI's: only the k likeliest; 0 = all.")
    min_p: float = Field(0.0, description="Ours: only those this share as likely as the likeliest.")
    repetition_penalty: float = Field(1.0, description="Ours: divides the logits of all that was read or written.")
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, Any] = Field({}, description="What is added to the logits of tokens, by id.")
    stop: str | Annotated[list[str], FIRST, Field(max_length=16)] = []
    seed: int | None = Field(None, description="The same seed, the same text; without one, a new one is drawn.")
    n: int = Field(1, ge=1, le=LARGEST_COUNT)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()


class Completion(Drawn):
    prompt: Prompt
    max_tokens: int | None = Field(None, ge=0, description="Else 16. 0, with echo, tells of the prompt alone.")
    logprobs: int | None = Field(None, ge=0, le=20, description="So many of the likeliest with each token.")
    echo: bool = False


class Part(BaseModel):
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One of a conversation; what else OpenAI's messages hold may be there, and is not read."""

    model_config = ConfigDict(extra="ignore", strict=True)
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Part], FIRST] | None = None

    def plain(self) -> dict[str, str]:
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class Chat(Drawn):
    messages: Annotated[list[Message], FIRST, Field(min_length=1)]
    max_tokens: int | None = Field(None, ge=1, description="Without, as many as fit.")
    max_completion_tokens: int | None = Field(None, ge=1, description="The newer name of max_tokens.")
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)


class Embedding(Asked):
    input: Prompt
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class Answered(Asked):
    """What is asked on paths of ours."""

    model: str = Field("", description="May be left out where one model is served.")


class Classification(Answered):
    input: str | Texts | Annotated[list[Pair], FIRST] = Field(description="Texts, or pairs to be judged together.")


class Filling(Answered):
    input: str | Texts = Field(description="Texts with [MASK] where a word is missing.")
    top: int = Field(5, ge=1, le=100, description="So many of the likeliest words for each gap.")


class Translation(Answered):
    text: str | Texts
    beam: int = Field(5, ge=1, le=32)
    n_best: int = Field(1, ge=1, le=32)
    max_tokens: int = Field(0, ge=0)
    length_penalty: float = 1.0
    early: bool = False
    no_repeat: int = Field(0, ge=0)
    prefix: str = ""
    alternatives: int | None = None
    align: int | Literal["all"] | None = None
    split: bool = False


class Mistake(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class Failure(BaseModel):
    """How everything that goes wrong is told."""

    error: Mistake
