"""Get the vectors of documents: read the stored ones, and compute and store the missing ones.

A long text is split into passages, and each passage gets a vector. The parts of a text are its passages, or the whole
text if it is not split. Vectors are stored as records (`osrerank.vectors.record`), in which they are rounded. New
vectors are rounded before they are compared, so a document gets bitwise equal scores before and after its vectors are
stored.
"""

import contextlib
import functools
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

import numpy as np
from cachetools import LRUCache

from osrerank._platform import renew_after_fork, usable_cores
from osrerank._threads import DaemonThreads
from osrerank.errors import InferenceError, OsrerankError
from osrerank.types import NEVER, Deadline, Encoder, LongText, Span, Vectors
from osrerank.types.vectors import Part, interleave_parts
from osrerank.vectors.background import BackgroundTasks
from osrerank.vectors.long_record import LongRecord
from osrerank.vectors.record import VectorRecord
from osrerank.vectors.records import EMPTY_MAPPING, Records, TextRecord
from osrerank.vectors.storage import VectorStorage
from osrerank.vectors.store import VECTORS_OFF, VectorStore

BATCH_SIZE = 256
"""The number of parts in a batch. Calls with a deadline check it after each batch."""
MAX_PREFETCHED = 64
"""The maximum number of query vectors that wait for the searches that will use them."""
WHOLE_TEXT: Sequence[Span | None] = (None,)
"""The spans of a text that is not split into passages."""
MAX_LATE_TEXTS = 256
"""The maximum number of late texts of a call: texts that it leaves to the background when its deadline passes."""
MAX_QUEUED_LATE_TEXTS = 1024
"""The maximum number of late texts that wait to be encoded. Beyond it, the oldest ones are dropped."""
LATE_BATCH_SIZE = 8
"""The number of late texts in a batch."""
LATE_WAIT_S = 1.0
"""The maximum time that a batch of late texts waits for running searches to end, in seconds."""
LATE_POLL_S = 0.01
"""The time between two checks whether searches still run, in seconds."""

logger = logging.getLogger(__name__)
Item = TypeVar("Item")


class CompletedRecords(NamedTuple):
    """The records of the texts to compare with a query, after the missing ones were computed.

    Attributes:
        documents: the texts with their records. If the deadline passed early, these are only the first texts.
        n_stored: the number of parts with a stored record.
        n_encoded: the number of parts that were encoded.
        new_records: the computed records, by the text's key.
    """

    documents: "list[DocumentRecords]"
    n_stored: int
    n_encoded: int
    new_records: Mapping[bytes, TextRecord] = EMPTY_MAPPING


class BuildCounts(NamedTuple):
    """The result of `DocumentVectors.build`.

    Attributes:
        n_parts: the number of parts.
        n_encoded: the number of parts that had no record, and were encoded.
    """

    n_parts: int
    n_encoded: int


class DocumentVectors:
    """Reads, computes and stores the document vectors of one model. Safe to use from many threads.

    Args:
        encoder: the model. The caller closes it.
        storage: the store of the records, and their precision. If None, vectors are neither stored nor rounded.
        clock: a monotonic clock, in seconds.
        side_indices: further stores that `find` reads. The caller closes them.
    """

    def __init__(
        self,
        encoder: Encoder,
        storage: VectorStorage | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        side_indices: Sequence[VectorStore] = (),
    ) -> None:
        self.encoder, self._clock, self._side_indices = encoder, clock, side_indices
        self.records = Records(
            encoder.key,
            encoder.dimensions,
            storage or VectorStorage(),
            has_token_vectors=encoder.advice.kind == "late-interaction",
        )
        self._late_tasks = BackgroundTasks(MAX_QUEUED_LATE_TEXTS, newest_first=True)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Create threads and locks, also in a forked child, where the parent's threads do not run."""
        self._threads = DaemonThreads(usable_cores(), "osrerank-query")
        self._closed = threading.Event()
        self._running_searches: set[object] = set()
        self._prefetched_queries: LRUCache[str, Future[Vectors]] = LRUCache(MAX_PREFETCHED)
        self._lock = threading.Lock()

    @property
    def store(self) -> VectorStore | None:
        """The store of the records, or None if records are not stored."""
        return self.records.store

    @property
    def label(self) -> str:
        """The model's name and the first digits of its `Records.model_key`, such as ``osrerank/e5-small 1a2b3c4d``."""
        return f"{self.encoder.model} {self.records.model_key[:4].hex()}"

    def prefetch_query(self, query: str) -> None:
        """Start to encode a query in another thread, while the search engine runs the first pass."""
        with self._lock, contextlib.suppress(InferenceError):  # `encode_query` raises the error again
            if query not in self._prefetched_queries:
                self._prefetched_queries[query] = self._submit_query(query)

    def encode_query(self, query: str) -> Future[Vectors]:
        """Encode a query in another thread, or return the future that `prefetch_query` started.

        Raises:
            InferenceError: `close` was called.
        """
        with self._lock:
            future = self._prefetched_queries.pop(query, None)
        return future or self._submit_query(query)

    def _submit_query(self, query: str) -> Future[Vectors]:
        try:
            return self._threads.submit(self.encoder.encode, [query], "query")
        except RuntimeError as error:
            raise InferenceError(
                f"the encoder of {self.encoder.model} is closed; connect or load the model again",
                model=self.encoder.model,
            ) from error

    def find(self, texts: Iterable[str | LongText], deadline: Deadline = NEVER) -> CompletedRecords:
        """Read the records of texts from all stores, and compute and store the missing ones (`encode_missing`).

        Args:
            texts: the texts. The iterator is read until half of the time to the deadline has passed.
            deadline: the time after which no text is split and no batch begins.

        Raises:
            ScoringError, WorkerError: no text has a record, and no text can be encoded.
        """
        prepared_texts = list(take_half_the_time(texts, deadline))
        keys = self.records.compute_keys(prepared_texts)
        records = self.records.read_stored(keys)
        for store in self._side_indices:
            missing_keys = [key for key in keys if key not in records]
            if missing_keys:
                records |= self.parse_and_store(store.read(missing_keys))
        return self.encode_missing(prepared_texts, keys, records, deadline)

    def encode_missing(
        self,
        texts: Sequence[str | LongText],
        keys: Sequence[bytes],
        records: Mapping[bytes, TextRecord],
        deadline: Deadline = NEVER,
    ) -> CompletedRecords:
        """Compute and store the missing records of texts until the deadline.

        Texts that are unfinished at the deadline are encoded later, in the background.

        Args:
            texts: the texts, as the model's input.
            keys: the keys of the texts.
            records: the stored records, by key.
            deadline: the time after which no text is split and no batch begins.

        Raises:
            ScoringError, WorkerError: no text has a record, and no text can be encoded.
        """
        search = object()  # stands for this call, for which late texts of other calls wait
        self._running_searches.add(search)
        try:
            documents = [DocumentRecords(text, records.get(key)) for text, key in zip(texts, keys, strict=True)]
            n_stored = sum([len(document.records) for document in documents])
            missing = [(key, document) for key, document in zip(keys, documents, strict=True) if not document.records]
            if not missing:
                return CompletedRecords(documents, n_stored, n_encoded=0)
            missing_documents = [document for _, document in missing]
            n_encoded = self._encode_documents(missing_documents, deadline, raise_error=n_stored == 0)
            new_records = _collect_text_records(missing)
            self.records.write_later(new_records)
            if not deadline.is_withdrawn:  # the caller still needs the vectors
                self._encode_later([document.text for document in documents if document.has_open_parts])
            return CompletedRecords(documents, n_stored, n_encoded, new_records)
        finally:
            self._running_searches.discard(search)

    def parse_and_store(self, contents: Mapping[bytes, bytes]) -> dict[bytes, TextRecord]:
        """Parse records from a side index, copy the valid ones to the store, and return them by key."""
        records = self.records.parse(contents)
        self.records.write_later(records)
        return records

    def measure_cost(self, texts: Sequence[str | LongText]) -> tuple[float, int]:
        """Encode texts without storing them. Return how long it took, in seconds, and their records' size, in bytes.

        Raises:
            InferenceError: a text could not be encoded.
        """
        began_s = self._clock()
        texts_by_key = dict(zip(self.records.compute_keys(texts), texts, strict=True))
        records, _ = self._compute_records(texts_by_key, NEVER)
        took_s = self._clock() - began_s
        contents = self.records.to_contents(records)
        return took_s, sum(len(content) for content in contents.values())

    def build(
        self, texts: Sequence[str | LongText], store: VectorStore | None = None, deadline: Deadline = NEVER
    ) -> BuildCounts:
        """Compute and store the missing records of texts.

        Args:
            texts: the texts, as the model's input.
            store: the store to fill. The default is ``self.store``. If it is another store, records in ``self.store``
                are copied to it, and new records are written to both.
            deadline: the time after which no text is split and no batch begins.

        Raises:
            InferenceError: a text could not be encoded.
            OsrerankError: vectors are off, or nothing could be stored.
        """
        store = store or self.store
        if store is None:
            raise OsrerankError(VECTORS_OFF)
        texts_by_key = dict(zip(self.records.compute_keys(texts), texts, strict=True))
        stored_records = self.records.read_from(store, list(texts_by_key))
        missing_texts = {key: text for key, text in texts_by_key.items() if key not in stored_records}
        copied_records = {} if store is self.store else self.records.read_stored(list(missing_texts))
        new_texts = {key: text for key, text in missing_texts.items() if key not in copied_records}
        new_records, n_encoded = self._compute_records(new_texts, deadline)
        added_records = {**copied_records, **new_records}
        if added_records and not self.records.write(store, added_records):
            raise OsrerankError(f"could not write document vectors to the store {store.name!r}; the log has the error")
        if new_records and self.store is not None and store is not self.store:
            self.records.write(self.store, new_records)  # a later build of a new index with the same texts reads them
        records = [*stored_records.values(), *added_records.values()]
        n_parts = sum(len(record.passages) if isinstance(record, LongRecord) else 1 for record in records)
        return BuildCounts(n_parts, n_encoded)

    def close(self) -> None:
        """Stop encoding in the background, wait for pending writes, and close the store."""
        self._closed.set()
        self._late_tasks.close()
        self._threads.close()
        self.records.close()

    def _encode_documents(self, documents: "list[DocumentRecords]", deadline: Deadline, *, raise_error: bool) -> int:
        """Encode documents until the deadline, and return the number of encoded parts.

        Documents are split and encoded in groups, and splitting a group takes at most half of the remaining time. If
        the encoder raises an error before any part is encoded, and ``raise_error`` is True, this method raises it, too.
        Any other error becomes the failure of the parts.
        """
        remaining_documents, n_encoded = iter(documents), 0
        while not deadline.passed:
            group = []
            for document in take_half_the_time(remaining_documents, deadline):
                document.split()
                group.append(document)
            if not group:
                break
            n_encoded += self._encode_parts(group, deadline, raise_error=raise_error and n_encoded == 0)
        return n_encoded

    def _encode_parts(self, documents: "list[DocumentRecords]", deadline: Deadline, *, raise_error: bool) -> int:
        """Encode the parts of split documents, and return how many were encoded. Equal parts are encoded once.

        The first parts of all documents come first, so that a deadline leaves few documents without any vector.
        """
        # The indices of the document and the part where a text occurs, such as {"Wings lift.": [(0, 0), (3, 1)]}.
        locations: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for document_index, part_index in interleave_parts([len(document.parts) for document in documents]):
            text, _span = documents[document_index].parts[part_index]
            locations[text].append((document_index, part_index))
        texts, n_encoded = list(locations), 0
        has_deadline = deadline.at_s is not None or deadline.withdrawn is not None
        batch_size = BATCH_SIZE if has_deadline else len(texts)
        for start in range(0, len(texts), batch_size):
            batch = texts[start : start + batch_size]
            vectors = self._encode(batch, deadline, raise_error=raise_error and n_encoded == 0)
            for row_index, text in enumerate(batch):
                row = vectors.rows[row_index]
                record = None
                if np.isfinite(row).all():  # NaN marks a text that was not encoded
                    is_truncated = row_index in vectors.cut
                    record = VectorRecord.from_vector(row, self.records.bits, is_truncated=is_truncated)
                    n_encoded += 1
                for document_index, part_index in locations[text]:
                    documents[document_index].set_part(part_index, record, vectors.failures.get(row_index))
            if deadline.passed:
                break
        return n_encoded

    def _encode(self, texts: Sequence[str], deadline: Deadline, *, raise_error: bool) -> Vectors:
        """Encode texts. If this fails, raise the encoder's error, or return it as the failure of each text."""
        try:
            return self.encoder.encode(texts, "document", deadline=deadline)
        except OsrerankError as error:
            if raise_error:
                raise
            rows = np.full((len(texts), self.encoder.dimensions), np.nan, dtype=np.float32)
            return Vectors(rows, dict.fromkeys(range(len(texts)), str(error)))

    def _compute_records(
        self, texts: Mapping[bytes, str | LongText], deadline: Deadline
    ) -> tuple[dict[bytes, TextRecord], int]:
        """Compute the records of texts. Return them by key, and the number of encoded parts.

        Raises:
            InferenceError: a text could not be encoded.
        """
        documents = {key: DocumentRecords(text, None) for key, text in texts.items()}
        n_encoded = self._encode_documents(list(documents.values()), deadline, raise_error=True)
        for document in documents.values():
            if document.failures:
                raise InferenceError(next(iter(document.failures.values())), model=self.encoder.model)
        return _collect_text_records(documents.items()), n_encoded

    def _encode_later(self, texts: Sequence[str | LongText]) -> None:
        """Encode texts and store their records in the background."""
        if texts and self.store is not None:
            late_texts = texts[:MAX_LATE_TEXTS]
            self._late_tasks.submit(functools.partial(self._build_late, late_texts), len(late_texts))

    def _build_late(self, texts: Sequence[str | LongText]) -> None:
        """Compute and store the records of texts in small batches. Each batch waits a while for running searches."""
        try:
            for start in range(0, len(texts), LATE_BATCH_SIZE):
                wait_ends_at_s = time.monotonic() + LATE_WAIT_S
                while self._running_searches and time.monotonic() < wait_ends_at_s and not self._closed.is_set():
                    self._closed.wait(LATE_POLL_S)
                if self._closed.is_set():
                    return
                self.build(texts[start : start + LATE_BATCH_SIZE], deadline=Deadline(withdrawn=self._closed.is_set))
        except OsrerankError as error:
            logger.info("cannot encode %d documents after the deadline of their search: %s", len(texts), error)


class DocumentRecords:
    """A document with the records of its parts.

    Args:
        text: the document's text.
        stored_record: the record in the store. None if the document has no record.

    Attributes:
        records: the records, by index of the part.
        failures: why a part could not be encoded, by index of the part.
        parts: the text and the span of each part. Empty until `split` is called.
        spans: the span of each part in the document. The span of a whole text is None.
    """

    __slots__ = ("failures", "parts", "records", "spans", "text")

    def __init__(self, text: str | LongText, stored_record: TextRecord | None) -> None:
        self.text = text
        self.records: dict[int, VectorRecord] = {}
        self.failures: Mapping[int, str] = EMPTY_MAPPING
        self.parts: Sequence[Part] = ()
        self.spans: Sequence[Span | None] = WHOLE_TEXT
        if isinstance(text, LongText) and isinstance(stored_record, LongRecord):
            self.records, self.spans = dict(enumerate(stored_record.passages)), stored_record.spans
        elif isinstance(stored_record, VectorRecord) and not isinstance(text, LongText):
            self.records = {0: stored_record}
        # a record of the other kind of text is ignored

    def split(self) -> None:
        """Split the document into parts, unless it was split before."""
        if not self.parts:
            self.parts = self.text.cut() if isinstance(self.text, LongText) else [(self.text, None)]
            self.spans = [span for _, span in self.parts]

    def set_part(self, part_index: int, record: VectorRecord | None, failure: str | None) -> None:
        """Set the record or the failure of a part. Both are None if the deadline passed before it was encoded."""
        if record is not None:
            self.records[part_index] = record
        elif failure is not None:
            self.failures = {**self.failures, part_index: failure}

    @property
    def has_all_records(self) -> bool:
        """Whether every part has a record."""
        return len(self.records) == len(self.spans) and not self.failures

    @property
    def has_open_parts(self) -> bool:
        """Whether a deadline left a part without a record or a failure."""
        return len(self.records) + len(self.failures) < len(self.spans)

    @property
    def text_record(self) -> TextRecord | None:
        """The record to store for the document, or None until every part has a record."""
        if len(self.records) < len(self.spans):
            return None
        if not isinstance(self.text, LongText):
            return self.records[0]
        return LongRecord([self.records[part_index] for part_index in range(len(self.spans))], self.spans)


def _collect_text_records(documents: Iterable[tuple[bytes, DocumentRecords]]) -> dict[bytes, TextRecord]:
    """Return the record of each document whose parts all have records, by key."""
    records = ((key, document.text_record) for key, document in documents)
    return {key: record for key, record in records if record is not None}


def take_half_the_time(items: Iterable[Item], deadline: Deadline) -> Iterator[Item]:
    """Yield items until half of the time to a deadline has passed, but at least one item."""
    half_time = deadline.within_ms(1000 * deadline.remaining_s() / 2)
    for item in items:
        yield item
        if half_time.passed:
            return
