"""The reasons why a search was not reranked, only in part, or not as requested: a code and a sentence each."""

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


class ReasonCode(StrEnum):
    """Why a search was not reranked: ``response["rerank"]["reason_code"]``, and the label ``reason`` of the metrics."""

    NOT_ASKED = "not_asked"
    """The pipeline is ``none``."""
    NO_HITS = "no_hits"
    """The search found nothing."""
    NO_TEXT = "no_text"
    """No hit has text in the fields that the model reads."""
    NO_QUERY = "no_query"
    """The query has no text, or several."""
    AS_YOU_TYPE = "as_you_type"
    """The query is still being typed."""
    SORTED = "sorted"
    """The caller sorts by something other than the score."""
    PAGING = "paging"
    """The caller pages by a scroll, a point in time or a ``search_after`` that continues no reranked hit."""
    REQUEST = "request"
    """The request hides what reranking reads, asks for no hits, or asks for hits beyond the result window."""
    RETRIEVER = "retriever"
    """The request's retriever (Elasticsearch) ranks the hits itself, or ranks fewer than the page asks for."""
    SEARCH_PIPELINE = "search_pipeline"
    """The search pipeline ranks the hits itself, or may do so."""
    SHORTENED = "shortened"
    """The search pipeline returns more or fewer hits than were asked for, and this is not the first page."""
    REPEATED = "repeated"
    """The same hit appears twice."""
    REFUSED = "refused"
    """OpenSearch refused the first pass's request, or the texts of the hits could not be fetched."""
    INCOMPLETE = "incomplete"
    """OpenSearch answered the first pass's request incompletely."""
    MODELS = "models"
    """The indices have different models."""
    LANGUAGE = "language"
    """The model does not read the language of the query or of the documents."""
    LOADING = "loading"
    """The model was still being loaded at the deadline."""
    DEADLINE = "deadline"
    """The deadline passed."""
    MODEL = "model"
    """The model cannot be loaded."""
    EXTRA = "extra"
    """An extra of the package is not installed."""
    WORKERS = "workers"
    """The workers did not answer."""
    SERVER = "server"
    """The rerank server did not score."""
    OVERLOADED = "overloaded"
    """Too much work was waiting."""
    SCORING = "scoring"
    """The model failed, or could not score some candidates."""
    RESPONSE = "response"
    """The search engine's response does not have the form of a search response, so its hits cannot be read."""
    INTERNAL = "internal"
    """A bug in osrerank; the log has the traceback."""
    BOOSTS = "boosts"
    """The query's boosts do not count, because its score cannot be split into a text score and boosts."""
    SHADOW = "shadow"
    """Shadow mode: the search is run again after the response."""
    SHARE = "share"
    """The search is not in the share of searches that are reranked."""


class WarningCode(StrEnum):
    """The subject of a search's warning, which is also the code of its log line."""

    BUILT_FIELDS_UNREAD = "built-fields-unread"
    """The fields from which the vectors were built cannot be looked up."""
    COLLAPSED = "collapsed"
    """The search collapses hits, and the first pass, not the model, chose the hit that represents each group."""
    FIELDS_MISSING = "fields-missing"
    """The mapping lacks a named field, or no hit has text in it."""
    MAPPING_UNREAD = "mapping-unread"
    """The mapping cannot be read."""
    NO_TEXT_FIELD = "no-text-field"
    """The mapping has no text field."""
    PAGES_APART = "pages-apart"
    """A page may not join the one before it."""
    PIPELINE_CHANGED = "pipeline-changed"
    """The model does not fit the pipeline that was asked for, so another one ran."""
    QUERY_CUT = "query-cut"
    """Only the first words of a long text were searched for."""
    QUERY_UNEXPANDED = "query-unexpanded"
    """RM3 found no feedback to expand the query by."""


class Warned(str):
    """A sentence that states how a search's response differs from the request.

    Attributes:
        code: the subject of the warning.
    """

    __slots__ = ("code",)
    code: WarningCode

    def __new__(cls, sentence: str, code: WarningCode) -> Self:
        """Return the sentence with its code."""
        warned = super().__new__(cls, sentence)
        warned.code = WarningCode(code)
        return warned

    def __reduce__(self) -> tuple[type[Self], tuple[str, WarningCode]]:
        return type(self), (str(self), self.code)


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why a search or a stage did not do everything that the caller asked for.

    Attributes:
        code: the kind of reason, for programs; decisions, metrics, traces and records use it.
        message: a sentence that osrerank wrote.
        foreign: the message of another program. It may quote a query or a document, so it appears only in the response
            and the log.
    """

    code: ReasonCode
    message: str
    foreign: str = ""

    def __str__(self) -> str:
        return f"{self.message} ({self.foreign})" if self.foreign else self.message

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Return an error's message as a reason, with the code of its class.

        The message of an error that is not osrerank's is foreign.
        """
        code = next((code for kind, code in _CODES if isinstance(error, kind)), ReasonCode.SCORING)
        if isinstance(error, OsrerankError):
            return cls(code, str(error))
        return cls(code, f"the model raised {type(error).__name__}", str(error).strip().partition("\n")[0][:300])


_CODES: tuple[tuple[type[Exception], ReasonCode], ...] = (
    (StillLoading, ReasonCode.LOADING),
    (DeadlineExceeded, ReasonCode.DEADLINE),
    (ModelLoadError, ReasonCode.MODEL),
    (Overloaded, ReasonCode.OVERLOADED),
    (EndpointError, ReasonCode.SERVER),
    (MissingDependencyError, ReasonCode.EXTRA),
    (WorkerError, ReasonCode.WORKERS),
)
"""The classes of errors with their codes, subclasses first."""


def joined(reasons: Iterable[Reason]) -> str:
    """Return the sentences of several reasons as one text."""
    return "; ".join(map(str, reasons))
