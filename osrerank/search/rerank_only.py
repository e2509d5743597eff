"""Rerank texts, or the hits of a response that another client received, without sending a search."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from osrerank.errors import ConfigError
from osrerank.options.rerank import NO_STAGES, Rerank
from osrerank.response import FIRST_PASS, Page, parse_hits, squash
from osrerank.retrieval.bm25_scale import NO_FACTOR, find_response_scale
from osrerank.search.exact_names import move_exact_names_up
from osrerank.search.interleave import InterleavedList, interleave_rankings
from osrerank.search.outcome import make_report
from osrerank.search.plan import NOT_ASKED, Plan, RerankArgument, SearchCall
from osrerank.search.rank import QUERY_ID, read_ranking, trace_outcome
from osrerank.search.report import write_report
from osrerank.search.spans import rerank_span
from osrerank.service import RerankService
from osrerank.tracing.attributes import set_search_outcome
from osrerank.types import Candidate, Deadline, Query, Ranking, Section, StageScore
from osrerank.types.reasons import Reason


class WrappedResponse(Protocol):
    """A response object of elasticsearch-py. Its attribute `body` is the response as a dict."""

    @property
    def body(self) -> Any: ...


SEARCH_CALLS = "client.search and client.msearch"
RESPONSE_CALLS = "client.search, client.msearch and client.rerank_response"
UNUSED_RESPONSE_OPTIONS = {
    "query": SEARCH_CALLS,
    "query_fields": SEARCH_CALLS,
    "rm3": "client.search",
    "min_probability": SEARCH_CALLS,
    "cutoff": SEARCH_CALLS,
    "traffic": SEARCH_CALLS,
    "boosts": "client.search",
}
"""The options that have no effect on another client's response, and for each, the calls that support it."""
UNUSED_TEXT_OPTIONS = {
    **UNUSED_RESPONSE_OPTIONS, "fields": RESPONSE_CALLS, "explain": RESPONSE_CALLS, "interleave": RESPONSE_CALLS,
}  # fmt: skip
"""The options that have no effect when texts are reranked, and for each, the calls that support it."""
UNUSED_ALL_TEXTS_OPTIONS = {**UNUSED_TEXT_OPTIONS, "min_score": f"{RESPONSE_CALLS}, and in Reranker"}
"""The options that have no effect when texts are reranked and all are returned, with the calls that support them."""


def check_unused_options(rerank: RerankArgument, unused: Mapping[str, str]) -> None:
    """Raise an error if the caller sets an option that has no effect on this call.

    Such options are allowed in the settings file, whose options apply to all calls.

    Args:
        rerank: the caller's ``rerank`` argument.
        unused: the options that have no effect, and for each, the calls that support it.

    Raises:
        ConfigError: the caller sets such an option, or an option has an invalid value.
    """
    defaults = Rerank()
    caller_options = Rerank.of(rerank, defaults) or defaults  # the defaults stand for ``rerank=False``
    for option, supporting_calls in unused.items():
        if getattr(caller_options, option) != getattr(defaults, option):
            reason = f"rerank option {option} has no effect here: leave it out; it works in {supporting_calls}"
            raise ConfigError(reason, setting=f"rerank.{option}", source="argument")


def check_query(query: Any) -> None:
    """Raise an error if a query is no text.

    Raises:
        ConfigError: the query is no text.
    """
    if not isinstance(query, str):
        kind = "None" if query is None else f"of the type {type(query).__name__}"
        raise ConfigError(f"the query is {kind}; pass a text", setting="query", source="argument")


def rerank_response(
    service: RerankService,
    defaults: Rerank,
    response: Mapping[str, Any] | WrappedResponse,
    query: str,
    *,
    rerank: RerankArgument,
) -> dict[str, Any]:
    """Rerank all hits of a search response. If they cannot be reranked, the returned response says why.

    Args:
        service: the service that holds the models.
        defaults: the default rerank options.
        response: the response, as a dict or as an object that has it as its ``body``.
        query: the query's text.
        rerank: the caller's ``rerank`` argument.

    Raises:
        ConfigError: an option cannot be used, or has no effect on this call; or the query is no text.
        ResponseFormatError: the response does not have the format of a search response.
    """
    check_unused_options(rerank, UNUSED_RESPONSE_OPTIONS)
    options = Rerank.of(rerank, defaults)
    content: Any = response if isinstance(response, Mapping) else getattr(response, "body", response)
    if options is None:  # rerank=False
        return dict(content)
    check_query(query)
    hits = parse_hits(content)
    page = Page(size=len(hits), min_score=options.min_score, explain=options.explain)
    # only the response object, not its content, can say which engine sent it
    bm25 = NO_FACTOR if options.sentences is None else find_response_scale(response)
    plan = Plan(
        SearchCall(options=options),
        service,
        Deadline.after_ms(options.explicit_deadline_ms, service.clock),
        page=page,
        options=options.rankings[0],
        skip_reason=NOT_ASKED if options.is_first_pass else None,
        text=query,
        bm25=bm25,
    )
    began_s = service.clock()
    with rerank_span(service, query):
        plan = plan.with_fields_from(hits)
        ranking = _rerank_hits(hits, plan)
        interleaved: InterleavedList | None = None
        if options.interleave is not None and isinstance(ranking, Ranking):  # not a `Reason`
            second_plan = replace(plan, options=options.rankings[1]).with_fields_from(hits)
            second_ranking = _rerank_hits(hits, second_plan)
            if isinstance(second_ranking, Ranking):
                interleaved = interleave_rankings(
                    options.interleave, options.rankings, (ranking, second_ranking), content, page
                )
        rerank_ms = (service.clock() - began_s) * 1000
        report = make_report(content, ranking, plan, interleaved, rerank_ms=rerank_ms)
        set_search_outcome(applied=report.applied, reason=report.reason, code=report.code)
    return write_report(content, report)


def _rerank_hits(hits: Sequence[Mapping[str, Any]], plan: Plan) -> Ranking | Reason:
    """Return the ranking of a response's hits, or the reason why they cannot be reranked."""
    ranking = read_ranking(hits, plan)
    if isinstance(ranking, Reason) or plan.options.pipeline == NO_STAGES:
        return ranking
    recipe = plan.service.load_recipe(plan.options, plan.deadline)
    return move_exact_names_up(recipe.rerank(ranking, plan.deadline, on_failure=plan.options.on_failure))


def rerank_texts(
    service: RerankService,
    defaults: Rerank,
    query: str,
    documents: Sequence[str | Mapping[str, Any]],
    *,
    rerank: RerankArgument,
) -> Ranking:
    """Rerank texts with the pipeline of the options, and return their ranking.

    Args:
        service: the service that holds the models.
        defaults: the default rerank options.
        query: the query's text.
        documents: strings, or dicts such as ``{"id": "7", "title": "...", "text": "..."}``.
        rerank: the caller's ``rerank`` argument.

    Raises:
        ConfigError: an option cannot be used, or has no effect on this call; the query is no text; or a document has
            none.
        TypeError: ``documents`` is a string.
        ValueError: the query has no text, or two documents have the same id.
    """
    check_unused_options(rerank, UNUSED_ALL_TEXTS_OPTIONS)
    check_query(query)
    options = Rerank.of(rerank, defaults)
    ranking = make_ranking(query, documents, (options or defaults).separator)
    if options is None:  # rerank=False
        return ranking
    return rerank_ranking(service, options, ranking)


def make_ranking(query: str, documents: Sequence[str | Mapping[str, Any]], separator: str) -> Ranking:
    """Return a ranking of texts in the given order.

    Args:
        query: the query's text.
        documents: strings, or dicts such as ``{"id": "7", "title": "...", "text": "..."}``.
        separator: the text between a document's title and its text.

    Raises:
        ConfigError: a document has no text.
        TypeError: ``documents`` is a string.
        ValueError: the query has no text, or two documents have the same id.
    """
    if isinstance(documents, str):
        raise TypeError("documents must be a list of texts, not a single text")
    candidates = [_make_candidate(index, document, separator) for index, document in enumerate(documents)]
    return Ranking(Query(QUERY_ID, query), tuple(candidates))


def rerank_ranking(service: RerankService, options: Rerank, ranking: Ranking) -> Ranking:
    """Rerank a ranking with the pipeline of the options, and record this in a tracing span."""
    with rerank_span(service, ranking.query.text):
        deadline = Deadline.after_ms(options.explicit_deadline_ms, service.clock)
        ranking = service.rerank(ranking, options, deadline)
        trace_outcome(ranking)
    return ranking


def _make_candidate(index: int, document: str | Mapping[str, Any], separator: str) -> Candidate:
    """Return a document as a candidate.

    Its id is the document's ``id`` or ``doc_id``, or else its index. Its first-pass score is ``score``, or else 0.
    """
    fields: Any = {"text": document} if isinstance(document, str) else document
    text = fields.get("text") if isinstance(fields, Mapping) else None
    if not isinstance(text, str):
        reason = f'document {index} has no text: pass a string, or a dict such as {{"id": "7", "text": "..."}}'
        raise ConfigError(reason, setting=f"documents[{index}].text", source="argument")
    doc_id = str(fields.get("id", fields.get("doc_id", index)))
    sections = tuple(Section(name, fields[name]) for name in ("title", "text") if fields.get(name))
    input_text = separator.join(section.text for section in sections)
    score, rank = float(fields.get("score") or 0.0), index + 1
    first_pass = StageScore(FIRST_PASS, score, rank, unit=squash(score))
    return Candidate(doc_id, input_text, score, rank, trace=(first_pass,), sections=sections)
