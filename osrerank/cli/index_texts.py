"""Read the documents of a run from an index, for ``osrerank rerank --index``: runs contain only document ids."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.options import open_client

if TYPE_CHECKING:
    from osrerank.client import Client
    from osrerank.formats.candidates import Texts

DOCUMENTS_PER_REQUEST = 500
"""The number of documents to read in one request."""
TITLE_FIELD = "title"


@contextmanager
def open_index_texts(context: click.Context, index: str | None) -> "Iterator[Texts | None]":
    """Yield a function that reads documents from an index by their ids. If ``index`` is None, yield None."""
    if index is None:
        yield None
        return
    with closing(open_client(context)) as client:
        yield lambda doc_ids: _read_documents(client, index, doc_ids)


def _read_documents(client: "Client", index: str, doc_ids: AbstractSet[str]) -> Iterator[Mapping[str, Any]]:
    """Yield ``{"id": "d1", "text": "...", "title": "..."}`` for each document that the index contains.

    ``text`` joins the model's input fields other than the title.
    """
    from osrerank.response import read_hit_text

    fields = tuple(client.options_of(index).fields or ())
    body_fields = [name for name in fields if name != TITLE_FIELD]
    sorted_ids = sorted(doc_ids)
    for start in range(0, len(sorted_ids), DOCUMENTS_PER_REQUEST):
        ids = sorted_ids[start : start + DOCUMENTS_PER_REQUEST]
        request = {"query": {"ids": {"values": ids}}, "size": len(ids), "_source": list(fields)}
        for hit in client.search(index=index, body=request)["hits"]["hits"]:
            title = read_hit_text(hit, (TITLE_FIELD,)) if TITLE_FIELD in fields else None
            yield {"id": hit["_id"], "text": read_hit_text(hit, body_fields) or "", "title": title}
