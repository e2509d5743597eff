"""Compute ``terms`` aggregations, which count the matching documents for each value of a field."""

import re
from collections import Counter
from typing import Any

import tantivy

from osrerank.embedded.errors import (
    Json,
    argument_error,
    no_field_data_error,
    parse_count,
    parsing_error,
    reject_unknown_keys,
    require_object,
    require_string,
    unsupported_error,
)
from osrerank.embedded.mapping import values
from osrerank.embedded.mapping.fields import METADATA, Field
from osrerank.embedded.storage.index import Snapshot

MAX_BUCKETS = 65_000
"""The maximum number of values that an aggregation can ask for."""


def count_terms(aggregations: Json, queries: list[tuple[Snapshot, tantivy.Query]]) -> Json:
    """Return the ``aggregations`` of a search response.

    Args:
        aggregations: the request's aggregations, such as ``{"years": {"terms": {"field": "year"}}}``.
        queries: the searched indices, each with the query whose matching documents are counted.

    Raises:
        ApiError: 400 for aggregations other than ``terms``, for sub-aggregations, and for text fields.
    """
    return {name: _aggregate(name, body, queries) for name, body in aggregations.items()}


def _aggregate(name: str, body: Json, queries: list[tuple[Snapshot, tantivy.Query]]) -> Json:
    path, size = _read_terms(name, body)
    counts: Counter[Any] = Counter()
    other_count = 0
    field: Field | None = None
    for snapshot, query in queries:
        field = snapshot.fields.by_path.get(path) or field  # of any index that has it
        index_counts, index_other_count = _count_values(snapshot, query, path)
        counts.update(index_counts)
        other_count += index_other_count
    keys = sorted(counts, key=lambda key: (-counts[key], key))
    other_count += sum(counts[key] for key in keys[size:])
    buckets = [{**_bucket_key(key, field), "doc_count": counts[key]} for key in keys[:size]]
    return {"doc_count_error_upper_bound": 0, "sum_other_doc_count": other_count, "buckets": buckets}


def _read_terms(name: str, body: Json) -> tuple[str, int]:
    """Return the field of a ``terms`` aggregation and the number of values to return, such as ``("year", 10)``."""
    if not re.fullmatch(r"[^\[\]>]+", name):
        raise parsing_error(f"Invalid aggregation name [{name}]: it is empty or contains [, ] or >")
    for key in require_object(body, f"aggs.{name}"):
        if key in ("aggs", "aggregations"):
            raise unsupported_error(f"aggregations inside of another one ([{key}] in [{name}])")
        if key != "terms":
            raise unsupported_error(f"the aggregation [{key}] (in [{name}])", "use [terms]")
    options = body.get("terms")
    if not isinstance(options, dict) or "field" not in options:
        raise parsing_error(f"aggregation [{name}] needs a [terms] object with a [field]")
    reject_unknown_keys("terms", options, frozenset({"field", "size"}))
    path = require_string(options["field"], f"aggs.{name}.terms.field")
    size = parse_count(options.get("size", 10), "terms.size")
    if not 0 < size <= MAX_BUCKETS:
        raise argument_error(f"[size] must be greater than 0 in [terms], and at most {MAX_BUCKETS}")
    return path, size


def _count_values(snapshot: Snapshot, query: tantivy.Query, path: str) -> tuple[dict[Any, int], int]:
    """Return how many documents of an index have each of its most frequent values, and how many have another value.

    For the field ``year``, the result is for example ``({2024: 7, 2023: 5}, 0)``.
    """
    if path in METADATA:
        raise unsupported_error(f"[{path}] in [terms]", "use a field of the mapping")
    field = snapshot.fields.by_path.get(path)
    if field is not None and not field.has_doc_values:
        raise no_field_data_error(path)
    if field is None or path not in snapshot.shard.columns:
        return {}, 0
    column_name = snapshot.shard.columns[path]
    terms = {"field": column_name, "size": MAX_BUCKETS, "segment_size": MAX_BUCKETS}
    response = snapshot.searcher.aggregate(query, {"values": {"terms": terms}})["values"]
    to_value = {"long": int, "double": float}.get(field.column, str)
    counts = {to_value(bucket["key"]): bucket["doc_count"] for bucket in response["buckets"]}
    return counts, int(response.get("sum_other_doc_count") or 0)


def _bucket_key(key: Any, field: Field | None) -> Json:
    if field is not None and field.kind == "boolean":
        return {"key": key, "key_as_string": "true" if key else "false"}
    if field is not None and field.kind == "date":
        return {"key": key, "key_as_string": values.format_millis(key)}
    return {"key": key}
