"""What a search's query requires of a document besides matching its text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

FULL_TEXT = frozenset({
    "combined_fields", "common", "hybrid", "intervals", "knn", "match", "match_bool_prefix", "match_phrase",
    "match_phrase_prefix", "more_like_this", "multi_match", "neural", "neural_sparse", "query_string",
    "simple_query_string", "span_containing", "span_first", "span_multi", "span_near", "span_not", "span_or",
    "span_term", "span_within",
})  # fmt: skip
"""Queries that score a text or a vector; what they match is the first pass's, and no condition."""
_WRAPPERS = {"function_score": "query", "script_score": "query", "boosting": "positive"}
"""Compound query -> the clause in it that a document must match."""
_COMPOUND = {"bool", "constant_score", "dis_max", "has_child", "has_parent", "nested", *_WRAPPERS}
_CLAUSES = ("must", "should", "filter", "must_not", "queries", "query", "positive")
_NOTHING = ("match_all",)


def conditions(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a clause for what a search's documents must be, whatever their text says; None for nothing.

    That is the ``filter`` and ``must_not`` clauses of its ``bool`` queries, those clauses of ``must`` in which no text
    is searched, a query without any text as a whole, and the ``post_filter``.

    Args:
        body: of the search.
    """
    required = list(_required(body.get("query") or {"match_all": {}}))
    if body.get("post_filter"):
        required.append({"bool": {"filter": [body["post_filter"]]}})
    filters = [clause for one in required for clause in _listed(one["bool"].get("filter"))]
    excluded = [clause for one in required for clause in _listed(one["bool"].get("must_not"))]
    found = {name: clauses for name, clauses in (("filter", filters), ("must_not", excluded)) if clauses}
    return {"bool": found} if found else None


def _required(query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield ``bool`` clauses with ``filter`` or ``must_not`` alone, all of which documents must match."""
    kind, content = _parts(query)
    if kind == "bool":
        yield from _required_by_bool(content)
    elif kind in _WRAPPERS:
        yield from _required(content.get(_WRAPPERS[kind]) or {})
    elif kind not in _NOTHING and not _searches_text(query):
        yield {"bool": {"filter": [dict(query)]}}


def _required_by_bool(content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    own = {name: _listed(content.get(name)) for name in ("filter", "must_not")}
    yield {"bool": {name: clauses for name, clauses in own.items() if clauses}}
    for clause in _listed(content.get("must")):
        yield from _required(clause)
    should = _listed(content.get("should"))
    least = content.get("minimum_should_match", 0 if content.get("must") or content.get("filter") else 1)
    if should and least not in (0, "0") and not any(map(_searches_text, should)):
        yield {"bool": {"filter": [{"bool": {"should": should, "minimum_should_match": least}}]}}


def _searches_text(query: Mapping[str, Any]) -> bool:
    """Return whether a clause, or one within it, scores a text."""
    kind, content = _parts(query)
    if kind not in _COMPOUND:
        return kind in FULL_TEXT
    return any(_searches_text(clause) for name in _CLAUSES for clause in _listed(content.get(name)))


def _parts(query: Mapping[str, Any]) -> tuple[str, Any]:
    """Return a clause's kind and what it says; an empty clause matches everything."""
    return next(iter(query.items())) if query else ("match_all", {})


def _listed(clauses: Any) -> Sequence[Any]:
    """Return clauses as a list: one may be given by itself."""
    if not clauses:
        return []
    return [clauses] if isinstance(clauses, Mapping) else list(clauses)
