"""Rerank what was found elsewhere: the response of another search, or plain texts."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from osrerank.errors import ConfigError
from osrerank.options.rerank import Rerank
from osrerank.pipeline import applied
from osrerank.response import FIRST_PASS, Page, hits_of, squash
from osrerank.search.call import QUERY_ID, RerankArgument, Reranking
from osrerank.search.traced import rerank_span
from osrerank.service import RerankService
from osrerank.thresholds.cut import Thresholds
from osrerank.tracing.attributes import tell_outcome
from osrerank.types import Candidate, Deadline, Query, Ranking, Section, StageScore


class WrappedResponse(Protocol):
    """A response object of elasticsearch-py, which is no mapping and has the dict in `body`."""

    @property
    def body(self) -> Any: ...


SEARCHES = "client.search and client.msearch"
RESPONSES = "client.search, client.msearch and client.rerank_response"
NOT_FOR_RESPONSES = {
    "query": SEARCHES,
    "query_fields": SEARCHES,
    "rm3": "client.search",
    "min_probability": SEARCHES,
    "cutoff.precision": SEARCHES,
    **dict.fromkeys(("shadow", "share", "share_key"), SEARCHES),
}
"""Options without effect on the hits of another search, each with where it works."""
NOT_FOR_TEXTS = {**NOT_FOR_RESPONSES, "fields": RESPONSES, "explain": RESPONSES, "interleave": RESPONSES}
"""Likewise, on texts without a response."""
NOT_FOR_RANKINGS = {**NOT_FOR_TEXTS, **dict.fromkeys(("min_score", "cutoff"), f"{RESPONSES}, and in Reranker")}
"""Likewise, on a ranking, which has all of its texts."""


def refuse_unused(rerank: RerankArgument, unused: Mapping[str, str]) -> None:
    """Refuse options that would have no effect; those of the defaults are for searches, and ignored.

    Args:
        rerank: as the caller gives it.
        unused: option -> where it works.

    Raises:
        ConfigError: such an option is given, or one cannot be used.
    """
    plain = Rerank()
    given = Rerank.of(rerank, plain) or plain
    for option, where in unused.items():
        name, _, part = option.partition(".")
        values = [getattr(one, name) for one in (given, plain)]
        if part:
            values = [getattr(value, part, None) for value in values]
        if values[0] != values[1]:
            reason = f"rerank option {option} has no effect here: leave it out; it works in {where}"
            raise ConfigError(reason, setting=f"rerank.{option}", source="argument")


def rank_response(
    service: RerankService,
    defaults: Rerank,
    response: Mapping[str, Any] | WrappedResponse,
    query: str,
    *,
    rerank: RerankArgument,
) -> dict[str, Any]:
    """Return any search response with all its hits reranked, or marked with the reason why not.

    Raises:
        ConfigError: an option cannot be used, or has no effect here.
        ResponseFormatError: it is not a search response.
    """
    refuse_unused(rerank, NOT_FOR_RESPONSES)
    options = Rerank.of(rerank, defaults)
    content: Any = response if isinstance(response, Mapping) else getattr(response, "body", response)
    if options is None:
        return dict(content)
    has_cliff = options.cutoff is not None and options.cutoff.cliff
    thresholds = Thresholds(cutoff=options.cutoff) if has_cliff else None
    page = Page(0, len(hits_of(content)), (), options.min_score, options.explain, thresholds)
    with rerank_span(service, query) as traced:
        by = Reranking(service, options, query, Deadline.after_ms(options.named_deadline_ms, service.clock))
        answer = by.page_of(content, page)
        tell_outcome(traced, applied=answer["rerank"]["applied"], reason=answer["rerank"]["reason"])
    return answer


def rank_texts(
    service: RerankService,
    defaults: Rerank,
    query: str,
    documents: Sequence[str | Mapping[str, Any]],
    *,
    rerank: RerankArgument,
) -> Ranking:
    """Return texts from any source as a reranked ranking.

    Raises:
        ConfigError: an option cannot be used, or has no effect here; or a document has no text.
        ValueError: the query has no text, or two documents have the same id.
    """
    refuse_unused(rerank, NOT_FOR_RANKINGS)
    options = Rerank.of(rerank, defaults)
    ranking = ranking_of(query, documents, (options or defaults).separator)
    return ranking if options is None else reranked(service, options, ranking)


def ranking_of(query: str, documents: Sequence[str | Mapping[str, Any]], separator: str) -> Ranking:
    """Return texts in their own order as a ranking; errors as `rank_texts`."""
    if isinstance(documents, str):
        raise TypeError("documents is one text; give a list of them")
    candidates = [_candidate(place, document, separator) for place, document in enumerate(documents)]
    return Ranking(Query(QUERY_ID, query), tuple(candidates))


def reranked(service: RerankService, options: Rerank, ranking: Ranking) -> Ranking:
    """Return a ranking after the pipeline of the options, traced."""
    with rerank_span(service, ranking.query.text) as traced:
        ranking = service.rerank(ranking, options, Deadline.after_ms(options.named_deadline_ms, service.clock))
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
