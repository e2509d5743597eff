"""Prometheus metrics of the client, in the default registry."""

from prometheus_client import Counter, Histogram

SEARCHES = Counter("osrerank_searches_total", "Searches that asked for reranking, by what became of them.", ["applied"])
RERANK_SECONDS = Histogram(
    "osrerank_rerank_seconds",
    "Wall time of reranking one search, without the first pass.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)


def count_search(seconds: float, *, applied: bool | str) -> None:
    """Count a search that asked for reranking: applied is True, False or "partial"."""
    SEARCHES.labels(str(applied).lower()).inc()
    RERANK_SECONDS.observe(seconds)
