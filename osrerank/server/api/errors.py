"""Choose the HTTP status, body and headers of the server's error responses."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, Field

from osrerank._bad_value import describe_validation_error
from osrerank.errors import (
    DeadlineExceeded,
    EndpointError,
    InferenceError,
    MissingDependencyError,
    ModelLoadError,
    OsrerankError,
    Overloaded,
    WorkerError,
)
from osrerank.server.api.service import RETRY_AFTER_S, TextTooLong

MAX_REPORTED_ERRORS = 3
"""The maximum number of invalid fields that an error message lists."""

INDEX_PATTERN = r"^[^\s_.\-+,*?/\\\"<>|#:][^\s,*?/\\\"<>|#:]*$"
"""Matches the name of one index or alias, such as products, but no wildcard (prod*), list (a,b) or system index
(.kibana)."""


class ErrorBody(BaseModel):
    """The body of every error response. It repeats the message, because each dialect's clients read another key."""

    message: str = Field(description="What is wrong and what to do. Cohere's clients read this key.")
    detail: str = Field(description="The same message, for clients of vLLM and FastAPI.")
    error: str = Field(description="The same message, for clients of text-embeddings-inference.")
    error_type: str = Field(description="Validation, Authentication, Overloaded, Timeout, Unhealthy or Backend.")


class RefusedRequest(Exception):  # noqa: N818 - a refusal, not a defect
    """The server refuses a request. The client gets the HTTP status ``status`` and the message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


# the first matching class determines the status, so subclasses come before their base
_STATUS_BY_CLASS: tuple[tuple[type[Exception], int], ...] = (
    (TextTooLong, 422),
    (Overloaded, 429),
    (DeadlineExceeded, 504),
    (WorkerError, 503),
    (EndpointError, 503),
    (ModelLoadError, 503),
    (MissingDependencyError, 503),
    (InferenceError, 500),
    (OsrerankError, 500),
)
_TYPE_BY_STATUS = {401: "Authentication", 429: "Overloaded", 503: "Unhealthy", 504: "Timeout"}
ERROR_RESPONSES: Mapping[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": description}
    for status, description in (
        (400, "The body is not JSON."),
        (401, "The bearer token is missing or wrong."),
        (408, "The body did not arrive in time."),
        (413, "The body contains too many bytes, or too many documents."),
        (415, "The body's Content-Type is not application/json."),
        (422, "The body is JSON, but not a valid request of this dialect."),
        (429, "Too many documents are waiting; try again after the seconds in Retry-After."),
        (500, "The model failed on every document."),
        (503, "The model cannot be loaded, or no worker or rerank server responds."),
        (504, "Not all documents could be scored in time."),
    )
}


def error_status(error: Exception) -> int:
    """Return the HTTP status for an error."""
    if isinstance(error, RefusedRequest):
        return error.status
    return next((status for error_class, status in _STATUS_BY_CLASS if isinstance(error, error_class)), 500)


def error_body(status: int, message: str) -> dict[str, str]:
    """Return the body of an error response."""
    other_type = "Validation" if status < 500 else "Backend"
    error_type = _TYPE_BY_STATUS.get(status, other_type)
    return ErrorBody(message=message, detail=message, error=message, error_type=error_type).model_dump()


def describe_errors(errors: Sequence[Mapping[str, Any]], *, skipped_parts: int) -> str:
    """Describe the first `MAX_REPORTED_ERRORS` validation errors in one line, such as "query: it is missing".

    Args:
        errors: the errors, as ``ValidationError.errors`` returns them.
        skipped_parts: how many parts of an error's path ``loc`` to leave out, because they are not in the client's
            body: 1 for the path ("body", "query").
    """
    descriptions = []
    for error in errors[:MAX_REPORTED_ERRORS]:
        path = ".".join(map(str, error["loc"][skipped_parts:])) or "the body"
        descriptions.append(f"{path}: {describe_validation_error(error)}")
    return "; ".join(descriptions)


def error_headers(status: int) -> dict[str, str]:
    """Return the additional headers of an error response."""
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return {"Retry-After": str(RETRY_AFTER_S)}
    if status == HTTPStatus.UNAUTHORIZED:
        return {"WWW-Authenticate": "Bearer"}
    return {}
