"""Exceptions that end a search: failed requests to the search engine, and errors that the caller wants raised.

All other exceptions except `osrerank.errors.ConfigError` only prevent reranking: once the search engine has responded,
the search returns the hits in the engine's order, with a reason (`osrerank.types.reasons`).
"""

from typing import Any


class PropagatedError(Exception):
    """Wraps an exception that must reach the caller. The client raises ``cause`` in its place."""

    def __init__(self, cause: Any) -> None:
        super().__init__(str(cause))
        self.cause = cause


class EngineError(PropagatedError):
    """The search engine rejected a request or did not respond. All client libraries' exceptions become this one.

    Attributes:
        status: the HTTP status. None if the engine did not respond.
        kind: the engine's error type, such as ``index_not_found_exception``. Empty if unknown.
        timed_out: whether the request timed out.
        foreign: the first line of the message of the engine or the client library.
        is_shared: whether the request contained other searches, which might have caused the error. False at first.
        cause: the client library's exception. In a multi-search, it is the search's entry in the response.
    """

    def __init__(
        self,
        cause: Any,
        *,
        status: int | None = None,
        kind: str = "",
        timed_out: bool = False,
        foreign: str = "",
    ) -> None:
        super().__init__(cause)
        self.status, self.kind, self.timed_out = status, kind, timed_out
        self.foreign, self.is_shared = foreign.strip().partition("\n")[0][:300], False

    @property
    def is_absent(self) -> bool:
        """Whether the index, or whatever else the request names, does not exist."""
        return self.status == 404

    @property
    def is_forbidden(self) -> bool:
        """Whether the caller is not authenticated or lacks a permission."""
        return self.status in (401, 403) or self.kind == "security_exception"

    @property
    def is_overload(self) -> bool:
        """Whether the cluster is overloaded, so that a retry would make it worse.

        A circuit breaker also responds with 429, but it might accept a smaller request.
        """
        return self.status in (429, 503) and self.kind != "circuit_breaking_exception"
