"""Read documents' texts from an index, for candidates of which only the ids are known."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.options import open_client

if TYPE_CHECKING:
    from osrerank.client import Client
    from osrerank.formats.candidates import Texts

AT_ONCE = 500
"""How many documents are requested at a time."""
TITLE = "title"


@contextmanager
def open_index_texts(context: click.Context, index: str | None) -> "Iterator[Texts | None]":
    """Yield a function that reads documents from an index by their ids; None if no index is named."""
    if index is None:
        yield None
        return
    with closing(open_client(context)) as client:
        yield lambda doc_ids: _documents(client, index, doc_ids)


def _documents(client: "Client", index: str, doc_ids: AbstractSet[str]) -> Iterator[Mapping[str, Any]]:
    """Yield those documents that the index has, with the texts of the fields that models read."""
    from osrerank.response import hit_text

    fields = tuple(client.options_of(index).fields or ())
    body, ordered = [name for name in fields if name != TITLE], sorted(doc_ids)
    for start in range(0, len(ordered), AT_ONCE):
        ids = ordered[start : start + AT_ONCE]
        request = {"query": {"ids": {"values": ids}}, "size": len(ids), "_source": list(fields)}
        for hit in client.search(index=index, body=request)["hits"]["hits"]:
            title = hit_text(hit, (TITLE,)) if TITLE in fields else None
            yield {"id": hit["_id"], "text": hit_text(hit, body) or "", "title": title}
