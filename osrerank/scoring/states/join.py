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
"""Documents of a block, or pairs of documents."""
ROWS = 16
"""A document's rows are padded to a multiple of this."""

Seen = Sequence[Record]
"""What the query looks at together: a document, or two."""
Feeds = dict[str, npt.NDArray[Any]]


class Joiner:
    """Scores records with the graphs of `osrerank.export.joined_graph`; safe to use from several threads.

    Args:
        sessions: the ``onnxruntime.InferenceSession`` of each graph that joins, in the order of
            `osrerank.scoring.card.join_keys`, with one thread for a run.
        layers: how many are joined.
        executor: computes the blocks.
    """

    def __init__(self, sessions: Sequence[Any], layers: int, executor: Executor) -> None:
        self._sessions = sessions
        self._layers = layers
        self._executor = executor

    def scores(self, query: Mapping[str, Floats], seen: Sequence[Seen]) -> Floats:
        """Return raw scores ``(n,)``: the cosine of the query's vector and a document's, or the difference of two.

        Args:
            query: ``vector`` and ``states.i`` of the encoder graph.
            seen: of each score.
        """
        if not seen:
            return np.zeros(0, dtype=np.float32)
        if len(self._sessions) == 2:
            return self._compared(query, seen)
        vectors = _differences(seen)
        if not self._layers:
            cosines: Floats = (vectors * query["vector"]).sum(axis=1)
            return cosines
        found = np.zeros(len(seen), dtype=np.float32)
        blocks = list(_blocks(seen))
        alike = ([seen[at] for at in places] for places in blocks)
        joined = self._executor.map(partial(self._block, query), alike, (vectors[places] for places in blocks))
        for places, scores in zip(blocks, joined, strict=True):
            found[places] = scores
        return found

    def _block(self, query: Mapping[str, Floats], seen: Sequence[Seen], vectors: Floats) -> Floats:
        """Return the scores of a block's documents, which have equally many rows after padding."""
        feeds = {**self._rows(query, seen), "query_vector": query["vector"]}
        feeds["document_vector"] = np.zeros((BLOCK, vectors.shape[1]), dtype=np.float32)
        feeds["document_vector"][: len(seen)] = vectors
        (session,) = self._sessions
        scores: Floats = session.run(None, feeds)[0]
        return scores[: len(seen), 0]

    def _rows(self, query: Mapping[str, Floats], seen: Sequence[Seen]) -> Feeds:
        """Return what a graph reads of a query's and a block's rows, in each joined layer."""
        rows, hidden = _padded(seen[0]), query["vector"].shape[1]
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
        feeds = {"log_pieces": np.log(pieces, out=np.full_like(pieces, BLOCKED), where=pieces > 0)}
        states = np.multiply(states, scales[..., None], dtype=np.float32)
        for layer in range(self._layers):
            feeds[f"query.{layer}"], feeds[f"document.{layer}"] = query[f"states.{layer}"], states[layer]
        return feeds

    def _compared(self, query: Mapping[str, Floats], seen: Sequence[Seen]) -> Floats:
        """Return the scores of pairs of documents, each of which is looked at once."""
        documents = list({id(record): record for records in seen for record in records}.values())
        places = {id(record): at for at, record in enumerate(documents)}
        pairs = np.array([[places[id(record)] for record in records] for records in seen])
        feeds = {"query.0": query["states.0"], "query_vector": query["vector"], "document_vector": _vectors(documents)}
        feeds |= self._contexts(query, [(record,) for record in documents])
        filled = np.zeros((-(-len(pairs) // BLOCK) * BLOCK, 2), dtype=np.int64)
        filled[: len(pairs)] = pairs
        _, session = self._sessions
        blocks = [{**feeds, "pairs": block} for block in np.split(filled, len(filled) // BLOCK)]
        scores = [logits[:, 0] for (logits,) in self._executor.map(partial(session.run, None), blocks)]
        return np.concatenate(scores)[: len(seen)]

    def _contexts(self, query: Mapping[str, Floats], seen: Sequence[Seen]) -> Feeds:
        """Return what the query's rows see in itself and in each document: the outputs of the contexts graph."""
        session, _ = self._sessions
        names = [output.name for output in session.get_outputs()]
        blocks = list(_blocks(seen))
        feeds = (self._rows(query, [seen[at] for at in places]) for places in blocks)
        found = [
            dict(zip(names, outputs, strict=True)) for outputs in self._executor.map(partial(session.run, names), feeds)
        ]
        order = np.argsort(np.concatenate(blocks))
        parts = zip(found, blocks, strict=True)
        cut = [{name: outputs[name][: len(places)] for name in ("context", "log_sum")} for outputs, places in parts]
        return {**found[0], **{name: np.concatenate([one[name] for one in cut])[order] for name in cut[0]}}


def _differences(seen: Sequence[Seen]) -> Floats:
    """Return documents' vectors ``(n, hidden)``, or each first one's less the second's."""
    records = [record for some in seen for record in some]
    vectors = _vectors(records)
    return vectors[0::2] - vectors[1::2] if len(records) == 2 * len(seen) else vectors


def _vectors(records: Sequence[Record]) -> Floats:
    """Return documents' vectors ``(n, hidden)``; those that were rounded have norm 1 again."""
    vectors: Floats = np.stack([record.vector for record in records]).astype(np.float32)
    if records[0].bits != EXACT:
        vectors /= np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
    return vectors


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
