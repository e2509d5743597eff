"""Prometheus metrics of clients and workers, in the default registry."""

from prometheus_client import Counter, Histogram, start_http_server

SEARCHES = Counter("osrerank_searches_total", "Searches that asked for reranking, by what became of them.", ["applied"])
RERANK_SECONDS = Histogram(
    "osrerank_rerank_seconds",
    "Wall time of reranking one search, without the first pass.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)

# Where a model runs.
BATCH_TOKENS = Histogram(
    "osrerank_batch_tokens",
    "Tokens of a batch, without padding.",
    buckets=(32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536),
)
PADDING_TOKENS = Counter("osrerank_padding_tokens_total", "Tokens that were computed to fill up batches.")
COMPUTE_SECONDS = Histogram(
    "osrerank_compute_seconds",
    "Wall time of computing one batch.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
)
HALVINGS = Counter("osrerank_batch_halvings_total", "Batches that failed, of memory or of a bad text, and were halved.")

# A client that sends its pairs to workers.
CHUNKS_SENT = Counter("osrerank_chunks_sent_total", "Chunks that were sent to workers.")
CHUNKS_RESENT = Counter("osrerank_chunks_resent_total", "Chunks that were sent again because a worker lost them.")
CHUNKS_LATE = Counter("osrerank_chunks_late_total", "Chunks without an answer at their search's deadline.")
OVERLOADED = Counter("osrerank_overloaded_total", "Searches that were not sent because too much was waiting.")
ROUND_TRIP_SECONDS = Histogram(
    "osrerank_chunk_round_trip_seconds",
    "From a chunk's sending to its answer, without the time that the worker computed.",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)

# A worker.
WORKER_CHUNKS = Counter(
    "osrerank_worker_chunks_total", "Chunks that came to a worker, by what became of them.", ["outcome"]
)
WORKER_PAIRS = Counter("osrerank_worker_pairs_total", "Pairs that a worker computed.")
QUEUE_WAIT_SECONDS = Histogram(
    "osrerank_worker_queue_wait_seconds",
    "From a chunk's sending to the beginning of the work on it.",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
WORKER_SECONDS = Histogram(
    "osrerank_worker_chunk_seconds",
    "From the beginning of the work on a chunk to its answer, waiting for the model included.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)


def serve_metrics(port: int) -> None:
    """Show all metrics at ``http://HOST:port/metrics``; port 0 shows them nowhere."""
    if port:
        start_http_server(port)


def count_search(seconds: float, *, applied: bool | str) -> None:
    """Count a search that asked for reranking: applied is True, False or "partial"."""
    SEARCHES.labels(str(applied).lower()).inc()
    RERANK_SECONDS.observe(seconds)
