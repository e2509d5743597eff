"""Provide the vectors of documents: read the stored ones, and compute those that are missing.

A search compares the query with records: the stored form of vectors, in which they are rounded. A document without a
record is encoded and rounded first. So the first search and later searches give bitwise equal scores.
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
from osrerank.types.vectors import Part, in_turns
from osrerank.vectors.background import Background
from osrerank.vectors.configured import VectorStorage
from osrerank.vectors.long_record import LongRecord
from osrerank.vectors.record import VectorRecord
from osrerank.vectors.records import NOTHING, Records, TextRecord
from osrerank.vectors.store import VECTORS_OFF, VectorStore

MAX_LATE, MAX_LATE_WAITING = 256, 1024
"""The most documents of one call, and of all calls, that wait to be encoded after their deadline."""
AT_ONCE = 256
"""How many passages are encoded at a time if there is a deadline."""
MAX_EXPECTED = 64
"""The most queries that are encoded before their searches ask for the vectors."""
WHOLE_TEXT: Sequence[Span | None] = (None,)
"""The spans of a text that is not cut into passages."""
LATE_AT_ONCE, LATE_WAIT_S = 8, 1.0
"""How many documents are encoded at a time after a deadline, and how long they wait for searches to end, in seconds."""

logger = logging.getLogger(__name__)
Item = TypeVar("Item")


class FoundRecords(NamedTuple):
    """The records of the texts that a search compares with its query.

    Attributes:
        documents: each text with its records, or the reason why it has none. If the deadline was too short, only the
            first texts are in the list.
        known: the number of texts, or passages of texts, that had a record.
        encoded: the number of texts or passages that were encoded now.
        new_records: the records that were computed now, by key.
    """

    documents: "list[DocumentRecords]"
    known: int
    encoded: int
    new_records: Mapping[bytes, TextRecord] = NOTHING


class BuildCounts(NamedTuple):
    """Counts of a call of `DocumentVectors.remember`.

    Attributes:
        texts: the number of texts, or passages of texts, in the call.
        encoded: the number of these that had no record and were encoded.
    """

    texts: int
    encoded: int


class DocumentVectors:
    """The source of one model's document vectors. Safe to use from many threads.

    Args:
        encoder: encodes queries, and documents without a record; the caller closes it.
        storage: the store of the records, and the bits of each number. By default, records are not stored, and vectors
            are not rounded.
        clock: returns seconds, which measure how long encoding takes.
        sides: more stores, in which `find` looks for records that the storage lacks; the caller closes them.
    """

    def __init__(
        self,
        encoder: Encoder,
        storage: VectorStorage | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        sides: Sequence[VectorStore] = (),
    ) -> None:
        self.encoder, self._clock, self._sides = encoder, clock, sides
        by_tokens = encoder.advice.kind == "late-interaction"
        self.records = Records(encoder.key, encoder.dimensions, storage or VectorStorage(), by_tokens=by_tokens)
        self._late_tasks = Background(MAX_LATE_WAITING, newest_first=True)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start new threads in a forked child, because the parent's threads do not run there."""
        self._threads = DaemonThreads(usable_cores(), "osrerank-query")
        self._closed = threading.Event()
        self._running_searches: set[object] = set()
        self._expected_queries: LRUCache[str, Future[Vectors]] = LRUCache(MAX_EXPECTED)
        self._lock = threading.Lock()

    @property
    def store(self) -> VectorStore | None:
        """The store of the records; None if records are not stored."""
        return self.records.store

    @property
    def label(self) -> str:
        """The model's name, and a digest of everything that its vectors depend on; counts by model show it."""
        return f"{self.encoder.model} {self.records.model_key[:4].hex()}"

    def expect(self, query: str) -> None:
        """Begin to encode a query while the engine searches for its candidates; `encoded_query` returns the future."""
        with self._lock, contextlib.suppress(InferenceError):  # the search that needs the vector gets the error
            if query not in self._expected_queries:
                self._expected_queries[query] = self._encode_query(query)

    def encoded_query(self, query: str) -> Future[Vectors]:
        """Return the future of a query's vector; start to encode the query if `expect` did not.

        Raises:
            InferenceError: this source is closed.
        """
        with self._lock:
            future = self._expected_queries.pop(query, None)
        return future or self._encode_query(query)

    def _encode_query(self, query: str) -> Future[Vectors]:
        try:
            return self._threads.submit(self.encoder.encode, [query], "query")
        except RuntimeError as error:
            raise InferenceError(f"{self.encoder.model} is closed", model=self.encoder.model) from error

    def find(self, texts: Iterable[str | LongText], deadline: Deadline = NEVER) -> FoundRecords:
        """Return the records of texts; until the deadline, encode texts without a record, and store the new records.

        Args:
            texts: texts, which may be made one by one. Under a deadline, no more texts are taken after half of the time
                left.
            deadline: the time after which no text is cut and no batch begins.

        Raises:
            ScoringError, WorkerError: no text has a record, and no text can be encoded.
        """
        taken_texts = list(take_half_the_time(texts, deadline))
        keys = self.records.keys_of(taken_texts)
        records = self.records.read_stored(keys)
        for store in self._sides:
            if missing_keys := [key for key in keys if key not in records]:
                records |= self.accept(store.read(missing_keys))
        return self.complete(taken_texts, keys, records, deadline)

    def complete(
        self,
        texts: Sequence[str | LongText],
        keys: Sequence[bytes],
        records: Mapping[bytes, TextRecord],
        deadline: Deadline = NEVER,
    ) -> FoundRecords:
        """Return the records of texts; until the deadline, encode texts without a record, and store the new records.

        Texts that were not encoded in time are encoded afterwards, in the background.

        Args:
            texts: the texts as the model reads them.
            keys: the key of each text's record.
            records: the stored records, by key.
            deadline: the time after which no text is cut and no batch begins.

        Raises:
            ScoringError, WorkerError: no text has a record, and no text can be encoded.
        """
        search = object()
        self._running_searches.add(search)
        try:
            documents = [DocumentRecords(text, records.get(key)) for text, key in zip(texts, keys, strict=True)]
            known = sum([len(document.records) for document in documents])
            missing = [(key, document) for key, document in zip(keys, documents, strict=True) if not document.records]
            if not missing:
                return FoundRecords(documents, known, 0)
            encoded = self._encode_documents([document for _, document in missing], deadline, alone=not known)
            new_records = _complete_records(missing)
            self.records.keep(new_records)
            if not deadline.is_withdrawn:
                self._encode_later([document.text for document in documents if document.is_cut_off])
            return FoundRecords(documents, known, encoded, new_records)
        finally:
            self._running_searches.discard(search)

    def accept(self, contents: Mapping[bytes, bytes]) -> dict[bytes, TextRecord]:
        """Return the valid records among the contents of a side index, by key, and write them to the store."""
        records = self.records.read(contents)
        self.records.keep(records)
        return records

    def measure_cost(self, texts: Sequence[str | LongText]) -> tuple[float, int]:
        """Encode texts without storing their records; return the time in seconds, and the records' size in bytes.

        Raises:
            InferenceError: a text could not be encoded.
        """
        began_s = self._clock()
        records, _ = self._compute_records(dict(zip(self.records.keys_of(texts), texts, strict=True)), NEVER)
        took_s = self._clock() - began_s
        return took_s, sum(map(len, self.records.contents(records).values()))

    def remember(
        self, texts: Sequence[str | LongText], store: VectorStore | None = None, deadline: Deadline = NEVER
    ) -> BuildCounts:
        """Compute and store the missing records of texts.

        Args:
            texts: the texts as the model reads them.
            store: the store to fill; by default this source's own store. If it is another store, records are copied to
                it from this source's own store, and new records are written to both.
            deadline: the time when computing stops.

        Raises:
            InferenceError: a text could not be encoded.
            OsrerankError: vectors are off, or the store accepts no record.
        """
        store = store or self.store
        if store is None:
            raise OsrerankError(VECTORS_OFF)
        texts_by_key = dict(zip(self.records.keys_of(texts), texts, strict=True))
        stored_records = self.records.read_from(store, list(texts_by_key))
        missing = {key: text for key, text in texts_by_key.items() if key not in stored_records}
        own_records = {} if store is self.store else self.records.read_stored(list(missing))
        new_texts = {key: text for key, text in missing.items() if key not in own_records}
        new_records, encoded = self._compute_records(new_texts, deadline)
        added_records = {**own_records, **new_records}
        if added_records and not self.records.write(store, added_records):
            raise OsrerankError(f"the {store.name} of document vectors accepted nothing; the log says why")
        if new_records and self.store is not None and store is not self.store:
            self.records.write(self.store, new_records)  # a build of the same texts in a new index finds them here
        return BuildCounts(sum(map(_count_passages, {**stored_records, **added_records}.values())), encoded)

    def close(self) -> None:
        """Wait for pending writes and close the store; encode no more texts that deadlines cut off."""
        self._closed.set()
        self._late_tasks.close()
        self._threads.close()
        self.records.close()

    def _encode_documents(self, documents: "Sequence[DocumentRecords]", deadline: Deadline, *, alone: bool) -> int:
        """Compute the records that documents lack; return how many were computed.

        Under a deadline, some documents are cut and encoded before the next ones are cut, so that cutting does not take
        all of the time.
        """
        remaining, encoded = iter(documents), 0
        while not deadline.passed:
            group = [document for document in take_half_the_time(remaining, deadline) if document.cut()]
            if not group:
                break
            encoded += self._encode_passages(group, deadline, alone=alone and not encoded)
        return encoded

    def _encode_passages(self, documents: "Sequence[DocumentRecords]", deadline: Deadline, *, alone: bool) -> int:
        """Encode the passages of documents that are cut, equal passages only once; return how many were encoded.

        The documents take turns, so that each has some passages at the deadline.
        """
        locations: defaultdict[str, list[tuple[int, int]]] = defaultdict(
            list
        )  # passage -> indices of document and turn
        for number, turn in in_turns([len(document.parts) for document in documents]):
            locations[documents[number].parts[turn][0]].append((number, turn))
        passages, encoded = list(locations), 0
        batch_size = len(passages) if deadline.at_s is None and deadline.withdrawn is None else AT_ONCE
        for start in range(0, len(passages), batch_size):
            batch = passages[start : start + batch_size]
            vectors = self._encode(batch, deadline, alone=alone and not encoded)
            for index, passage in enumerate(batch):
                record = None
                if np.isfinite(vectors.rows[index]).all():
                    is_cut = index in vectors.cut
                    record = VectorRecord.of(vectors.rows[index], self.records.bits, cut=is_cut)
                    encoded += 1
                for number, turn in locations[passage]:
                    documents[number].set_passage(turn, record, vectors.failures.get(index))
            if deadline.passed:
                break
        return encoded

    def _encode(self, texts: Sequence[str], deadline: Deadline, *, alone: bool) -> Vectors:
        """Encode texts and return their vectors; if the encoder fails, every text counts as failed.

        Args:
            texts: texts without records.
            deadline: the deadline of the call.
            alone: whether no other text has a record; the encoder's error is then raised.
        """
        try:
            return self.encoder.encode(texts, "document", deadline=deadline)
        except OsrerankError as error:
            if alone:
                raise
            rows = np.full((len(texts), self.encoder.dimensions), np.nan, dtype=np.float32)
            return Vectors(rows, dict.fromkeys(range(len(texts)), str(error)))

    def _compute_records(
        self, texts: Mapping[bytes, str | LongText], deadline: Deadline
    ) -> tuple[dict[bytes, TextRecord], int]:
        """Compute the records of texts; return them, and the number of texts or passages that were encoded.

        Raises:
            InferenceError: a text could not be encoded.
        """
        documents = {key: DocumentRecords(text, None) for key, text in texts.items()}
        encoded = self._encode_documents(list(documents.values()), deadline, alone=True)
        for document in documents.values():
            if document.failures:
                raise InferenceError(next(iter(document.failures.values())), model=self.encoder.model)
        return _complete_records(documents.items()), encoded

    def _encode_later(self, texts: Sequence[str | LongText]) -> None:
        """Encode texts that a deadline cut off in the background, and store their records."""
        if texts and self.store is not None:
            late_texts = texts[:MAX_LATE]
            self._late_tasks.submit(functools.partial(self._remember_late, late_texts), len(late_texts))

    def _remember_late(self, texts: Sequence[str | LongText]) -> None:
        """Compute and store the records of texts, a few at a time; wait before each few while searches run."""
        try:
            for start in range(0, len(texts), LATE_AT_ONCE):
                until_s = time.monotonic() + LATE_WAIT_S
                while self._running_searches and time.monotonic() < until_s and not self._closed.is_set():
                    self._closed.wait(LATE_WAIT_S / 100)
                if self._closed.is_set():
                    return
                self.remember(texts[start : start + LATE_AT_ONCE], deadline=Deadline(withdrawn=self._closed.is_set))
        except OsrerankError as error:
            logger.info("the vectors of %d documents were not computed after a deadline: %s", len(texts), error)


class DocumentRecords:
    """A text and the records of its passages; a text without a record can be cut into passages.

    Args:
        text: the text, or a long text.
        stored_record: the text's record; None if it is not stored.

    Attributes:
        records: index of a passage -> its record.
        failures: index of a passage -> the reason why it could not be encoded.
        parts: the passages as the model reads them; empty until the text is cut.
        spans: the span of each passage; None for the whole text, and until the text is cut.
    """

    __slots__ = ("failures", "parts", "records", "spans", "text")

    def __init__(self, text: str | LongText, stored_record: TextRecord | None) -> None:
        self.text = text
        self.records: dict[int, VectorRecord] = {}
        self.failures: Mapping[int, str] = NOTHING
        self.parts: Sequence[Part] = ()
        self.spans: Sequence[Span | None] = WHOLE_TEXT
        if isinstance(text, LongText) and isinstance(stored_record, LongRecord):
            self.records, self.spans = dict(enumerate(stored_record.passages)), stored_record.spans
        elif isinstance(stored_record, VectorRecord) and not isinstance(text, LongText):
            self.records = {0: stored_record}

    def cut(self) -> Sequence[Part]:
        """Cut the text at the first call; return its passages as the model reads them, at least one."""
        if not self.parts:
            self.parts = self.text.cut() if isinstance(self.text, LongText) else [(self.text, None)]
            self.spans = [span for _, span in self.parts]
        return self.parts

    def set_passage(self, turn: int, record: VectorRecord | None, failure: str | None) -> None:
        """Set a passage's record or failure; with neither, the encoder did not reach the passage."""
        if record is not None:
            self.records[turn] = record
        elif failure is not None:
            self.failures = {**self.failures, turn: failure}

    @property
    def is_whole(self) -> bool:
        """Whether every passage has a record."""
        return len(self.records) == len(self.spans) and not self.failures

    @property
    def is_cut_off(self) -> bool:
        """Whether a deadline left a passage without a record or a failure."""
        return len(self.records) + len(self.failures) < len(self.spans)

    @property
    def text_record(self) -> TextRecord | None:
        """The text's record; None until every passage has one."""
        if len(self.records) < len(self.spans):
            return None
        if not isinstance(self.text, LongText):
            return self.records[0]
        return LongRecord([self.records[turn] for turn in range(len(self.spans))], self.spans)


def _complete_records(documents: Iterable[tuple[bytes, DocumentRecords]]) -> dict[bytes, TextRecord]:
    """Return the records of the documents whose passages all have one, by key."""
    return {key: record for key, document in documents if (record := document.text_record) is not None}


def take_half_the_time(items: Iterable[Item], deadline: Deadline) -> Iterator[Item]:
    """Yield items, at least one, until half of the time left before a deadline has passed."""
    half_time = deadline.within_ms(500 * deadline.remaining_s())
    for item in items:
        yield item
        if half_time.passed:
            return


def _count_passages(record: TextRecord) -> int:
    return len(record.passages) if isinstance(record, LongRecord) else 1
