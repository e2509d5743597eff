"""Read retrievers: the part of an Elasticsearch search body that finds the hits in place of a query.

Elasticsearch: Retrievers, https://www.elastic.co/docs/solutions/search/retrievers-overview
"""

from collections.abc import Iterator, Mapping
from typing import Any

WINDOW_PARAMETERS = {
    "knn": "k",
    "rescorer": "window_size",
    "rrf": "rank_window_size",
    "linear": "rank_window_size",
    "diversify": "size",
}
"""The parameter of each retriever for the number of hits that it ranks. Another number would change the hits' order."""
DEFAULT_WINDOW = 10
"""The default of these parameters."""
UNSUPPORTED_RETRIEVERS = {
    "text_similarity_reranker": "text_similarity_reranker ranks the hits with a model itself",
    "pinned": "pinned hits keep their places",
    "rule": "the hits that query rules pin keep their places",
}
"""Retrievers whose hits are not reranked, and the reasons."""


def read_queries(body: Mapping[str, Any]) -> Any:
    """Return the query of a search body, or the queries of its retriever as a list of clauses."""
    if not body.get("retriever"):
        return body.get("query")
    return [query for _, content in _walk_retrievers(body["retriever"]) for query in _read_query_clauses(content)]


def explain_unsupported_retriever(body: Mapping[str, Any], end: int) -> str:
    """Return the reason why the hits of a body's retriever cannot be reranked. Empty if they can.

    ``end`` is the rank of the last hit of the caller's page.
    """
    kinds = [kind for kind, _ in _walk_retrievers(body.get("retriever"))]
    for kind in kinds:
        if kind in UNSUPPORTED_RETRIEVERS:
            return UNSUPPORTED_RETRIEVERS[kind]
    for kind in kinds:
        if kind != "standard" and kind not in WINDOW_PARAMETERS:
            return f"the retriever {kind} may rank the hits itself"
    outer_retriever = body.get("retriever") or {}
    sort_keys = {"sort", "search_after"} & (outer_retriever.get("standard") or {}).keys()
    if sort_keys:
        return f"the retriever standard has {' and '.join(sorted(sort_keys))}, which reranking would replace"
    window = read_retriever_window(body)
    if window is not None and window < end:
        return f"the page extends past the top {window} hits, which are all that the retriever ranks"
    return ""


def read_retriever_window(body: Mapping[str, Any]) -> int | None:
    """Return the number of hits that a body's retriever ranks, or None if it ranks as many as are requested."""
    kind, content = next(_walk_retrievers(body.get("retriever")), ("standard", {}))
    if kind == "standard":
        return None
    rankers: Any = content
    if kind == "rescorer":
        rankers = content.get("rescore") or {}  # one rescorer's settings, or a list
    if not isinstance(rankers, list):
        rankers = [rankers]
    windows = [ranker.get(WINDOW_PARAMETERS[kind], DEFAULT_WINDOW) for ranker in rankers]
    return min((window for window in windows if isinstance(window, int)), default=DEFAULT_WINDOW)


def read_retriever_page_size(body: Mapping[str, Any], offset: int) -> int | None:
    """Return the size of the page if a body names none, or None if it is the engine's usual default.

    Retrievers that combine or reorder the hits of others show all hits that they rank, from ``offset`` on.
    """
    kind, _ = next(_walk_retrievers(body.get("retriever")), ("standard", {}))
    window = None if kind in ("standard", "knn") or kind not in WINDOW_PARAMETERS else read_retriever_window(body)
    return window - offset if window is not None and window > offset else None


def _walk_retrievers(retriever: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the kind and the content of a retriever, then of the retrievers inside it."""
    if not isinstance(retriever, Mapping):
        return
    for kind, content in retriever.items():
        if not isinstance(content, Mapping):
            continue
        yield kind, content
        listed_children = content.get("retrievers")
        if not isinstance(listed_children, list):
            listed_children = []
        for child in [content.get("retriever"), *listed_children]:
            # the retriever linear has {"retriever": child, "weight": 2.0} in its list instead of the child
            is_weighted = isinstance(child, Mapping) and isinstance(child.get("retriever"), Mapping)
            yield from _walk_retrievers(child["retriever"] if is_weighted else child)


def _read_query_clauses(content: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the query of one retriever. A string becomes a ``multi_match`` clause over the retriever's fields."""
    query = content.get("query")
    if isinstance(query, str):
        yield {"multi_match": {"query": query, "fields": content.get("fields") or []}}
    elif query is not None:
        yield query
