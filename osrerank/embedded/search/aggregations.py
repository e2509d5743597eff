"""Terms aggregations: how many of the matching documents have each value of a field."""

from typing import Any

import tantivy

from osrerank.embedded.errors import (
    Json,
    as_name,
    as_object,
    as_whole,
    illegal,
    no_field_data,
    only,
    parsing,
    unsupported,
)
from osrerank.embedded.mapping import values
from osrerank.embedded.mapping.fields import Field
from osrerank.embedded.storage.index import Snapshot

MAX_BUCKETS = 65_000
_TERMS = frozenset({"field", "size", "shard_size", "order", "min_doc_count", "show_term_doc_count_error"})


def count_terms(aggregations: Json, snapshots: list[tuple[Snapshot, tantivy.Query]]) -> Json:
    """Return the ``aggregations`` of a response, over the documents that each index's query matches.

    Raises:
        Fault: 400 naming an aggregation other than ``terms``, one with sub-aggregations, or a field without values.
    """
    return {name: _counted(name, body, snapshots) for name, body in aggregations.items()}


def _counted(name: str, body: Json, snapshots: list[tuple[Snapshot, tantivy.Query]]) -> Json:
    for key in as_object(body, f"aggs.{name}"):
        if key in ("aggs", "aggregations"):
            raise unsupported(f"sub-aggregations ([{key}] in [{name}])")
        if key != "terms":
            raise unsupported(f"the aggregation [{key}] (in [{name}])", "it knows [terms]")
    options = body.get("terms")
    if not isinstance(options, dict) or "field" not in options:
        raise parsing(f"aggregation [{name}] needs a [terms] object with a [field]")
    only("terms", options, _TERMS)
    as_name(options["field"], f"aggs.{name}.terms.field")
    counts: dict[Any, int] = {}
    field: Field | None = None
    for snapshot, query in snapshots:
        field = snapshot.fields.by_path.get(options["field"]) or field
        for key, count in _count(snapshot, query, options["field"]).items():
            counts[key] = counts.get(key, 0) + count
    return _shown(counts, field, options)


def _count(snapshot: Snapshot, query: tantivy.Query, path: str) -> dict[Any, int]:
    field = snapshot.fields.by_path.get(path)
    if field is None or path not in snapshot.shard.names:
        return {}
    if field.column == "text":
        raise no_field_data(path)
    column = snapshot.shard.names[path]
    terms = {"field": column, "size": MAX_BUCKETS, "segment_size": MAX_BUCKETS}
    answer = snapshot.searcher.aggregate(query, {"it": {"terms": terms}})
    cast = int if field.column == "long" else float if field.column == "double" else str
    return {cast(bucket["key"]): bucket["doc_count"] for bucket in answer["it"]["buckets"]}


def _shown(counts: dict[Any, int], field: Field | None, options: Json) -> Json:
    """Return the requested buckets; as in OpenSearch, equal counts are ordered by their keys."""
    least = as_whole(options.get("min_doc_count", 1), "terms.min_doc_count")
    size = as_whole(options.get("size", 10), "terms.size")
    if size <= 0:
        raise illegal("[size] must be greater than 0 in [terms]")
    keys = sorted(key for key, count in counts.items() if count >= max(least, 1))
    for by, direction in reversed(_orders(options.get("order"))):
        keys.sort(key=(lambda key: counts[key]) if by == "_count" else (lambda key: key), reverse=direction == "desc")
    rest = sum(counts[key] for key in keys[size:])
    shown = [{**_key(key, field), "doc_count": counts[key]} for key in keys[:size]]
    return {"doc_count_error_upper_bound": 0, "sum_other_doc_count": rest, "buckets": shown}


def _orders(given: Any) -> list[tuple[str, str]]:
    orders = [
        (by, str(way))
        for one in (given if isinstance(given, list) else [given or {"_count": "desc"}])
        for by, way in as_object(one, "terms.order").items()
    ]
    for by, way in orders:
        if by not in ("_count", "_key") or way not in ("asc", "desc"):
            raise unsupported(f"the order [{by}: {way}] in [terms]", "order by _count or _key, asc or desc")
    return orders


def _key(key: Any, field: Field | None) -> Json:
    if field is not None and field.kind == "boolean":
        return {"key": key, "key_as_string": "true" if key else "false"}
    if field is not None and field.kind == "date":
        return {"key": key, "key_as_string": values.millis_text(key)}
    return {"key": key}
