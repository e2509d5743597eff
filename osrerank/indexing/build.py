"""Compute the document vectors of a whole index, and follow its changes."""

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from opensearchpy import OpenSearchException

from osrerank._progress import shown
from osrerank._threads import DaemonThreads
from osrerank.client import Client
from osrerank.errors import ConfigError, OsrerankError, Overloaded, WorkerError
from osrerank.indexing.date_field import Changes
from osrerank.indexing.documents import BATCH, DocumentBatch, batch_of, batches_of, vectors_of
from osrerank.indexing.side_index import IndexStore, side_stores
from osrerank.indexing.stored_position import FilePosition, SidePosition, StoredPosition
from osrerank.retrieval.built_fields import fields_content, fields_key
from osrerank.retrieval.requests import SideRequest, is_embedded
from osrerank.retrieval.sequence import Heads, heads_of, number_of, of_shard, within
from osrerank.search.coverage import body_of, reading_of
from osrerank.types import LongText, NeedsWorkers
from osrerank.vectors.documents import DocumentVectors, Remembered
from osrerank.vectors.file import POSITION, FileStore
from osrerank.vectors.position import Head, Lease, Position, identity_of

StoreName = Literal["file", "redis", "index"]
"""Where vectors are stored: in a file, in Redis, or in a side index."""
MOST = 512
"""The most documents that are read and encoded at a time."""
QUICK_S = 1.0
"""If a batch takes less than this, the next one is twice as large; if it takes four times as long, half."""
LEASE_S = 60.0
"""How long a builder that gives no sign keeps what it reads from others, in seconds."""
WAIT_S = 1.0
"""Pause between two looks at what other builders read, in seconds."""
BATCHES_PER_WORKER = 2
"""How many batches are under way at a time for each worker, so that it need not wait for the next one."""
FOLLOW_S = 5.0
"""Pause between two looks for changes, in seconds."""
PAUSE_S = 30.0
"""Pause of following after the cluster or the store failed, in seconds."""

logger = logging.getLogger(__name__)


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
        if not self.documents:
            return "nothing changed since the last build"
        empty = f"; {self.empty:,} documents have no text in the fields that are read" if self.empty else ""
        return f"{self.documents:,} documents, {self.texts:,} texts, {self.encoded:,} of them encoded now{empty}"


def build_vectors(
    client: Client,
    index: str,
    *,
    to: StoreName | None = None,
    date_field: str = "",
    report: Callable[[int, int], None] = lambda _done, _all: None,
) -> Built:
    """Compute and store the vectors that an index's documents lack.

    What its searches read is encoded. Only documents that changed since the last build are read, by the sequence
    numbers of their writes; several builders share the work, and a later build goes on where an interrupted one
    stopped. A service that gives no sequence numbers, and Redis, are read whole each time.

    Args:
        client: a client of the index; its settings name the model and the store.
        index: the index's name.
        to: where to store the vectors; by default in the side index on a cluster, else in the settings' store.
        date_field: read only documents whose date or number in this field is newer than the last such build saw, and
            those without the field, instead of asking for sequence numbers.
        report: called after each batch with the number of documents that are done, by this builder and others, and
            the number of all that were to be read.

    Raises:
        ConfigError: the model has no vectors, vectors are off or not stored there, or ``date_field`` cannot be used.
        OsrerankError: a text cannot be encoded, or the store accepts nothing.
    """
    builder = Builder(client, index, to, report)
    if date_field:
        return builder.by_date(date_field)
    try:
        heads = builder.heads()
    except ConfigError as error:
        logger.warning("[vectors-again] every document is read: %s", error)
        return builder.whole()
    return builder.by_number(heads)


def follow_vectors(
    client: Client,
    index: str,
    *,
    to: StoreName | None = None,
    date_field: str = "",
    report: Callable[[Built], None] = lambda _built: None,
) -> None:
    """Build an index's vectors, then those of each change, until the process is interrupted.

    An index that was made anew or restored, and one that an alias newly stands for, is read whole.

    Args:
        client: as for `build_vectors`, like ``index``, ``to`` and ``date_field``.
        index: the index's name.
        to: where to store the vectors.
        date_field: a field that each change sets, for a service that gives no sequence numbers.
        report: called after each round that read documents.

    Raises:
        ConfigError: as `build_vectors`; or the engine gives no sequence numbers, or the store may drop vectors unseen.
        OsrerankError: as `build_vectors`.
    """
    has_built = False
    while True:
        try:
            builder = Builder(client, index, to)
            built = builder.by_date(date_field) if date_field else builder.by_number(builder.heads())
        except ConfigError:
            raise
        except (OpenSearchException, OsrerankError) as error:
            if not has_built:
                raise
            logger.warning("[vectors-paused] %s: following pauses for %g s after an error: %s", index, PAUSE_S, error)
            time.sleep(PAUSE_S)
            continue
        has_built = True
        if built.documents:
            report(built)
        time.sleep(FOLLOW_S)


class Builder:
    """Builds the vectors of the indices that a name stands for, once.

    Args:
        client: a client of the indices.
        index: a name, an alias or a pattern.
        to: where to store the vectors.
        report: called with the documents done, and all that were to be read.
        as_built: whether to read, where no fields are named, those that the last build read; if not, those that the
            mapping gives.

    Raises:
        ConfigError: the model has no vectors, or the settings name another store.
    """

    def __init__(
        self,
        client: Client,
        index: str,
        to: StoreName | None,
        report: Callable[[int, int], None] = lambda _done, _all: None,
        *,
        as_built: bool = False,
    ) -> None:
        self._client, self._index, self._report = client, index, report
        self._is_embedded = is_embedded(client)
        self._vectors = vectors_of(client, index)
        self._sides = _sides(client, index, to, self._vectors)
        self._options, self._fields = client.options_of(index), client.fields_of(index, as_built=as_built)
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._built = Built()
        self._lock = threading.Lock()

    def heads(self) -> Heads:
        """Return the newest changes of each index; one that an alias newly stands for is left to the next build.

        Raises:
            ConfigError: the engine does not give them to this user, or the store cannot keep how far a build came.
        """
        if not self._sides and not isinstance(self._vectors.store, FileStore):
            reason = "Redis may drop any vector, so no position can be kept there: set OSRERANK_VECTORS=index or file"
            raise ConfigError(reason, setting="vectors", source="environment")
        found: Heads = self._client.result_of(heads_of(self._index, is_embedded=self._is_embedded))
        return {name: shards for name, shards in found.items() if not self._sides or name in self._sides}

    def whole(self) -> Built:
        """Read every document, and build the vectors that are missing."""
        count = int(self._client.count(index=self._index)["count"])
        for batch in batches_of(self._client, self._index, self._fields):
            self._add(batch)
            self._report(self._built.documents, count)
        return self._finished()

    def by_date(self, field: str) -> Built:
        """Build the vectors of the documents that a date or number field says are newer than the last such build.

        Raises:
            ConfigError: there is no side index, or the field is no date or number.
        """
        if not self._sides:
            reason = "changes are followed by a date field only if the vectors go to a side index: use --follow alone"
            raise ConfigError(reason, setting="follow", source="flag")
        changes = {
            name: Changes.of(self._client, name, SidePosition(side, self._key(f"{name}/{field}")), field)
            for name, side in self._sides.items()
        }
        queries = {name: change.query for name, change in changes.items()}
        count = sum(
            int(self._client.count(index=name, body={"query": query})["count"]) for name, query in queries.items()
        )
        for name, query in queries.items():
            for batch in batches_of(self._client, self._index, self._fields, query, within=name):
                self._add(batch)
                self._report(self._built.documents, count)
            changes[name].keep()
        return self._finished()

    def by_number(self, heads: Heads) -> Built:
        """Build the vectors of all changes up to these; wait for what other builders read meanwhile."""
        positions = {name: self.saved_position(name, shards) for name, shards in heads.items()}
        open_ = {name: saved for name, saved in positions.items() if saved.position.left(heads[name])}
        for name in open_:
            self._client.indices.refresh(index=name)
        counts = {name: self._count(name, saved.position, heads[name]) for name, saved in open_.items()}
        left = {name: saved.position.left(heads[name]) for name, saved in open_.items()}

        def report() -> None:
            done = sum(counts[name] * (1 - open_[name].position.left(heads[name]) / left[name]) for name in open_)
            self._report(round(done), sum(counts.values()))

        try:
            for name, saved in open_.items():
                self._build_index(name, saved, heads[name], report)
        except BaseException:
            for saved in open_.values():
                with suppress(OpenSearchException, OSError, OsrerankError), self._lock:  # the first error counts
                    saved.change(partial(Position.released, owner=self._owner))
            raise
        return self._finished()

    def saved_position(self, name: str, heads: Mapping[str, Head]) -> StoredPosition:
        """Return the position of an index's builds, for its shards as they are now."""
        key = self.key(name, heads)
        side, store = self._sides.get(name), self._vectors.store
        saved: StoredPosition
        if side is not None:
            saved = SidePosition(side, key)
        elif isinstance(store, FileStore):
            saved = FilePosition(store, key)
        else:
            raise ConfigError(f"{name} has no place for a position", setting="vectors", source="environment")
        saved.load()
        saved.change(partial(Position.facing, heads=heads))
        for shard in heads:
            if self._is_rewritten(name, shard, saved.position):
                logger.warning("[vectors-again] %s: shard %s lost changes: it is read again", name, shard)
                saved.change(partial(Position.restarted, shard=shard))
        return saved

    def key(self, name: str, heads: Mapping[str, Head]) -> bytes:
        """Return the key of the position of an index's builds."""
        return self._key(identity_of(name, heads))

    def _key(self, identity: str) -> bytes:
        return self._vectors.records.position_key(identity, reading_of(self._options, self._fields))

    def _is_rewritten(self, name: str, shard: str, position: Position) -> bool:
        """Return whether changes up to the position have a later primary term than any that were read.

        A cluster that acknowledges writes before they are on disk can lose some, and give their numbers again.
        """
        last = position.built_to(shard)
        if last < 0 or self._is_embedded:
            return False
        body = {"size": 1, "_source": False, "query": within([(0, last)])}
        request = of_shard(name, shard, "_search", body, engine=self._client.engine, order="desc")
        hits = self._send(request)["hits"]["hits"]
        return bool(hits) and int(hits[0]["_primary_term"]) > position.shards[shard].term

    def _count(self, name: str, position: Position, heads: Mapping[str, Head]) -> int:
        """Return how many documents the changes that are not built have."""
        ranges = {shard: position.open(shard, head.last) for shard, head in heads.items()}
        return sum(
            int(self._send(of_shard(name, shard, "_count", {"query": within(r)}, engine=self._client.engine))["count"])
            for shard, r in ranges.items()
            if r
        )

    def _build_index(
        self, name: str, saved: StoredPosition, heads: Mapping[str, Head], report: Callable[[], None]
    ) -> None:
        """Build all changes of an index, several leases at a time if workers encode; wait for other builders'."""
        most, is_stopped = self._most_leases(), threading.Event()
        threads, running = DaemonThreads(most, "osrerank-build"), set[Future[None]]()
        try:
            while running or saved.position.left(heads):
                lease = self._claim(saved, heads) if len(running) < most else None
                if lease is not None:
                    running.add(threads.submit(self._build, name, saved, lease, report, is_stopped))
                elif running:
                    ended, running = wait(running, WAIT_S, FIRST_COMPLETED)
                    for future in ended:
                        future.result()
                else:
                    time.sleep(WAIT_S)
                    with self._lock:
                        saved.load()
        finally:
            is_stopped.set()
            threads.close(wait=False)

    def _most_leases(self) -> int:
        """Return how many leases this builder may have at a time: one, or some for each worker that encodes."""
        encoder = self._vectors.encoder
        if not isinstance(encoder, NeedsWorkers):
            return 1
        with suppress(WorkerError):  # without workers, documents whose vectors are stored can still be passed over
            return BATCHES_PER_WORKER * encoder.find_workers()
        return 1

    def _claim(self, saved: StoredPosition, heads: Mapping[str, Head]) -> Lease | None:
        now_s = time.time()
        claim = partial(Position.claim, owner=self._owner, heads=heads, now_s=now_s, until_s=now_s + LEASE_S)
        with self._lock:
            lease: Lease | None = saved.update(claim)
        return lease

    def _build(
        self,
        name: str,
        saved: StoredPosition,
        lease: Lease,
        report: Callable[[], None],
        is_stopped: threading.Event,
    ) -> None:
        """Build a lease's documents, batch by batch, until they are done, another builder has it, or it is stopped."""
        size = BATCH
        left: Lease | None = lease
        with self._client.searcher.serving(self._index) as service:
            while left:
                began_s = time.monotonic()
                body = body_of(self._fields, size, within([(left.first, left.last)])) | {"track_total_hits": False}
                request = of_shard(name, left.shard, "_search", body, engine=self._client.engine, order="asc")
                hits = self._send(request)["hits"]["hits"]
                self._add(batch_of(service, self._options, self._fields, hits))
                first = number_of(hits[-1], is_embedded=self._is_embedded) + 1 if len(hits) == size else left.last + 1
                term = max((int(hit.get("_primary_term", 0)) for hit in hits), default=0)
                with self._lock:
                    if is_stopped.is_set():
                        return
                    until_s = time.time() + LEASE_S
                    left = saved.update(partial(Position.advanced, lease=left, first=first, term=term, until_s=until_s))
                    report()
                took_s = time.monotonic() - began_s
                if took_s < QUICK_S:
                    size = min(2 * size, MOST)
                elif took_s > 4 * QUICK_S:
                    size = max(size // 2, BATCH)

    def _add(self, batch: DocumentBatch) -> None:
        kept = [self._remember(texts, self._sides.get(name)) for name, texts in batch.texts.items()]
        texts, encoded = (sum(numbers) for numbers in zip(*kept, strict=True)) if kept else (0, 0)
        with self._lock:
            self._built = self._built.plus(batch.documents, texts, encoded, batch.empty)

    def _remember(self, texts: Sequence[str | LongText], side: IndexStore | None) -> Remembered:
        """Build the vectors of texts; while the workers' queue is full, wait, because searches go first."""
        while True:
            try:
                return self._vectors.remember(texts, side)
            except Overloaded as error:
                logger.info("the build waits %g s: %s", WAIT_S, error)
                time.sleep(WAIT_S)

    def _finished(self) -> Built:
        """Keep which fields were read, make what was written findable, and return the counts."""
        if self._keep_fields():
            self._client.searcher.forget_indices()
        for side in self._sides.values():
            side.refresh()
        return self._built

    def _keep_fields(self) -> bool:
        """Store which fields were read of each index, for searches that name none; return whether they changed."""
        own, store, is_changed = self._fields.by_index(self._options.fields), self._vectors.store, False
        indices = self._client.indices
        for name, entry in (indices.get_mapping if self._sides else indices.get)(index=self._index).items():
            key, read, side = fields_key(name), own.get(name, self._fields.read), self._sides.get(name)
            if self._sides and side is None:  # an alias came to stand for it during the build
                continue
            if side is not None:
                before, version = side.read_position(key)
                if (content := fields_content(b"", "", read)) != before:
                    side.write_position(key, content, version)  # if another builder was faster, its fields are kept
                    is_changed = True
            elif isinstance(store, FileStore):
                before = store.read([POSITION + key]).get(POSITION + key, b"")
                if (content := fields_content(before, entry["settings"]["index"]["uuid"], read)) != before:
                    is_changed |= bool(store.write({POSITION + key: content}))
        return is_changed

    def _send(self, request: SideRequest) -> Any:
        return self._client.result_of(_one(request))


def _one(request: SideRequest) -> Generator[SideRequest, Any, Any]:
    return (yield request)


def _sides(client: Client, index: str, to: StoreName | None, vectors: DocumentVectors) -> dict[str, IndexStore]:
    """Return the side indices that a build writes to, by index name; empty if it writes to the settings' store.

    Raises:
        ConfigError: the settings name another store.
    """
    if to == "index" or (to is None and client.searcher.vectors is not None):
        return {name: side for side in side_stores(client, [index], vectors.label) for name in side.beside}
    if to is not None and (vectors.store is None or vectors.store.name != to):
        reason = f"vectors are not stored in {to}: set OSRERANK_VECTORS={to}"
        raise ConfigError(reason, setting="vectors", source="--to")
    return {}


def build_on_screen(client: Client, index: str, *, to: StoreName | None = None, date_field: str = "") -> Built:
    """Run `build_vectors` and show its progress on standard error: a bar on a terminal, else lines."""
    with shown("vectors", "documents") as report:
        return build_vectors(client, index, to=to, date_field=date_field, report=report)
