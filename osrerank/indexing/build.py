"""Compute the document vectors of a whole index beforehand."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from osrerank._progress import shown
from osrerank.client import Client
from osrerank.errors import ConfigError
from osrerank.indexing.changes import Changes
from osrerank.indexing.documents import batches_of, vectors_of
from osrerank.indexing.side_index import IndexStore, side_stores
from osrerank.search.coverage import EVERY
from osrerank.vectors.documents import DocumentVectors

StoreName = Literal["file", "redis", "index"]
"""Where vectors are stored: in a file, in Redis, or in a side index."""


@dataclass(frozen=True, slots=True)
class Built:
    """Counts of a build of document vectors.

    Attributes:
        documents: how many of the index's documents were read.
        texts: how many texts the model reads of them: whole documents, or passages.
        encoded: how many of these texts had no record and were encoded.
        empty: how many documents have no text in the fields that are read.
    """

    documents: int = 0
    texts: int = 0
    encoded: int = 0
    empty: int = 0

    def plus(self, documents: int, texts: int, encoded: int, empty: int) -> "Built":
        """Return these counts with those of a batch added."""
        return Built(self.documents + documents, self.texts + texts, self.encoded + encoded, self.empty + empty)

    def __str__(self) -> str:
        empty = f"; {self.empty:,} documents have no text in the fields that are read" if self.empty else ""
        return f"{self.documents:,} documents, {self.texts:,} texts, {self.encoded:,} of them encoded now{empty}"


def build_vectors(
    client: Client,
    index: str,
    *,
    to: StoreName | None = None,
    since: str = "",
    report: Callable[[Built, int], None] = lambda _done, _all: None,
) -> Built:
    """Compute and store the vectors that an index's documents lack.

    What its searches read is encoded. An interrupted build continues where it stopped, as fast as documents are read.

    Args:
        client: a client of the index; its settings name the model and the store.
        index: the index's name.
        to: where to store the vectors; by default in the side index on a cluster, else in the settings' store.
        since: a date or number field that grows with each change. Only documents without it, or changed since the
            last such build, are read.
        report: called after each batch with the counts so far and the number of documents to read.

    Raises:
        ConfigError: the model has no vectors, vectors are off or not stored there, or ``since`` cannot be used.
        OsrerankError: a text cannot be encoded, or the store accepts nothing.
    """
    vectors, done = vectors_of(client, index), Built()
    sides = _sides(client, index, to, vectors)
    changes = [Changes.of(client, side, since, client.options_of(index)) for side in sides.values()] if since else []
    if since and not sides:
        raise ConfigError("since needs a side index: leave it out", setting="since", source="flag")
    queries = {change.side.beside: change.query for change in changes} if changes else {index: dict(EVERY)}
    count = sum(int(client.count(index=name, body={"query": query})["count"]) for name, query in queries.items())
    for within, query in queries.items():
        for batch in batches_of(client, index, query, within=within):
            kept = [vectors.remember(texts, sides.get(name)) for name, texts in batch.texts.items()]
            texts, encoded = (sum(numbers) for numbers in zip(*kept, strict=True)) if kept else (0, 0)
            done = done.plus(batch.documents, texts, encoded, batch.empty)
            report(done, count)
    for change in changes:
        change.keep()
    for side in sides.values():
        side.refresh()
    return done


def _sides(client: Client, index: str, to: StoreName | None, vectors: DocumentVectors) -> dict[str, IndexStore]:
    """Return the side indices that a build writes to, by index name; empty if it writes to the settings' store.

    Raises:
        ConfigError: the settings name another store.
    """
    if to == "index" or (to is None and client.searcher.vectors is not None):
        return {side.beside: side for side in side_stores(client, [index], vectors.label)}
    if to is not None and (vectors.store is None or vectors.store.name != to):
        reason = f"vectors are not stored in {to}: set OSRERANK_VECTORS={to}"
        raise ConfigError(reason, setting="vectors", source="--to")
    return {}


def build_on_screen(client: Client, index: str, *, to: StoreName | None = None, since: str = "") -> Built:
    """Run `build_vectors` and show its progress on standard error: a bar on a terminal, else lines."""
    with shown("vectors", "documents") as report:
        return build_vectors(
            client, index, to=to, since=since, report=lambda done, count: report(done.documents, count)
        )
