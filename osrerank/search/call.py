"""Plan the request of one search, and rerank or mark its response.

A planned search is `Plain` if no reranking was asked for, `Refused` if it cannot be reranked, else `Reranked`.
"""

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from opensearchpy import ConnectionTimeout, TransportError

from osrerank._seldom import Seldom
from osrerank.errors import ConfigError
from osrerank.metrics import NOT_RERANKED, RERANK_SECONDS, SEARCHES
from osrerank.options.rerank import NO_STAGES, Rerank, RerankOptions
from osrerank.pipeline import applied
from osrerank.response import Page, code_of, has_own_order, has_repeats, hits_of, merge, parse, unchanged
from osrerank.retrieval.bm25_scale import PLAIN, Bm25Scale
from osrerank.retrieval.fields import SearchFields, named
from osrerank.retrieval.first_pass import COLLAPSED, SORTED, FirstPass, count_of, plan
from osrerank.retrieval.query_text import as_you_type, find_query_text
from osrerank.retrieval.search_pipelines import SearchPipeline
from osrerank.retrieval.text_fields import fields_of
from osrerank.search.interleave import interleaved, session_of
from osrerank.search.orders import PageOrder
from osrerank.search.slow import SLOW_S, advise, tell_lacking
from osrerank.search.ubi_query import UbiQuery, without_ubi
from osrerank.service import RerankService
from osrerank.stages.ordering import NO_TEXT
from osrerank.thresholds.cut import Thresholds
from osrerank.tracing.attributes import tell_outcome
from osrerank.types import Deadline, Query, Ranking
from osrerank.types.reasons import Reason, ReasonCode
from osrerank.vectors.records import FetchedVectors, Lookup

logger = logging.getLogger(__name__)
due = Seldom()

SHORTENED = Reason(
    ReasonCode.SHORTENED,
    "the search pipeline returns fewer hits than were asked for, or more: only the first page is reranked",
)
SAME_FOR_ALL = (401, 404)
"""HTTP statuses of refusals that depend on the caller or the index, not on the request; a retry would fail likewise."""
QUERY_ID = "search"
"""The id of the query in a `Ranking` that is made for a search."""
REPEATED = Reason(
    ReasonCode.REPEATED,
    "a hit comes twice: a hybrid query needs a search pipeline that normalises its scores (search_pipeline=...)",
)
NO_HITS = Reason(ReasonCode.NO_HITS, "there are no hits")
NOT_ASKED = Reason(ReasonCode.NOT_ASKED, "the pipeline is none")
RerankArgument = bool | RerankOptions | Rerank
"""The types that a search's `rerank` argument may have; `Rerank.of` reads it."""


@dataclass(frozen=True, slots=True)
class Reranking:
    """How the hits of a search are reranked.

    Attributes:
        service: holds the models.
        options: the search's options.
        text: the query text that hits are judged against; empty if there is none.
        deadline: the deadline of the whole search.
        fields: the fields to search and to read. If it names none, those of the options are read, or else those that
            the hits have.
        ubi: what to record for UBI; None if nothing is recorded, or the engine records it.
        order: keeps the order of the hits for later pages; None if there is only one page.
        texts: (index, id) of a hit -> its document, fetched by a second request; None if the hits have the texts.
        reads_source: whether texts are read from ``_source`` only, because ``fields`` may hold values that the caller
            computed.
        obstacle: why the hits cannot be reranked, if that is known before they are read.
        bm25: the scale of the first pass's scores.
    """

    service: RerankService
    options: Rerank
    text: str
    deadline: Deadline
    fields: SearchFields = field(default_factory=SearchFields)
    ubi: UbiQuery | None = None
    order: PageOrder | None = None
    texts: Mapping[tuple[str, str], Mapping[str, Any]] | None = None
    reads_source: bool = False
    obstacle: Reason | None = None
    bm25: Bm25Scale = PLAIN

    @property
    def session(self) -> str:
        """A digest that identifies the reader of an interleaved list; empty if the search does not interleave."""
        return session_of(self.options.interleave) if self.options.interleave else ""

    def page_of(self, response: Mapping[str, Any], page: Page, lookup: Lookup | None = None) -> dict[str, Any]:
        """Return a page of the reranked hits; if they cannot be reranked, a page of the first pass with the reason.

        Args:
            response: the first pass's response.
            page: the page that the caller wants.
            lookup: the result of `lookup`, with the vectors fetched since then.
        """
        is_read, options = bool(lookup and lookup.rankings), self.options
        hits = response["hits"]["hits"] if is_read else hits_of(response)
        if obstacle := None if is_read else self._obstacle(hits):
            return self.warned(unchanged(response, obstacle, page=page), None)
        by = self if self.fields.read else self._naming(hits)
        started = self.service.clock()
        vectors = lookup.fetched if lookup else None
        rankings = (lookup and lookup.rankings) or [by.read(team, hits) for team in options.rankings]
        ranking, names = rankings[0], by.fields.read_for(options.fields)
        if all(candidate.text is None for candidate in ranking.candidates):
            answer = unchanged(response, Reason(ReasonCode.NO_TEXT, _no_text(names, hits)), page=page)
        elif options.interleave is not None:
            pairs = zip(rankings, options.rankings, strict=True)
            teams = [by.ranked(found, team, hits, page, vectors) for found, team in pairs]
            took_ms = (self.service.clock() - started) * 1000
            answer = interleaved(options, options.interleave, (teams[0], teams[1]), response, page, took_ms)
        else:
            is_cut = page.min_score is not None or page.thresholds is not None
            above = 0 if is_cut else page.offset  # a threshold needs the probabilities of the hits above the page
            ranking = by.ranked(ranking, options, hits, page, vectors, above)
            answer = _answered(response, ranking, page, (self.service.clock() - started) * 1000)
        if by.fields.options or by.fields.warnings:
            candidates = (candidate for found in rankings for candidate in found.candidates)
            sections = (section for candidate in candidates for section in candidate.sections)
            by.warned(answer, {section.field for section in sections if section.text.strip()})
        answer["rerank"]["fields"] = list(names)
        if by.fields.parts and (by_index := by.fields.by_index(options.fields)):
            answer["rerank"]["fields_by_index"] = {name: list(own) for name, own in by_index.items()}
        return answer

    def ranked(
        self,
        found: Ranking,
        options: Rerank,
        hits: Sequence[Mapping[str, Any]],
        page: Page,
        vectors: FetchedVectors | None,
        above: int = 0,
    ) -> Ranking:
        """Return the first pass's hits reranked; on a later page, in the order that was kept for the first page.

        The first ``above`` candidates stand above the page, so the order among them is not needed.
        """
        compute = partial(self.service.rerank, found, options, self.deadline, offset=above, vectors=vectors)
        if self.order is None:
            return compute()
        return self.order.ranked(compute, found, hits, options, page.offset)

    def lookup(self, response: Any) -> Lookup:
        """Look up the document vectors of a response's hits on this machine: return those known and those lacking.

        The lookup is empty if nothing is reranked, or the model has no vectors.
        """
        hits = hits_of(response)
        if self._obstacle(hits) or self.deadline.passed:
            return Lookup()
        by = self if self.fields.read else self._naming(hits)
        rankings = [(by.read(team, hits), team) for team in self.options.rankings]
        with_models = [(ranking, team) for ranking, team in rankings if team.pipeline != NO_STAGES]
        lookup = self.service.lookup(with_models, [str(hit.get("_index")) for hit in hits], self.deadline)
        return replace(lookup, rankings=tuple(ranking for ranking, _ in rankings))

    def read(self, options: Rerank, hits: Sequence[Mapping[str, Any]]) -> Ranking:
        """Return hits as the first pass's ranking; each candidate has the text of the fields that the options name."""
        names = self.fields.read_for(options.fields)
        by_index = self.fields.by_index(options.fields) if self.fields.parts else None
        found = parse(self._as_read(hits), Query(QUERY_ID, self.text), names, options.separator, by_index)
        return self.bm25.applied(found, hits)

    def _as_read(self, hits: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return hits with the texts of their documents, and without values of the caller's choice."""
        if self.texts is not None:
            none: Mapping[str, Any] = {}
            documents = [self.texts.get((str(hit.get("_index")), hit["_id"]), none) for hit in hits]
            return [
                {**hit, "_source": found.get("_source"), "fields": found.get("fields")}
                for hit, found in zip(hits, documents, strict=True)
            ]
        return [{**hit, "fields": None} for hit in hits] if self.reads_source else hits

    def warned(self, answer: dict[str, Any], names: Collection[str] | None) -> dict[str, Any]:
        """Add the warnings about fields to a search's answer, in place, and return it.

        Args:
            answer: the answer of the search.
            names: the fields that had text; None if there are no hits.

        Raises:
            ConfigError: a field that the options name is missing or has no text, and ``on_failure`` is ``"raise"``.
        """
        complaints = self.fields.complaints(names)
        if complaints and self.options.on_failure == "raise":
            fix = "correct the name, or leave it out"
            raise ConfigError(f"{complaints[0]}: {fix}", setting="rerank.fields", source="argument")
        answer["rerank"]["warnings"] = [*answer["rerank"].get("warnings", ()), *self.fields.warnings, *complaints]
        return answer

    def reported(self, answer_of: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a search's answer, and report its outcome to metrics, trace and log."""
        started = self.service.clock()
        outcome: bool | str = False
        try:
            answer = answer_of()
            marks = answer["rerank"]
            outcome = marks["applied"]
        finally:
            took_s = self.service.clock() - started
            if not self.options.in_shadow:  # which has its own metrics
                SEARCHES.labels(str(outcome).lower()).inc()
                RERANK_SECONDS.observe(took_s)
        if (whole_s := took_s + marks["first_pass_took_ms"] / 1000) > SLOW_S:
            advise(answer, self.options, whole_s)
        tell_outcome(applied=outcome, reason=marks["reason"], code=marks["reason_code"])
        if outcome is not True:
            NOT_RERANKED.labels(str(marks["reason_code"])).inc()
            tell_lacking(answer)
            logger.info("a search was not fully reranked: %s", marks["reason"])
        return answer

    def _naming(self, hits: Sequence[Mapping[str, Any]]) -> Self:
        """Return a copy that names the fields to read: those of the options, or else text fields found in the hits."""
        if named(self.options.fields):
            return replace(self, fields=SearchFields.named_by(self.options))
        documents = self._as_read(hits)
        read = fields_of([{**(hit.get("fields") or {}), **(hit.get("_source") or {})} for hit in documents])
        return replace(self, fields=replace(self.fields, read=read))

    def _obstacle(self, hits: Sequence[Mapping[str, Any]]) -> Reason | None:
        """Return why the hits cannot be reranked; None if they can."""
        if self.obstacle is not None:
            return self.obstacle
        if not hits:
            return NO_HITS
        if self.options.is_first_pass:
            return NOT_ASKED
        if has_own_order(hits):
            return Reason(ReasonCode.SORTED, SORTED)
        if has_repeats(hits):
            return REPEATED
        return None if self.text.strip() else Reason(ReasonCode.NO_QUERY, "the query text is empty")


@dataclass(frozen=True, slots=True)
class Plain:
    """A search without reranking: it sends the caller's own request, and leaves the response unchanged.

    Attributes:
        body: the request's body.
        params: the request's URL parameters.
    """

    body: Any
    params: dict[str, Any]

    def split_params(self, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split the parameters into opensearch-py's ``params`` and its keyword arguments, which it checks by name."""
        named = {name: value for name, value in self.params.items() if name in options}
        return {name: value for name, value in self.params.items() if name not in named}, named

    def again(self, response: Any) -> "Plain | None":  # noqa: ARG002 - only a first pass can lose something
        """Return the call to send after this one, if the response is not what a page can be cut from; else None.

        Args:
            response: the response to this call, or OpenSearch's error.
        """
        return None

    def choose(self, response: Any, other: "Plain", answered: Any) -> tuple["Plain", Any]:  # noqa: ARG002 - likewise
        """Choose between this call and the one sent after it: return the call to finish, and its response.

        Args:
            response: the response to this call, or OpenSearch's error.
            other: the call sent after it.
            answered: the response to that call.
        """
        return other, answered

    def finish(self, response: Any, lookup: Lookup | None = None) -> Any:  # noqa: ARG002 - nothing is scored
        """Return the response."""
        return response


@dataclass(frozen=True, slots=True)
class Refused(Plain):
    """A search that cannot be reranked: it sends the caller's own request, and its response says why.

    Attributes:
        reason: why it cannot be reranked.
        by: how it would have been reranked.
    """

    reason: Reason
    by: Reranking

    @property
    def offset(self) -> int:
        """How many hits are above those of the response."""
        return count_of(self.params, self.body, ("from", "from_"), 0) or 0

    def finish(self, response: Any, lookup: Lookup | None = None) -> Any:  # noqa: ARG002 - nothing is scored
        """Return the response marked with the reason."""
        if not isinstance(response, Mapping):
            return response
        if self.reason is NOT_ASKED:  # nothing was to be reranked, so nothing is reported
            answer = unchanged(response, self.reason, offset=self.offset)
            answer["rerank"]["warnings"] = [*self.by.fields.warnings, *self.by.fields.complaints(None)]
            return answer
        return self.by.reported(lambda: self.by.warned(unchanged(response, self.reason, offset=self.offset), None))


@dataclass(frozen=True, slots=True)
class Reranked(Plain):
    """A search that is reranked: it sends the request for the first pass, and reranks the response.

    Attributes:
        own: the caller's own request.
        first_pass: the plan of the request.
        by: how its hits are reranked.
    """

    own: Plain
    first_pass: FirstPass
    by: Reranking

    def again(self, response: Any) -> Plain | None:
        """Return the call to send after the first pass, if that was refused or incomplete; else None.

        If the search pipeline changed the number of hits, a page of them would overlap with the caller's other pages or
        leave a gap. So the first page is reranked within itself, and later pages are the caller's own.

        Args:
            response: OpenSearch's response, or its error.
        """
        if lost := self._loss(response):
            return self._own(lost)
        if not isinstance(response, Mapping) or "error" in response or not self.first_pass.is_shortened(response):
            return None
        if self.first_pass.page.offset:
            return self._own(SHORTENED)
        first_pass = self.first_pass.of_own_size()
        return replace(self, body={**self.body, "size": first_pass.body["size"]}, first_pass=first_pass)

    def _loss(self, response: Any) -> Reason | None:
        """Return why a response is no first pass to rerank; None if it is one, or another request would not help."""
        if isinstance(response, TransportError):
            is_refused = isinstance(response.status_code, int) and response.status_code not in SAME_FOR_ALL
            may_fit = is_refused or isinstance(response, ConnectionTimeout)
            return _refused(_first_line(response)) if may_fit else None
        if not isinstance(response, Mapping):
            return None
        if "error" in response:  # of one search in a multi-search
            error = response["error"]
            cause = next(iter(error.get("root_cause") or ()), error) if isinstance(error, Mapping) else {"type": error}
            return _refused(f"{cause.get('type')}: {cause.get('reason')}")
        lost = self.first_pass.loss(response)
        return Reason(ReasonCode.INCOMPLETE, "the first pass for reranking was incomplete", lost) if lost else None

    def _own(self, reason: Reason) -> Refused:
        """Return the call that sends the caller's own request, and marks its response with the reason."""
        return Refused(self.own.body, self.own.params, reason, self.by)

    def choose(self, response: Any, other: Plain, answered: Any) -> tuple[Plain, Any]:
        if not isinstance(other, Refused) or other.reason is SHORTENED:
            return other, answered
        is_error = not isinstance(response, Mapping) or "error" in response
        if not is_error and not self.first_pass.is_better(answered, response):
            return self, response
        if due.is_due("first-pass-refused"):
            logger.warning(
                "[first-pass-refused] a search is not reranked: %s; not logged again for a minute", other.reason
            )
        return other, answered

    def finish(self, response: Any, lookup: Lookup | None = None) -> Any:
        """Return the response with its hits reranked, or marked with the reason why they are not.

        Args:
            response: OpenSearch's response.
            lookup: the document vectors that are known or were fetched; None if none were looked up.
        """
        return self.by.reported(lambda: self.by.page_of(response, self.first_pass.page, lookup))


def planned(
    by: Reranking,
    body: Mapping[str, Any],
    params: Mapping[str, Any],
    pipeline: SearchPipeline,
    thresholds: Thresholds | None = None,
) -> Refused | Reranked:
    """Plan a search that is to be reranked; it is refused if the query has no single text to rerank by.

    Args:
        by: how it is reranked; if it has no text, the options' or the body's is used.
        body: the caller's body, with the query.
        params: the caller's URL parameters.
        pipeline: the search pipeline that it runs under.
        thresholds: where the reranked list ends; None if it is not cut.

    Raises:
        ConfigError: the query has no single text, and the options say to raise.
    """
    options = by.options
    if "ext" in body:
        by, body = replace(by, ubi=UbiQuery.of(body, params)), without_ubi(body)
    if "collapse" in body:
        by = replace(by, fields=replace(by.fields, warnings=(*by.fields.warnings, COLLAPSED)))
    if options.query is not None:
        by = replace(by, text=options.query)
    first_pass = plan(body, params, options, by.service.depth(options), by.fields, pipeline, thresholds)
    own = Plain(dict(body), dict(params))
    if isinstance(first_pass, Reason):
        return Refused(own.body, own.params, first_pass, by)
    if not by.text and options.query is None:
        if typed := as_you_type(body):
            return Refused(own.body, own.params, Reason(ReasonCode.AS_YOU_TYPE, typed), by)
        try:
            by = replace(by, text=find_query_text(body))
        except ConfigError as error:
            if options.on_failure == "raise":
                raise
            return Refused(own.body, own.params, Reason(ReasonCode.NO_QUERY, str(error)), by)
    by = replace(by, reads_source=first_pass.reads_source)
    return Reranked(first_pass.body, first_pass.params, own, first_pass, by)


def _answered(response: Mapping[str, Any], ranking: Ranking, page: Page, rerank_ms: float) -> dict[str, Any]:
    """Return the response with a page of the ranking; with a page of the first pass if no stage was applied."""
    reports, warnings = ranking.reports, ranking.warnings
    if applied(reports):
        return merge(response, ranking, page, rerank_ms=rerank_ms)
    told = "; ".join(f"{report.name}: {report.reason}" for report in reports)
    reason = Reason(code_of(reports) or (NOT_ASKED.code if not reports else ReasonCode.SCORING), told)
    return unchanged(response, reason, reports=reports, warnings=warnings, page=page, rerank_ms=rerank_ms)


def _refused(said: str) -> Reason:
    return Reason(ReasonCode.REFUSED, "the first pass for reranking was refused", said)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]


def decoded(body: Any) -> Mapping[str, Any]:
    """Return a search body as a mapping; it may be given as JSON or as a query builder's object.

    Raises:
        ConfigError: it is neither a mapping, nor JSON, nor such an object.
    """
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
    """Return the reason why hits without text cannot be reranked; it lists the fields that they have."""
    present = sorted({name for hit in hits for part in ("_source", "fields") for name in (hit.get(part) or {})})
    there = f"the hits have {', '.join(present)}" if present else "the hits carry no _source"
    return f"{NO_TEXT} ({', '.join(names)}): {there}; name the right ones as rerank={{'fields': [...]}}"
