"""The exceptions that pass through a search: errors of the search engine, and those that the caller wants raised."""

from typing import Any


class Raised(Exception):  # noqa: N818 - it says what happens to its cause
    """Marks an exception that must reach the caller of a search: the client raises its ``cause`` instead.

    Once the search engine has answered, a search turns all exceptions but these and `osrerank.errors.ConfigError` into
    reasons.

    Attributes:
        cause: the exception to raise.
    """

    def __init__(self, cause: Any) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Failed(Raised):
    """The search engine refused a request or did not answer it, whichever client library sent it.

    Attributes:
        status: the HTTP status; None if there was no answer.
        kind: the engine's name of the error, such as ``index_not_found_exception``; empty if it is unknown.
        timed_out: whether the answer did not come in time.
        foreign: the first line of the engine's or the client library's message.
        is_shared: whether the request contained other searches, which may have caused the error.
        cause: the client library's exception; for a search of a multi-search, its entry in the answer.
    """

    def __init__(
        self,
        cause: Any,
        *,
        status: int | None = None,
        kind: str = "",
        timed_out: bool = False,
        foreign: str = "",
        is_shared: bool = False,
    ) -> None:
        super().__init__(cause)
        self.status, self.kind, self.timed_out = status, kind, timed_out
        self.foreign, self.is_shared = foreign.strip().partition("\n")[0][:300], is_shared

    @property
    def is_absent(self) -> bool:
        """Whether the index, pipeline or other object that the request names does not exist."""
        return self.status == 404

    @property
    def is_forbidden(self) -> bool:
        """Whether the caller lacks a permission or is not authenticated."""
        return self.status in (401, 403) or self.kind == "security_exception"

    @property
    def is_overload(self) -> bool:
        """Whether the cluster has too much to do, so that another request would make it worse.

        A circuit breaker also answers 429; a smaller request may pass it.
        """
        return self.status in (429, 503) and self.kind != "circuit_breaking_exception"
