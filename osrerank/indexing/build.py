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

Place = Literal["file", "redis", "index"]
"""Where vectors are stored."""


@dataclass(frozen=True, slots=True)
class Built:
    """Counts of a build of document vectors.

    Attributes:
        documents: how many of the index's documents were read.
        texts: how many texts they are to the model: whole documents, or passages.
        encoded: how many of these had no record.
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
    to: Place | None = None,
    since: str = "",
    report: Callable[[Built, int], None] = lambda _done, _all: None,
) -> Built:
    """Compute and store the vectors that an index's documents lack, for the texts that its searches read.

    So an interrupted build continues where it stopped, as fast as documents can be read.

    Args:
        client: of the index; its settings name the model and the store.
        index: its name.
        to: where they are stored; by default in the side index on a cluster, else in the settings' store.
        since: a date or number field that grows with each change. Only documents without it, or changed since the
            last such build, are read.
        report: called after each batch with what is done, and the number of documents to read.

    Raises:
        ConfigError: the model has no vectors, vectors are off, or are not stored there; or ``since`` cannot be used.
        OsrerankError: a text cannot be encoded, or the store accepts nothing.
    """
    vectors, done = vectors_of(client, index), Built()
    sides = _sides(client, index, to, vectors)
    for side in sides.values():
        side.take_over()
    changes = [Changes.of(client, side, since, client.options_of(index)) for side in sides.values()] if since else []
    if since and not sides:
        raise ConfigError("since needs a side index: leave it out", setting="since", source="flag")
    queries = {one.side.beside: one.query for one in changes} if changes else {index: dict(EVERY)}
    count = sum(int(client.count(index=name, body={"query": query})["count"]) for name, query in queries.items())
    for within, query in queries.items():
        for batch in batches_of(client, index, query, within=within):
            kept = [vectors.remember(texts, sides.get(name)) for name, texts in batch.texts.items()]
            texts, encoded = (sum(numbers) for numbers in zip(*kept, strict=True)) if kept else (0, 0)
            done = done.plus(batch.documents, texts, encoded, batch.empty)
            report(done, count)
    for one in changes:
        one.keep()
    for side in sides.values():
        side.refresh()
    return done


def _sides(client: Client, index: str, to: Place | None, vectors: DocumentVectors) -> dict[str, IndexStore]:
    """Return the side indices that a build writes to, by index name; none if it writes to the store.

    Raises:
        ConfigError: the settings name another store.
    """
    if to == "index" or (to is None and client.searcher.vectors is not None):
        return {side.beside: side for side in side_stores(client, [index], vectors.label)}
    if to is not None and (vectors.store is None or vectors.store.name != to):
        reason = f"vectors are not stored in {to}: set OSRERANK_VECTORS={to}"
        raise ConfigError(reason, setting="vectors", source="--to")
    return {}


def build_on_screen(client: Client, index: str, *, to: Place | None = None, since: str = "") -> Built:
    """Do what `build_vectors` does, with its progress on standard error: a bar on a terminal, else lines."""
    with shown("vectors", "documents") as report:
        return build_vectors(
            client, index, to=to, since=since, report=lambda done, count: report(done.documents, count)
        )
