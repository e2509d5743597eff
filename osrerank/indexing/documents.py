"""Read an index's documents as a model does."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from itertools import islice
from typing import Any, NamedTuple

from osrerank.client import Client
from osrerank.indexing.side_index import every_hit
from osrerank.retrieval.fields import Fields
from osrerank.retrieval.requests import is_embedded
from osrerank.search.coverage import EVERY, body_of, texts_of
from osrerank.service import no_vectors
from osrerank.types import LongText
from osrerank.vectors.documents import DocumentVectors

BATCH = 64
"""Documents encoded at a time."""
PAGE = 2000
"""Documents per request to the embedded engine, which scans the whole index for each request."""


class Batch(NamedTuple):
    """Some documents of an index, as the model reads them.

    Attributes:
        texts: index -> a text for each document; long ones may be read by passages.
        documents: how many there are.
        empty: of those, how many have no text.
    """

    texts: Mapping[str, list[str | LongText]]
    documents: int
    empty: int

    @property
    def every(self) -> list[str | LongText]:
        """The texts of all indices."""
        return [text for texts in self.texts.values() for text in texts]


def batches_of(
    client: Client, index: str, query: Mapping[str, Any] = EVERY, *, within: str | None = None
) -> Iterator[Batch]:
    """Yield an index's documents as a model reads them.

    Args:
        client: of the index.
        index: its name, an alias or a pattern, which says how documents are read.
        query: which documents.
        within: the one of the indices that is read; None for all.
    """
    options, fields = client.options_of(index), client.fields_of(index)
    documents = documents_of(client, within or index, fields, query)
    with client.searcher.serving(index) as service:
        while hits := list(islice(documents, BATCH)):
            texts: defaultdict[str, list[str | LongText]] = defaultdict(list)
            empty = 0
            for hit, (_, text) in zip(hits, texts_of(service, options, fields, hits), strict=True):
                if text is None:
                    empty += 1
                else:
                    texts[hit["_index"]].append(text)
            yield Batch(texts, len(hits), empty)


def vectors_of(client: Client, index: str | None = None) -> DocumentVectors:
    """Return the source of document vectors for an index's model; without an index, for the client's own.

    Raises:
        ConfigError: the model has no vectors, or the index is a pattern of indices with different models.
        ModelLoadError, MissingDependencyError, WorkerError: the model cannot be loaded.
    """
    defaults = client.searcher.defaults
    options = defaults.base if index is None else defaults.of(index)
    with nullcontext(client.searcher.service) if index is None else client.searcher.serving(index) as service:
        if (vectors := service.vectors_of(options)) is None:
            raise no_vectors(service.model.model)
        return vectors


def documents_of(
    client: Client, index: str, fields: Fields, query: Mapping[str, Any] = EVERY
) -> Iterator[Mapping[str, Any]]:
    """Yield the documents that match a query at the start, as hits in arbitrary order."""
    size = PAGE if is_embedded(client) else BATCH
    return every_hit(client, index, body_of(fields, size, query), is_embedded=is_embedded(client))
