"""Raw scores of a query and documents' records: many rows in few large products.

Documents are joined in blocks of a fixed number, with their rows padded to a multiple; the last block is filled up. So
a document's score does not depend on the others in a bit.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank.scoring.card import BLOCKED
from osrerank.scoring.states.record import EXACT, Floats, Record

BLOCK = 32
"""Documents of a block, or pairs of them."""
ROWS = 16
"""A document's rows are padded to a multiple of this."""

Seen = Sequence[Record]
"""What the query looks at together: a document, or two."""


class Joiner:
    """Scores records with the join graph of `osrerank.export.joined_graph`; safe to use from several threads.

    Args:
        session: the ``onnxruntime.InferenceSession``, with one thread for a run; None where no layer is joined.
        layers: how many are joined.
        executor: computes the blocks.
    """

    def __init__(self, session: Any, layers: int, executor: Executor) -> None:
        self._session = session
        self._layers = layers
        self._executor = executor

    def scores(self, query: Mapping[str, Floats], seen: Sequence[Seen]) -> Floats:
        """Return raw scores ``(n,)``: the cosine of the query's vector and a document's, or the difference of two.

        Args:
            query: ``vector`` and ``states.i`` of the encoder graph.
            seen: of each score.
        """
        found = np.zeros(len(seen), dtype=np.float32)
        if not seen:
            return found
        vectors = _vectors(seen)
        if not self._layers:
            found[:] = (vectors * query["vector"]).sum(axis=1)
            return found
        blocks = list(_blocks(seen))
        alike = ([seen[at] for at in places] for places in blocks)
        joined = self._executor.map(partial(self._block, query), alike, (vectors[places] for places in blocks))
        for places, scores in zip(blocks, joined, strict=True):
            found[places] = scores
        return found

    def _block(self, query: Mapping[str, Floats], seen: Sequence[Seen], vectors: Floats) -> Floats:
        """Return the scores of a block's documents, which have equally many rows after padding."""
        rows = _padded(seen[0])
        hidden = vectors.shape[1]
        filled = np.zeros((BLOCK, hidden), dtype=np.float32)
        filled[: len(seen)] = vectors
        feeds = {"query_vector": query["vector"], "document_vector": filled}
        pieces = np.zeros((BLOCK, rows), dtype=np.float32)
        pieces[len(seen) :, 0] = 1
        scales = np.zeros((self._layers, BLOCK, rows), dtype=np.float32)
        states = np.zeros((self._layers, BLOCK, rows, hidden), dtype=seen[0][0].states.dtype)
        for at, records in enumerate(seen):
            start = 0
            for record in records:
                stop = start + len(record.pieces)
                pieces[at, start:stop] = record.pieces
                scales[:, at, start:stop] = record.scales
                states[:, at, start:stop] = record.states
                start = stop
        feeds["log_pieces"] = np.log(pieces, out=np.full_like(pieces, BLOCKED), where=pieces > 0)
        states = np.multiply(states, scales[..., None], dtype=np.float32)
        for layer in range(self._layers):
            feeds[f"query.{layer}"], feeds[f"document.{layer}"] = query[f"states.{layer}"], states[layer]
        scores: Floats = self._session.run(None, feeds)[0]
        return scores[: len(seen), 0]


def _vectors(seen: Sequence[Seen]) -> Floats:
    """Return documents' vectors ``(n, hidden)``, or each first one's less the second's.

    Vectors that were rounded have norm 1 again.
    """
    records = [record for some in seen for record in some]
    vectors: Floats = np.stack([record.vector for record in records]).astype(np.float32)
    if records[0].bits != EXACT:
        vectors /= np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
    return vectors[0::2] - vectors[1::2] if len(records) == 2 * len(seen) else vectors


def _padded(seen: Seen) -> int:
    rows = sum(len(record.pieces) for record in seen)
    return -(-rows // ROWS) * ROWS


def _blocks(seen: Sequence[Seen]) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the places of each block."""
    alike: defaultdict[int, list[int]] = defaultdict(list)
    for place, one in enumerate(seen):
        alike[_padded(one)].append(place)
    for places in alike.values():
        for start in range(0, len(places), BLOCK):
            yield np.array(places[start : start + BLOCK])
