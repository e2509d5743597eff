"""Raw scores of a query and documents' records: many rows in few large products.

Documents are joined in blocks of a fixed number, with their rows padded to a multiple; the last block is filled up. So
a document's score does not depend on the others in a bit.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank.scoring.card import BLOCKED, Joining
from osrerank.scoring.states.record import EXACT, Floats, Record

BLOCK = 32
"""Scores of a block."""
SEEN = 16
"""Documents of a block, or pairs of documents, whose rows are looked at together."""
ROWS = 8
"""A document's rows are padded to a multiple of this."""

Seen = Sequence[Record]
"""What the query looks at together: a document, or two."""
Feeds = dict[str, npt.NDArray[Any]]


class Joiner:
    """Scores records with the graphs that join; safe to use from several threads.

    Args:
        sessions: the ``onnxruntime.InferenceSession`` of each graph of `osrerank.export.contexts_graph`, in order of
            `osrerank.scoring.card.join_keys`, with one thread for a run.
        joining: the model's.
        executor: computes the blocks.
    """

    def __init__(self, sessions: Sequence[Any], joining: Joining, executor: Executor) -> None:
        self._sessions = sessions
        self._layers, self._bias = joining.layers, joining.bias
        self._executor = executor

    def scores(self, query: Mapping[str, Floats], seen: Sequence[Seen]) -> Floats:
        """Return raw scores ``(n,)``: the cosine of the query's vector and a document's, or the difference of two.

        Args:
            query: ``vector`` and ``states.i`` of the encoder graph.
            seen: of each score.
        """
        if not seen:
            return np.zeros(0, dtype=np.float32)
        if not self._layers:
            cosines: Floats = (_differences(seen) * query["vector"]).sum(axis=1)
            return cosines
        return self._by_contexts(query, seen) if self._layers == 1 else self._joined(query, seen)

    def _joined(self, query: Mapping[str, Floats], seen: Sequence[Seen]) -> Floats:
        """Return the scores of documents, or pairs of documents, by the join graph."""
        (session,), vectors = self._sessions, _differences(seen)
        found = np.zeros(len(seen), dtype=np.float32)
        blocks = list(_blocks(seen))
        ours = {name.replace("states", "query"): value for name, value in query.items() if name != "vector"}
        ours["query_vector"] = query["vector"]
        feeds = (
            {**ours, **self._in_layers([seen[at] for at in places]), "document_vector": _filled(vectors[places], SEEN)}
            for places in blocks
        )
        for places, (logits,) in zip(blocks, self._executor.map(partial(session.run, None), feeds), strict=True):
            found[places] = logits[: len(places), 0]
        return found

    def _in_layers(self, seen: Sequence[Seen]) -> Feeds:
        """Return what the join graph reads of a block."""
        states, scales, bias = self._rows(seen)
        by_layer = {f"document.{layer}": rows for layer, rows in enumerate(states)}
        return {**by_layer, **{f"scale.{layer}": scale for layer, scale in enumerate(scales)}, "bias": bias}

    def _rows(self, seen: Sequence[Seen]) -> tuple[Floats, Floats, Floats]:
        """Return a block's rows, padded: states and scales in each joined layer, and what is added to their logits."""
        rows, (layers, _, hidden) = _padded(seen[0]), seen[0][0].states.shape
        pieces = np.zeros((SEEN, rows), dtype=np.float32)
        pieces[len(seen) :, 0] = 1
        scales = np.zeros((layers, SEEN, rows), dtype=np.float32)
        states = np.zeros((layers, SEEN, rows, hidden), dtype=np.float32)
        for at, records in enumerate(seen):
            start = 0
            for record in records:
                stop = start + len(record.pieces)
                pieces[at, start:stop] = record.pieces
                scales[:, at, start:stop] = record.scales
                states[:, at, start:stop] = record.states
                start = stop
        log_pieces = np.log(pieces, out=np.full_like(pieces, BLOCKED), where=pieces > 0)
        return states, scales, log_pieces + np.float32(self._bias)

    def _by_contexts(self, query: Mapping[str, Floats], seen: Sequence[Seen]) -> Floats:
        """Return the scores of documents, or pairs of documents, each of which is looked at once."""
        documents = list({id(record): record for records in seen for record in records}.values())
        at = {id(record): place for place, record in enumerate(documents)}
        places = np.array([[at[id(record)] for record in records] for records in seen])
        feeds = {"query.0": query["states.0"], "query_vector": query["vector"], "document_vector": _vectors(documents)}
        feeds |= self._contexts(query["states.0"], documents)
        filled = _filled(places, -(-len(places) // BLOCK) * BLOCK)
        scores = self._sessions[2]
        blocks = [{**feeds, "places": block} for block in np.split(filled, len(filled) // BLOCK)]
        logits = [found[:, 0] for (found,) in self._executor.map(partial(scores.run, None), blocks)]
        return np.concatenate(logits)[: len(seen)]

    def _contexts(self, query: Floats, documents: Sequence[Record]) -> Feeds:
        """Return what the query's rows see in itself and in each document."""
        queries, contexts, _ = self._sessions
        looking = dict(zip(("queries", "offsets"), queries.run(None, {"query.0": query}), strict=True))
        scale = np.ones(query.shape[:2], dtype=np.float32)
        own = {**looking, "rows": query, "scale": scale, "bias": np.zeros_like(scale)}
        blocks = list(_blocks([(document,) for document in documents]))
        padded = (self._rows([(documents[at],) for at in places]) for places in blocks)
        others = ({**looking, "rows": rows[0], "scale": scales[0], "bias": bias} for rows, scales, bias in padded)
        look = partial(contexts.run, ["context", "log_sum"])
        (own_context, own_log_sum), *found = self._executor.map(look, chain([own], others))
        feeds = {"own_context": own_context, "own_log_sum": own_log_sum}
        order = np.argsort(np.concatenate(blocks))
        for number, name in enumerate(("context", "log_sum")):
            cut = [outputs[number][: len(places)] for outputs, places in zip(found, blocks, strict=True)]
            feeds[name] = np.concatenate(cut)[order]
        return feeds


def _differences(seen: Sequence[Seen]) -> Floats:
    """Return documents' vectors ``(n, hidden)``, or each first one's less the second's."""
    records = [record for some in seen for record in some]
    vectors = _vectors(records)
    return vectors[0::2] - vectors[1::2] if len(records) == 2 * len(seen) else vectors


def _filled(rows: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """Return rows, with zeros up to a number of them."""
    filled = np.zeros((count, rows.shape[1]), dtype=rows.dtype)
    filled[: len(rows)] = rows
    return filled


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
        for start in range(0, len(places), SEEN):
            yield np.array(places[start : start + SEEN])
