"""Rerank the hits of another client's search response, or plain texts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from osrerank.errors import ConfigError
from osrerank.options.rerank import NO_STAGES, Rerank
from osrerank.pipeline import describe_failures, find_applied, find_reason_code
from osrerank.response import FIRST_PASS, Page, parse_hits, squash
from osrerank.retrieval.bm25_scale import find_response_scale
from osrerank.retrieval.fields import SearchFields
from osrerank.search.exact_names import move_exact_names_up
from osrerank.search.interleave import InterleavedList, interleave_rankings
from osrerank.search.outcome import make_report
from osrerank.search.plan import NOT_ASKED, Plan, RerankArgument, SearchCall
from osrerank.search.rank import QUERY_ID, read_ranking
from osrerank.search.report import write_report
from osrerank.search.traced import rerank_span
from osrerank.service import RerankService
from osrerank.tracing.attributes import set_search_outcome
from osrerank.types import Candidate, Deadline, Query, Ranking, Section, StageScore
from osrerank.types.reasons import Reason


class WrappedResponse(Protocol):
    """A response object of elasticsearch-py, which has the response as a dict in `body`."""

    @property
    def body(self) -> Any: ...


SEARCHES = "client.search and client.msearch"
RESPONSES = "client.search, client.msearch and client.rerank_response"
NOT_FOR_RESPONSES = {
    "query": SEARCHES,
    "query_fields": SEARCHES,
    "rm3": "client.search",
    "min_probability": SEARCHES,
    "cutoff": SEARCHES,
    "traffic": SEARCHES,
    "boosts": "client.search",
}
"""Option without an effect on another client's response -> the calls in which it has an effect."""
NOT_FOR_TEXTS = {**NOT_FOR_RESPONSES, "fields": RESPONSES, "explain": RESPONSES, "interleave": RESPONSES}
"""Option without an effect on plain texts -> the calls in which it has an effect."""
NOT_FOR_RANKINGS = {**NOT_FOR_TEXTS, "min_score": f"{RESPONSES}, and in Reranker"}
"""Option without an effect where the whole ranking is returned -> the calls in which it has an effect."""


def refuse_unused(rerank: RerankArgument, unused: Mapping[str, str]) -> None:
    """Raise an error if the caller sets an option that has no effect here; defaults can contain such options.

    Args:
        rerank: the caller's ``rerank`` argument.
        unused: option -> the calls in which it has an effect.

    Raises:
        ConfigError: the caller sets such an option, or an option has a value that cannot be used.
    """
    defaults = Rerank()
    caller_options = Rerank.of(rerank, defaults) or defaults
    for option, where in unused.items():
        if getattr(caller_options, option) != getattr(defaults, option):
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
    """Rerank all hits of a search response; if they cannot be reranked, the new response has the reason.

    Raises:
        ConfigError: an option cannot be used, or has no effect here.
        ResponseFormatError: the response does not have the format of a search response.
    """
    refuse_unused(rerank, NOT_FOR_RESPONSES)
    options = Rerank.of(rerank, defaults)
    content: Any = response if isinstance(response, Mapping) else getattr(response, "body", response)
    if options is None:
        return dict(content)
    hits = parse_hits(content)
    deadline = Deadline.after_ms(options.explicit_deadline_ms, service.clock)
    options_a, *others = options.rankings
    page = Page(0, len(hits), (), options.min_score, options.explain)
    obstacle = NOT_ASKED if options.is_first_pass else None
    plan = Plan(
        SearchCall(options=options), service, {}, SearchFields(), deadline, options_a, query, obstacle, page=page
    )
    if options.sentences is not None:
        plan = replace(plan, bm25=find_response_scale(response))
    began_s = service.clock()
    with rerank_span(service, query):
        plan = plan.with_fields_of(hits)
        ranking = _ranked(hits, plan)
        interleaved: InterleavedList | None = None
        if others and options.interleave is not None and isinstance(ranking, Ranking):
            ranking_b = _ranked(hits, replace(plan, options=others[0]).with_fields_of(hits))
            if isinstance(ranking_b, Ranking):
                interleaved = interleave_rankings(
                    options.interleave, options.rankings, (ranking, ranking_b), content, page
                )
        rerank_ms = (service.clock() - began_s) * 1000
        report = make_report(content, ranking, plan, interleaved, rerank_ms=rerank_ms)
        set_search_outcome(applied=report.applied, reason=report.reason, code=report.code)
    return write_report(content, report)


def _ranked(hits: Sequence[Mapping[str, Any]], plan: Plan) -> Ranking | Reason:
    """Return the reranked hits of a response, or the reason why they cannot be reranked."""
    ranking = read_ranking(hits, plan)
    if isinstance(ranking, Reason) or plan.options.pipeline == NO_STAGES:
        return ranking
    recipe = plan.service.load_recipe(plan.options, plan.deadline)
    return move_exact_names_up(recipe.rerank(ranking, plan.deadline, on_failure=plan.options.on_failure))


def rank_texts(
    service: RerankService,
    defaults: Rerank,
    query: str,
    documents: Sequence[str | Mapping[str, Any]],
    *,
    rerank: RerankArgument,
) -> Ranking:
    """Return the ranking of texts from any source, reranked by the options' pipeline.

    Raises:
        ConfigError: an option cannot be used, or has no effect here; or a document has no text.
        ValueError: the query has no text, or two documents have the same id.
    """
    refuse_unused(rerank, NOT_FOR_RANKINGS)
    options = Rerank.of(rerank, defaults)
    ranking = ranking_of(query, documents, (options or defaults).separator)
    return ranking if options is None else reranked(service, options, ranking)


def ranking_of(query: str, documents: Sequence[str | Mapping[str, Any]], separator: str) -> Ranking:
    """Return texts as a ranking in the given order; raise the errors of `rank_texts`."""
    if isinstance(documents, str):
        raise TypeError("documents is one text; give a list of them")
    candidates = [_candidate(index, document, separator) for index, document in enumerate(documents)]
    return Ranking(Query(QUERY_ID, query), tuple(candidates))


def reranked(service: RerankService, options: Rerank, ranking: Ranking) -> Ranking:
    """Rerank a ranking by the options' pipeline, in its own tracing span."""
    with rerank_span(service, ranking.query.text):
        ranking = service.rerank(ranking, options, Deadline.after_ms(options.explicit_deadline_ms, service.clock))
        reports = ranking.reports
        set_search_outcome(
            applied=find_applied(reports), reason=describe_failures(reports), code=find_reason_code(reports)
        )
    return ranking


def id_of(document: str | Mapping[str, Any], index: int) -> Any:
    """Return a document's ``id`` or ``doc_id``, or its index among the documents if it has neither."""
    return document.get("id", document.get("doc_id", index)) if isinstance(document, Mapping) else index


def _candidate(index: int, document: str | Mapping[str, Any], separator: str) -> Candidate:
    fields: Any = {"text": document} if isinstance(document, str) else document
    text = fields.get("text") if isinstance(fields, Mapping) else None
    if not isinstance(text, str):
        reason = f'document {index} has no text: pass a string, or a dict such as {{"id": "7", "text": "..."}}'
        raise ConfigError(reason, setting=f"documents[{index}].text", source="argument")
    score = float(fields.get("score") or 0.0)
    doc_id = str(id_of(document, index))
    sections = tuple(Section(name, fields[name]) for name in ("title", "text") if fields.get(name))
    full = separator.join(section.text for section in sections)
    trace = (StageScore(FIRST_PASS, score, index + 1, squash(score)),)
    return Candidate(doc_id, full, score, index + 1, trace, sections=sections)
