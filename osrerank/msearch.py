"""Several searches in one request, each reranked: the steps, without input and output."""

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opensearchpy import TransportError

from osrerank.errors import ConfigError
from osrerank.options.defaults import Defaults
from osrerank.options.rerank import Rerank
from osrerank.retrieval.fields import Fields
from osrerank.retrieval.found_fields import FoundFields
from osrerank.search.calibrated import Calibrations
from osrerank.search.call import RerankArgument, SearchCall
from osrerank.search.step import MultiSearchRequest, Step
from osrerank.search.steps import with_fields
from osrerank.search.ubi import UbiRecords
from osrerank.search.vectors import SideVectors
from osrerank.service import RerankService
from osrerank.thresholds.cut import Thresholds
from osrerank.tracing.spans import span


def multi_search_steps(
    reranker: RerankService,
    defaults: Defaults,
    body: Any,
    index: Any,
    *,
    rerank: RerankArgument,
    params: Mapping[str, Any],
    found: FoundFields,
    vectors: SideVectors,
    calibrations: Calibrations,
    records: UbiRecords,
) -> Generator[Step, Any, dict[str, Any]]:
    """Yield the steps of a multi-search, and return its answer, each response reranked or marked.

    A search without a query text is sent unchanged, and its response says so. All searches whose first pass is refused
    or incomplete are sent once more as the caller wrote them, in one request. Errors stay unchanged.

    Args:
        reranker: reranks each response.
        defaults: options of each index.
        body: newline-delimited JSON, or headers and bodies in turn.
        index: of the searches whose header names none.
        rerank: as for a search.
        params: the multi-search's URL parameters.
        found: finds the fields to read if nobody names them.
        vectors: side indices of document vectors, if there are any.
        calibrations: the indices' calibrations of probabilities.
        records: records for UBI what users are shown.

    Raises:
        ConfigError: the body has a header without a body, or the rerank options cannot be used.
    """
    parts = _parts(body)
    headers, contents = parts[::2], parts[1::2]
    calls: list[SearchCall] = []
    for header, content in zip(headers, contents, strict=True):
        searched = header.get("index", index)
        options = Rerank.of(rerank, defaults.of(searched)) or Rerank()
        options, fields = yield from with_fields(options, searched, found, query=None, body=content)
        found.warn(searched, fields.complaints(None))
        _refuse_what_takes_more(options)
        thresholds = yield from calibrations.of(options, searched, reranker)
        calls.append(_plan_one(reranker, options, content, params, thresholds, fields))
    answer = yield from _first_passes(calls, headers, contents)
    if "responses" not in answer:  # filter_path may remove it
        return answer
    responses = []
    for call, response in zip(calls, answer["responses"], strict=True):
        if "error" not in response:
            with span("osrerank.rerank"):
                reranked = yield from vectors.around(call, response)
            response = yield from records.after(call, reranked)  # noqa: PLW2901 - the same one, marked
        responses.append(response)
    return {**answer, "responses": responses}


def _first_passes(
    calls: list[SearchCall], headers: Sequence[Mapping[str, Any]], contents: Sequence[Mapping[str, Any]]
) -> Generator[Step, Any, dict[str, Any]]:
    """Yield the request for the first passes, then one for the callers' own searches where these may have more.

    Return the answer, with the response to be used for each search; ``calls`` gets the calls that finish them.
    """
    refused: TransportError | None = None
    answer: dict[str, Any] = {}
    try:
        answer = dict((yield _request(headers, calls)))
    except TransportError as error:
        if not any(call.loss(error) for call in calls):
            raise
        refused = error
    if refused is None and "responses" not in answer:
        return answer
    responses = answer.get("responses", [refused] * len(calls))
    losses = {at: calls[at].loss(response) for at, response in enumerate(responses)}
    again = [at for at, loss in losses.items() if loss or refused is not None]
    if not again:
        return answer
    own = {at: calls[at].fall_back(contents[at], {}, losses[at]) if losses[at] else calls[at] for at in again}
    second = yield _request([headers[at] for at in again], list(own.values()))
    chosen = dict(enumerate(responses))
    for at, response in zip(again, second["responses"], strict=True):
        calls[at], chosen[at] = calls[at].choose(responses[at], own[at], response)
    return {**second, **answer, "responses": list(chosen.values())}


def _request(headers: Sequence[Mapping[str, Any]], calls: Sequence[SearchCall]) -> MultiSearchRequest:
    pairs = zip(headers, calls, strict=True)
    return MultiSearchRequest([line for header, call in pairs for line in (header, call.body)])


def _plan_one(
    reranker: RerankService,
    options: Rerank,
    content: Mapping[str, Any],
    params: Mapping[str, Any],
    thresholds: Thresholds | None,
    fields: Fields,
) -> SearchCall:
    """Return one search's call, with everything in its body because it has no URL."""
    cut = {name: params[name] for name in ("filter_path",) if params.get(name)}
    try:
        call = SearchCall.plan(
            reranker, options, None, content, cut, rerank=options, fields=fields, thresholds=thresholds
        )
    except ConfigError as error:
        if error.setting != "rerank.query":
            raise
        return SearchCall.refused(reranker, options, content, str(error))
    if call.is_changed:
        return replace(call, body={**call.body, **call.params}, params={})
    return call


def _refuse_what_takes_more(options: Rerank) -> None:
    """Refuse options that one request for all searches cannot follow."""
    reasons = {
        "rm3": (options.rm3 is not None, "rm3 sends requests before the search"),
    }
    for name, (is_given, why) in reasons.items():
        if is_given:
            message = f"{why}, and a multi-search is one request; use search for these queries"
            raise ConfigError(message, setting=f"rerank.{name}", source="argument")


def _parts(body: Any) -> list[Mapping[str, Any]]:
    if isinstance(body, bytes):
        body = body.decode("utf-8")
    lines = [line for line in body.split("\n") if line.strip()] if isinstance(body, str) else list(body)
    try:
        parts = [json.loads(line) if isinstance(line, str | bytes) else line for line in lines]
    except ValueError as error:
        raise ConfigError(
            f"a line of the multi-search is not JSON: {error}", setting="body", source="argument"
        ) from None
    if len(parts) % 2:
        raise ConfigError(
            f"the multi-search has {len(parts)} lines; each search is a header and a body",
            setting="body",
            source="argument",
        )
    return parts
