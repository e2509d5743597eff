"""One reranked search without its input and output: what to send, and what to make of the answer.

The synchronous and the asynchronous client are thin shells around this.
"""

import json
import logging
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self

from opensearchpy import AuthenticationException, AuthorizationException, RequestError, TransportError
from opensearchpy import ConnectionError as Unreachable

from osrerank.errors import ConfigError
from osrerank.metrics import count_search
from osrerank.options.rerank import NO_STAGES, Rerank
from osrerank.reranker import Reranker
from osrerank.response import (
    FIRST_PASS,
    Page,
    has_own_order,
    has_repeats,
    hits_of,
    in_pipeline,
    merge,
    parse,
    squash,
    unchanged,
)
from osrerank.retrieval.first_pass import SORTED, FirstPass, plan, plan_in_pipeline
from osrerank.retrieval.query_text import build_query, find_query_text
from osrerank.retrieval.rm3 import Ask, expand
from osrerank.stages.ordering import NO_TEXT
from osrerank.types import Candidate, Deadline, Query, Ranking, Section, StageScore

logger = logging.getLogger(__name__)

QUERY_ID = "search"
"""The id of a query that came without one."""

REPEATED = "a hit comes twice: a hybrid query needs a search pipeline that normalises its scores (search_pipeline=...)"

RerankArgument = bool | Mapping[str, Any] | Rerank
"""What `rerank=` of a search may be; `Rerank.of` reads it."""


class Expanded(NamedTuple):
    """What `SearchCall.plan` is given in place of the caller's arguments once feedback has expanded the query."""

    query: str | Mapping[str, Any] | None
    rerank: RerankArgument
    deadline: Deadline | None


def expand_query(
    defaults: Rerank,
    query: str | Mapping[str, Any] | None,
    index: Any,
    params: Mapping[str, Any],
    rerank: RerankArgument,
) -> Generator[Ask, Any, Expanded]:
    """Yield the requests that must be answered before the search, none unless feedback is asked for.

    Raises:
        ConfigError: the options cannot be used, or feedback is asked for a query that is not given as text.
    """
    options = Rerank.of(rerank, defaults)
    if options is None or options.rm3 is None:
        return Expanded(query, rerank, None)
    if not isinstance(query, str):
        raise ConfigError(
            "rm3 widens a query given as text: client.search(text, ...); for a query of your own leave rm3 out",
            setting="rerank.rm3",
            source="argument",
        )
    deadline = Deadline.after_ms(options.deadline_ms)
    clause = yield from expand(query, index, options.rm3, params)
    text = query if options.query is None else options.query
    return Expanded(clause, replace(options, query=text), deadline)


@dataclass(frozen=True, slots=True)
class SearchCall:
    """A search on its way: made by ``plan``, ended by ``finish``.

    Attributes:
        body: what to send.
        params: what to send in the URL.
    """

    body: Any
    params: dict[str, Any]
    _reranker: Reranker
    _options: Rerank | None
    _first_pass: FirstPass | None
    _text: str
    _deadline: Deadline

    @classmethod
    def plan(
        cls,
        reranker: Reranker,
        defaults: Rerank,
        query: str | Mapping[str, Any] | None,
        body: Any,
        params: Mapping[str, Any],
        *,
        rerank: RerankArgument,
        deadline: Deadline | None = None,
    ) -> Self:
        """Return the call for the arguments of a search; the deadline is that of the options unless one runs already.

        Raises:
            ConfigError: the rerank options cannot be used, or no query text can be told from the query.
            ValueError: both a query and a body with a query are given.
        """
        options = Rerank.of(rerank, defaults)
        body = _with_query(query, body, (options or defaults).query_fields)
        if options is None or options.pipeline == NO_STAGES:
            return cls(body, dict(params), reranker, None, None, "", Deadline())
        content = _decoded(body)
        text = query if isinstance(query, str) else None
        deadline = deadline or Deadline.after_ms(options.deadline_ms)
        if options.search_pipeline is not None:
            text = next((one for one in (options.query, text) if one is not None), None) or find_query_text(content)
            first_pass = plan_in_pipeline(content, params, options, text)
            return cls(first_pass.body, first_pass.params, reranker, options, first_pass, text, deadline)
        first_pass = plan(content, params, options, reranker.depth(options))
        if not first_pass.refusal:
            text = options.query if options.query is not None else text
            text = find_query_text(content) if text is None else text
        return cls(first_pass.body, first_pass.params, reranker, options, first_pass, text or "", deadline)

    @property
    def is_widened(self) -> bool:
        """Whether more is asked of the first pass than the caller did."""
        return self._first_pass is not None and not self._first_pass.refusal

    def retreats_from(self, error: TransportError) -> bool:
        """Return whether the caller's own request may succeed where this one failed."""
        if not self.is_widened or self._options is None:
            return False
        if self._options.search_pipeline is None:
            return isinstance(error, RequestError)
        is_foreign = isinstance(error, Unreachable | AuthenticationException | AuthorizationException)
        return self._options.on_failure == "first_pass" and not is_foreign

    def retreat(self, own: Self, error: Exception) -> Self:
        """Return the caller's own request, to be sent after the widened one was refused, and marked with why."""
        if self._options is not None and self._options.search_pipeline is not None:
            reason = f"the search pipeline {self._options.search_pipeline} failed ({_first_line(error)})"
            params = {**own.params, "search_pipeline": "_none"}
        else:
            reason = f"the first pass for reranking was refused ({_first_line(error)})"
            params = own.params
        first_pass = FirstPass(own.body, params, refusal=reason)
        return replace(self, body=own.body, params=params, _first_pass=first_pass)

    @classmethod
    def refused(cls, reranker: Reranker, options: Rerank, body: Mapping[str, Any], reason: str) -> Self:
        """Return a call that sends the body as it came and marks the answer with the reason."""
        return cls(dict(body), {}, reranker, options, FirstPass(dict(body), {}, refusal=reason), "", Deadline())

    def split_params(self, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters as opensearch-py's ``params`` and as its keyword arguments, which it checks by name."""
        named = {name: value for name, value in self.params.items() if name in options}
        return {name: value for name, value in self.params.items() if name not in named}, named

    def finish(self, response: Any) -> Any:
        """Return the response reranked, or marked with why it is not; as it is where reranking was not asked for."""
        if self._options is None or self._first_pass is None:
            return response
        first_pass = self._first_pass
        started = time.perf_counter()
        outcome: bool | str = False
        try:
            if first_pass.refusal:
                answer = unchanged(response, first_pass.refusal)
            elif self._options.search_pipeline is not None:
                answer = in_pipeline(response, self._options.search_pipeline, first_pass.page)
            else:
                answer = _reranked(
                    self._reranker, self._options, response, self._text, first_pass.page, deadline=self._deadline
                )
            outcome = answer["rerank"]["applied"]
        finally:
            count_search(time.perf_counter() - started, applied=outcome)
        if outcome is not True:
            logger.info("search not wholly reranked: %s", answer["rerank"]["reason"])
        return answer


def _reranked(
    reranker: Reranker, options: Rerank, response: Mapping[str, Any], text: str, page: Page, *, deadline: Deadline
) -> dict[str, Any]:
    """Return a page of the response reranked, or of the first pass with the reason why it is not."""
    started = time.perf_counter()
    hits = hits_of(response)
    obstacle = _obstacle(options, hits, text)
    if obstacle:
        return unchanged(response, obstacle, page=page)
    ranking = parse(response, Query(QUERY_ID, text), options.fields, options.separator)
    if all(candidate.text is None for candidate in ranking.candidates):
        return unchanged(response, _no_text(options, hits), page=page)
    ranking = reranker.rerank(ranking, options, deadline, offset=page.offset)
    if not any(report.applied for report in ranking.reports):
        reason = "; ".join(f"{report.name}: {report.reason}" for report in ranking.reports)
        return unchanged(response, reason, reports=ranking.reports, page=page, rerank_ms=_since_ms(started))
    return merge(response, ranking, page, rerank_ms=_since_ms(started))


def _obstacle(options: Rerank, hits: Sequence[Mapping[str, Any]], text: str) -> str:
    """Return why hits cannot be reranked whatever is in them; empty when they can."""
    if not hits:
        return "there are no hits"
    if options.pipeline == NO_STAGES:
        return "the pipeline is none"
    if has_own_order(hits):
        return SORTED
    if has_repeats(hits):
        return REPEATED
    return "" if text.strip() else "the query text is empty"


def _since_ms(started_s: float) -> float:
    return (time.perf_counter() - started_s) * 1000


def _with_query(query: str | Mapping[str, Any] | None, body: Any, fields: Sequence[str]) -> Any:
    """Return the body with the query in it."""
    if query is None:
        return body
    if isinstance(query, str):
        clause = build_query(query, fields)
    else:
        clause = dict(query.to_dict() if hasattr(query, "to_dict") else query)
    content = _decoded(body)
    if "query" in content:
        raise ValueError("search got a query and a body that has one too: give one of them")
    return {**content, "query": clause}


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]


def _decoded(body: Any) -> Mapping[str, Any]:
    if body is None:
        return {}
    if isinstance(body, str | bytes):
        try:
            body = json.loads(body)
        except ValueError as error:
            raise ConfigError(f"the search body is not JSON: {error}", setting="body", source="argument") from None
    if hasattr(body, "to_dict"):
        body = body.to_dict()
    if not isinstance(body, Mapping):
        raise ConfigError(
            f"the search body is a {type(body).__name__}; it must be an object", setting="body", source="argument"
        )
    return body


def _no_text(options: Rerank, hits: Sequence[Mapping[str, Any]]) -> str:
    """Return why no hit could be read, with the fields that there are."""
    present = sorted({name for hit in hits for place in ("_source", "fields") for name in (hit.get(place) or {})})
    there = f"the hits have {', '.join(present)}" if present else "the hits carry no _source"
    return f"{NO_TEXT} ({', '.join(options.fields)}): {there}; name the right ones as rerank={{'fields': [...]}}"


class WrappedResponse(Protocol):
    """A response object of elasticsearch-py: no mapping, with the dict in `body`."""

    @property
    def body(self) -> Any: ...


def rank_response(
    reranker: Reranker,
    defaults: Rerank,
    response: Mapping[str, Any] | WrappedResponse,
    query: str,
    *,
    rerank: RerankArgument,
) -> dict[str, Any]:
    """Return any search response with all its hits reranked, or marked with why they are not.

    Raises:
        ResponseFormatError: it is not a search response.
    """
    options = _here(Rerank.of(rerank, defaults))
    content: Any = response if isinstance(response, Mapping) else getattr(response, "body", response)
    if options is None:
        return dict(content)
    page = Page(0, len(hits_of(content)), (), options.min_score, options.explain)
    return _reranked(reranker, options, content, query, page, deadline=Deadline.after_ms(options.deadline_ms))


def _here(options: Rerank | None) -> Rerank | None:
    """Return the options of a reranking without a search, which OpenSearch cannot do."""
    if options is not None and options.search_pipeline is not None:
        reason = f"via={options.via!r} is for searches: leave it out here"
        raise ConfigError(reason, setting="rerank.via", source="argument")
    return options


def rank_texts(
    reranker: Reranker,
    defaults: Rerank,
    query: str,
    documents: Sequence[str | Mapping[str, Any]],
    *,
    rerank: RerankArgument,
) -> Ranking:
    """Return texts from anywhere as a ranking, reranked.

    Raises:
        ConfigError: the options cannot be used, or a document has no text.
        ValueError: the query has no text, or two documents have the same id.
    """
    if isinstance(documents, str):
        raise TypeError("documents is one text; give a list of them")
    options = _here(Rerank.of(rerank, defaults))
    separator = (options or defaults).separator
    candidates = [_candidate(place, document, separator) for place, document in enumerate(documents)]
    ranking = Ranking(Query(QUERY_ID, query), tuple(candidates))
    if options is None:
        return ranking
    return reranker.rerank(ranking, options, Deadline.after_ms(options.deadline_ms))


def _candidate(place: int, document: str | Mapping[str, Any], separator: str) -> Candidate:
    fields: Any = {"text": document} if isinstance(document, str) else document
    text = fields.get("text") if isinstance(fields, Mapping) else None
    if not isinstance(text, str):
        raise ConfigError(f"document {place} has no text", setting=f"documents[{place}].text", source="argument")
    score = float(fields.get("score") or 0.0)
    doc_id = str(fields.get("id", place))
    sections = tuple(Section(name, fields[name]) for name in ("title", "text") if fields.get(name))
    full = separator.join(section.text for section in sections)
    trace = (StageScore(FIRST_PASS, score, place + 1, squash(score)),)
    return Candidate(doc_id, full, score, place + 1, trace, sections=sections)
