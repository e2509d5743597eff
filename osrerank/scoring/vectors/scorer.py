"""Score with a bi-encoder, whose document vectors are kept in a store.

A score is always computed from the stored form, the record: a document without one is encoded and rounded first. So the
first and the second search give bitwise equal scores, and the score cache stays valid.
"""

import functools
import logging
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from osrerank._platform import renew_after_fork
from osrerank._threads import DaemonThreads
from osrerank.errors import InferenceError, OsrerankError
from osrerank.scoring.backend import Backend
from osrerank.scoring.card import ModelCard
from osrerank.scoring.inputs import InputBuilder, Pieces, Tokens
from osrerank.scoring.local import WINDOW, LocalScorer
from osrerank.scoring.model_files import read_config
from osrerank.scoring.passages import Part, in_turns
from osrerank.scoring.vectors.background import Background
from osrerank.scoring.vectors.configured import VectorStorage
from osrerank.scoring.vectors.long_record import LongRecord
from osrerank.scoring.vectors.making import LocalMaker, Made, Maker
from osrerank.scoring.vectors.record import Floats, Record, cosines
from osrerank.scoring.vectors.records import Kept, Records
from osrerank.scoring.vectors.store import VECTORS_OFF, VectorStore
from osrerank.types import NEVER, Deadline, LongText, PassageScores, RequestVectors, Scores, Span
from osrerank.types.scores import QUERY_CUT

QUERIES = 128
"""How many query vectors are cached; one search may need the same vector several times."""
MOST_LATE, MOST_LATE_CALLS = 256, 4
"""How many documents of a call may be encoded after its deadline, and how many such calls may be queued."""

logger = logging.getLogger(__name__)


class Remembered(NamedTuple):
    """What `BiEncoderScorer.remember` did.

    Attributes:
        texts: how many documents, or passages of documents, were given.
        encoded: how many of these had no record and were encoded.
    """

    texts: int
    encoded: int


class BiEncoderScorer(LocalScorer):
    """A bi-encoder that scores documents by their records; safe to use from several threads.

    Args:
        directory: the model's, for its digest.
        card: what the outputs mean.
        builder: makes token sequences from texts.
        backend: encodes texts.
        vectors: where records are kept, and the bits of each number.
    """

    def __init__(
        self, directory: Path, card: ModelCard, builder: InputBuilder, backend: Backend, vectors: VectorStorage
    ) -> None:
        super().__init__(directory, card, builder, backend)
        self.records = Records(directory, card, int(read_config(directory)["hidden_size"]), vectors)
        self._maker: Maker = LocalMaker(self._batcher, builder, vectors.bits, self.at_once)
        self._query = functools.lru_cache(QUERIES)(self._of_bytes)
        self._query_threads = backend.threads
        self._late = Background(MOST_LATE_CALLS)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start new threads in a forked child, because the old ones stay with the parent."""
        self._threads = DaemonThreads(self._query_threads, "osrerank-query")

    @functools.cached_property
    def identity(self) -> str:
        """All that a score depends on except its texts. Backend, device and dtype are not part of it.

        So all processes with the same model, in any precision, share records and cached scores.
        """
        return f"{self._digest(())}/{self.records.model_key.hex()}/bi-encoder/{self._policy}"

    @property
    def store(self) -> VectorStore | None:
        """Where records are kept; None if they are not kept."""
        return self.records.store

    @property
    def keeps_vectors(self) -> bool:
        return self.store is not None

    def score(
        self,
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        *,
        deadline: Deadline = NEVER,
        vectors: RequestVectors | None = None,
    ) -> Scores:
        self._check(tuples)
        pieces = self._builder.query(query)
        encoded_query = self._encoding(pieces)
        values = np.full(len(tuples), np.nan, dtype=np.float32)
        cuts = np.zeros(len(tuples), dtype=np.uint8)
        failures: dict[int, str] = {}
        reached = inferences = encoded = known_before = 0
        while reached < len(tuples) and not deadline.passed:
            window = [at for (at,) in tuples[reached : reached + WINDOW]]
            needed = list(dict.fromkeys(window))
            found, known, made = self._found([documents[at] for at in needed], deadline, vectors)
            able = [at for at, one in zip(needed, found, strict=True) if one.records]
            records = {at: one.records[0] for at, one in zip(needed, found, strict=True) if one.records}
            failed = {at: one.failures[0] for at, one in zip(needed, found, strict=True) if one.failures}
            logits = dict(zip(able, self._logits(self._cosines(encoded_query, list(records.values()))), strict=True))
            done = len(window)
            for place, at in enumerate(window):
                logit = logits.get(at, math.nan)
                if math.isfinite(logit):
                    values[reached + place] = logit
                    cuts[reached + place] = records[at].cut | QUERY_CUT * pieces.cut
                elif at in records or at in failed:
                    failures[reached + place] = self._not_finite() if at in records else failed[at]
                else:
                    done = min(done, place)
            inferences += len(able)
            encoded, known_before = encoded + made, known_before + known
            reached += done
            if done < len(window):
                break
        scores = Scores(
            values,
            failures,
            reached,
            cuts=cuts,
            inferences=inferences,
            encoded=encoded,
            known=known_before,
            query_truncated=pieces.cut,
        )
        return replace(scores, truncated=len(scores.cut_documents(tuples)))

    def score_passages(
        self,
        query: str,
        texts: Sequence[str | LongText],
        *,
        deadline: Deadline = NEVER,
        vectors: RequestVectors | None = None,
    ) -> PassageScores:
        if deadline.passed:
            nothing = np.full(1, np.nan, dtype=np.float32)
            return PassageScores([[None]] * len(texts), [nothing] * len(texts))
        pieces = self._builder.query(query)
        encoded_query = self._encoding(pieces)
        documents, known, made = self._found(texts, deadline, vectors)
        order = [(at, turn) for at, document in enumerate(documents) for turn in sorted(document.records)]
        logits = [np.full(len(document.places), np.nan, dtype=np.float32) for document in documents]
        failures = {(at, turn): why for at, one in enumerate(documents) for turn, why in one.failures.items()}
        raw = self._cosines(encoded_query, [documents[at].records[turn] for at, turn in order])
        for (at, turn), logit in zip(order, self._logits(raw).tolist(), strict=True):
            if math.isfinite(logit):
                logits[at][turn] = logit
            else:
                failures[at, turn] = self._not_finite()
        cut = frozenset(at for at, turn in order if documents[at].records[turn].cut)
        return PassageScores(
            [document.places for document in documents],
            logits,
            failures,
            cut=cut,
            inferences=len(order),
            encoded=made,
            known=known,
            truncated=len(cut),
            query_truncated=pieces.cut,
        )

    def keys_of(self, texts: Sequence[str | LongText]) -> list[bytes]:
        return self.records.keys_of(texts)

    def known(self, keys: Sequence[bytes], vectors: RequestVectors | None = None) -> set[bytes]:
        return set(self.records.shared(keys, vectors))

    def cost_of(self, texts: Sequence[str | LongText]) -> tuple[float, int]:
        """Return the seconds that it takes to compute texts' records, and their bytes; the records are not kept.

        Raises:
            InferenceError: a text could not be encoded.
        """
        began = time.perf_counter()
        made, _ = self._made(dict(zip(self.keys_of(texts), texts, strict=True)))
        took_s = time.perf_counter() - began
        return took_s, sum(map(len, self.records.contents(made).values()))

    def remember(self, texts: Sequence[str | LongText], vectors: VectorStore | None = None) -> Remembered:
        """Compute and store the missing records of texts.

        Args:
            texts: as the model reads them.
            vectors: a second store, which also gets the records that are not missing.

        Raises:
            InferenceError: a text could not be encoded.
            OsrerankError: a store accepts no records, or there is none.
        """
        if self.store is None and vectors is None:
            raise OsrerankError(VECTORS_OFF)
        wanted = dict(zip(self.keys_of(texts), texts, strict=True))
        brought, stored = self.records.find(list(wanted), vectors)
        known = {**brought, **stored}
        records, encoded = self._made({key: text for key, text in wanted.items() if key not in known})
        for store, lacking in ((self.store, records), (vectors, {**stored, **records})):
            if store is not None and lacking and not self.records.write(store, lacking):
                raise OsrerankError(f"the {store.name} of document vectors accepted nothing; the log says why")
        return Remembered(sum(map(_passages, {**known, **records}.values())), encoded)

    def close(self) -> None:
        super().close()
        self._late.close()
        self._threads.close()
        self.records.close()

    def query_vector(self, query: str) -> Floats:
        """Return the vector of a query ``(1, hidden)``, of norm 1."""
        return self._query(self._builder.alone(self._builder.query(query)).ids.tobytes())

    def _encoding(self, query: Pieces) -> Future[Floats]:
        """Start to encode a query in another thread, so that records can be looked up meanwhile."""
        try:
            return self._threads.submit(self._query, self._builder.alone(query).ids.tobytes())
        except RuntimeError as error:
            raise InferenceError(f"{self.model} is closed", model=self.model) from error

    def _cosines(self, query: Future[Floats], records: Sequence[Record]) -> Floats:
        return cosines(query.result(), records)

    def _of_bytes(self, ids: bytes) -> Floats:
        """Return the vector ``(1, hidden)`` of a query's token ids, int64 as bytes."""
        read = np.frombuffer(ids, dtype=np.int64)
        return self.backend.run([Tokens(read, np.zeros_like(read))])

    def _logits(self, raw: Floats) -> Floats:
        """Return calibrated logits of cosines."""
        return self.card.calibration.scale * raw + self.card.calibration.offset

    def _not_finite(self) -> str:
        return f"{self.model} gave a score that is not a finite number"

    def _found(
        self, texts: Sequence[str | LongText], deadline: Deadline, vectors: RequestVectors | None
    ) -> tuple[list["_Document"], int, int]:
        """Return texts with their records, how many were known, and how many were computed; the new ones are stored."""
        keys = self.records.keys_of(texts)
        found = self.records.shared(keys, vectors)
        documents = [_Document(text, found.get(key)) for text, key in zip(texts, keys, strict=True)]
        known = sum(len(document.records) for document in documents)
        made = self._fill(documents, deadline)
        whole = {key: document.kept for key, document in zip(keys, documents, strict=True) if document.is_new}
        self.records.keep({key: kept for key, kept in whole.items() if kept is not None}, vectors)
        if not deadline.is_withdrawn:
            self._catch_up([document.text for document in documents if document.is_cut_off])
        return documents, known, made

    def _fill(self, documents: Sequence["_Document"], deadline: Deadline) -> int:
        """Compute the records that documents lack, equal passages only once; return how many were computed.

        The documents take turns, so that a deadline leaves each some passages.
        """
        places: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for at, turn in in_turns([len(document.parts) for document in documents]):
            places[documents[at].parts[turn][0]].append((at, turn))
        made = self._make(list(places), deadline, alone=not any(document.records for document in documents))
        for number, same in enumerate(places.values()):
            for at, turn in same:
                if number in made.records:
                    documents[at].records[turn] = made.records[number]
                elif number in made.failures:
                    documents[at].failures[turn] = made.failures[number]
        return len(made.records)

    def _make(self, texts: Sequence[str], deadline: Deadline, *, alone: bool) -> Made:
        """Return the records of texts; if none can be made, mark every text as failed.

        Args:
            texts: texts without records.
            deadline: of the call.
            alone: whether no other text has a record; then the error is raised.
        """
        if not texts:
            return Made({}, {})
        try:
            return self._maker.make(texts, deadline)
        except OsrerankError as error:
            if alone:
                raise
            return Made({}, dict.fromkeys(range(len(texts)), str(error)))

    def _made(self, texts: Mapping[bytes, str | LongText]) -> tuple[dict[bytes, Kept], int]:
        """Compute the records of all texts; return them, and how many texts or passages were encoded.

        Raises:
            InferenceError: a text could not be encoded.
        """
        documents = {key: _Document(text, None) for key, text in texts.items()}
        made = self._fill(list(documents.values()), NEVER)
        for document in documents.values():
            if document.failures:
                raise InferenceError(next(iter(document.failures.values())), model=self.model)
        return {key: kept for key, document in documents.items() if (kept := document.kept) is not None}, made

    def _catch_up(self, texts: Sequence[str | LongText]) -> None:
        """Compute in the background the records that a deadline cut off."""
        if texts and self.store is not None:
            self._late.submit(functools.partial(self._remember_late, texts[:MOST_LATE]))

    def _remember_late(self, texts: Sequence[str | LongText]) -> None:
        try:
            self.remember(texts)
        except OsrerankError as error:
            logger.info("the vectors of %d documents were not computed after a deadline: %s", len(texts), error)


class _Document:
    """A text with the records of its passages, by their number; without a record it is split into passages.

    Args:
        text: as given.
        kept: its record, if it is known.
    """

    def __init__(self, text: str | LongText, kept: Kept | None) -> None:
        self.text = text
        self.records: dict[int, Record] = {}
        self.failures: dict[int, str] = {}
        self.parts: Sequence[Part] = ()
        self.places: Sequence[Span | None] = [None]
        if isinstance(text, LongText) and isinstance(kept, LongRecord):
            self.records, self.places = dict(enumerate(kept.passages)), kept.places
        elif isinstance(text, LongText):
            self.parts = text.cut()
            self.places = [place for _, place in self.parts]
        elif isinstance(kept, Record):
            self.records = {0: kept}
        else:
            self.parts = [(text, None)]

    @property
    def is_new(self) -> bool:
        """Whether it had no record."""
        return bool(self.parts)

    @property
    def is_cut_off(self) -> bool:
        """Whether a deadline left a passage without a record or a failure."""
        return len(self.records) + len(self.failures) < len(self.places)

    @property
    def kept(self) -> Kept | None:
        """Its record; None while a passage lacks one."""
        if len(self.records) < len(self.places):
            return None
        if not isinstance(self.text, LongText):
            return self.records[0]
        return LongRecord([self.records[turn] for turn in range(len(self.places))], self.places)


def _passages(kept: Kept) -> int:
    return len(kept.passages) if isinstance(kept, LongRecord) else 1
