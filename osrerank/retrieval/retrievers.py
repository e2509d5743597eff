"""Read Elasticsearch's retrievers, which find the hits of a search in place of its query.

Elasticsearch: Retrievers, https://www.elastic.co/docs/solutions/search/retrievers-overview
"""

from collections.abc import Iterator, Mapping
from typing import Any

WINDOWS = {
    "knn": "k",
    "rescorer": "window_size",
    "rrf": "rank_window_size",
    "linear": "rank_window_size",
    "diversify": "size",
}
"""Retriever -> its parameter for the number of hits that it ranks; another number would change their order."""
WINDOW = 10
"""The default of this parameter."""
RANKING_KINDS = {
    "text_similarity_reranker": "text_similarity_reranker ranks the hits with a model itself",
    "pinned": "pinned hits keep their places",
    "rule": "the hits that query rules pin keep their places",
}
"""Retriever -> the reason why its hits are not reranked."""


def queries_of(body: Mapping[str, Any]) -> Any:
    """Return the query of a search body, or the queries of its retriever as a list of clauses."""
    if not body.get("retriever"):
        return body.get("query")
    return [query for _, content in _retrievers(body["retriever"]) for query in _clauses_of(content)]


def obstacle_of(body: Mapping[str, Any], end: int) -> str:
    """Return the reason why the hits of a body's retriever cannot be reranked; empty if they can.

    Args:
        body: the search body.
        end: the rank of the last hit on the caller's page.
    """
    kinds = [kind for kind, _ in _retrievers(body.get("retriever"))]
    if reason := next((RANKING_KINDS[kind] for kind in kinds if kind in RANKING_KINDS), ""):
        return reason
    if unknown_kind := next((kind for kind in kinds if kind not in {"standard", *WINDOWS}), ""):
        return f"the retriever {unknown_kind} may rank the hits itself"
    outer = body.get("retriever") or {}
    if sorting := {"sort", "search_after"} & (outer.get("standard") or {}).keys():
        return f"the retriever standard has {' and '.join(sorted(sorting))}, which reranking would replace"
    window = window_of(body)
    if window is not None and window < end:
        return f"the page extends past the top {window} hits, which are all that the retriever ranks"
    return ""


def window_of(body: Mapping[str, Any]) -> int | None:
    """Return how many hits a body's retriever ranks; None if it ranks as many as the request asks for."""
    kind, content = next(_retrievers(body.get("retriever")), ("standard", {}))
    if kind == "standard":
        return None
    retrievers = content.get("rescore") if kind == "rescorer" else content
    windows = [
        retriever.get(WINDOWS[kind], WINDOW)
        for retriever in (retrievers if isinstance(retrievers, list) else [retrievers or {}])
    ]
    return min((window for window in windows if isinstance(window, int)), default=WINDOW)


def _retrievers(retriever: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the kind and the content of a retriever, then of the retrievers inside it."""
    if not isinstance(retriever, Mapping):
        return
    for kind, content in retriever.items():
        if not isinstance(content, Mapping):
            continue
        yield kind, content
        inner = content.get("retrievers")
        for child in [content.get("retriever"), *(inner if isinstance(inner, list) else ())]:
            is_weighted = isinstance(child, Mapping) and isinstance(child.get("retriever"), Mapping)  # of ``linear``
            yield from _retrievers(child["retriever"] if is_weighted else child)


def _clauses_of(content: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the clauses of one retriever; a text becomes a ``multi_match`` clause over the retriever's fields."""
    query = content.get("query")
    if isinstance(query, str):
        yield {"multi_match": {"query": query, "fields": content.get("fields") or []}}
    elif query is not None:
        yield query
