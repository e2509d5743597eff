"""Prometheus metrics of the server, in the default registry."""

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter("osrerank_http_requests_total", "Requests answered, by route and status.", ["route", "status"])
SECONDS = Histogram(
    "osrerank_http_request_seconds",
    "Wall time from a request's first byte to its answer's last, by route.",
    ["route"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
DOCUMENTS = Counter("osrerank_http_documents_total", "Documents scored, by where the score came from.", ["score"])
HELD = Gauge("osrerank_http_held_documents", "Documents waiting or being scored.")
