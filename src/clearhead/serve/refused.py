"""What a server answers instead: a sentence, in the form that clients of OpenAI's API expect."""

import json
from typing import Any

from clearhead.errors import ClearheadError, NoNumbers

KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class Refused(ClearheadError):
    """A sentence with the HTTP status that goes with it; `again` is after how many seconds it may be tried again."""

    def __init__(
        self, sentence: str, status: int = 400, param: str | None = None, code: str | None = None, again: int = 0
    ) -> None:
        super().__init__(sentence)
        self.status, self.param, self.code, self.again = status, param, code, again

    @classmethod
    def of(cls, error: ClearheadError) -> "Refused":
        """Any mistake in what was given is the client's; that a model is broken is not."""
        return error if isinstance(error, Refused) else cls(str(error), 500 if isinstance(error, NoNumbers) else 400)

    @property
    def tree(self) -> dict[str, Any]:
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    @property
    def body(self) -> bytes:
        return json.dumps(self.tree, ensure_ascii=False).encode(errors="replace")

    @property
    def headers(self) -> dict[str, str]:
        wanted = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        return wanted | ({"Retry-After": str(self.again)} if self.again else {})
