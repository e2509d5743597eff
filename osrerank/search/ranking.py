"""Rerank what was found elsewhere: the response of another search, or plain texts."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from osrerank.errors import ConfigError
from osrerank.options.rerank import Rerank
from osrerank.pipeline import applied
from osrerank.response import FIRST_PASS, Page, hits_of, squash
from osrerank.search.call import QUERY_ID, RerankArgument, reranked
from osrerank.search.traced import rerank_span
from osrerank.service import RerankService
from osrerank.thresholds.cut import Thresholds
from osrerank.tracing.attributes import tell_outcome
from osrerank.types import Candidate, Deadline, Query, Ranking, Section, StageScore


class WrappedResponse(Protocol):
    """A response object of elasticsearch-py, which is no mapping and has the dict in `body`."""

    @property
    def body(self) -> Any: ...


def rank_response(
    reranker: RerankService,
    defaults: Rerank,
    response: Mapping[str, Any] | WrappedResponse,
    query: str,
    *,
    rerank: RerankArgument,
) -> dict[str, Any]:
    """Return any search response with all its hits reranked, or marked with the reason why not.

    Raises:
        ResponseFormatError: it is not a search response.
    """
    options = _here(Rerank.of(rerank, defaults))
    content: Any = response if isinstance(response, Mapping) else getattr(response, "body", response)
    if options is None:
        return dict(content)
    thresholds = None if options.cutoff is None else Thresholds(cutoff=options.cutoff)
    page = Page(0, len(hits_of(content)), (), options.min_score, options.explain, thresholds)
    with rerank_span(reranker, query) as traced:
        deadline = Deadline.after_ms(options.deadline_ms, reranker.clock)
        answer = reranked(reranker, options, content, query, page, deadline=deadline)
        tell_outcome(traced, applied=answer["rerank"]["applied"], reason=answer["rerank"]["reason"])
    return answer


def _here(options: Rerank | None) -> Rerank | None:
    """Refuse options that need a search."""
    if options is not None and options.needs_calibration:
        reason = "min_probability and a precision are for searches of an index that was calibrated: leave them out here"
        raise ConfigError(reason, setting="rerank.min_probability", source="argument")
    return options


def rank_texts(
    reranker: RerankService,
    defaults: Rerank,
    query: str,
    documents: Sequence[str | Mapping[str, Any]],
    *,
    rerank: RerankArgument,
) -> Ranking:
    """Return texts from any source as a reranked ranking.

    Raises:
        ConfigError: the options cannot be used, or a document has no text.
        ValueError: the query has no text, or two documents have the same id.
    """
    if isinstance(documents, str):
        raise TypeError("documents is one text; give a list of them")
    options = _here(Rerank.of(rerank, defaults))
    if options is not None and options.interleave is not None:
        reason = "interleave is for the pages of a search: leave it out here"
        raise ConfigError(reason, setting="rerank.interleave", source="argument")
    separator = (options or defaults).separator
    candidates = [_candidate(place, document, separator) for place, document in enumerate(documents)]
    ranking = Ranking(Query(QUERY_ID, query), tuple(candidates))
    if options is None:
        return ranking
    with rerank_span(reranker, query) as traced:
        ranking = reranker.rerank(ranking, options, Deadline.after_ms(options.deadline_ms, reranker.clock))
        reasons = [report.reason for report in ranking.reports if report.reason]
        tell_outcome(traced, applied=applied(ranking.reports), reason="; ".join(reasons))
    return ranking


def id_of(document: str | Mapping[str, Any], place: int) -> Any:
    """Return a document's ``id`` or ``doc_id`` as it is given; without one its place."""
    return document.get("id", document.get("doc_id", place)) if isinstance(document, Mapping) else place


def _candidate(place: int, document: str | Mapping[str, Any], separator: str) -> Candidate:
    fields: Any = {"text": document} if isinstance(document, str) else document
    text = fields.get("text") if isinstance(fields, Mapping) else None
    if not isinstance(text, str):
        raise ConfigError(f"document {place} has no text", setting=f"documents[{place}].text", source="argument")
    score = float(fields.get("score") or 0.0)
    doc_id = str(id_of(document, place))
    sections = tuple(Section(name, fields[name]) for name in ("title", "text") if fields.get(name))
    full = separator.join(section.text for section in sections)
    trace = (StageScore(FIRST_PASS, score, place + 1, squash(score)),)
    return Candidate(doc_id, full, score, place + 1, trace, sections=sections)
