"""One search: the request for its first pass, and the reranked response."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from opensearchpy import RequestError, TransportError

from osrerank.errors import ConfigError
from osrerank.metrics import count_search
from osrerank.options.rerank import NO_STAGES, Rerank, RerankOptions
from osrerank.pipeline import applied
from osrerank.response import Page, has_own_order, has_repeats, hits_of, merge, parse, unchanged
from osrerank.retrieval.first_pass import SORTED, FirstPass, plan
from osrerank.retrieval.query_text import build_query, find_query_text
from osrerank.retrieval.text_fields import USUAL, fields_of
from osrerank.search.interleave import interleaved, session_of
from osrerank.search.slow import advise_if_slow
from osrerank.search.ubi_query import UbiQuery, without_ubi
from osrerank.service import RerankService
from osrerank.stages.ordering import NO_TEXT
from osrerank.thresholds.cut import Thresholds
from osrerank.tracing.attributes import tell_outcome
from osrerank.tracing.spans import current
from osrerank.types import Deadline, Query, Ranking, RequestVectors

logger = logging.getLogger(__name__)

QUERY_ID = "search"
"""The id of a query that came without one."""

REPEATED = "a hit comes twice: a hybrid query needs a search pipeline that normalises its scores (search_pipeline=...)"

NO_HITS = "there are no hits"
RerankArgument = bool | RerankOptions | Rerank
"""What `rerank=` of a search may be; `Rerank.of` reads it."""


@dataclass(frozen=True, slots=True)
class SearchCall:
    """A planned search: ``plan`` makes it, ``finish`` reranks its response.

    Attributes:
        body: the request's body.
        params: the request's URL parameters.
        ubi: what is recorded for UBI; None where nothing is, or the engine does it.
    """

    body: Any
    params: dict[str, Any]
    _reranker: RerankService
    _options: Rerank | None
    _first_pass: FirstPass | None
    _text: str
    _deadline: Deadline
    ubi: UbiQuery | None = None

    @classmethod
    def plan(
        cls,
        reranker: RerankService,
        defaults: Rerank,
        query: str | Mapping[str, Any] | None,
        body: Any,
        params: Mapping[str, Any],
        *,
        rerank: RerankArgument,
        deadline: Deadline | None = None,
        thresholds: Thresholds | None = None,
    ) -> Self:
        """Return the call for the arguments of a search; the options set the deadline unless one is given.

        A query without one text to rerank by is the first pass's alone, marked with the reason.

        Raises:
            ConfigError: the rerank options cannot be used; or there is no such text, and the options say to raise.
            ValueError: both a query and a body with a query are given.
        """
        options = Rerank.of(rerank, defaults)
        body = _with_query(query, body, (options or defaults).query_fields or USUAL)
        if options is None or options.is_first_pass:
            return cls(body, dict(params), reranker, None, None, "", Deadline())
        content = _decoded(body)
        ubi, content = UbiQuery.of(content, params), without_ubi(content)
        text = query if isinstance(query, str) else None
        deadline = deadline or Deadline.after_ms(options.deadline_ms, reranker.clock)
        first_pass = plan(content, params, options, reranker.depth(options))
        first_pass = replace(first_pass, page=replace(first_pass.page, thresholds=thresholds))
        try:
            text = options.query if options.query is not None else text
            if text is None and not first_pass.refusal:
                text = find_query_text(content)
        except ConfigError as error:
            if options.on_failure == "raise":
                raise
            first_pass = FirstPass(dict(content), dict(params), refusal=str(error))
        return cls(first_pass.body, first_pass.params, reranker, options, first_pass, text or "", deadline, ubi)

    @property
    def is_changed(self) -> bool:
        """Whether the request differs from the caller's own."""
        return self._first_pass is not None and not self._first_pass.refusal

    def may_fall_back(self, error: TransportError) -> bool:
        """Return whether the caller's own request may succeed where this one failed."""
        return self.is_changed and isinstance(error, RequestError)

    def fall_back(self, own: Self, error: Exception) -> Self:
        """Return the call that sends the caller's own request after this one failed, and marks its response."""
        reason = f"the first pass for reranking was refused ({_first_line(error)})"
        body = without_ubi(_decoded(own.body))
        return replace(self, body=body, params=own.params, _first_pass=FirstPass({**body}, own.params, refusal=reason))

    @classmethod
    def refused(cls, reranker: RerankService, options: Rerank, body: Mapping[str, Any], reason: str) -> Self:
        """Return a call that sends the body unchanged and marks its response with the reason."""
        sent = {**without_ubi(body)}
        first_pass = FirstPass(sent, {}, refusal=reason)
        return cls(sent, {}, reranker, options, first_pass, "", Deadline(), UbiQuery.of(body, {}))

    def split_params(self, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters as opensearch-py's ``params`` and its keyword arguments, which it checks by name."""
        named = {name: value for name, value in self.params.items() if name in options}
        return {name: value for name, value in self.params.items() if name not in named}, named

    @property
    def query_text(self) -> str:
        """The text that hits are judged against; empty where there is none."""
        return self._text

    @property
    def session(self) -> str:
        """A digest of the reader of an interleaved list; empty where none was asked for."""
        return session_of(self._options.interleave) if self._options and self._options.interleave else ""

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline: negative after it, infinite without one."""
        return self._deadline.remaining_s()

    def vector_keys(self, response: Any) -> dict[bytes, str]:
        """Return the keys of the vectors that scoring the response's hits needs, and the index of each hit.

        There are none where nothing is reranked, or by a model without vectors.
        """
        options, first_pass = self._options, self._first_pass
        if options is None or first_pass is None or first_pass.refusal:
            return {}
        hits = hits_of(response)
        if _obstacle(options, hits, self._text):
            return {}
        options = _with_fields(options, hits)
        indices = [str(hit.get("_index")) for hit in hits]
        keys: dict[bytes, str] = {}
        for one in options.rankings:
            if one.pipeline != NO_STAGES:
                ranking = _read(one, response, self._text)
                keys |= self._reranker.vector_keys(ranking, one, indices, self._deadline)
        return keys

    def finish(self, response: Any, vectors: RequestVectors | None = None) -> Any:
        """Return the response reranked, marked with why it is not, or unchanged where no reranking was asked for.

        Args:
            response: OpenSearch's.
            vectors: what the search brought of document vectors.
        """
        if self._options is None or self._first_pass is None:
            return response
        first_pass = self._first_pass
        started = self._reranker.clock()
        outcome: bool | str = False
        try:
            if first_pass.refusal:
                answer = unchanged(response, first_pass.refusal)
            else:
                answer = reranked(
                    self._reranker,
                    self._options,
                    response,
                    self._text,
                    first_pass.page,
                    deadline=self._deadline,
                    vectors=vectors,
                )
            outcome = answer["rerank"]["applied"]
        finally:
            took_s = self._reranker.clock() - started
            count_search(took_s, applied=outcome)
        advise_if_slow(answer, self._options, took_s)
        tell_outcome(current(), applied=outcome, reason=answer["rerank"]["reason"])
        if outcome is not True:
            logger.info("search not wholly reranked: %s", answer["rerank"]["reason"])
        return answer


def reranked(
    reranker: RerankService,
    options: Rerank,
    response: Mapping[str, Any],
    text: str,
    page: Page,
    *,
    deadline: Deadline,
    vectors: RequestVectors | None = None,
) -> dict[str, Any]:
    """Return a page of the reranked response, or of the first pass with the reason.

    Args:
        reranker: scores.
        options: of the search.
        response: the first pass's.
        text: the query's.
        page: what the caller wants of it.
        deadline: of the call.
        vectors: what the search brought of document vectors.
    """
    hits = hits_of(response)
    obstacle = _obstacle(options, hits, text)
    if obstacle:
        return unchanged(response, obstacle, page=page)
    options = _with_fields(options, hits)
    started = reranker.clock()
    ranking = _read(options, response, text)
    if all(candidate.text is None for candidate in ranking.candidates):
        answer = unchanged(response, _no_text(options, hits), page=page)
    elif options.interleave is not None:
        both = (ranking, _read(options.rankings[1], response, text))
        answer = interleaved(
            reranker, options, options.interleave, both, response, page, deadline=deadline, vectors=vectors
        )
    else:
        is_cut = page.min_score is not None or page.thresholds is not None
        above = 0 if is_cut else page.offset  # a threshold needs the probabilities of those above
        ranking = reranker.rerank(ranking, options, deadline, offset=above, vectors=vectors)
        answer = _answered(response, ranking, page, (reranker.clock() - started) * 1000)
    answer["rerank"]["fields"] = list(options.fields or ())
    return answer


def _answered(response: Mapping[str, Any], ranking: Ranking, page: Page, rerank_ms: float) -> dict[str, Any]:
    """Return the page of a ranking, or the first pass's where no stage was applied."""
    if applied(ranking.reports):
        return merge(response, ranking, page, rerank_ms=rerank_ms)
    reason = "; ".join(f"{report.name}: {report.reason}" for report in ranking.reports)
    return unchanged(response, reason, reports=ranking.reports, page=page, rerank_ms=rerank_ms)


def _with_fields(options: Rerank, hits: Sequence[Mapping[str, Any]]) -> Rerank:
    """Return options that name the fields to read; where nobody named any, those that the hits have."""
    return replace(options, fields=options.fields or fields_of([hit.get("_source") or {} for hit in hits]))


def _read(options: Rerank, response: Mapping[str, Any], text: str) -> Ranking:
    return parse(response, Query(QUERY_ID, text), options.fields or (), options.separator)


def _obstacle(options: Rerank, hits: Sequence[Mapping[str, Any]], text: str) -> str:
    """Return why the hits cannot be reranked; empty when they can."""
    if not hits:
        return NO_HITS
    if options.is_first_pass:
        return "the pipeline is none"
    if has_own_order(hits):
        return SORTED
    if has_repeats(hits):
        return REPEATED
    return "" if text.strip() else "the query text is empty"


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
    """Return the reason for hits without text, with the fields that they have."""
    present = sorted({name for hit in hits for place in ("_source", "fields") for name in (hit.get(place) or {})})
    there = f"the hits have {', '.join(present)}" if present else "the hits carry no _source"
    return f"{NO_TEXT} ({', '.join(options.fields or ())}): {there}; name the right ones as rerank={{'fields': [...]}}"
