"""A small index whose text is in fields of other names than ``title`` and ``text``."""

from typing import Any

from osrerank import Client

ARTICLES = [
    {"headline": "Low blood pressure at noon", "body": "It falls when the heart is slow and salt short.", "url": "/a"},
    {"headline": "Storms over the sea", "body": "The wind rose. Blood and pressure were low.", "url": "/b"},
]


def fill(client: Client, name: str, documents: list[dict[str, Any]]) -> None:
    """Index documents, each under its place."""
    actions = [{"index": {"_index": name, "_id": str(place)}} for place in range(len(documents))]
    lines = [line for pair in zip(actions, documents, strict=True) for line in pair]
    client.bulk(body=lines, refresh=True)
