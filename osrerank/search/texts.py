"""Fetch the original text of hits with a second request, if the first response may lack or alter it."""

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opensearchpy import ConnectionTimeout, TransportError

from osrerank.errors import ResponseFormatError
from osrerank.response import hits_of
from osrerank.retrieval.requests import SideRequest, path_of
from osrerank.search.call import Plain, Reranked
from osrerank.types.reasons import Reason, ReasonCode

LEAST_S = 0.05
"""The least time that the request is given, in seconds."""
DEFINED = ("derived", "runtime_mappings")
"""Parts of a request that define fields."""


def with_texts(calls: Sequence[tuple[Plain, Any]]) -> Generator[SideRequest, Any, list[Plain]]:
    """Yield the request (usually none) that fetches the texts of several searches' hits; return the searches with them.

    If the texts cannot be fetched, the search returns its first pass with the reason.

    Args:
        calls: searches with their responses.
    """
    wanted = [
        (at, call, hits)
        for at, (call, response) in enumerate(calls)
        if isinstance(call, Reranked) and call.first_pass.apart and (hits := hits_of(response))
    ]
    found = [call for call, _ in calls]
    if not wanted:
        return found
    try:
        answers = yield from _fetched([(call, hits) for _, call, hits in wanted])
        documents = [{(hit["_index"], hit["_id"]): hit for hit in hits_of(answer)} for answer in answers]
    except (TransportError, ResponseFormatError, KeyError, TypeError) as error:
        code = ReasonCode.DEADLINE if isinstance(error, ConnectionTimeout) else ReasonCode.REFUSED
        reason = Reason(code, "the texts of the hits could not be fetched", str(error)[:300])
        for at, call, _ in wanted:
            found[at] = replace(call, by=replace(call.by, obstacle=reason))
        return found
    for (at, call, _), texts in zip(wanted, documents, strict=True):
        found[at] = replace(call, by=replace(call.by, texts=texts))
    return found


def _fetched(
    searches: Sequence[tuple[Reranked, Sequence[Mapping[str, Any]]]],
) -> Generator[SideRequest, Any, list[Any]]:
    """Yield the request for the texts of one search's hits, or of several searches' at once; return the answers."""
    left_s = min(call.by.deadline.remaining_s() for call, _ in searches)
    timeout = {} if left_s == float("inf") else {"request_timeout": max(left_s, LEAST_S)}
    bodies = [(_indices(hits), _body(call, hits)) for call, hits in searches]
    has_default = any(call.first_pass.pipeline.has_default for call, _ in searches)
    off: dict[str, Any] = {"search_pipeline": {}} if has_default else {}  # _none is refused here before 2.18
    if len(bodies) == 1:
        indices, body = bodies[0]
        return [(yield SideRequest("POST", path_of(indices, "_search"), {**body, **off}, timeout))]
    lines = [line for indices, body in bodies for line in ({"index": indices}, {**body, **off})]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    answer = yield SideRequest("POST", "/_msearch", content, timeout)
    return list(answer["responses"])


def _indices(hits: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({str(hit["_index"]) for hit in hits})


def _body(call: Reranked, hits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the body of the request for the texts of hits: the documents with the hits' ids, in the hits' indices."""
    names, fetched = call.first_pass.apart, call.by.fields.fetched
    ids = sorted({hit["_id"] for hit in hits})
    defined = {name: call.own.body[name] for name in DEFINED if name in call.own.body}
    fields = [name for name in names if name in fetched]
    size = min(len(ids) * len(_indices(hits)), 10_000)
    return {"query": {"ids": {"values": ids}}, "size": size, "_source": list(names), "fields": fields, **defined}
