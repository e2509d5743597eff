"""The vectors of an index in memory, for exact search; read from the store when a search needs them."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from osrerank.embedded.errors import illegal
from osrerank.embedded.mapping.vectors import NUMBERS, SPACES, Floats, Rows, VectorField
from osrerank.embedded.storage.store import IndexRow, Store

MOST = 1_000_000
"""Vectors of a field that are searched."""
BLOCK = 1_024
"""Vectors that are compared at a time: so few that they stay in a processor's cache."""


@dataclass(frozen=True, slots=True)
class Column:
    """The vectors of a field as of one refresh, in the order in which documents were written.

    Attributes:
        seqs: sequence numbers of the documents, ascending, ``(n,)``.
        ids: of the documents.
        rows: their vectors ``(n, dimension)``.
        squares: the vectors' squared lengths, ``(n,)``.
    """

    seqs: npt.NDArray[np.int64]
    ids: npt.NDArray[np.object_]
    rows: Rows
    squares: Floats

    def nearest(
        self, space: str, query: Floats, k: int, among: npt.NDArray[np.int64] | None
    ) -> list[tuple[str, float]]:
        """Return ids and scores of the k documents with the highest scores; of equal ones, those written first.

        Args:
            space: how vectors are compared.
            query: ``(dimension,)``.
            k: how many.
            among: sequence numbers of the only documents that count; None for all.
        """
        places = np.arange(len(self.seqs)) if among is None else np.flatnonzero(np.isin(self.seqs, among))
        blocks = [places[start : start + BLOCK] for start in range(0, len(places), BLOCK)]
        scores = [self._scores(space, query, block, is_whole=among is None) for block in blocks]
        found = np.concatenate([np.zeros(0, dtype=np.float32), *scores])
        if 0 < k < len(found):
            least = np.partition(found, len(found) - k)[len(found) - k]
            able = np.flatnonzero(found >= least)
        else:
            able = np.arange(len(found))
        best = able[np.argsort(-found[able], kind="stable")][:k]
        return [(str(self.ids[places[at]]), float(found[at])) for at in best]

    def _scores(self, space: str, query: Floats, block: npt.NDArray[np.intp], *, is_whole: bool) -> Floats:
        cut = slice(int(block[0]), int(block[-1]) + 1) if is_whole else block
        return SPACES[space](query, self.rows[cut].astype(np.float32, copy=False), self.squares[cut])


@dataclass(slots=True)
class Columns:
    """The columns of an index; each is read when it is first searched, and brought up to date after a refresh."""

    store: Store
    _columns: dict[tuple[int, VectorField], tuple[int, Column]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, index: IndexRow, one: VectorField, seq: int) -> Column:
        """Return a field's vectors of the documents up to a sequence number.

        Raises:
            Fault: 400 if there are too many.
        """
        key = index.id, one
        with self._lock:
            known, column = self._columns.get(key) or (0, _column(one, [], [], b""))
            if known == seq:
                return column
            column = self._updated(index, one, column, known, seq)
            self._columns[key] = seq, column
            return column

    def _updated(self, index: IndexRow, one: VectorField, old: Column, known: int, seq: int) -> Column:
        there = self.store.vector_seqs(index, one.path, seq)
        if len(there) > MOST:
            raise illegal(
                f"[knn] finds the nearest of at most {MOST:,} vectors in the embedded engine, [{one.path}] has"
                f" {len(there):,}: use an OpenSearch server"
            )
        kept = np.isin(old.seqs, np.array(there, dtype=np.int64))
        seqs, ids, content = [], [], bytearray()
        for number, doc_id, vector in self.store.vectors_between(index, one.path, known, seq):
            seqs.append(number)
            ids.append(doc_id)
            content += vector
        new = _column(one, seqs, ids, bytes(content))
        rows = np.concatenate([old.rows[kept], new.rows]) if kept.any() else new.rows
        return Column(
            np.concatenate([old.seqs[kept], new.seqs]),
            np.concatenate([old.ids[kept], new.ids]),
            rows,
            np.concatenate([old.squares[kept], new.squares]),
        )


def _column(one: VectorField, seqs: Iterable[int], ids: list[str], content: bytes) -> Column:
    rows: Rows = np.frombuffer(content, NUMBERS[one.kind]).reshape(-1, one.dimension)
    squares = np.zeros(len(rows), dtype=np.float32)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK].astype(np.float32)
        squares[start : start + BLOCK] = np.einsum("ij,ij->i", block, block)
    names = np.empty(len(ids), dtype=object)
    names[:] = ids
    return Column(np.array(list(seqs), dtype=np.int64), names, rows, squares)
