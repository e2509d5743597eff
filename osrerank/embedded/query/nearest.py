"""The ``knn`` query: the documents whose vectors are nearest to one, found by comparing all of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from tantivy import Occur
from tantivy import Query as TQuery

from osrerank.embedded.errors import Fault, Json, as_whole, illegal, parsing, shard_fault, unsupported
from osrerank.embedded.mapping.vectors import Floats
from osrerank.embedded.query.clauses import boost_of, boosted
from osrerank.embedded.storage.index import Snapshot
from osrerank.embedded.storage.shard import ID

MOST_K = 10_000
_WITHOUT_EFFECT = frozenset({"method_parameters", "rescore", "_name"})
_KNOWN = frozenset({"vector", "k", "filter", "boost", "min_score", "max_distance"}) | _WITHOUT_EFFECT


def nearest(snapshot: Snapshot, compile_query: Callable[[Json], TQuery], body: Json) -> TQuery:
    """Return the query that matches the k nearest documents, each with its score.

    Args:
        snapshot: of the index.
        compile_query: compiles the filter.
        body: of the clause.

    Raises:
        Fault: 400, of the kind that OpenSearch gives.
    """
    path, options = _field(body)
    vector, k = _vector(options.get("vector")), _number(options)
    one = snapshot.fields.vectors.get(path)
    if one is None:
        raise _failed(snapshot, f"Field '{path}' is not knn_vector type.")
    if str(snapshot.row.settings.get("index", {}).get("knn", False)).lower() != "true":
        raise _failed(snapshot, f"Field '{path}' is not built for ANN search.")
    try:
        query = one.query(vector)
    except ValueError as error:
        raise _failed(snapshot, str(error)) from None
    among = _matching(snapshot, compile_query(options["filter"])) if options.get("filter") is not None else None
    found = snapshot.vectors(path).nearest(one.space, query, k, among)
    clauses = [(Occur.Should, _scored(snapshot, doc_id, score)) for doc_id, score in found]
    return boosted(TQuery.boolean_query(clauses) if clauses else TQuery.empty_query(), boost_of(options))


def _scored(snapshot: Snapshot, doc_id: str, score: float) -> TQuery:
    return TQuery.const_score_query(TQuery.term_query(snapshot.shard.schema, ID, doc_id), score)


def _field(body: Json) -> tuple[str, Json]:
    """Return the field and its options."""
    if len(body) > 1:
        first, second, *_ = body
        raise parsing(f"[knn] query doesn't support multiple fields, found [{first}] and [{second}]")
    for path, options in body.items():
        if isinstance(options, dict):
            for key in options:
                if key not in _KNOWN:
                    raise Fault(400, "x_content_parse_exception", f"[knn] unknown field [{key}]")
            return path, options
    raise parsing("[knn] query needs a field and an object with [vector] and [k]")


def _number(options: Json) -> int:
    """Return how many documents are wanted."""
    for key in ("min_score", "max_distance"):
        if key in options and "k" not in options:
            raise unsupported(f"[knn.{key}]", "give [k]")
    if "k" not in options or "min_score" in options or "max_distance" in options:
        raise illegal("[knn] requires exactly one of k, distance or score to be set")
    refusal = illegal(f"[knn] requires k to be in the range (0, {MOST_K}]")
    try:
        k = as_whole(options["k"], "k")
    except Fault:
        raise refusal from None
    if not 0 < k <= MOST_K:
        raise refusal
    return k


def _vector(given: Any) -> Floats:
    if given is None:
        raise illegal("[knn] requires query vector")
    numbers: list[Any] = given if isinstance(given, list) and given else [None]
    try:
        return np.array([float(one) for one in numbers], dtype=np.float32)
    except (TypeError, ValueError):
        raise Fault(400, "x_content_parse_exception", "[knn] failed to parse field [vector]") from None


def _matching(snapshot: Snapshot, query: TQuery) -> Any:
    """Return the sequence numbers of the documents that a filter matches."""
    searcher = snapshot.searcher
    silent = TQuery.const_score_query(query, 0.0)
    hits = searcher.search(silent, max(1, searcher.num_docs), count=False).hits
    return np.array(snapshot.shard.numbers(searcher, [address for _, address in hits]), dtype=np.int64)


def _failed(snapshot: Snapshot, reason: str) -> Fault:
    return shard_fault(f"failed to create query: {reason}", snapshot.name, snapshot.row.uuid)
