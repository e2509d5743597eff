"""Codes and messages that say why a search was not reranked, only partly reranked, or not reranked as requested."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from osrerank.errors import (
    DeadlineExceeded,
    EndpointError,
    MissingDependencyError,
    ModelLoadError,
    OsrerankError,
    Overloaded,
    StillLoading,
    WorkerError,
)
from osrerank.types.engine_errors import MAX_MESSAGE_CHARACTERS


class ReasonCode(StrEnum):
    """Why a search was not reranked as requested: ``reason_code`` in responses, and the label ``reason`` of metrics."""

    NOT_ASKED = "not_asked"
    """The pipeline is ``none``."""
    NO_HITS = "no_hits"
    """The search has no hits."""
    NO_TEXT = "no_text"
    """No hit has text in the fields that the model reads."""
    NO_QUERY = "no_query"
    """The query searches for no text, or for several different texts."""
    AS_YOU_TYPE = "as_you_type"
    """The query looks unfinished: it searches for the beginning of a word, as search-as-you-type does."""
    SORTED = "sorted"
    """The request sorts by something other than the score."""
    PAGING = "paging"
    """The request pages with a scroll, a point in time, or a ``search_after`` that does not follow a reranked hit."""
    REQUEST = "request"
    """The request has ``size`` 0, asks for hits beyond rank 10,000, or hides what reranking needs (``filter_path``)."""
    RETRIEVER = "retriever"
    """The retriever (Elasticsearch) decides the hits' order itself, or ranks fewer hits than the page needs."""
    SEARCH_PIPELINE = "search_pipeline"
    """The search pipeline decides, or might decide, the hits' order itself, for example with another model."""
    SHORTENED = "shortened"
    """The search pipeline changes the number of hits, so that reranked pages would overlap or leave a gap."""
    REPEATED = "repeated"
    """The response contains a hit twice."""
    REFUSED = "refused"
    """The engine rejected the first-pass request or the request for the texts of the hits."""
    INCOMPLETE = "incomplete"
    """The first pass timed out, or one of its shards failed."""
    MODELS = "models"
    """The settings name different models for the searched indices."""
    LANGUAGE = "language"
    """The model does not support the language of the query or of the documents."""
    LOADING = "loading"
    """The model was still loading at the deadline."""
    DEADLINE = "deadline"
    """The deadline passed before all candidates were scored."""
    MODEL = "model"
    """The model cannot be loaded."""
    EXTRA = "extra"
    """An optional dependency is not installed, such as ``osrerank[torch]``."""
    WORKERS = "workers"
    """The Celery workers did not reply."""
    SERVER = "server"
    """The rerank server returned no scores."""
    OVERLOADED = "overloaded"
    """The queue of the workers or of the rerank server was full."""
    SCORING = "scoring"
    """The model failed, or could not score some candidates."""
    RESPONSE = "response"
    """The engine's response does not have the form of a search response."""
    INTERNAL = "internal"
    """A bug in osrerank; the log has the traceback."""
    BOOSTS = "boosts"
    """The query's boosts are ignored, because they cannot be separated from the score of its text."""
    SHADOW = "shadow"
    """Shadow mode: the search is reranked in the background, after the response."""
    SHARE = "share"
    """The search is not in the fraction of the traffic that is reranked (``traffic.share``)."""


class WarningCode(StrEnum):
    """The subject of a warning. A log line begins with it in brackets: ``[mapping-unread] ...``."""

    BUILT_FIELDS_UNREAD = "built-fields-unread"
    """osrerank could not look up the fields from which the stored vectors were built."""
    COLLAPSED = "collapsed"
    """The search collapses hits, and the first pass rather than the model chose the top hit of each group."""
    FIELDS_MISSING = "fields-missing"
    """A field that the caller names is not in the mapping, or has no text in any hit."""
    INTERNAL = "internal"
    """A bug in osrerank interrupted its work after a reranked search; the log has the traceback."""
    MAPPING_UNREAD = "mapping-unread"
    """The mapping could not be read."""
    NO_TEXT_FIELD = "no-text-field"
    """The mapping has no text field."""
    PAGES_APART = "pages-apart"
    """The page might repeat or skip hits of the previous page."""
    PIPELINE_CHANGED = "pipeline-changed"
    """The model does not support the requested pipeline, so another one ran."""
    QUERY_CUT = "query-cut"
    """The query is so long that the first pass searched for only its first words."""
    QUERY_UNEXPANDED = "query-unexpanded"
    """RM3 had no feedback documents to expand the query with."""


class SearchWarning(str):
    """A sentence that says how the response differs from the request, with its `WarningCode`."""

    __slots__ = ("code",)
    code: WarningCode

    def __new__(cls, sentence: str, code: WarningCode) -> Self:
        warning = super().__new__(cls, sentence)
        warning.code = WarningCode(code)
        return warning

    def __reduce__(self) -> tuple[type[Self], tuple[str, WarningCode]]:
        """Let warnings be pickled. By default, ``__new__`` would be called without the code."""
        return type(self), (str(self), self.code)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a search or a stage did less than the caller requested.

    Attributes:
        code: the reason's code, for programs. Metrics and decisions use only the code.
        message: osrerank's own sentence, which never quotes a query or a document.
        external_message: the message of the engine or the model. It might quote a query or a document, so it is shown
            only in responses and logs, and in traces that may contain queries.
    """

    code: ReasonCode
    message: str
    external_message: str = ""

    def __str__(self) -> str:
        return f"{self.message} ({self.external_message})" if self.external_message else self.message

    @classmethod
    def from_error(cls, error: Exception) -> Self:
        """Return the reason for an error that a stage raised, with the code of the error's class."""
        code = next((code for error_class, code in _ERROR_CODES if isinstance(error, error_class)), ReasonCode.SCORING)
        if isinstance(error, OsrerankError):
            return cls(code, str(error))
        first_line = str(error).strip().partition("\n")[0]
        return cls(code, f"the model raised {type(error).__name__}", first_line[:MAX_MESSAGE_CHARACTERS])


_ERROR_CODES: tuple[tuple[type[Exception], ReasonCode], ...] = (
    (StillLoading, ReasonCode.LOADING),
    (DeadlineExceeded, ReasonCode.DEADLINE),
    (ModelLoadError, ReasonCode.MODEL),
    (Overloaded, ReasonCode.OVERLOADED),
    (EndpointError, ReasonCode.SERVER),
    (MissingDependencyError, ReasonCode.EXTRA),
    (WorkerError, ReasonCode.WORKERS),
)
"""Error classes and their codes. The first matching class decides, so a subclass stands before its base class."""


def join_reasons(reasons: Iterable[Reason]) -> str:
    """Join the sentences of several reasons with semicolons."""
    return "; ".join(map(str, reasons))


def log_message(error: Exception) -> str:
    """Return an error's message for a log, without the words of a rerank server."""
    server_message = getattr(error, "server_message", "")
    return str(error).replace(f": {server_message}", "") if server_message else str(error)
