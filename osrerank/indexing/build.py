"""Compute the document vectors of a whole index beforehand."""

from collections.abc import Callable
from dataclasses import dataclass

from osrerank._progress import shown
from osrerank.client import Client
from osrerank.indexing.documents import batches_of, vectors_of
from osrerank.indexing.side_index import SideStores, side_stores


@dataclass(frozen=True, slots=True)
class Built:
    """Counts of a build of document vectors.

    Attributes:
        documents: how many of the index's documents were read.
        texts: how many texts the model reads of them: whole documents, or passages.
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
    report: Callable[[Built, int], None] = lambda _done, _all: None,
) -> Built:
    """Compute and store the vectors that an index's documents lack, for the texts that its searches read.

    So an interrupted build continues where it stopped, as fast as documents can be read.

    Args:
        client: of the index; its settings name the model and the store.
        index: its name.
        report: called after each batch with what is done, and the number of all documents.

    Raises:
        ConfigError: the model has no vectors, or vectors are off.
        OsrerankError: a text cannot be encoded, or the store accepts nothing.
    """
    sides, done = SideStores(client), Built()
    vectors = vectors_of(client)
    if client.searcher.service.settings.vectors_index:
        for side in side_stores(client, [index]):
            side.take_over()
    count = int(client.count(index=index)["count"])
    for batch in batches_of(client, index):
        kept = [vectors.remember(texts, sides.of(name)) for name, texts in batch.texts.items()]
        texts, encoded = (sum(numbers) for numbers in zip(*kept, strict=True)) if kept else (0, 0)
        done = done.plus(batch.documents, texts, encoded, batch.empty)
        report(done, count)
    return done


def build_on_screen(client: Client, index: str) -> Built:
    """Do what `build_vectors` does, with its progress on standard error: a bar on a terminal, else lines."""
    with shown("vectors", "documents") as report:
        return build_vectors(client, index, report=lambda done, count: report(done.documents, count))
