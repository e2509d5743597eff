"""Compute the document vectors of a whole index beforehand, count them, and delete those of other texts."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from osrerank._progress import shown
from osrerank.client import Client
from osrerank.errors import ConfigError
from osrerank.response import parse
from osrerank.retrieval.fields import Fields
from osrerank.retrieval.requests import is_embedded
from osrerank.scoring.vectors.index import OLDER_SUFFIX, SUFFIX, IndexStore, every_hit
from osrerank.scoring.vectors.request import FetchedVectors
from osrerank.scoring.vectors.scorer import BiEncoderScorer
from osrerank.scoring.vectors.store import VECTORS_OFF
from osrerank.types import LongText, Query

BATCH = 64
"""Documents encoded at a time."""
PAGE = 2000
"""Documents per request to the embedded engine, which scans the whole index for each request."""
TRIED = 16
"""Texts that are encoded to estimate the cost."""


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
    scorer = bi_encoder_of(client)
    if client.reranker.settings.vectors_index:
        for side in side_stores(client, [index]):
            side.take_over()
    count = int(client.count(index=index)["count"])
    for batch in batches_of(client, index):
        kept = [scorer.remember(texts, sides.of(name)) for name, texts in batch.texts.items()]
        texts, encoded = (sum(numbers) for numbers in zip(*kept, strict=True)) if kept else (0, 0)
        done = done.plus(batch.documents, texts, encoded, batch.empty)
        report(done, count)
    return done


def build_on_screen(client: Client, index: str) -> Built:
    """Do what `build_vectors` does, with its progress on standard error: a bar on a terminal, else lines."""
    with shown("vectors", "documents") as report:
        return build_vectors(client, index, report=lambda done, count: report(done.documents, count))


def prune_vectors(client: Client, indexes: Sequence[str]) -> int:
    """Delete all vectors except the client's model's for these indexes' texts; return how many are left.

    Args:
        client: of the indexes.
        indexes: all indexes whose vectors searches still need.

    Raises:
        ConfigError: the model has no vectors, or vectors are off.
        OsrerankError: the store cannot be pruned; it is as it was.
    """
    scorer = bi_encoder_of(client)
    sides = side_stores(client, indexes) if client.reranker.settings.vectors_index else []
    if scorer.store is None and not sides:
        raise ConfigError(VECTORS_OFF, setting="vectors", source="environment")

    def keys(names: Sequence[str]) -> Iterator[list[bytes]]:
        return (scorer.keys_of(batch.every) for name in names for batch in batches_of(client, name))

    left = sum(side.prune(keys([side.beside])) for side in sides)
    return left + (scorer.store.prune(keys(indexes)) if scorer.store else 0)


def side_stores(client: Client, names: Sequence[str]) -> list[IndexStore]:
    """Return the side index of each index that names, aliases and patterns stand for.

    Raises:
        NotFoundError: there is no such index.
    """
    found = {name for one in names for name in client.indices.get_mapping(index=one)}
    real = sorted(name for name in found if not name.endswith((SUFFIX, OLDER_SUFFIX)))
    return [IndexStore(client, name, is_embedded=is_embedded(client)) for name in real]


class SideStores:
    """The side indices of a client's indices, if the settings ask for them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_on = client.reranker.settings.vectors_index
        self._stores: dict[str, IndexStore] = {}

    def of(self, index: str) -> IndexStore | None:
        """Return an index's side index; None if the settings ask for none."""
        if self._is_on and index not in self._stores:
            self._stores[index] = IndexStore(self._client, index, is_embedded=is_embedded(self._client))
        return self._stores.get(index)


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
    scorer, sides = bi_encoder_of(client), SideStores(client)
    some: list[str | LongText] = []
    asked: set[bytes] = set()
    known: set[bytes] = set()
    read = 0
    for batch in batches_of(client, index):
        for name, texts in batch.texts.items():
            keys, side = scorer.keys_of(texts), sides.of(name)
            asked |= set(keys)
            known |= scorer.known(keys, FetchedVectors(side.read(keys)) if side else None)
        some, read = some + batch.every, read + batch.documents
        if read >= most:
            break
    documents = int(client.count(index=index)["count"])
    tried = some[:: max(1, len(some) // TRIED)][:TRIED]
    seconds, stored = scorer.cost_of(tried) if tried else (0.0, 0)
    whole = len(some) / max(1, read) * documents / max(1, len(tried))
    return Coverage(documents, len(asked), len(known), seconds * whole, round(stored * whole))


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


def batches_of(client: Client, index: str) -> Iterator[Batch]:
    """Yield an index's documents as a model reads them; the index may be an alias or a pattern."""
    options, fields = client.options_of(index), client.fields_of(index)
    documents = documents_of(client, index, fields)
    while hits := list(islice(documents, BATCH)):
        query, own = Query("build", "build"), fields.by_index(options.fields)
        ranking = parse({"hits": {"hits": hits}}, query, fields.read, options.separator, own)
        texts: defaultdict[str, list[str | LongText]] = defaultdict(list)
        text_of, empty = client.reranker.text_of(options), 0
        for candidate, hit in zip(ranking.candidates, hits, strict=True):
            if candidate.text is None:
                empty += 1
            else:
                texts[hit["_index"]].append(text_of(candidate))
        yield Batch(texts, len(hits), empty)


def bi_encoder_of(client: Client) -> BiEncoderScorer:
    """Return the client's model, a bi-encoder.

    Raises:
        ConfigError: it has no vectors.
        ModelLoadError, MissingDependencyError: it cannot be loaded.
    """
    scorer = client.reranker.scorer(cached=False)
    if not isinstance(scorer, BiEncoderScorer):
        reason = f"{scorer.model} has no document vectors: only bi-encoders do"
        raise ConfigError(f"{reason}; osrerank export converts one from the hub", setting="model", source="--model")
    return scorer


def documents_of(client: Client, index: str, fields: Fields) -> Iterator[Mapping[str, Any]]:
    """Yield all documents that an index has at the start, as hits in arbitrary order."""
    size = PAGE if is_embedded(client) else BATCH
    fetched = [name for name in fields.read if name in fields.fetched]
    body = {"size": size, "query": {"match_all": {}}, "_source": list(fields.read)}
    body |= {"fields": fetched} if fetched else {}
    return every_hit(client, index, body, is_embedded=is_embedded(client))
