"""One search: the request for its first pass, and the reranked response."""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from opensearchpy import ConnectionTimeout, TransportError

from osrerank._seldom import Seldom
from osrerank.errors import ConfigError
from osrerank.metrics import count_search
from osrerank.options.rerank import NO_STAGES, Rerank, RerankOptions
from osrerank.pipeline import applied
from osrerank.response import Page, has_own_order, has_repeats, hits_of, merge, parse, unchanged
from osrerank.retrieval.fields import Fields, named
from osrerank.retrieval.first_pass import SORTED, FirstPass, plan
from osrerank.retrieval.query_text import build_query, find_query_text
from osrerank.retrieval.text_fields import fields_of
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
due = Seldom()

SAME_FOR_ALL = (401, 404)
"""HTTP statuses with which OpenSearch refuses every search of a caller, whatever its size."""
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
        fields: what is searched and read.
    """

    body: Any
    params: dict[str, Any]
    _reranker: RerankService
    _options: Rerank | None
    _first_pass: FirstPass | None
    _text: str
    _deadline: Deadline
    ubi: UbiQuery | None = None
    fields: Fields = field(default_factory=Fields)

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
        fields: Fields | None = None,
        deadline: Deadline | None = None,
        thresholds: Thresholds | None = None,
    ) -> Self:
        """Return the call for the arguments of a search; the options set the deadline unless one is given.

        A query without a single text to rerank by gets only its first pass, marked with the reason.

        Raises:
            ConfigError: the rerank options cannot be used; or there is no such text, and the options say to raise.
            ValueError: both a query and a body with a query are given.
        """
        options = Rerank.of(rerank, defaults)
        fields = fields or Fields.named_by(options or defaults)
        body = _with_query(query, body, fields)
        if options is None or options.is_first_pass:
            return cls(body, dict(params), reranker, None, None, "", Deadline())
        content = decoded(body)
        ubi, content = UbiQuery.of(content, params), without_ubi(content)
        text = query if isinstance(query, str) else None
        deadline = deadline or Deadline.after_ms(options.deadline_ms, reranker.clock)
        first_pass = plan(content, params, options, reranker.depth(options), fields)
        first_pass = replace(first_pass, page=replace(first_pass.page, thresholds=thresholds))
        try:
            text = options.query if options.query is not None else text
            if text is None and not first_pass.refusal:
                text = find_query_text(content)
        except ConfigError as error:
            if options.on_failure == "raise":
                raise
            first_pass = FirstPass(dict(content), dict(params), refusal=str(error))
        return cls(first_pass.body, first_pass.params, reranker, options, first_pass, text or "", deadline, ubi, fields)

    @property
    def is_changed(self) -> bool:
        """Whether the request differs from the caller's own."""
        return self._first_pass is not None and not self._first_pass.refusal

    def loss(self, response: Any) -> str:
        """Return why the caller's own request must be sent, too, after the one for the first pass; empty if not.

        Args:
            response: OpenSearch's, or its error.
        """
        if not self.is_changed or self._first_pass is None:
            return ""
        if isinstance(response, TransportError):
            is_refused = isinstance(response.status_code, int) and response.status_code not in SAME_FOR_ALL
            may_fit = is_refused or isinstance(response, ConnectionTimeout)
            return f"the first pass for reranking was refused ({_first_line(response)})" if may_fit else ""
        if not isinstance(response, Mapping):
            return ""
        if "error" in response:  # of one search among several
            error = response["error"]
            cause = next(iter(error.get("root_cause") or ()), error) if isinstance(error, Mapping) else {"type": error}
            return f"the first pass for reranking was refused ({cause.get('type')}: {cause.get('reason')})"
        lost = self._first_pass.loss(response)
        return f"the first pass for reranking was incomplete ({lost})" if lost else ""

    def choose(self, response: Any, own: Self, answered: Mapping[str, Any]) -> tuple[Self, Any]:
        """Return the call to be finished, of two, and its response.

        Args:
            response: to this call, or OpenSearch's error.
            own: the call of the caller's own request.
            answered: the response to that.
        """
        is_error = not isinstance(response, Mapping) or "error" in response
        if not is_error and self._first_pass is not None and not self._first_pass.is_better(answered, response):
            return self, response
        reason = own._first_pass.refusal if own._first_pass else ""
        if due.is_due("first-pass-refused"):
            logger.warning("[first-pass-refused] a search is not reranked: %s; not logged again for a minute", reason)
        return own, answered

    def fall_back(self, body: Any, params: Mapping[str, Any], reason: str) -> Self:
        """Return the call that sends the caller's own request, and marks its response with the reason."""
        sent, params = {**without_ubi(decoded(body))}, dict(params)
        return replace(self, body=sent, params=params, _first_pass=FirstPass(sent, params, refusal=reason))

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

        There are none if nothing is reranked, or the model has no vectors.
        """
        options, first_pass = self._options, self._first_pass
        if options is None or first_pass is None or first_pass.refusal:
            return {}
        hits = hits_of(response)
        if _obstacle(options, hits, self._text):
            return {}
        fields = _with_names(self.fields, options, hits)
        indices = [str(hit.get("_index")) for hit in hits]
        keys: dict[bytes, str] = {}
        for one in options.rankings:
            if one.pipeline != NO_STAGES:
                ranking = _read(one, response, self._text, fields)
                keys |= self._reranker.vector_keys(ranking, one, indices, self._deadline)
        return keys

    def finish(self, response: Any, vectors: RequestVectors | None = None) -> Any:
        """Return the response reranked, marked with why it is not, or unchanged where no reranking was asked for.

        Args:
            response: OpenSearch's.
            vectors: document vectors fetched for the search.
        """
        if self._options is None or self._first_pass is None:
            return response
        first_pass = self._first_pass
        started = self._reranker.clock()
        outcome: bool | str = False
        try:
            if first_pass.refusal:
                answer = _warned(unchanged(response, first_pass.refusal), self.fields, self._options, None)
            else:
                answer = reranked(
                    self._reranker,
                    self._options,
                    response,
                    self._text,
                    first_pass.page,
                    deadline=self._deadline,
                    vectors=vectors,
                    fields=self.fields,
                )
            outcome = answer["rerank"]["applied"]
            if first_pass.warnings:
                answer["rerank"]["warnings"] = [*answer["rerank"].get("warnings", ()), *first_pass.warnings]
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
    fields: Fields | None = None,
) -> dict[str, Any]:
    """Return a page of the reranked response, or of the first pass with the reason.

    Args:
        reranker: scores.
        options: of the search.
        response: the first pass's.
        text: the query's.
        page: what the caller wants of it.
        deadline: of the call.
        vectors: document vectors fetched for the search.
        fields: what is read; None for the options' names, or else what the hits have.
    """
    hits = hits_of(response)
    obstacle = _obstacle(options, hits, text)
    if obstacle:
        return _warned(unchanged(response, obstacle, page=page), fields or Fields(), options, None)
    fields = _with_names(fields or Fields(), options, hits)
    started = reranker.clock()
    rankings = [_read(one, response, text, fields) for one in options.rankings]
    ranking = rankings[0]
    if all(candidate.text is None for candidate in ranking.candidates):
        answer = unchanged(response, _no_text(fields.read_for(options.fields), hits), page=page)
    elif options.interleave is not None:
        both = (ranking, rankings[1])
        answer = interleaved(
            reranker, options, options.interleave, both, response, page, deadline=deadline, vectors=vectors
        )
    else:
        is_cut = page.min_score is not None or page.thresholds is not None
        above = 0 if is_cut else page.offset  # a threshold needs the probabilities of those above
        ranking = reranker.rerank(ranking, options, deadline, offset=above, vectors=vectors)
        answer = _answered(response, ranking, page, (reranker.clock() - started) * 1000)
    names = {part.field for each in rankings for one in each.candidates for part in one.sections if part.text.strip()}
    _warned(answer, fields, options, names)
    answer["rerank"]["fields"] = list(fields.read_for(options.fields))
    if by_index := fields.by_index(options.fields):
        answer["rerank"]["fields_by_index"] = {name: list(names) for name, names in by_index.items()}
    return answer


def _warned(answer: dict[str, Any], fields: Fields, options: Rerank, names: Collection[str] | None) -> dict[str, Any]:
    """Add warnings of its fields to an answer, and return it.

    Args:
        answer: to a search; it is changed.
        fields: of the search.
        options: of the search.
        names: of fields that gave a text; None where there are no hits.

    Raises:
        ConfigError: a field that the options name is missing or has no text, and they say to raise.
    """
    complaints = fields.complaints(names)
    if complaints and options.on_failure == "raise":
        fix = "correct the name, or leave it out"
        raise ConfigError(f"{complaints[0]}: {fix}", setting="rerank.fields", source="argument")
    answer["rerank"]["warnings"] = [*answer["rerank"].get("warnings", ()), *fields.warnings, *complaints]
    return answer


def _answered(response: Mapping[str, Any], ranking: Ranking, page: Page, rerank_ms: float) -> dict[str, Any]:
    """Return the page of a ranking, or the first pass's where no stage was applied."""
    if applied(ranking.reports):
        return merge(response, ranking, page, rerank_ms=rerank_ms)
    reason = "; ".join(f"{report.name}: {report.reason}" for report in ranking.reports)
    return unchanged(response, reason, reports=ranking.reports, page=page, rerank_ms=rerank_ms)


def _with_names(fields: Fields, options: Rerank, hits: Sequence[Mapping[str, Any]]) -> Fields:
    """Return fields that name what is read: what the hits have, if neither mapping nor options name any."""
    if fields.read:
        return fields
    if named(options.fields):
        return Fields.named_by(options)
    return replace(
        fields, read=fields_of([{**(hit.get("fields") or {}), **(hit.get("_source") or {})} for hit in hits])
    )


def _read(options: Rerank, response: Mapping[str, Any], text: str, fields: Fields) -> Ranking:
    names, by_index = fields.read_for(options.fields), fields.by_index(options.fields)
    return parse(response, Query(QUERY_ID, text), names, options.separator, by_index)


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


def _with_query(query: str | Mapping[str, Any] | None, body: Any, fields: Fields) -> Any:
    """Return the body with the query in it."""
    if query is None:
        return body
    clause = build_query(query, fields) if isinstance(query, str) else as_mapping(query)
    content = decoded(body)
    if "query" in content:
        raise ValueError("search got a query and a body that has one too: give one of them")
    return {**content, "query": clause}


def as_mapping(query: Any) -> dict[str, Any]:
    """Return a query-DSL clause, which may be an object of a query builder, as a dict."""
    return dict(query.to_dict() if hasattr(query, "to_dict") else query)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]


def decoded(body: Any) -> Mapping[str, Any]:
    """Return a search body, which may be JSON or an object of a query builder.

    Raises:
        ConfigError: it is none of these.
    """
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


def _no_text(names: Sequence[str], hits: Sequence[Mapping[str, Any]]) -> str:
    """Return the reason for hits without text, with the fields that they have."""
    present = sorted({name for hit in hits for place in ("_source", "fields") for name in (hit.get(place) or {})})
    there = f"the hits have {', '.join(present)}" if present else "the hits carry no _source"
    return f"{NO_TEXT} ({', '.join(names)}): {there}; name the right ones as rerank={{'fields': [...]}}"
