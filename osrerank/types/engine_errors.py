"""Exceptions that make a search fail: a failed request to the search engine, or an error that the caller wants raised.

`osrerank.errors.ConfigError` makes a search fail, too. After any other exception, the search returns the hits in the
engine's order, and the response contains the reason (`osrerank.types.reasons`).
"""

from typing import Any

MAX_MESSAGE_CHARACTERS = 300
"""The maximum length of another program's message that is quoted. An engine can quote a whole query in its message."""


class PropagatedError(Exception):
    """Wraps an exception that the caller must get. The client catches the wrapper and raises ``cause``."""

    def __init__(self, cause: Any) -> None:
        super().__init__(str(cause))
        self.cause = cause


class EngineError(PropagatedError):
    """The search engine rejected a request or did not respond.

    The exceptions of opensearch-py and elasticsearch-py are converted to this one.

    Attributes:
        status: the HTTP status. None if the engine did not respond.
        kind: the engine's error type, such as ``index_not_found_exception``. Empty if unknown.
        timed_out: whether the request timed out.
        external_message: the first line of the engine's or the client library's message, truncated if it is long.
        is_shared: whether the request also contained other searches, one of which might have caused the error. It is
            False until the sender of such a request sets it.
        cause: the client library's exception. In a multi-search, it is the search's entry in the response.
    """

    def __init__(
        self,
        cause: Any,
        *,
        status: int | None = None,
        kind: str = "",
        timed_out: bool = False,
        external_message: str = "",
    ) -> None:
        super().__init__(cause)
        first_line, _, _ = external_message.strip().partition("\n")
        self.status = status
        self.kind = kind
        self.timed_out = timed_out
        self.external_message = first_line[:MAX_MESSAGE_CHARACTERS]
        self.is_shared = False

    @property
    def is_absent(self) -> bool:
        """Whether the index, or another thing that the request names, does not exist."""
        return self.status == 404

    @property
    def is_forbidden(self) -> bool:
        """Whether the caller is not authenticated, or does not have a required permission."""
        return self.status in (401, 403) or self.kind == "security_exception"

    @property
    def is_overload(self) -> bool:
        """Whether the cluster is overloaded, so that a retry would make it worse.

        A circuit breaker also responds with 429. It does not count, because it might accept a smaller request.
        """
        return self.status in (429, 503) and self.kind != "circuit_breaking_exception"
