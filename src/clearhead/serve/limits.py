"""How much a server takes on."""

from dataclasses import dataclass, fields

from clearhead.errors import ClearheadError


@dataclass(frozen=True)
class Limits:
    """What is more than this is refused at once, in a sentence."""

    slots: int = 0  # texts that a model writes side by side; 0 = as suits the device
    context: int = 4096  # tokens of a prompt and what follows it, where the model itself would take more
    prompt: int = 1 << 18  # characters of all texts of one request
    max_tokens: int = 2048  # that one text may ask for
    texts: int = 64  # of one request: prompts × samples, inputs, sentences
    queue: int = 256  # texts that wait for one model
    requests: int = 1024  # under way at once
    body: int = 4 << 20  # bytes of one request
    bodies: int = 64 << 20  # bytes of all requests that are being read or answered
    behind: int = 4096  # tokens that may lie ready for a reader that does not take them
    body_seconds: float = 30.0  # for a request to arrive
    queue_seconds: float = 60.0  # for its turn to come
    seconds: float = 600.0  # for all of it
    stop_seconds: float = 10.0  # what runs may still take when the server is to stop

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name == "slots" or field.type is float else 1
            if value < least:
                raise ClearheadError(f"{field.name} = {value} is too small a limit; it must be at least {least}.")
