"""Errors of the HTTP API."""

import json
import re
from typing import Any

from starlette.responses import Response

from clearhead.errors import ClearheadError, NonFiniteError

JSONDict = dict[str, Any]


LONG_WORD = re.compile(r"(\S{60})\S{40,}(\S{10})")  # such as an id of thousands of digits
ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class APIError(ClearheadError):
    """An error with an HTTP status, serialized like the errors of OpenAI's API."""

    def __init__(
        self,
        message: str,
        status_code: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after: int = 0,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.param = param
        self.code = code
        self.retry_after = retry_after  # seconds

    @classmethod
    def from_error(cls, error: ClearheadError) -> "APIError":
        """Invalid input is a 400; NaN or infinite results are a 500."""
        if isinstance(error, APIError):
            return error
        return cls(str(error), 500 if isinstance(error, NonFiniteError) else 400)

    @property
    def payload(self) -> dict[str, Any]:
        default_type = "invalid_request_error" if self.status_code < 500 else "server_error"
        error = {
            "message": LONG_WORD.sub(r"\1…\2", str(self)),
            "type": ERROR_TYPES.get(self.status_code, default_type),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    def to_response(self) -> Response:
        headers = {}
        if self.status_code == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.retry_after:
            headers["Retry-After"] = str(self.retry_after)
        content = json.dumps(self.payload, ensure_ascii=False).encode(errors="replace")
        return Response(content, self.status_code, headers, "application/json")


class GoneError(APIError):
    """A run or model is no longer available; the same request recreates it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 410)
