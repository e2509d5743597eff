"""Run a multi-search, several searches in one request, as a generator of steps; each response is reranked."""

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from opensearchpy import TransportError

from osrerank.errors import ConfigError
from osrerank.options.rerank import Rerank
from osrerank.search.call import Plain, Refused, RerankArgument, Reranked, Reranking, decoded
from osrerank.search.searcher import SearchCall, Searcher
from osrerank.search.shadow import IN_SHADOW, held_back
from osrerank.search.step import MultiSearchRequest, Step
from osrerank.search.texts import with_texts
from osrerank.search.ubi_query import UbiQuery, without_ubi
from osrerank.tracing.spans import span
from osrerank.types import NEVER
from osrerank.types.reasons import Reason, ReasonCode


def multi_search_steps(
    searcher: Searcher, body: Any, index: Any, *, rerank: RerankArgument, params: Mapping[str, Any]
) -> Generator[Step, Any, dict[str, Any]]:
    """Yield the steps of a multi-search, and return its answer, each response reranked or marked.

    A search without a query text is sent unchanged, and its response says so. All searches whose first pass is refused
    or incomplete are sent once more as the caller wrote them, in one request. Error responses stay as they are.

    Args:
        searcher: the client's searcher.
        body: newline-delimited JSON, or headers and bodies in turn.
        index: the index of searches whose header names none.
        rerank: as for a search.
        params: the multi-search's URL parameters.

    Raises:
        ConfigError: the body has a header without a body, or the rerank options cannot be used.
    """
    parts = _parts(body)
    headers, contents = parts[::2], parts[1::2]
    indices = [header.get("index", index) for header in headers]
    searches: list[SearchCall] = []
    with ExitStack() as stack:
        services = [stack.enter_context(searcher.serving(name, checked=False)) for name in indices]
        for header, content, name, service in zip(headers, contents, indices, services, strict=True):
            own, options = decoded(content or {}), Rerank.of(rerank, searcher.defaults.of(name)) or Rerank()
            options, held = held_back(options, None, own)
            known = {**header, **(params.get("headers") or {})}
            searches.append(SearchCall(None, own, _shared(params), name, options, NEVER, service, known, held))
        answer = yield from _answers(searcher, headers, searches)
    for header, asked, response in zip(headers, searches, answer.get("responses", ()), strict=False):
        if asked.held is IN_SHADOW and "rerank" in response:
            again = partial(_one_answer, searcher, header)
            response["rerank"]["traffic"]["queued"] = yield searcher.in_shadow(asked, response, again)
    return answer


def _one_answer(searcher: Searcher, header: Mapping[str, Any], asked: SearchCall) -> Generator[Step, Any, Any]:
    """Yield the steps of a multi-search with a single search, and return that search's response."""
    answer = yield from _answers(searcher, [header], [asked])
    return answer["responses"][0]


def _answers(
    searcher: Searcher, headers: Sequence[Mapping[str, Any]], searches: Sequence[SearchCall]
) -> Generator[Step, Any, dict[str, Any]]:
    """Yield the steps that send searches in one request and rerank the responses; return the multi-search's answer."""
    calls: list[Plain] = []
    for asked in searches:
        deadline = yield from searcher.deadline_of(None if asked.held else asked.options, asked.service, len(calls) + 1)
        calls.append((yield from _planned(searcher, replace(asked, deadline=deadline))))
    answer = yield from _first_passes(calls, headers)
    if "responses" not in answer:  # filter_path may remove it
        return answer
    responses = list(answer["responses"])
    whole = [at for at, response in enumerate(responses) if "error" not in response]
    read = yield from with_texts([(calls[at], responses[at]) for at in whole])
    lookups = yield from searcher.read([(call, responses[at]) for at, call in zip(whole, read, strict=True)])
    for at, call, lookup in zip(whole, read, lookups, strict=True):
        with span("osrerank.rerank"):
            responses[at] = yield from searcher.finished(call, responses[at], lookup)
    return {**answer, "responses": responses}


def _first_passes(calls: list[Plain], headers: Sequence[Mapping[str, Any]]) -> Generator[Step, Any, dict[str, Any]]:
    """Yield the request for all first passes, then one for the searches whose responses are incomplete.

    Return the answer with the better response to each search; the call that finishes it replaces the one in ``calls``.
    """
    refused: TransportError | None = None
    answer: dict[str, Any] = {}
    try:
        answer = dict((yield _request(headers, calls)))
    except TransportError as error:
        if all(call.again(error) is None for call in calls):
            raise
        refused = error
    if refused is None and "responses" not in answer:
        return answer
    responses = answer.get("responses", [refused] * len(calls))
    others = {at: calls[at].again(response) for at, response in enumerate(responses)}
    if refused is None:
        others = {at: other for at, other in others.items() if other is not None}
    if not others:
        return answer
    sent = {at: calls[at] if other is None else other for at, other in others.items()}
    second = yield _request([headers[at] for at in sent], list(sent.values()))
    chosen = dict(enumerate(responses))
    for at, response in zip(sent, second["responses"], strict=True):
        calls[at], chosen[at] = calls[at].choose(responses[at], sent[at], response)
    return {**second, **answer, "responses": list(chosen.values())}


def _request(headers: Sequence[Mapping[str, Any]], calls: Sequence[Plain]) -> MultiSearchRequest:
    pairs = zip(headers, calls, strict=True)
    return MultiSearchRequest([line for header, call in pairs for line in (header, call.body)])


def _shared(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a multi-search that apply to each of its searches."""
    return {name: params[name] for name in ("filter_path",) if params.get(name)}


def _planned(searcher: Searcher, asked: SearchCall) -> Generator[Step, Any, Plain]:
    """Yield the steps that plan one search, and return its call; its parameters are in its body, as it has no URL."""
    options = asked.options or Rerank()
    fields = yield from searcher.fields_of(options, asked.index, query=None, body=asked.body)
    searcher.fields.warn(asked.index, fields.complaints(None))
    if options.rm3 is not None:
        why = "rm3 sends requests before the search, and a multi-search is one request"
        raise ConfigError(f"{why}; use search for these queries", setting="rerank.rm3", source="argument")
    try:
        call = yield from searcher.planned(asked, fields)
    except ConfigError as error:
        if error.setting != "rerank.query":
            raise
        by = Reranking(asked.service, options, "", asked.deadline, ubi=UbiQuery.of(asked.body, {}))
        return Refused({**without_ubi(asked.body)}, {}, Reason(ReasonCode.NO_QUERY, str(error)), by)
    return replace(call, body={**call.body, **call.params}, params={}) if isinstance(call, Reranked) else call


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
