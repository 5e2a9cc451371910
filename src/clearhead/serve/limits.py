"""Resource limits of a server, and quotas of its clients."""

from collections import Counter
from dataclasses import dataclass, fields

from clearhead.errors import ClearheadError


@dataclass(frozen=True)
class Limits:
    """Limits of a server. Requests beyond them are rejected immediately."""

    max_batch_size: int = 0  # sequences per model decoded in one batch; 0: chosen by device
    max_context_length: int = 4096  # tokens of prompt and output, if the model allows more
    max_prompt_chars: int = 1 << 18  # characters of all texts of one request
    max_tokens: int = 2048  # output tokens per sequence
    max_texts: int = 64  # prompts × samples, inputs or sentences of one request
    max_queue: int = 256  # sequences waiting for one model
    max_requests: int = 1024  # concurrent requests
    max_connections: int = 8192  # open connections, if the system allows that many open files
    max_body_bytes: int = 4 << 20  # of one request
    max_json_nodes: int = 1 << 16  # lists, objects and their keys in the body of one request
    max_total_body_bytes: int = 64 << 20  # of all concurrent requests
    max_total_response_bytes: int = 256 << 20  # not yet sent, of responses larger than 64 KiB
    max_unread_tokens: int = 4096  # tokens buffered for a slow reader
    body_timeout: float = 30.0  # seconds to receive a request body
    queue_timeout: float = 60.0  # seconds to wait in the queue
    request_timeout: float = 600.0  # seconds for the whole request
    shutdown_timeout: float = 10.0  # seconds that running requests get at shutdown

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            minimum = 0 if field.name == "max_batch_size" or field.type is float else 1
            if value < minimum:
                raise ClearheadError(f"{field.name} must be at least {minimum}, got {value}.")


class Quota:
    """A limit shared by clients. No single client can use it up.

    A client may hold `MAX_SHARE_OF_REMAINING` times what would then be left, so one client alone
    gets 8/9 of the limit (a classroom behind one address is one client), and a new client still
    finds room.
    """

    MAX_SHARE_OF_REMAINING = 8

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.used_by_client: Counter[str] = Counter()

    def fits(self, client: str, amount: int) -> bool:
        left = self.limit - self.used - amount
        share = self.MAX_SHARE_OF_REMAINING * left
        return left >= 0 and self.used_by_client[client] + amount - 1 <= share

    def acquire(self, client: str, amount: int) -> None:
        self.used_by_client[client] += amount
        self.used += amount

    def release(self, client: str, amount: int) -> None:
        self.acquire(client, -amount)
        if not self.used_by_client[client]:
            del self.used_by_client[client]
