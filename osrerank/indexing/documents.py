"""Read the documents of an index, and turn them into texts for a model to encode."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any, NamedTuple

from osrerank.client import Client
from osrerank.indexing.side_index import scroll_hits
from osrerank.options.rerank import Rerank
from osrerank.response import make_candidates
from osrerank.retrieval.fields import SearchFields
from osrerank.retrieval.requests import is_embedded
from osrerank.search.coverage import MATCH_ALL, fetch_body, model_texts
from osrerank.service import RerankService, no_vectors_error
from osrerank.types import LongText
from osrerank.vectors.documents import DocumentVectors

BATCH_SIZE = 64
"""The number of documents in a batch."""
EMBEDDED_PAGE_SIZE = 2000
"""The number of documents per request to the embedded engine. It is large because each request scans the index."""


class DocumentBatch(NamedTuple):
    """A batch of an index's documents, as texts for a model to encode.

    Attributes:
        texts: the texts of each index's documents, such as ``{"news": ["Wings lift."]}``. The model encodes a
            `LongText` passage by passage.
        n_documents: the number of documents in the batch.
        n_empty: the number of documents without text.
    """

    texts: Mapping[str, list[str | LongText]]
    n_documents: int
    n_empty: int

    @property
    def all_texts(self) -> list[str | LongText]:
        """The texts of all indices in one list."""
        return [text for texts in self.texts.values() for text in texts]


def read_batches(
    client: Client, index: str, fields: SearchFields, query: Mapping[str, Any] = MATCH_ALL, *, subset: str | None = None
) -> Iterator[DocumentBatch]:
    """Yield the documents of indices as batches of texts.

    Args:
        client: a client of the indices.
        index: a name, an alias or a pattern. Its rerank options decide how documents become texts.
        fields: the fields to read.
        query: the query for the documents to read.
        subset: the indices to read among those that ``index`` stands for, separated by commas. If None, read all.
    """
    options = client.options_of(index)
    documents = scan_documents(client, subset or index, fields, query)
    with client.searcher.service_for(index) as service:
        while hits := list(islice(documents, BATCH_SIZE)):
            yield make_batch(service, options, fields, hits)


def make_batch(
    service: RerankService, options: Rerank, fields: SearchFields, hits: Sequence[Mapping[str, Any]]
) -> DocumentBatch:
    """Return hits as a batch of texts."""
    texts: defaultdict[str, list[str | LongText]] = defaultdict(list)
    n_empty = 0
    for hit, (_candidate, text) in zip(hits, model_texts(service, options, fields, hits), strict=True):
        if text is None:
            n_empty += 1
        else:
            texts[hit["_index"]].append(text)
    return DocumentBatch(texts, len(hits), n_empty)


def document_vectors(client: Client, index: str | None = None) -> DocumentVectors:
    """Return the document vectors of an index's model, or of the client's own model if the index is None.

    Raises:
        ConfigError: the model has no vectors, or the index is a pattern of indices with different models.
        ModelLoadError, MissingDependencyError, WorkerError: the model cannot be loaded.
    """
    defaults = client.searcher.defaults
    options = defaults.base if index is None else defaults.options_for(index)
    searcher = client.searcher
    opened = nullcontext(searcher.service) if index is None else searcher.service_for(index)
    with opened as service:
        vectors = service.load_vectors(options)
        if vectors is None:
            raise no_vectors_error(service.model.model)
        return vectors


def scan_documents(
    client: Client, index: str, fields: SearchFields, query: Mapping[str, Any] = MATCH_ALL
) -> Iterator[Mapping[str, Any]]:
    """Yield the documents that match a query, as hits in arbitrary order. Later changes of the index are ignored."""
    page_size = EMBEDDED_PAGE_SIZE if is_embedded(client) else BATCH_SIZE
    return scroll_hits(client, index, fetch_body(fields, page_size, query))


def sample_texts(client: Client, index: str, fields: SearchFields, count: int) -> list[str]:
    """Return the texts of at most ``count`` documents of an index, as a search gives them to the model."""
    hits = list(islice(scan_documents(client, index, fields), count))
    candidates = make_candidates(hits, fields.model_fields, fields_by_index=fields.model_fields_by_index(None))
    return [candidate.text for candidate in candidates if candidate.text]
