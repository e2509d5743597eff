"""Provide the vectors of documents: read the stored ones, and compute those that are missing.

A similarity is always computed from the stored form, the record: a document without one is encoded and rounded first.
So the first and the second search give bitwise equal scores.
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
from osrerank.vectors.records import NOTHING, Kept, Records
from osrerank.vectors.store import VECTORS_OFF, VectorStore

MOST_LATE, MOST_LATE_WAITING = 256, 1024
"""How many documents of a call may be encoded after its deadline, and how many of all calls may wait for it."""
AT_ONCE = 256
"""Passages that are encoded at a time if there is a deadline, or after one."""
MOST_EXPECTED = 64
"""How many queries may be encoded before their searches ask for the vectors."""
WHOLE_TEXT: Sequence[Span | None] = (None,)
"""The spans of a text that is not cut."""
LATE_AT_ONCE, LATE_WAIT_S = 8, 1.0
"""Documents that are encoded at a time after a deadline, and the seconds that they wait for searches to end."""

logger = logging.getLogger(__name__)
Item = TypeVar("Item")


class FoundRecords(NamedTuple):
    """The records of the texts that a search asked for.

    Attributes:
        documents: each text's records, or why it has none; only for the first texts if a deadline was too short.
        known: how many texts, or passages of texts, had a record.
        encoded: how many were encoded now.
        made: the records that were made of those, by key.
    """

    documents: "list[DocumentRecords]"
    known: int
    encoded: int
    made: Mapping[bytes, Kept] = NOTHING


class Remembered(NamedTuple):
    """What `DocumentVectors.remember` did.

    Attributes:
        texts: how many texts were given, or passages of texts.
        encoded: how many of these had no record and were encoded.
    """

    texts: int
    encoded: int


class DocumentVectors:
    """The source of one model's document vectors. Safe to use from many threads.

    Args:
        encoder: encodes queries, and documents without a record; the caller closes it.
        storage: where records are kept, and the bits of each number; without it, nothing is kept or rounded.
        clock: returns the seconds in which encoding is timed.
        sides: further stores, in which `of` looks for the records that are not kept; the caller closes them.
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
        self._late = Background(MOST_LATE_WAITING, newest_first=True)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start new threads in a forked child, because the old ones stay with the parent."""
        self._threads = DaemonThreads(usable_cores(), "osrerank-query")
        self._closed = threading.Event()
        self._searches: set[object] = set()
        self._expected: LRUCache[str, Future[Vectors]] = LRUCache(MOST_EXPECTED)
        self._lock = threading.Lock()

    @property
    def store(self) -> VectorStore | None:
        """Where records are kept; None if they are not kept."""
        return self.records.store

    @property
    def label(self) -> str:
        """The model's name and a digest of all that its vectors depend on, for counts by model."""
        return f"{self.encoder.model} {self.records.model_key[:4].hex()}"

    def expect(self, query: str) -> None:
        """Begin to encode a query while its candidates are being searched; `encoded_query` returns the future."""
        with self._lock, contextlib.suppress(InferenceError):  # the search that needs it gets the error
            if query not in self._expected:
                self._expected[query] = self._encoding(query)

    def encoded_query(self, query: str) -> Future[Vectors]:
        """Return the future of a query's vector, which another thread encodes unless `expect` has begun it.

        Raises:
            InferenceError: the source is closed.
        """
        with self._lock:
            expected = self._expected.pop(query, None)
        return expected or self._encoding(query)

    def _encoding(self, query: str) -> Future[Vectors]:
        try:
            return self._threads.submit(self.encoder.encode, [query], "query")
        except RuntimeError as error:
            raise InferenceError(f"{self.encoder.model} is closed", model=self.encoder.model) from error

    def of(self, texts: Iterable[str | LongText], deadline: Deadline = NEVER) -> FoundRecords:
        """Return the records of texts; until the deadline, encode and store the missing ones.

        Args:
            texts: texts, which may be made one by one; a deadline stops this when half of the time left has passed.
            deadline: no text is cut and no batch begins after it.

        Raises:
            ScoringError, WorkerError: no text has a record, and none can be encoded.
        """
        asked = list(in_half(texts, deadline))
        keys = self.keys_of(asked)
        known = self.known(keys)
        for side in self._sides:
            if lacking := [key for key in keys if key not in known]:
                known |= self.received(side.read(lacking))
        return self.completed(asked, keys, known, deadline)

    def completed(
        self,
        texts: Sequence[str | LongText],
        keys: Sequence[bytes],
        kept: Mapping[bytes, Kept],
        deadline: Deadline = NEVER,
    ) -> FoundRecords:
        """Return the records of texts; until the deadline, encode the missing ones, and store them.

        Texts that the deadline cut off are encoded afterwards, in the background.

        Args:
            texts: as the model reads them.
            keys: the key of each text's record.
            kept: the records that are known, by key.
            deadline: no text is cut and no batch begins after it.

        Raises:
            ScoringError, WorkerError: no text has a record, and none can be encoded.
        """
        search = object()
        self._searches.add(search)
        try:
            documents = [DocumentRecords(text, kept.get(key)) for text, key in zip(texts, keys, strict=True)]
            known = sum([len(document.records) for document in documents])
            lacking = {key: document for key, document in zip(keys, documents, strict=True) if not document.records}
            if not lacking:
                return FoundRecords(documents, known, 0)
            encoded = self._fill(
                [document for document in documents if not document.records], deadline, alone=not known
            )
            made = {key: record for key, document in lacking.items() if (record := document.kept) is not None}
            self.records.keep(made)
            if not deadline.is_withdrawn:
                self._catch_up([document.text for document in documents if document.is_cut_off])
            return FoundRecords(documents, known, encoded, made)
        finally:
            self._searches.discard(search)

    def keys_of(self, texts: Sequence[str | LongText]) -> list[bytes]:
        """Return the keys of texts' records."""
        return self.records.keys_of(texts)

    def known(self, keys: Sequence[bytes]) -> dict[bytes, Kept]:
        """Return the records that the store has, by key."""
        return self.records.known(keys)

    def received(self, contents: Mapping[bytes, bytes]) -> dict[bytes, Kept]:
        """Return the valid records among bytes that came from a side index, by key; the store gets them, too."""
        found = self.records.read(contents)
        self.records.keep(found)
        return found

    def cost_of(self, texts: Sequence[str | LongText]) -> tuple[float, int]:
        """Compute the records of texts and store nothing; return the seconds that it took, and the records' bytes.

        Raises:
            InferenceError: a text could not be encoded.
        """
        began = self._clock()
        made, _ = self._made(dict(zip(self.keys_of(texts), texts, strict=True)), NEVER)
        took_s = self._clock() - began
        return took_s, sum(map(len, self.records.contents(made).values()))

    def remember(
        self, texts: Sequence[str | LongText], store: VectorStore | None = None, deadline: Deadline = NEVER
    ) -> Remembered:
        """Compute and store the missing records of texts.

        Args:
            texts: as the model reads them.
            store: where to write; by default this source's own store. Another store also gets what this source has, and
                this source's store what is computed for the other.
            deadline: when computing stops.

        Raises:
            InferenceError: a text could not be encoded.
            OsrerankError: there is no store, or it accepts nothing.
        """
        store = store or self.store
        if store is None:
            raise OsrerankError(VECTORS_OFF)
        wanted = dict(zip(self.keys_of(texts), texts, strict=True))
        there = self.records.read_from(store, list(wanted))
        left = {key: text for key, text in wanted.items() if key not in there}
        here = {} if store is self.store else self.records.known(list(left))
        made, encoded = self._made({key: text for key, text in left.items() if key not in here}, deadline)
        new = {**here, **made}
        if new and not self.records.write(store, new):
            raise OsrerankError(f"the {store.name} of document vectors accepted nothing; the log says why")
        if made and self.store is not None and store is not self.store:
            self.records.write(self.store, made)  # an index that is made anew finds them here
        return Remembered(sum(map(_passages, {**there, **new}.values())), encoded)

    def close(self) -> None:
        """Wait for pending writes and release the store; stop encoding what deadlines cut off."""
        self._closed.set()
        self._late.close()
        self._threads.close()
        self.records.close()

    def _fill(self, documents: "Sequence[DocumentRecords]", deadline: Deadline, *, alone: bool) -> int:
        """Compute the records that documents lack; return how many were computed.

        Under a deadline, some documents are cut and encoded before the next are cut: both get a share of the time.
        """
        left, encoded = iter(documents), 0
        while not deadline.passed and (group := [document for document in in_half(left, deadline) if document.cut()]):
            encoded += self._fill_cut(group, deadline, alone=alone and not encoded)
        return encoded

    def _fill_cut(self, documents: "Sequence[DocumentRecords]", deadline: Deadline, *, alone: bool) -> int:
        """Compute the records that documents already cut lack, of equal passages only once; return how many.

        The documents take turns, so that each has some passages at the deadline.
        """
        found_in: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)  # text -> document and passage, by index
        for at, turn in in_turns([len(document.parts) for document in documents]):
            found_in[documents[at].parts[turn][0]].append((at, turn))
        texts, encoded = list(found_in), 0
        most = len(texts) if deadline.at_s is None and deadline.withdrawn is None else AT_ONCE
        for start in range(0, len(texts), most):
            batch = texts[start : start + most]
            vectors = self._encode(batch, deadline, alone=alone and not encoded)
            is_there = [bool(np.isfinite(row).all()) for row in vectors.rows]
            for number, text in enumerate(batch):
                record = (
                    VectorRecord.of(vectors.rows[number], self.records.bits, cut=number in vectors.cut)
                    if is_there[number]
                    else None
                )
                for at, turn in found_in[text]:
                    documents[at].note(turn, record, vectors.failures.get(number))
            encoded += sum(is_there)
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
            nothing = np.full((len(texts), self.encoder.dimensions), np.nan, dtype=np.float32)
            return Vectors(nothing, dict.fromkeys(range(len(texts)), str(error)))

    def _made(self, texts: Mapping[bytes, str | LongText], deadline: Deadline) -> tuple[dict[bytes, Kept], int]:
        """Compute the records of texts; return them, and how many texts or passages were encoded.

        Raises:
            InferenceError: a text could not be encoded.
        """
        documents = {key: DocumentRecords(text, None) for key, text in texts.items()}
        made = self._fill(list(documents.values()), deadline, alone=True) if documents else 0
        for document in documents.values():
            if document.failures:
                raise InferenceError(next(iter(document.failures.values())), model=self.encoder.model)
        return {key: kept for key, document in documents.items() if (kept := document.kept) is not None}, made

    def _catch_up(self, texts: Sequence[str | LongText]) -> None:
        """Compute and store, in the background, the records that a deadline cut off."""
        if texts and self.store is not None:
            late = texts[:MOST_LATE]
            self._late.submit(functools.partial(self._remember_late, late), len(late))

    def _remember_late(self, texts: Sequence[str | LongText]) -> None:
        """Compute and store the records of texts, a few at a time, each few after running searches."""
        try:
            for start in range(0, len(texts), LATE_AT_ONCE):
                until_s = time.monotonic() + LATE_WAIT_S
                while self._searches and time.monotonic() < until_s and not self._closed.is_set():
                    self._closed.wait(LATE_WAIT_S / 100)
                if self._closed.is_set():
                    return
                self.remember(texts[start : start + LATE_AT_ONCE], deadline=Deadline(withdrawn=self._closed.is_set))
        except OsrerankError as error:
            logger.info("the vectors of %d documents were not computed after a deadline: %s", len(texts), error)


class DocumentRecords:
    """A text and the records of its passages; a text without a record can be cut into passages.

    Args:
        text: the text, or a long one.
        kept: the text's record; None if it is not known.

    Attributes:
        records: index of a passage -> its record.
        failures: index of a passage -> why it could not be encoded.
        parts: the passages as the model reads them; empty until the text is cut.
        spans: the span of each passage; None for the whole text, or while it is not cut.
    """

    __slots__ = ("failures", "parts", "records", "spans", "text")

    def __init__(self, text: str | LongText, kept: Kept | None) -> None:
        self.text = text
        self.records: dict[int, VectorRecord] = {}
        self.failures: Mapping[int, str] = NOTHING
        self.parts: Sequence[Part] = ()
        self.spans: Sequence[Span | None] = WHOLE_TEXT
        if isinstance(text, LongText) and isinstance(kept, LongRecord):
            self.records, self.spans = dict(enumerate(kept.passages)), kept.spans
        elif isinstance(kept, VectorRecord) and not isinstance(text, LongText):
            self.records = {0: kept}

    def cut(self) -> Sequence[Part]:
        """Cut the text, if this was not done; return its passages as the model reads them, at least one."""
        if not self.parts:
            self.parts = self.text.cut() if isinstance(self.text, LongText) else [(self.text, None)]
            self.spans = [span for _, span in self.parts]
        return self.parts

    def note(self, turn: int, record: VectorRecord | None, failure: str | None) -> None:
        """Keep a passage's record, or why it has none; do nothing if it was not reached."""
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
    def kept(self) -> Kept | None:
        """The text's record; None while a passage has none."""
        if len(self.records) < len(self.spans):
            return None
        if not isinstance(self.text, LongText):
            return self.records[0]
        return LongRecord([self.records[turn] for turn in range(len(self.spans))], self.spans)


def in_half(items: Iterable[Item], deadline: Deadline) -> Iterator[Item]:
    """Yield items, at least one, until half of the time left before a deadline has passed."""
    until = deadline.within_ms(500 * deadline.remaining_s())
    for item in items:
        yield item
        if until.passed:
            return


def _passages(kept: Kept) -> int:
    return len(kept.passages) if isinstance(kept, LongRecord) else 1
