"""The exceptions that osrerank raises, each with the attributes that it adds to its base class.

::

    OsrerankError
    +- ConfigError                  setting, source
    +- MissingDependencyError       extra, module; also an ImportError
    +- ResponseFormatError          path, such as $.hits.hits[3]._id
    +- ScoringError                 stage, model
    |  +- ModelLoadError            path
    |  +- InferenceError
    |  +- EndpointError             status
    |  +- Overloaded
    |  +- DeadlineExceeded
    |     +- StillLoading
    +- WorkerError                  task_id
    |  +- TaskFailed
    |  +- PayloadError
    +- FormatError                  file, line; for topics, judgments, runs, candidates, JSON lines, archives
    |  +- CorpusFormatError         also a LoaderError
    +- LoaderError                  file, line
    |  +- ChecksumError
    |  +- BulkIndexError            ok, failed, first (at most five rejected documents)
    +- EvaluationError
    +- InstallError                 step

opensearch-py's exceptions pass through unchanged. Invalid calls raise ``ValueError`` or ``TypeError``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "BulkIndexError", "ChecksumError", "ConfigError", "CorpusFormatError", "DeadlineExceeded", "EndpointError",
    "EvaluationError", "FormatError", "InferenceError", "InstallError", "LoaderError", "MissingDependencyError",
    "ModelLoadError", "OsrerankError", "Overloaded", "PayloadError", "ResponseFormatError", "ScoringError",
    "StillLoading", "TaskFailed", "WorkerError",
]  # fmt: skip


class OsrerankError(Exception):
    """Base of all errors that osrerank raises. The message says what happened and how to fix it."""

    retryable: bool = False
    """Whether the same call can succeed if it is repeated later."""


class ConfigError(OsrerankError):
    """A setting or option has a value that cannot be used.

    Attributes:
        setting: the name of the setting or option, such as ``cache_mb`` or ``rerank.depth``.
        source: where the value comes from, such as ``argument`` or ``OSRERANK_CACHE_MB``.
    """

    def __init__(self, message: str, *, setting: str = "", source: str = "") -> None:
        super().__init__(message)
        self.setting = setting
        self.source = source


class MissingDependencyError(OsrerankError, ImportError):
    """A call needs an optional library that is not installed.

    Attributes:
        extra: the extra of osrerank that installs the library, such as ``torch``.
        module: the name of the missing module.
    """

    def __init__(self, message: str, *, extra: str, module: str) -> None:
        super().__init__(message)
        self.extra = extra
        self.module = module


class ResponseFormatError(OsrerankError):
    """A search response does not contain a field that every search response must contain."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class ScoringError(OsrerankError):
    """Scores could not be computed.

    Attributes:
        stage: the name of the stage that failed, such as ``mono``, or "".
        model: the name of the model, or "".
    """

    retry_after_s: float | None = None
    """The time after which the server accepts requests again, in seconds. None if the server does not state it."""
    server_message: str = ""
    """The rerank server's words in the message, which might quote a query or a document. Logs leave them out."""

    def __init__(self, message: str, *, stage: str = "", model: str = "") -> None:
        super().__init__(message)
        self.stage = stage
        self.model = model


class ModelLoadError(ScoringError):
    """A model directory or hub id cannot be used as a reranking model."""

    def __init__(self, message: str, *, model: str = "", path: str = "") -> None:
        super().__init__(message, model=model)
        self.path = path


class InferenceError(ScoringError):
    """The model failed, or returned a score that is not a number."""


class EndpointError(ScoringError):
    """A rerank server did not return valid scores.

    Attributes:
        status: the HTTP status, or None if there was no response.
        retryable: whether the server was unavailable or failed, so that a later request could succeed.
    """

    def __init__(
        self, message: str, *, stage: str = "", model: str = "", status: int | None = None, retryable: bool = False
    ) -> None:
        super().__init__(message, stage=stage, model=model)
        self.status = status
        self.retryable = retryable


class Overloaded(ScoringError):  # noqa: N818 - the name that users know from rerank servers (429 Overloaded)
    """The request was refused on arrival, because too many requests are waiting."""

    retryable = True


class DeadlineExceeded(ScoringError):  # noqa: N818 - gRPC's name for this status
    """The deadline passed before anything was scored."""


class StillLoading(DeadlineExceeded):
    """The deadline passed while a stage was loading its model, or its sentence splitter."""


class WorkerError(OsrerankError):
    """A worker did not return scores."""

    def __init__(self, message: str, *, task_id: str = "") -> None:
        super().__init__(message)
        self.task_id = task_id


class TaskFailed(WorkerError):  # noqa: N818 - names what happened to the task
    """A worker replied with an error."""


class PayloadError(WorkerError):
    """A message between client and worker is malformed, too large, of another version, or not trusted.

    Attributes:
        reason: one word for the metrics: ``malformed``, ``unsigned``, ``no_key``, ``wrong_key``, ``expired``,
            ``replayed`` or ``misplaced`` (in another task's message).
    """

    def __init__(self, message: str, *, task_id: str = "", reason: str = "malformed") -> None:
        super().__init__(message, task_id=task_id)
        self.reason = reason


class FormatError(OsrerankError):
    """A file does not follow its format."""

    def __init__(self, message: str, *, file: str = "", line: int | None = None) -> None:
        super().__init__(message)
        self.file = file
        self.line = line


class LoaderError(OsrerankError):
    """A collection cannot be read or indexed."""

    def __init__(self, message: str, *, file: str = "", line: int | None = None) -> None:
        super().__init__(message)
        self.file = file
        self.line = line


class CorpusFormatError(LoaderError, FormatError):
    """A collection, or one of its records, does not follow its format."""


class ChecksumError(LoaderError):
    """A file's size or checksum differs from the published one."""


class BulkIndexError(LoaderError):
    """OpenSearch rejected documents.

    Attributes:
        ok: the number of documents that were indexed.
        failed: the number of documents that were rejected.
        first: the first rejections, at most five, such as ``{"_id": "7", "status": 400, "reason": "..."}``.
    """

    def __init__(self, message: str, *, ok: int, failed: int, first: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(message)
        self.ok = ok
        self.failed = failed
        self.first = tuple(first)


class EvaluationError(OsrerankError):
    """A run, a set of judgments or a measure such as nDCG cannot be evaluated."""


class InstallError(OsrerankError):
    """The reranking inside OpenSearch (a search pipeline) cannot be installed, inspected or removed."""

    def __init__(self, message: str, *, step: str = "") -> None:
        super().__init__(message)
        self.step = step
