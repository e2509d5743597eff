"""How much of an index has vectors, and what all would cost."""

from dataclasses import dataclass

from osrerank.client import Client
from osrerank.indexing.documents import batches_of, vectors_of
from osrerank.indexing.side_index import side_stores
from osrerank.types import LongText
from osrerank.vectors.records import FetchedVectors

TRIED = 16
"""Texts that are encoded to estimate the cost."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of an index has vectors, from the first texts that the engine returns.

    Attributes:
        documents: of the index.
        texts: how many were looked at, one for each document with text.
        known: how many of these have vectors.
        seconds: estimated time to compute the vectors of the whole index, existing ones included.
        stored: estimated bytes of these vectors, without the store's overhead.
    """

    documents: int
    texts: int
    known: int
    seconds: float
    stored: int

    @property
    def share(self) -> float:
        """Share of the texts looked at that have vectors; 1 if there are no texts."""
        return self.known / self.texts if self.texts else 1.0


def coverage(client: Client, index: str, *, most: int = 1000) -> Coverage:
    """Estimate how much of an index has vectors, and what all would cost; a few texts are encoded for it, not stored.

    Args:
        client: of the index.
        index: its name.
        most: documents to look at.

    Raises:
        ConfigError: the model has no vectors.
        InferenceError: a text could not be encoded.
    """
    vectors = vectors_of(client, index)
    is_on = client.searcher.vectors is not None
    sides = {side.beside: side for side in side_stores(client, [index])} if is_on else {}
    some: list[str | LongText] = []
    asked: set[bytes] = set()
    known: set[bytes] = set()
    read = 0
    for batch in batches_of(client, index):
        for name, texts in batch.texts.items():
            keys, side = vectors.keys_of(texts), sides.get(name)
            source = vectors.with_fetched(FetchedVectors(side.read(keys))) if side else vectors
            asked |= set(keys)
            known |= source.known(keys)
        some, read = some + batch.every, read + batch.documents
        if read >= most:
            break
    documents = int(client.count(index=index)["count"])
    tried = some[:: max(1, len(some) // TRIED)][:TRIED]
    seconds, stored = vectors.cost_of(tried) if tried else (0.0, 0)
    whole = len(some) / max(1, read) * documents / max(1, len(tried))
    return Coverage(documents, len(asked), len(known), seconds * whole, round(stored * whole))
