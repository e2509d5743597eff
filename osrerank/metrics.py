"""Prometheus metrics of clients and workers. They are in prometheus_client's default registry."""

from prometheus_client import Counter, Gauge, Histogram, start_http_server

SEARCH_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""The upper bounds of the histogram buckets for the duration of a search, in seconds."""

SEARCHES = Counter(
    "osrerank_searches_total",
    "Searches with reranking, by whether it was applied: true, false, partial or no_hits.",
    ["applied"],
)
RERANK_SECONDS = Histogram(
    "osrerank_rerank_seconds",
    "Wall time of reranking one search, without the first pass.",
    buckets=SEARCH_BUCKETS,
)
NOT_RERANKED = Counter(
    "osrerank_not_reranked_total",
    "Searches that were not reranked, or only in part, by reason code.",
    ["reason"],
)
INTERNAL_ERRORS = Counter(
    "osrerank_internal_errors_total",
    "Searches that met a bug in osrerank: they were not reranked, or their order or vectors may not have been saved.",
)
BOOSTS = Counter(
    "osrerank_boosts_total",
    "Searches with boosts in their query, by whether the boosts were applied: true or false.",
    ["applied"],
)
SEARCHED_TEXTS = Counter(
    "osrerank_searched_texts_total",
    "Candidates' texts by their vectors: known (stored), encoded (by the search), lacking (not encoded in time).",
    ["vectors"],
)
VECTOR_LABELS = frozenset({"known", "encoded", "lacking"})
"""The values of the label ``vectors`` of `SEARCHED_TEXTS`. They are also keys of a stage's report."""
SHADOW_SEARCHES = Counter(
    "osrerank_shadow_searches_total",
    "Searches in shadow mode, by whether their second run applied reranking: true, false or partial; or dropped.",
    ["applied"],
)
SHADOW_SECONDS = Histogram(
    "osrerank_shadow_seconds",
    "Wall time of searches in shadow mode when run again with reranking, including the first pass.",
    buckets=SEARCH_BUCKETS,
)
SHADOW_OVERLAP = Histogram(
    "osrerank_shadow_overlap",
    "Share of the top ten hits that stay in the top ten after reranking, in shadow mode.",
    buckets=(0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1),
)

# Metrics of each process in which a model runs.
COMPUTE_SECONDS = Histogram(
    "osrerank_compute_seconds",
    "Wall time of computing one batch.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
)
HALVINGS = Counter(
    "osrerank_batch_halvings_total", "Batches that were halved after a failure, such as a lack of memory or a bad text."
)

# Metrics of a client that sends its pairs to workers. A chunk is one message, with some of a search's pairs.
CHUNKS_RESENT = Counter("osrerank_chunks_resent_total", "Chunks that were sent again because a worker lost them.")
CHUNKS_LATE = Counter("osrerank_chunks_late_total", "Chunks without a reply at their search's deadline.")
OVERLOADED = Counter(
    "osrerank_overloaded_total", "Searches that were refused because too many chunks were waiting for workers."
)
BROKER_FAILURES = Counter("osrerank_broker_failures_total", "Failed requests of a client to the broker.")
BROKER_AWAY = Gauge(
    "osrerank_broker_away", "1 while a client sends no chunks because the broker does not respond, else 0.", ["model"]
)
WORKERS = Gauge("osrerank_workers", "Workers that accepted chunks when a client last read their heartbeats.", ["model"])
MESSAGES_REFUSED = Counter(
    "osrerank_messages_refused_total",
    "Messages between clients and workers that were refused: request, reply or heartbeat, and why.",
    ["message", "reason"],
)

# Metrics that `Client.coverage`, `Client.is_warm` and ``/ready`` set when they count the documents with vectors.
VECTORS_DOCUMENTS = Gauge("osrerank_vectors_documents", "Documents of an index at the last count.", ["index"])
VECTORS_LACKING = Gauge(
    "osrerank_vectors_lacking_documents", "Documents without vectors of an index at the last count.", ["index"]
)

# Metrics of a client that scores through a rerank server.
ENDPOINT_REQUESTS = Counter(
    "osrerank_endpoint_requests_total",
    "Batches for a rerank server, by outcome: scored, failed or late (past their deadline); and retried attempts.",
    ["outcome"],
)
ENDPOINT_SECONDS = Histogram(
    "osrerank_endpoint_seconds",
    "Time from sending a request to a rerank server to its scores.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)

# Metrics of a worker.
WORKER_CHUNKS = Counter("osrerank_worker_chunks_total", "Chunks that a worker received, by outcome.", ["outcome"])
WORKER_PAIRS = Counter("osrerank_worker_pairs_total", "Pairs that a worker computed.")
QUEUE_WAIT_SECONDS = Histogram(
    "osrerank_worker_queue_wait_seconds",
    "Time from sending a chunk to the start of its scoring.",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
WORKER_SECONDS = Histogram(
    "osrerank_worker_chunk_seconds",
    "Time from the start of a chunk's scoring to its reply, including waiting for the model.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)


def serve_metrics(port: int) -> None:
    """Serve all metrics at ``http://HOST:port/metrics``. Port 0 starts no server."""
    if port:
        start_http_server(port)
