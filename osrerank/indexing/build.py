"""Build the document vectors of a whole index, and keep them up to date as the index changes.

The engine numbers the writes to a shard: 0, 1, 2 and so on. A build stores the number up to which it has read each
shard (`osrerank.indexing.stored_progress`), so the next build reads only documents with higher numbers. The *head* of a
shard says which numbers it has given so far. Builders share the work by *leases*: a lease reserves a range of numbers
for one builder.
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

from osrerank._progress import show_document_progress
from osrerank._threads import DaemonThreads
from osrerank.client import Client
from osrerank.errors import ConfigError, OsrerankError, Overloaded, WorkerError
from osrerank.indexing.backlog import Backlog
from osrerank.indexing.date_field import DateFieldChanges
from osrerank.indexing.documents import BATCH_SIZE, DocumentBatch, document_vectors, make_batch, read_batches
from osrerank.indexing.side_index import IndexStore, find_side_indices
from osrerank.indexing.stored_progress import FileProgress, SideIndexProgress, StoredProgress
from osrerank.retrieval.build_fields import build_fields_key, update_build_fields
from osrerank.retrieval.requests import SideRequest, build_path, is_embedded
from osrerank.retrieval.sequence import (
    Heads,
    build_sequence_query,
    build_shard_request,
    read_heads,
    read_sequence_number,
)
from osrerank.search.coverage import count_documents, describe_input, fetch_body
from osrerank.service import RerankService
from osrerank.types import LongText, NeedsWorkers
from osrerank.vectors.build_progress import BuildProgress, Head, Lease, index_identity
from osrerank.vectors.documents import BuildCounts, DocumentVectors
from osrerank.vectors.file import BUILD_PREFIX, FileStore

StoreName = Literal["file", "redis", "index"]
"""Where vectors are stored: in a file, in Redis, or in a side index (a hidden index with another index's vectors)."""
MAX_BATCH_SIZE = 512
"""The maximum number of documents in a batch. `BATCH_SIZE` is the first and the smallest number."""
TARGET_BATCH_S = 1.0
"""The intended duration of a batch, in seconds. The number of documents is doubled after a batch that took less, and
halved after a batch that took more than four times as long."""
LEASE_S = 60.0
"""The duration of a lease, in seconds. A builder that makes no progress for this time loses its documents to others."""
WAIT_S = 1.0
"""The pause between two checks of other builders' progress, in seconds."""
LEASES_PER_WORKER = 2
"""The number of leases that a build holds at a time for each worker, so that no worker runs out of work."""
FOLLOW_S = 5.0
"""The pause of `follow_vectors` between two checks for changes, in seconds."""
RETRY_S = 30.0
"""The pause of `follow_vectors` after an error of the cluster or the store, in seconds."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BuildSummary:
    """What a build of document vectors has read and encoded. Commands print its fields as JSON.

    Attributes:
        documents: the number of documents read from the index.
        texts: the number of texts for the model: whole documents, or passages.
        encoded: the number of texts that had no stored vector and were encoded.
        empty: the number of documents without text in the fields that are read.
    """

    documents: int = 0
    texts: int = 0
    encoded: int = 0
    empty: int = 0

    def add(self, other: "BuildSummary") -> "BuildSummary":
        """Return the sums of the numbers of two summaries."""
        return BuildSummary(
            self.documents + other.documents,
            self.texts + other.texts,
            self.encoded + other.encoded,
            self.empty + other.empty,
        )

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
) -> BuildSummary:
    """Compute and store the missing vectors of an index's documents.

    A build joins a document's fields to a text as a search does, so that searches find the text's vectors. It reads
    only documents that changed since the last build. Several builders share the work, and a build continues an
    interrupted one. If the engine reports no sequence numbers, or if Redis stores the vectors, a build reads all
    documents.

    Args:
        client: a client of the index. Its settings specify the model and the store.
        index: the index's name.
        to: where to store the vectors. If None, a cluster's vectors go to the side index, and those of the embedded
            engine to the store in the settings.
        date_field: a date or number field whose value grows with each change. The build then reads the documents whose
            value is at least the highest one that the last such build saw, and those without the field.
        report: a function that is called after each batch with two numbers of documents: those that all builders have
            read, and those to read in all.

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
    return builder.build_by_sequence_number(heads)


def follow_vectors(
    client: Client,
    index: str,
    *,
    to: StoreName | None = None,
    date_field: str = "",
    report: Callable[[BuildSummary], None] = lambda _summary: None,
) -> None:
    """Build an index's vectors, and then the vectors of each change, until the process is interrupted.

    All documents are read again if the index was created again or restored, or if an alias moved to it.

    Args:
        client: a client of the index, as for `build_vectors`.
        index: the index's name.
        to: where to store the vectors, as for `build_vectors`.
        date_field: a field whose value grows with each change, for an engine that reports no sequence numbers.
        report: a function that is called with the summary of each build that read documents.

    Raises:
        ConfigError: as for `build_vectors`, or the engine reports no sequence numbers, or the store can drop vectors.
        OsrerankError: the first build failed. Later errors are logged.
    """
    has_built = False
    while True:
        try:
            builder = Builder(client, index, to)
            if date_field:
                summary = builder.build_by_date(date_field)
            else:
                summary = builder.build_by_sequence_number(builder.read_heads())
        except ConfigError:  # a pause would not help
            raise
        except (OpenSearchException, OsrerankError) as error:
            if not has_built:
                raise
            logger.warning("[vectors-paused] %s: following pauses for %g s after an error: %s", index, RETRY_S, error)
            time.sleep(RETRY_S)
            continue
        has_built = True
        if summary.documents:
            report(summary)
        time.sleep(FOLLOW_S)


class Builder:
    """Builds the vectors of one or more indices. Each build needs its own instance.

    Args:
        client: a client of the indices.
        index: a name, an alias or a pattern.
        to: where to store the vectors, as for `build_vectors`.
        report: called after each batch, as for `build_vectors`.
        uses_build_fields: whether to read the fields of the last build if the options specify none. Otherwise, the
            mapping's text fields are read.

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
        uses_build_fields: bool = False,
    ) -> None:
        self._client, self._index, self._report = client, index, report
        self._is_embedded = is_embedded(client)
        self._vectors = document_vectors(client, index)
        self._side_indices = _find_side_indices(client, index, to, self._vectors)
        self._options = client.options_of(index)
        self._fields = client.fields_of(index, uses_build_fields=uses_build_fields)
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"  # such as "web-1:4711:9f3c21ab"
        self._summary = BuildSummary()
        self._backlog = Backlog(self._side_indices)  # the documents that searches found without a vector
        self._lock = threading.Lock()

    def read_heads(self) -> Heads:
        """Return the heads of each index's shards, without indices that an alias has got since the builder was created.

        Raises:
            ConfigError: the engine reports no sequence numbers, the user lacks a permission, or the store cannot store
                the progress of a build.
        """
        if not self._side_indices and not isinstance(self._vectors.store, FileStore):
            reason = (
                "Redis may drop vectors, so it cannot store a build's progress: set OSRERANK_VECTORS to index or file"
            )
            raise ConfigError(reason, setting="vectors", source="environment")
        heads: Heads = self._client.perform_steps(read_heads(self._index, is_embedded=self._is_embedded))
        return {name: shards for name, shards in heads.items() if not self._side_indices or name in self._side_indices}

    def build_all(self) -> BuildSummary:
        """Read all documents, and build the missing vectors."""
        n_documents = self._client.perform_steps(count_documents(self._index, self._client.engine))
        for batch in read_batches(self._client, self._index, self._fields):
            self._build_batch(batch)
            self._report(self._summary.documents, n_documents)
        return self._finish()

    def build_by_date(self, field: str) -> BuildSummary:
        """Build the vectors of the documents that changed since the last build by this date or number field.

        Raises:
            ConfigError: the vectors do not go to a side index, or the field is not a date or number.
        """
        if not self._side_indices:
            reason = "--follow can have a date field only if vectors go to a side index: leave out the field"
            raise ConfigError(reason, setting="follow", source="flag")
        changes_by_index = {}
        for name, side_index in self._side_indices.items():
            progress = SideIndexProgress(side_index, self._hash_key(f"{name}/{field}"))
            changes_by_index[name] = DateFieldChanges.find(self._client, name, progress, field)
        queries = {name: changes.query for name, changes in changes_by_index.items()}
        engine = self._client.engine
        n_documents = sum(
            self._client.perform_steps(count_documents(name, engine, query)) for name, query in queries.items()
        )
        for name, query in queries.items():
            for batch in read_batches(self._client, self._index, self._fields, query, subset=name):
                self._build_batch(batch)
                self._report(self._summary.documents, n_documents)
            changes_by_index[name].save_highest_value()
        return self._finish()

    def build_by_sequence_number(self, heads: Heads) -> BuildSummary:
        """Build the vectors of all changes up to ``heads``, and wait for the changes that other builders work on."""
        stored_progress = {name: self.load_progress(name, shards) for name, shards in heads.items()}
        unfinished = {
            name: progress for name, progress in stored_progress.items() if progress.latest.count_unbuilt(heads[name])
        }
        for name in unfinished:
            self._client.indices.refresh(index=name)  # so that the build finds all changes up to the heads
        n_changed_documents = {
            name: self._count_changed_documents(name, progress.latest, heads[name])
            for name, progress in unfinished.items()
        }
        n_unbuilt_numbers = {name: progress.latest.count_unbuilt(heads[name]) for name, progress in unfinished.items()}

        def report_progress() -> None:
            n_done = 0.0  # estimated, because other builders count only sequence numbers
            for name, progress in unfinished.items():
                unbuilt_fraction = progress.latest.count_unbuilt(heads[name]) / n_unbuilt_numbers[name]
                n_done += n_changed_documents[name] * (1 - unbuilt_fraction)
            self._report(round(n_done), sum(n_changed_documents.values()))

        try:
            for name, progress in unfinished.items():
                self._build_index(name, progress, heads[name], report_progress)
        except BaseException:
            for progress in unfinished.values():
                with suppress(OpenSearchException, OSError, OsrerankError), self._lock:  # the first error is raised
                    progress.change(partial(BuildProgress.release, owner=self._owner))
            raise
        return self._finish()

    def load_progress(self, name: str, heads: Mapping[str, Head]) -> StoredProgress:
        """Load an index's build progress. Shards that were recreated or lost changes start again."""
        key = self.progress_key(name, heads)
        side_index, store = self._side_indices.get(name), self._vectors.store
        progress: StoredProgress
        if side_index is not None:
            progress = SideIndexProgress(side_index, key)
        else:
            assert isinstance(store, FileStore)  # `read_heads` refuses Redis
            progress = FileProgress(store, key)
        progress.load()
        progress.change(partial(BuildProgress.with_shards, heads=heads))
        for shard in heads:
            if self._is_rewritten(name, shard, progress.latest):
                logger.warning(
                    "[vectors-again] the build reads shard %s of %s again, because it has lost writes (a failover)",
                    shard,
                    name,
                )
                progress.change(partial(BuildProgress.restart_shard, shard=shard))
        return progress

    def progress_key(self, name: str, heads: Mapping[str, Head]) -> bytes:
        """Return the key under which an index's build progress is stored."""
        return self._hash_key(index_identity(name, heads))

    def _hash_key(self, identity: str) -> bytes:
        """Return the key of the progress of an index with this identity, such as ``news/kT2...``."""
        return self._vectors.records.compute_progress_key(identity, describe_input(self._options, self._fields))

    def _is_rewritten(self, name: str, shard: str, progress: BuildProgress) -> bool:
        """Return whether a shard lost changes that a build read, and used their sequence numbers again.

        This can happen if a cluster acknowledges writes before they are on disk. The new changes have a higher primary
        term, which counts how often another copy of the shard has become the primary one.
        """
        last_built = progress.find_built_checkpoint(shard)
        if last_built < 0 or self._is_embedded:  # nothing was built, or there are no copies
            return False
        body = {"size": 1, "_source": False, "query": build_sequence_query([(0, last_built)])}
        request = build_shard_request(name, shard, body, engine=self._client.engine, order="desc")
        hits = self._send(request)["hits"]["hits"]
        return bool(hits) and int(hits[0]["_primary_term"]) > progress.shards[shard].term

    def _count_changed_documents(self, name: str, progress: BuildProgress, heads: Mapping[str, Head]) -> int:
        """Return how many documents of an index have sequence numbers that are not built."""
        count, engine = 0, self._client.engine
        for shard, head in heads.items():
            ranges = progress.list_unbuilt_ranges(shard, head.global_checkpoint)
            if ranges:
                body = {"size": 0, "track_total_hits": True, "query": build_sequence_query(ranges)}
                found = self._send(build_shard_request(name, shard, body, engine=engine))
                count += int(found["hits"]["total"]["value"])
        return count

    def _build_index(
        self, name: str, progress: StoredProgress, heads: Mapping[str, Head], report: Callable[[], None]
    ) -> None:
        """Build the vectors of an index's changes, with a thread for each lease. Then wait for the other builders."""
        max_leases = self._max_leases()
        is_stopped = threading.Event()
        threads = DaemonThreads(max_leases, "osrerank-build")
        running: set[Future[None]] = set()
        try:
            while running or progress.latest.count_unbuilt(heads):
                lease = self._claim(progress, heads) if len(running) < max_leases else None
                if lease is not None:
                    running.add(threads.submit(self._build_lease, name, progress, lease, report, is_stopped))
                elif running:
                    ended, running = wait(running, WAIT_S, FIRST_COMPLETED)
                    for future in ended:
                        future.result()  # raises the thread's error
                else:
                    time.sleep(WAIT_S)  # other builders have leased all remaining changes
                    with self._lock:
                        progress.load()
        finally:
            is_stopped.set()
            threads.close(wait=False)

    def _max_leases(self) -> int:
        """Return the maximum number of simultaneous leases: one, or several for each worker that encodes."""
        encoder = self._vectors.encoder
        if not isinstance(encoder, NeedsWorkers):
            return 1
        try:
            return LEASES_PER_WORKER * encoder.find_workers()
        except WorkerError:  # without workers, a build can still skip documents whose vectors are stored
            return 1

    def _claim(self, progress: StoredProgress, heads: Mapping[str, Head]) -> Lease | None:
        """Lease a range of changes to this builder. Return None if no range is free."""
        now_s = time.time()
        claim = partial(BuildProgress.claim, owner=self._owner, heads=heads, now_s=now_s, expires_at_s=now_s + LEASE_S)
        with self._lock:
            lease: Lease | None = progress.update(claim)
        return lease

    def _build_lease(
        self,
        name: str,
        progress: StoredProgress,
        lease: Lease,
        report: Callable[[], None],
        is_stopped: threading.Event,
    ) -> None:
        """Build the vectors of a lease's documents, until the build stops or another builder takes over the lease.

        Documents that searches found without a vector are encoded before the next batch.
        """
        size = BATCH_SIZE
        remaining: Lease | None = lease
        with self._client.searcher.service_for(self._index) as service:
            while remaining:
                began_s = time.monotonic()
                ids_by_index = self._backlog.take(size)
                if ids_by_index:
                    self._build_reported_documents(service, ids_by_index)
                    first_unbuilt, term = remaining.first, 0  # the lease itself has made no progress
                else:
                    first_unbuilt, term = self._build_next_batch(service, name, remaining, size)
                with self._lock:
                    if is_stopped.is_set():
                        return
                    expires_at_s = time.time() + LEASE_S
                    advance = partial(
                        BuildProgress.advance,
                        lease=remaining,
                        first=first_unbuilt,
                        term=term,
                        expires_at_s=expires_at_s,
                    )
                    remaining = progress.update(advance)
                    report()
                took_s = time.monotonic() - began_s
                if took_s < TARGET_BATCH_S:
                    size = min(2 * size, MAX_BATCH_SIZE)
                elif took_s > 4 * TARGET_BATCH_S:
                    size = max(size // 2, BATCH_SIZE)

    def _build_next_batch(self, service: RerankService, name: str, lease: Lease, size: int) -> tuple[int, int]:
        """Build the vectors of the next ``size`` documents of a lease.

        Returns:
            The first sequence number that is still not built, and the highest primary term of the documents.
        """
        body = fetch_body(self._fields, size, build_sequence_query([(lease.first, lease.last)])) | {
            "track_total_hits": False
        }
        request = build_shard_request(name, lease.shard, body, engine=self._client.engine, order="asc")
        hits = self._send(request)["hits"]["hits"]
        self._build_batch(make_batch(service, self._options, self._fields, hits))
        last = lease.last
        if len(hits) == size:  # the lease may have further documents
            last = read_sequence_number(hits[-1], is_embedded=self._is_embedded)
        return last + 1, max((int(hit.get("_primary_term", 0)) for hit in hits), default=0)

    def _build_reported_documents(self, service: RerankService, ids_by_index: Mapping[str, Sequence[str]]) -> None:
        """Build the vectors of documents that searches found without one. The build reads the documents again later."""
        for name, ids in ids_by_index.items():
            body = fetch_body(self._fields, len(ids), {"ids": {"values": ids}}) | {"track_total_hits": False}
            request = SideRequest("POST", build_path(name, "_search"), body, self._client.engine.no_pipeline)
            batch = make_batch(service, self._options, self._fields, self._send(request)["hits"]["hits"])
            self._build_batch(batch, is_early=True)

    def _build_batch(self, batch: DocumentBatch, *, is_early: bool = False) -> None:
        """Build a batch's vectors. Documents of an early batch are not counted, because the build reads them again."""
        counts = [self._build_texts(texts, self._side_indices.get(name)) for name, texts in batch.texts.items()]
        n_texts = sum(count.n_parts for count in counts)
        n_encoded = sum(count.n_encoded for count in counts)
        if is_early:
            added = BuildSummary(encoded=n_encoded)
        else:
            added = BuildSummary(batch.n_documents, n_texts, n_encoded, batch.n_empty)
        with self._lock:
            self._summary = self._summary.add(added)

    def _build_texts(self, texts: Sequence[str | LongText], side_index: IndexStore | None) -> BuildCounts:
        """Build the vectors of texts. While the workers' queue is full, wait, because searches have priority."""
        while True:
            try:
                return self._vectors.build(texts, side_index)
            except Overloaded as error:
                logger.info("the build waits %g s: %s", WAIT_S, error)
                time.sleep(WAIT_S)

    def _finish(self) -> BuildSummary:
        """Store which fields were read, make the vectors visible to searches, and return the summary."""
        if self._store_fields():
            self._client.searcher.forget_indices()
        for side_index in self._side_indices.values():
            side_index.refresh()
        return self._summary

    def _store_fields(self) -> bool:
        """Store the fields that were read, for searches that specify no fields. Return whether they changed."""
        fields_by_index = self._fields.model_fields_by_index(self._options.fields)
        store = self._vectors.store
        is_changed = False
        request_indices = self._client.indices.get_mapping if self._side_indices else self._client.indices.get
        for name, entry in request_indices(index=self._index).items():
            key = build_fields_key(name)
            fields = fields_by_index.get(name, self._fields.model_fields)
            if name in self._side_indices:
                is_changed |= _store_fields_in_side_index(self._side_indices[name], key, fields)
            elif self._side_indices:  # an alias was moved to this index during the build
                continue
            elif isinstance(store, FileStore):
                uuid = entry["settings"]["index"]["uuid"]
                is_changed |= _store_fields_in_file(store, BUILD_PREFIX + key, uuid, fields)
        return is_changed

    def _send(self, request: SideRequest) -> Any:
        return self._client.perform_steps(_yield_request(request))


def _yield_request(request: SideRequest) -> Generator[SideRequest, Any, Any]:
    """Yield a request as the only step of a generator, and return its response."""
    return (yield request)


def _store_fields_in_side_index(side_index: IndexStore, key: bytes, fields: Sequence[str]) -> bool:
    """Store the fields that a build read from an index, and return whether they changed."""
    stored, version = side_index.read_build_state(key)
    content = update_build_fields(stored=b"", uuid="", fields=fields)
    if content == stored:
        return False
    side_index.write_build_state(key, content, version)  # if another builder was first, its fields stay
    return True


def _store_fields_in_file(store: FileStore, key: bytes, uuid: str, fields: Sequence[str]) -> bool:
    """Store the fields that a build read from the index with this uuid, and return whether they changed."""
    stored = store.read([key]).get(key, b"")
    content = update_build_fields(stored, uuid, fields)
    return content != stored and store.write({key: content}) > 0


def _find_side_indices(
    client: Client, index: str, to: StoreName | None, vectors: DocumentVectors
) -> dict[str, IndexStore]:
    """Return the side index of each index. Return {} if a build writes to the store in the settings instead.

    Raises:
        ConfigError: the settings name another store.
    """
    if to == "index" or (to is None and client.searcher.vectors is not None):
        stores = find_side_indices(client, [index], vectors.label)
        return {name: side_index for side_index in stores for name in side_index.indices}
    if to is not None and (vectors.store is None or vectors.store.name != to):
        reason = f"--to is {to}, but vectors are not stored there: set OSRERANK_VECTORS={to}, or leave out --to"
        raise ConfigError(reason, setting="vectors", source="--to")
    return {}


def build_on_screen(client: Client, index: str, *, to: StoreName | None = None, date_field: str = "") -> BuildSummary:
    """Run `build_vectors`, and show its progress on standard error as a bar, or as lines if it is not a terminal."""
    with show_document_progress() as report:
        return build_vectors(client, index, to=to, date_field=date_field, report=report)
