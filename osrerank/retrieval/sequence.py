"""Build requests for the documents that changed since a vector build, by the sequence numbers of their writes.

The engine gives each write the next sequence number of its shard, ``_seq_no``. The embedded engine does not, so the
sort value of ``_doc`` is used in its place.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from osrerank.errors import ConfigError
from osrerank.retrieval.requests import SideRequest, build_path
from osrerank.types.engine import Engine
from osrerank.types.engine_errors import EngineError
from osrerank.vectors.build_progress import Head, parse_heads
from osrerank.vectors.index import PREFIX as SIDE_INDEX_PREFIX

SEQ_NO = "_seq_no"
MAX_SEQUENCE_NUMBER = 2**62
"""A number above all sequence numbers. It is used for the embedded engine, which does not report its highest number."""
ENGINE_UNAVAILABLE_STATUSES = (None, 429, 500, 502, 503, 504)
"""The HTTP statuses of an engine that is unavailable. None stands for no response."""
REQUIRED_PERMISSIONS = "indices:monitor/stats and indices:admin/refresh"
"""The permissions that a user needs to follow the changes of an index by sequence numbers."""

Heads = Mapping[str, Mapping[str, Head]]
"""The head of each shard, by index and shard number: ``{"papers": {"0": Head(...)}}``."""


def read_heads(index: str, *, is_embedded: bool) -> Generator[SideRequest, Any, dict[str, dict[str, Head]]]:
    """Return the heads of the indices that a name matches, except side indices. Yield the requests to read them.

    Raises:
        EngineError: the index does not exist, or the engine is unavailable.
        ConfigError: the engine does not report sequence numbers, or this user has no permission to read them.
    """
    if is_embedded:
        return (yield from _embedded_heads(index))
    try:
        response = yield SideRequest("GET", build_path(index, "_stats/docs"), params={"level": "shards"})
        heads_by_index = {name: parse_heads(entry) for name, entry in response["indices"].items()}
    except EngineError as error:
        if error.kind == "index_not_found_exception" or error.status in ENGINE_UNAVAILABLE_STATUSES:
            raise
        fix = f"grant {REQUIRED_PERMISSIONS}, or " if error.is_forbidden else ""
        raise _unreadable_numbers_error(index, f"{error.status} {error.kind}", fix) from error
    except LookupError as error:
        raise _unreadable_numbers_error(index, str(error), "") from error
    return _without_side_indices(heads_by_index)


def _without_side_indices(heads_by_index: dict[str, dict[str, Head]]) -> dict[str, dict[str, Head]]:
    return {name: heads for name, heads in heads_by_index.items() if not name.startswith(SIDE_INDEX_PREFIX)}


def _unreadable_numbers_error(index: str, reason: str, fix: str) -> ConfigError:
    text = f"the sequence numbers of {index} cannot be read ({reason}): {fix}name a date field that each change sets"
    return ConfigError(text, setting="follow", source="--follow DATE_FIELD")


def _embedded_heads(index: str) -> Generator[SideRequest, Any, dict[str, dict[str, Head]]]:
    heads_by_index: dict[str, dict[str, Head]] = {}
    for name, entry in (yield SideRequest("GET", f"/{index}")).items():
        body = {"size": 1, "sort": [{"_doc": "desc"}], "_source": False}
        hits = (yield SideRequest("POST", build_path(name, "_search"), body))["hits"]["hits"]
        last = read_sequence_number(hits[0], is_embedded=True) if hits else -1  # -1: the index is empty
        history = entry["settings"]["index"]["uuid"]
        heads_by_index[name] = {"0": Head(history, global_checkpoint=last, max_seq_no=MAX_SEQUENCE_NUMBER)}
    return _without_side_indices(heads_by_index)


def build_sequence_query(ranges: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return the query for documents whose sequence numbers are in one of the ranges, such as ``[(0, 99)]``.

    Both ends belong to a range.
    """
    clauses = [{"range": {SEQ_NO: {"gte": first, "lte": last}}} for first, last in ranges]
    return clauses[0] if len(clauses) == 1 else {"bool": {"should": clauses}}


def build_shard_request(
    index: str, shard: str, body: Mapping[str, Any], *, engine: Engine, order: str = ""
) -> SideRequest:
    """Return a search of one shard, without the index's default search pipeline.

    The embedded engine has no shards. If ``order`` is ``asc`` or ``desc``, the hits are sorted by sequence number.
    """
    path = build_path(index, "_search")
    if engine.is_embedded:
        sort = {"sort": [{"_doc": order}]} if order else {}
        return SideRequest("POST", path, {**body, **sort})
    sort_options = {"sort": [{SEQ_NO: order}], "seq_no_primary_term": True} if order else {}
    params = {"preference": engine.shard_preference(shard), **engine.no_pipeline}
    return SideRequest("POST", path, {**body, **sort_options}, params)


def read_sequence_number(hit: Mapping[str, Any], *, is_embedded: bool) -> int:
    """Return the sequence number of a hit. The request must sort by sequence number.

    The embedded engine's sort values count from 1, and sequence numbers from 0.
    """
    return int(hit["sort"][0]) - 1 if is_embedded else int(hit[SEQ_NO])
