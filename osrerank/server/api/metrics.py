"""The Prometheus metrics of the rerank API: requests, response times and documents.

For example, ``REQUESTS.labels("/v1/rerank", 200).inc()`` counts a successful request.
"""

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter("osrerank_http_requests_total", "Requests, by route and response status.", ["route", "status"])
REQUEST_SECONDS = Histogram(
    "osrerank_http_request_seconds",
    "Wall time from a request's first byte to its response's last, by route.",
    ["route"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
DOCUMENTS = Counter(
    "osrerank_http_documents_total", "Documents, by how they got a score: inferred, cached or failed.", ["score"]
)
HELD_DOCUMENTS = Gauge("osrerank_http_held_documents", "Documents waiting or being scored.")
