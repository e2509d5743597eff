"""Indices of a few documents; one whose text is in fields of other names than ``title`` and ``text``."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from osrerank import Client, connect

ARTICLES = [
    {"headline": "Low blood pressure at noon", "body": "It falls when the heart is slow and salt short.", "url": "/a"},
    {"headline": "Storms over the sea", "body": "The wind rose. Blood and pressure were low.", "url": "/b"},
]


def fill(client: Client, name: str, documents: Sequence[dict[str, Any]] | Mapping[str, dict[str, Any]]) -> None:
    """Index documents, each under its id, or its place where there are no ids."""
    by_id = (
        documents
        if isinstance(documents, Mapping)
        else {str(index): document for index, document in enumerate(documents)}
    )
    lines = [line for doc_id, source in by_id.items() for line in ({"index": {"_index": name, "_id": doc_id}}, source)]
    client.bulk(body=lines, refresh=True)


@contextlib.contextmanager
def filled(
    url: str, name: str, documents: Mapping[str, dict[str, Any]], body: Mapping[str, Any] | None = None, **options: Any
) -> Iterator[Client]:
    """Yield a client of an index of documents that is there as long; ``body`` is that of its creation."""
    with connect(url, **options) as client:
        client.indices.delete(index=name, ignore_unavailable=True)
        client.indices.create(index=name, body=body)
        fill(client, name, documents)
        assert client.count(index=name)["count"] == len(documents)
        yield client
        client.indices.delete(index=name)


@contextlib.contextmanager
def watched(client: Client) -> Iterator[list[tuple[str, Any]]]:
    """Yield a list that gets the path and the body of each request of a client."""
    requests: list[tuple[str, Any]] = []
    perform = client.transport.perform_request

    def watching(method: str, url: str, *arguments: Any, **options: Any) -> Any:
        requests.append((url, options.get("body")))
        return perform(method, url, *arguments, **options)

    client.transport.perform_request = watching  # type: ignore[method-assign]
    yield requests
    client.transport.perform_request = perform  # type: ignore[method-assign]
