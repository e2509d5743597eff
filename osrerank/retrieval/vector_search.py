"""The two searches that find candidates together, in one ``_msearch``: the first pass, and one by vectors."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from osrerank.retrieval.vector_field import VectorField

HEADER = (
    "allow_no_indices", "allow_partial_search_results", "ccs_minimize_roundtrips", "expand_wildcards",
    "ignore_throttled", "ignore_unavailable", "preference", "request_cache", "routing", "search_type",
)  # fmt: skip
"""URL parameters of a search that stand in the header of one of several searches."""
BODY = (
    "_source", "docvalue_fields", "explain", "search_pipeline", "seq_no_primary_term", "sort", "stored_fields",
    "terminate_after", "timeout", "track_scores", "track_total_hits", "version",
)  # fmt: skip
"""URL parameters that stand in its body."""
URL = ("error_trace", "human", "pretty", "request_timeout", "rest_total_hits_as_int", "typed_keys")
"""URL parameters that several searches have, too."""
_LISTS = ("docvalue_fields", "sort", "stored_fields")
_SOURCE = {"_source_includes": "includes", "_source_excludes": "excludes"}
_COPIED = (
    "_source", "derived", "docvalue_fields", "explain", "fields", "script_fields", "seq_no_primary_term", "sort",
    "stored_fields", "timeout", "track_scores", "version",
)  # fmt: skip
"""What of the first pass's body says how a hit looks, or for how long a search may run."""
_REFUSED = {
    "collapse": "collapse shows one hit of each group, which the first pass alone knows",
    "rescore": "rescore has an order of its own",
}


class TwoSearches(NamedTuple):
    """An ``_msearch``.

    Attributes:
        lines: newline-delimited JSON: header and body of the first pass, then of the search by vectors.
        params: of the URL.
        added: names in the ``fields`` of a hit by vectors that nobody but us asked for.
    """

    lines: str
    params: dict[str, Any]
    added: tuple[str, ...]


def obstacle(body: Mapping[str, Any], params: Mapping[str, Any]) -> str:
    """Return what in a first pass's request keeps it from having a second source; empty for nothing."""
    reasons = [why for name, why in _REFUSED.items() if body.get(name)]
    if "hybrid" in (body.get("query") or {}):
        reasons.append("a hybrid query has sources of its own")
    others = sorted(set(params) - {*HEADER, *BODY, *URL, *_SOURCE})
    reasons += [f"the URL parameter {name} is a single search's" for name in others]
    return "; ".join(reasons)


def two_searches(
    body: Mapping[str, Any], params: Mapping[str, Any], field: VectorField, query: Mapping[str, Any], size: int
) -> TwoSearches:
    """Return the first pass and a search by vectors with the same conditions and hits of the same form.

    Args:
        body: the first pass's, as `osrerank.retrieval.first_pass.plan` makes it, without an `obstacle`.
        params: its URL parameters.
        field: the field that has the vectors.
        query: the field's clause for the query's vector, under the first pass's conditions.
        size: documents that are found by their vectors.
    """
    in_url = {name: _in_url(params[name]) for name in URL if name in params}
    header = {name: params[name] for name in HEADER if name in params}
    first = {**body, **_in_body(params)}
    second, added = _by_vectors(first, field, query, size)
    lines = [header, first, header, second]
    return TwoSearches("".join(f"{json.dumps(line)}\n" for line in lines), in_url, added)


def _by_vectors(
    first: Mapping[str, Any], field: VectorField, query: Mapping[str, Any], size: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the body of the search by vectors, and what it adds to the ``fields`` of its hits."""
    body = {name: first[name] for name in _COPIED if name in first}
    body |= {"query": dict(query), "from": 0, "size": size, "track_total_hits": False, "search_pipeline": "_none"}
    if first.get("highlight"):
        body["highlight"] = {"highlight_query": first.get("query") or {"match_all": {}}, **first["highlight"]}
    if field.digest_field is None:
        return body, ()
    asked = [*_names(first.get("docvalue_fields")), *_names(first.get("fields"))]
    hidden = first.get("_source", True) is not True or "stored_fields" in first or "script_fields" in first
    wanted = [name for name in field.fields if hidden and name not in asked]
    body["docvalue_fields"] = [*(first.get("docvalue_fields") or []), field.digest_field]
    if wanted:
        body["fields"] = [*(first.get("fields") or []), *wanted]
    return body, tuple(name for name in (field.digest_field, *wanted) if name not in asked)


def _names(asked: Sequence[Any] | None) -> list[str]:
    """Return the names in a list of fields, which may have formats."""
    return [str(one.get("field")) if isinstance(one, Mapping) else str(one) for one in asked or []]


def _in_body(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a search's URL parameters as its body has them."""
    found = {name: params[name] for name in BODY if name in params}
    found |= {name: _listed(found[name]) for name in _LISTS if name in found}
    if "sort" in found:
        found["sort"] = [_sort_key(one) for one in found["sort"]]
    if found.get("_source") in ("true", "false"):
        found["_source"] = found["_source"] == "true"
    elif isinstance(found.get("_source"), str):
        found["_source"] = _listed(found["_source"])
    filters = {name: _listed(params[long]) for long, name in _SOURCE.items() if long in params}
    return {**found, **({"_source": filters} if filters else {})}


def _sort_key(key: Any) -> Any:
    """Return a sort key as a body has it: ``name:order`` of a URL is an object there."""
    name, colon, order = key.partition(":") if isinstance(key, str) else (key, "", "")
    return {name: order} if colon else key


def _listed(value: Any) -> list[Any]:
    return value.split(",") if isinstance(value, str) else list(value)


def _in_url(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
