"""Answer terms aggregations: how many of the matching documents have each value of a field."""

import re
from typing import Any

import tantivy

from osrerank.embedded.errors import (
    Json,
    as_name,
    as_object,
    as_whole,
    illegal,
    no_field_data,
    parsing,
    reject_unknown_keys,
    unsupported,
)
from osrerank.embedded.mapping import values
from osrerank.embedded.mapping.fields import METADATA, Field
from osrerank.embedded.storage.index import Snapshot

MAX_BUCKETS = 65_000


def count_terms(aggregations: Json, snapshots: list[tuple[Snapshot, tantivy.Query]]) -> Json:
    """Return the ``aggregations`` of a response, over the documents that each index's query matches.

    Raises:
        Fault: 400 naming an aggregation other than ``terms``, one with sub-aggregations, or a field without values.
    """
    return {name: _counted(name, body, snapshots) for name, body in aggregations.items()}


def _counted(name: str, body: Json, snapshots: list[tuple[Snapshot, tantivy.Query]]) -> Json:
    if not re.fullmatch(r"[^\[\]>]+", name):
        raise parsing(f"Invalid aggregation name [{name}]: it cannot be empty, nor have [, ] or >")
    for key in as_object(body, f"aggs.{name}"):
        if key in ("aggs", "aggregations"):
            raise unsupported(f"sub-aggregations ([{key}] in [{name}])")
        if key != "terms":
            raise unsupported(f"the aggregation [{key}] (in [{name}])", "it knows [terms]")
    options = body.get("terms")
    if not isinstance(options, dict) or "field" not in options:
        raise parsing(f"aggregation [{name}] needs a [terms] object with a [field]")
    reject_unknown_keys("terms", options, frozenset({"field", "size"}))
    path = as_name(options["field"], f"aggs.{name}.terms.field")
    size = as_whole(options.get("size", 10), "terms.size")
    if not 0 < size <= MAX_BUCKETS:
        raise illegal(f"[size] must be greater than 0 in [terms], and at most {MAX_BUCKETS}")
    counts: dict[Any, int] = {}
    uncounted = 0
    field: Field | None = None
    for snapshot, query in snapshots:
        field = snapshot.fields.by_path.get(path) or field
        bucket_counts, beyond = _count(snapshot, query, path)
        uncounted += beyond
        for key, count in bucket_counts.items():
            counts[key] = counts.get(key, 0) + count
    keys = sorted(counts, key=lambda key: (-counts[key], key))
    uncounted += sum(counts[key] for key in keys[size:])
    shown = [{**_key(key, field), "doc_count": counts[key]} for key in keys[:size]]
    return {"doc_count_error_upper_bound": 0, "sum_other_doc_count": uncounted, "buckets": shown}


def _count(snapshot: Snapshot, query: tantivy.Query, path: str) -> tuple[dict[Any, int], int]:
    """Return value -> number of documents, and how many documents have values beyond the largest buckets."""
    field = snapshot.fields.by_path.get(path)
    if path in METADATA:
        raise unsupported(f"[{path}] in [terms]", "use a field of the mapping")
    if field is not None and not field.has_doc_values:
        raise no_field_data(path)
    if field is None or path not in snapshot.shard.names:
        return {}, 0
    column = snapshot.shard.names[path]
    terms = {"field": column, "size": MAX_BUCKETS, "segment_size": MAX_BUCKETS}
    response = snapshot.searcher.aggregate(query, {"it": {"terms": terms}})["it"]
    cast = int if field.column == "long" else float if field.column == "double" else str
    bucket_counts = {cast(bucket["key"]): bucket["doc_count"] for bucket in response["buckets"]}
    return bucket_counts, int(response.get("sum_other_doc_count") or 0)


def _key(key: Any, field: Field | None) -> Json:
    if field is not None and field.kind == "boolean":
        return {"key": key, "key_as_string": "true" if key else "false"}
    if field is not None and field.kind == "date":
        return {"key": key, "key_as_string": values.millis_text(key)}
    return {"key": key}
