"""Turn errors into a status and a body that clients of every dialect can read."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, Field

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
from osrerank.server.api.service import RETRY_AFTER_S, CutText

MAX_FAULTS = 3
"""The most invalid fields of a request that an error names."""

INDEX_PATTERN = r"^[^\s_.\-+,*?/\\\"<>|#:][^\s,*?/\\\"<>|#:]*$"
"""The name of one index or alias: no wildcards, no lists, no system indexes."""


class ErrorBody(BaseModel):
    """The body of every error response: one sentence, under the names of several dialects."""

    message: str = Field(description="What is wrong and what to do, under Cohere's name.")
    detail: str = Field(description="The same sentence under vLLM's and FastAPI's name.")
    error: str = Field(description="The same sentence under the name of text-embeddings-inference.")
    error_type: str = Field(description="Validation, Authentication, Overloaded, Timeout, Unhealthy or Backend.")


class RefusedRequest(Exception):  # noqa: N818 - a refusal, not a defect
    """A request that is refused with a status and a sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


# class of an error -> status; the first matching class counts
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (CutText, 422),
    (Overloaded, 429),
    (DeadlineExceeded, 504),
    (WorkerError, 503),
    (EndpointError, 503),
    (ModelLoadError, 503),
    (MissingDependencyError, 503),
    (InferenceError, 500),
    (OsrerankError, 500),
)
_TYPES = {
    401: "Authentication",
    429: "Overloaded",
    500: "Backend",
    503: "Unhealthy",
    504: "Timeout",
}
ANSWERS: Mapping[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": description}
    for status, description in (
        (400, "The body is not JSON."),
        (401, "The bearer token is missing or wrong."),
        (408, "The body did not arrive in time."),
        (413, "The body has too many bytes, or too many documents."),
        (415, "The body's Content-Type is not application/json."),
        (422, "The body is JSON, but not a request of this dialect."),
        (429, "Too many documents are waiting; try again after the seconds in Retry-After."),
        (500, "The model failed on every document."),
        (503, "The model cannot be loaded, or no worker or rerank server answers."),
        (504, "Not all documents could be scored in time."),
    )
}


def status_of(error: Exception) -> int:
    """Return the HTTP status for an error."""
    if isinstance(error, RefusedRequest):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def body_of(status: int, message: str) -> dict[str, str]:
    """Return the body of an error response."""
    kind = _TYPES.get(status, "Validation" if status < 500 else "Backend")
    return ErrorBody(message=message, detail=message, error=message, error_type=kind).model_dump()


def sentence_of(faults: Sequence[Mapping[str, Any]], *, depth: int) -> str:
    """Describe pydantic's errors in one sentence, which names at most `MAX_FAULTS` fields.

    Args:
        faults: the errors that ``ValidationError.errors`` returns.
        depth: the number of leading parts of a field's path that the client does not know.
    """
    sentences = []
    for fault in faults[:MAX_FAULTS]:
        path = ".".join(map(str, fault["loc"][depth:])) or "the body"
        sentences.append(f"{path}: {fault['msg'].removeprefix('Value error, ')}")
    return "; ".join(sentences)


def headers_of(status: int) -> dict[str, str]:
    """Return the headers that an error response of a status needs."""
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return {"Retry-After": str(RETRY_AFTER_S)}
    return {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}
