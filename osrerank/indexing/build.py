"""Build the document vectors of a whole index, and keep them up to date as the index changes.

By the sequence numbers of writes, a build reads only changed documents. It records its progress in a *position*
(`osrerank.vectors.build_progress`), from which the next build continues. *Heads* are the newest changes of each shard.
"""

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

from osrerank._progress import show_progress
from osrerank._threads import DaemonThreads
from osrerank.client import Client
from osrerank.errors import ConfigError, OsrerankError, Overloaded, WorkerError
from osrerank.indexing.date_field import Changes
from osrerank.indexing.documents import BATCH_SIZE, DocumentBatch, document_vectors, make_batch, read_batches
from osrerank.indexing.missing_vectors import Backlog
from osrerank.indexing.side_index import IndexStore, side_stores
from osrerank.indexing.stored_position import FilePosition, SidePosition, StoredPosition
from osrerank.retrieval.built_fields import fields_content, fields_key
from osrerank.retrieval.requests import SideRequest, build_path, is_embedded
from osrerank.retrieval.sequence import Heads, read_heads, sequence_number, sequence_range_query, shard_request
from osrerank.search.coverage import describe_reading, fetch_body
from osrerank.service import RerankService
from osrerank.types import LongText, NeedsWorkers
from osrerank.vectors.build_progress import BuildProgress, Head, Lease, index_identity
from osrerank.vectors.documents import BuildCounts, DocumentVectors
from osrerank.vectors.file import BUILD_PREFIX, FileStore

StoreName = Literal["file", "redis", "index"]
"""Where vectors are stored: in a file, in Redis, or in a side index."""
MAX_DOCUMENTS = 512
"""The maximum number of documents that are read and encoded at a time."""
TARGET_BATCH_S = 1.0
"""The duration of a batch, in seconds: after a shorter one, the size doubles; after four times this, it halves."""
LEASE_S = 60.0
"""The time after which other builders take over the lease of a builder that makes no progress, in seconds."""
WAIT_S = 1.0
"""The pause between two checks of other builders' progress, in seconds."""
BATCHES_PER_WORKER = 2
"""The number of simultaneous batches for each worker, so that no worker waits for its next batch."""
FOLLOW_S = 5.0
"""The pause between two checks for changes, in seconds."""
RETRY_S = 30.0
"""The pause after an error of the cluster or the store, in seconds, before following continues."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Built:
    """Counts of a build of document vectors.

    Attributes:
        documents: the number of documents read from the index.
        texts: the number of texts for the model: whole documents, or passages.
        encoded: the number of these texts that had no stored vector and were encoded.
        empty: the number of documents without text in the fields that are read.
    """

    documents: int = 0
    texts: int = 0
    encoded: int = 0
    empty: int = 0

    def add(self, documents: int, texts: int, encoded: int, empty: int) -> "Built":
        """Return the sum of these counts and those of a batch."""
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

    Texts are encoded as searches read them. By the sequence numbers of writes, a build reads only documents that
    changed since the last build. Several builders share the work, and a build continues an interrupted one. All
    documents are read if the engine reports no sequence numbers, or if the vectors are in Redis.

    Args:
        client: a client of the index. Its settings specify the model and the store.
        index: the index's name.
        to: the place to store the vectors. By default the side index on a cluster, else the settings' store.
        date_field: a date or number field whose value grows with each change. With it, the build reads the documents
            with a higher value than at the last such build, and those without the field.
        report: called after each batch with the number of documents that all builders have read, and with their total
            number.

    Raises:
        ConfigError: the model has no vectors, vectors are off or stored elsewhere, or ``date_field`` cannot be used.
        OsrerankError: a text cannot be encoded, or the store cannot be written.
    """
    builder = Builder(client, index, to, report)
    if date_field:
        return builder.build_by_date(date_field)
    try:
        heads = builder.read_heads()
    except ConfigError as error:
        logger.warning("[vectors-again] the build reads every document: %s", error)
        return builder.build_all()
    return builder.build_by_number(heads)


def follow_vectors(
    client: Client,
    index: str,
    *,
    to: StoreName | None = None,
    date_field: str = "",
    report: Callable[[Built], None] = lambda _built: None,
) -> None:
    """Build an index's vectors, then those of each change, until the process is interrupted.

    All documents are read again if the index was created again or restored, or if an alias moved to it.

    Args:
        client: a client of the index, as for `build_vectors`.
        index: the index's name.
        to: the place to store the vectors, as for `build_vectors`.
        date_field: a field whose value grows with each change, for an engine that reports no sequence numbers.
        report: called after each round that read documents.

    Raises:
        ConfigError: see `build_vectors`. Also if the engine reports no sequence numbers, or the store can drop vectors.
        OsrerankError: the first build failed. Later errors are logged.
    """
    has_built = False
    while True:
        try:
            builder = Builder(client, index, to)
            built = builder.build_by_date(date_field) if date_field else builder.build_by_number(builder.read_heads())
        except ConfigError:
            raise
        except (OpenSearchException, OsrerankError) as error:
            if not has_built:
                raise
            logger.warning("[vectors-paused] %s: following pauses for %g s after an error: %s", index, RETRY_S, error)
            time.sleep(RETRY_S)
            continue
        has_built = True
        if built.documents:
            report(built)
        time.sleep(FOLLOW_S)


class Builder:
    """Builds the vectors of the indices that a name stands for; each build needs a new builder.

    Args:
        index: a name, an alias or a pattern.
        to: the place to store the vectors, as for `build_vectors`.
        report: called after each batch, as for `build_vectors`.
        as_built: whether to read the fields of the last build, if the options specify none. Otherwise, those of the
            mapping.

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
        self._vectors = document_vectors(client, index)
        self._side_stores = _side_stores(client, index, to, self._vectors)
        self._options, self._fields = client.options_of(index), client.fields_of(index, as_built=as_built)
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._built = Built()
        self._backlog = Backlog(self._side_stores)
        self._lock = threading.Lock()

    def read_heads(self) -> Heads:
        """Return the newest changes of each index, except an index that an alias moved to just now.

        Raises:
            ConfigError: the engine does not report them, the user lacks a right, or the store has no positions.
        """
        if not self._side_stores and not isinstance(self._vectors.store, FileStore):
            reason = "Redis may drop vectors, so it cannot store a build's position: set OSRERANK_VECTORS=index or file"
            raise ConfigError(reason, setting="vectors", source="environment")
        heads: Heads = self._client.result_of(read_heads(self._index, is_embedded=self._is_embedded))
        return {name: shards for name, shards in heads.items() if not self._side_stores or name in self._side_stores}

    def build_all(self) -> Built:
        """Read all documents, and build the missing vectors."""
        count = int(self._client.count(index=self._index)["count"])
        for batch in read_batches(self._client, self._index, self._fields):
            self._build_batch(batch)
            self._report(self._built.documents, count)
        return self._finish()

    def build_by_date(self, field: str) -> Built:
        """Build the vectors of the documents that changed since the last such build, by a date or number field.

        Raises:
            ConfigError: the vectors do not go to a side index, or the field is not a date or number.
        """
        if not self._side_stores:
            reason = "a date field can be followed only if the vectors go to a side index: use --follow without a field"
            raise ConfigError(reason, setting="follow", source="flag")
        changes = {
            name: Changes.find(self._client, name, SidePosition(side, self._key(f"{name}/{field}")), field)
            for name, side in self._side_stores.items()
        }
        queries = {name: change.query for name, change in changes.items()}
        count = sum(
            int(self._client.count(index=name, body={"query": query})["count"]) for name, query in queries.items()
        )
        for name, query in queries.items():
            for batch in read_batches(self._client, self._index, self._fields, query, subset=name):
                self._build_batch(batch)
                self._report(self._built.documents, count)
            changes[name].save()
        return self._finish()

    def build_by_number(self, heads: Heads) -> Built:
        """Build the vectors of all changes up to ``heads``, with other builders, and wait until all are done."""
        positions = {name: self.saved_position(name, shards) for name, shards in heads.items()}
        unfinished = {name: saved for name, saved in positions.items() if saved.position.count_unbuilt(heads[name])}
        for name in unfinished:
            self._client.indices.refresh(index=name)
        counts = {name: self._count_changed(name, saved.position, heads[name]) for name, saved in unfinished.items()}
        unbuilt_before = {name: saved.position.count_unbuilt(heads[name]) for name, saved in unfinished.items()}

        def report() -> None:
            done = 0.0
            for name, saved in unfinished.items():
                unbuilt_share = saved.position.count_unbuilt(heads[name]) / unbuilt_before[name]
                done += counts[name] * (1 - unbuilt_share)
            self._report(round(done), sum(counts.values()))

        try:
            for name, saved in unfinished.items():
                self._build_index(name, saved, heads[name], report)
        except BaseException:
            for saved in unfinished.values():
                with suppress(OpenSearchException, OSError, OsrerankError), self._lock:  # the first error counts
                    saved.change(partial(BuildProgress.release, owner=self._owner))
            raise
        return self._finish()

    def saved_position(self, name: str, heads: Mapping[str, Head]) -> StoredPosition:
        """Return the position of an index's builds, adapted to its current shards."""
        key = self.key(name, heads)
        side, store = self._side_stores.get(name), self._vectors.store
        saved: StoredPosition
        if side is not None:
            saved = SidePosition(side, key)
        elif isinstance(store, FileStore):
            saved = FilePosition(store, key)
        else:
            raise ConfigError(f"no store holds the position of {name}", setting="vectors", source="environment")
        saved.load()
        saved.change(partial(BuildProgress.with_shards, heads=heads))
        for shard in heads:
            if self._is_rewritten(name, shard, saved.position):
                logger.warning("[vectors-again] the build reads shard %s of %s again: it lost changes", shard, name)
                saved.change(partial(BuildProgress.restart_shard, shard=shard))
        return saved

    def key(self, name: str, heads: Mapping[str, Head]) -> bytes:
        """Return the key of the position of an index's builds."""
        return self._key(index_identity(name, heads))

    def _key(self, identity: str) -> bytes:
        return self._vectors.records.progress_key(identity, describe_reading(self._options, self._fields))

    def _is_rewritten(self, name: str, shard: str, position: BuildProgress) -> bool:
        """Return whether a shard reused sequence numbers of changes that a build read: their primary term is higher.

        A cluster that acknowledges writes before they are on disk can lose some, and give their numbers to new writes.
        """
        last = position.built_checkpoint(shard)
        if last < 0 or self._is_embedded:
            return False
        body = {"size": 1, "_source": False, "query": sequence_range_query([(0, last)])}
        request = shard_request(name, shard, "_search", body, engine=self._client.engine, order="desc")
        hits = self._send(request)["hits"]["hits"]
        return bool(hits) and int(hits[0]["_primary_term"]) > position.shards[shard].term

    def _count_changed(self, name: str, position: BuildProgress, heads: Mapping[str, Head]) -> int:
        count, engine = 0, self._client.engine
        for shard, head in heads.items():
            ranges = position.unbuilt_ranges(shard, head.global_checkpoint)
            if ranges:
                request = shard_request(name, shard, "_count", {"query": sequence_range_query(ranges)}, engine=engine)
                count += int(self._send(request)["count"])
        return count

    def _build_index(
        self, name: str, saved: StoredPosition, heads: Mapping[str, Head], report: Callable[[], None]
    ) -> None:
        """Build the changes of an index until no builder has open ones; if workers encode, with several leases."""
        max_leases, is_stopped = self._max_leases(), threading.Event()
        threads, running = DaemonThreads(max_leases, "osrerank-build"), set[Future[None]]()
        try:
            while running or saved.position.count_unbuilt(heads):
                lease = self._claim(saved, heads) if len(running) < max_leases else None
                if lease is not None:
                    running.add(threads.submit(self._build_lease, name, saved, lease, report, is_stopped))
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

    def _max_leases(self) -> int:
        """Return the maximum number of simultaneous leases: one, or several for each worker that encodes."""
        encoder = self._vectors.encoder
        if not isinstance(encoder, NeedsWorkers):
            return 1
        with suppress(WorkerError):  # without workers, a build can still skip documents whose vectors are stored
            return BATCHES_PER_WORKER * encoder.find_workers()
        return 1

    def _claim(self, saved: StoredPosition, heads: Mapping[str, Head]) -> Lease | None:
        """Lease a range of changes for this builder; return None if no range is free."""
        now_s = time.time()
        claim = partial(BuildProgress.claim, owner=self._owner, heads=heads, now_s=now_s, until_s=now_s + LEASE_S)
        with self._lock:
            lease: Lease | None = saved.update(claim)
        return lease

    def _build_lease(
        self, name: str, saved: StoredPosition, lease: Lease, report: Callable[[], None], is_stopped: threading.Event
    ) -> None:
        """Build a lease's documents in batches, until they are done, another builder has it, or the build stops.

        Documents that lacked vectors in searches are built before the next batch.
        """
        size = BATCH_SIZE
        remaining: Lease | None = lease
        with self._client.searcher.serving(self._index) as service:
            while remaining:
                started_s = time.monotonic()
                reported_ids = self._backlog.take(size)
                if reported_ids:
                    self._build_documents(service, reported_ids)
                    first, term = remaining.first, 0
                else:
                    first, term = self._build_next(service, name, remaining, size)
                with self._lock:
                    if is_stopped.is_set():
                        return
                    until_s = time.time() + LEASE_S
                    advance = partial(BuildProgress.advance, lease=remaining, first=first, term=term, until_s=until_s)
                    remaining = saved.update(advance)
                    report()
                took_s = time.monotonic() - started_s
                if took_s < TARGET_BATCH_S:
                    size = min(2 * size, MAX_DOCUMENTS)
                elif took_s > 4 * TARGET_BATCH_S:
                    size = max(size // 2, BATCH_SIZE)

    def _build_next(self, service: RerankService, name: str, lease: Lease, size: int) -> tuple[int, int]:
        """Build a lease's next documents; return the next sequence number, and the highest primary term."""
        body = fetch_body(self._fields, size, sequence_range_query([(lease.first, lease.last)])) | {
            "track_total_hits": False
        }
        request = shard_request(name, lease.shard, "_search", body, engine=self._client.engine, order="asc")
        hits = self._send(request)["hits"]["hits"]
        self._build_batch(make_batch(service, self._options, self._fields, hits))
        is_full = len(hits) == size
        last = sequence_number(hits[-1], is_embedded=self._is_embedded) if is_full else lease.last
        return last + 1, max((int(hit.get("_primary_term", 0)) for hit in hits), default=0)

    def _build_documents(self, service: RerankService, ids_by_index: Mapping[str, Sequence[str]]) -> None:
        """Build the vectors of these documents before their turn, and count only the encoded texts."""
        for name, ids in ids_by_index.items():
            body = fetch_body(self._fields, len(ids), {"ids": {"values": ids}}) | {"track_total_hits": False}
            request = SideRequest("POST", build_path(name, "_search"), body, self._client.engine.no_pipeline)
            batch = make_batch(service, self._options, self._fields, self._send(request)["hits"]["hits"])
            self._build_batch(batch, is_early=True)

    def _build_batch(self, batch: DocumentBatch, *, is_early: bool = False) -> None:
        """Build the vectors of a batch, and count it; an early batch counts when its turn comes."""
        counts = [self._build_texts(texts, self._side_stores.get(name)) for name, texts in batch.texts.items()]
        texts, encoded = (sum(numbers) for numbers in zip(*counts, strict=True)) if counts else (0, 0)
        with self._lock:
            if is_early:
                self._built = self._built.add(0, 0, encoded, 0)
            else:
                self._built = self._built.add(batch.documents, texts, encoded, batch.empty)

    def _build_texts(self, texts: Sequence[str | LongText], side: IndexStore | None) -> BuildCounts:
        """Build the vectors of texts; wait while the workers' queue is full, because searches have priority."""
        while True:
            try:
                return self._vectors.build(texts, side)
            except Overloaded as error:
                logger.info("the build waits %g s: %s", WAIT_S, error)
                time.sleep(WAIT_S)

    def _finish(self) -> Built:
        if self._store_fields():
            self._client.searcher.forget_indices()
        for side in self._side_stores.values():
            side.refresh()
        return self._built

    def _store_fields(self) -> bool:
        """Store each index's fields, for searches that specify none. Return whether they changed."""
        by_index = self._fields.fields_by_index(self._options.fields)
        store = self._vectors.store
        is_changed = False
        indices = self._client.indices
        for name, entry in (indices.get_mapping if self._side_stores else indices.get)(index=self._index).items():
            key, fields, side = fields_key(name), by_index.get(name, self._fields.read), self._side_stores.get(name)
            if self._side_stores and side is None:  # an alias moved to it during the build
                continue
            if side is not None:
                stored, version = side.read_position(key)
                content = fields_content(b"", "", fields)
                if content != stored:
                    side.write_position(key, content, version)  # if another builder was faster, its fields stay
                    is_changed = True
            elif isinstance(store, FileStore):
                stored = store.read([BUILD_PREFIX + key]).get(BUILD_PREFIX + key, b"")
                content = fields_content(stored, entry["settings"]["index"]["uuid"], fields)
                if content != stored:
                    is_changed |= bool(store.write({BUILD_PREFIX + key: content}))
        return is_changed

    def _send(self, request: SideRequest) -> Any:
        return self._client.result_of(_yield_request(request))


def _yield_request(request: SideRequest) -> Generator[SideRequest, Any, Any]:
    return (yield request)


def _side_stores(client: Client, index: str, to: StoreName | None, vectors: DocumentVectors) -> dict[str, IndexStore]:
    """Return the side indices that a build writes to, by index name. Empty if it writes to the settings' store.

    Raises:
        ConfigError: the settings name another store.
    """
    if to == "index" or (to is None and client.searcher.vectors is not None):
        return {name: side for side in side_stores(client, [index], vectors.label) for name in side.indices}
    if to is not None and (vectors.store is None or vectors.store.name != to):
        reason = f"vectors are not stored in {to}: set OSRERANK_VECTORS={to}"
        raise ConfigError(reason, setting="vectors", source="--to")
    return {}


def build_on_screen(client: Client, index: str, *, to: StoreName | None = None, date_field: str = "") -> Built:
    """Run `build_vectors` and show its progress on standard error: a bar on a terminal, else lines."""
    with show_progress("vectors", "documents") as report:
        return build_vectors(client, index, to=to, date_field=date_field, report=report)
