"""An HTTP server that answers every search alike, and records what it is asked."""

from contextlib import AbstractContextManager

from tests.rankings import response_of
from tests.rerank_server import Received, Reply, RerankServer, answering

MAPPING = {"articles": {"mappings": {"properties": {"title": {"type": "text"}, "text": {"type": "text"}}}}}


def answer(received: Received) -> Reply:
    mapping = {} if received.path == "/" or "/_settings/" in received.path else MAPPING
    response = response_of(["a", "bbb", "cc"])
    for hit in response["hits"]["hits"]:
        hit["_index"] = "articles"
    content = mapping if received.method == "GET" else response
    return Reply(content, headers=(("Content-Type", "application/json"), ("X-Elastic-Product", "Elasticsearch")))


def recording_engine() -> AbstractContextManager[RerankServer]:
    """Return a server of this process."""
    return answering(answer)
