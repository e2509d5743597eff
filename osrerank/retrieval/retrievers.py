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
"""Retriever -> its part that says how many hits it ranks; with another number it would rank them differently."""
WINDOW = 10
"""The window of a retriever that names none."""
LEFT = {
    "text_similarity_reranker": "text_similarity_reranker ranks the hits with a model itself",
    "pinned": "pinned hits keep their places",
    "rule": "the hits that query rules pin keep their places",
}
"""Retriever -> why its hits are not reranked."""


def queries_of(body: Mapping[str, Any]) -> Any:
    """Return the query of a search body, or the queries that its retriever searches for, as clauses."""
    retriever = body.get("retriever")
    return [query for _, content in _inside(retriever) for query in _own(content)] if retriever else body.get("query")


def obstacle_of(body: Mapping[str, Any], end: int) -> str:
    """Return why the hits of a body's retriever are not reranked; empty if they are, or if it has none.

    Args:
        body: the search body.
        end: the rank of the last hit on the caller's page.
    """
    kinds = [kind for kind, _ in _inside(body.get("retriever"))]
    if why := next((LEFT[kind] for kind in kinds if kind in LEFT), ""):
        return why
    if other := next((kind for kind in kinds if kind not in {"standard", *WINDOWS}), ""):
        return f"the retriever {other} may rank the hits itself"
    outer = body.get("retriever") or {}
    if parts := {"sort", "search_after"} & (outer.get("standard") or {}).keys():
        return f"the retriever standard has {' and '.join(sorted(parts))}, which reranking would replace"
    window = window_of(body)
    if window is not None and window < end:
        return f"the page ends below the {window} hits that the retriever ranks"
    return ""


def window_of(body: Mapping[str, Any]) -> int | None:
    """Return how many hits a body's retriever ranks; None if it ranks as many as are asked for."""
    kind, content = next(_inside(body.get("retriever")), ("standard", {}))
    if kind == "standard":
        return None
    parts = content.get("rescore") if kind == "rescorer" else content
    windows = [part.get(WINDOWS[kind], WINDOW) for part in (parts if isinstance(parts, list) else [parts or {}])]
    return min((window for window in windows if isinstance(window, int)), default=WINDOW)


def _inside(retriever: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the kind and the content of a retriever, and of those inside it."""
    if not isinstance(retriever, Mapping):
        return
    for kind, content in retriever.items():
        if not isinstance(content, Mapping):
            continue
        yield kind, content
        inner = content.get("retrievers")
        for part in [content.get("retriever"), *(inner if isinstance(inner, list) else ())]:
            is_weighted = isinstance(part, Mapping) and isinstance(part.get("retriever"), Mapping)  # of ``linear``
            yield from _inside(part["retriever"] if is_weighted else part)


def _own(content: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the clauses of a retriever itself; a text that it searches in fields is one, too."""
    query = content.get("query")
    if isinstance(query, str):
        yield {"multi_match": {"query": query, "fields": content.get("fields") or []}}
    elif query is not None:
        yield query
