"""Vectors of texts by a model of the layout ``joined``: of a query, and of documents, whose records have them.

A document that is read by its passages has the vector of its first: the beginning says what a document is about, and
one vector each keeps the index small and its hits documents.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from osrerank.errors import InferenceError, VectorsError
from osrerank.scoring.states.long_record import LongRecord
from osrerank.scoring.states.record import Record
from osrerank.scoring.states.records import Kept
from osrerank.scoring.states.scorer import JoinedScorer
from osrerank.scoring.states.store import StateStore
from osrerank.types import LongText, Scorer

Floats = npt.NDArray[np.float32]


class TextVectors:
    """The vectors that a model makes of queries and documents; safe to use from several threads.

    Their inner product is the cosine of a query and a document, each read without the other.

    Args:
        scorer: of the model; the caller closes it.

    Raises:
        VectorsError: the model reads query and document together, or is not computed here.
    """

    def __init__(self, scorer: Scorer) -> None:
        if not isinstance(scorer, JoinedScorer):
            reason = f"{scorer.model} makes no vectors: only models of the layout joined do, computed by onnx"
            raise VectorsError(f"{reason}; osrerank adapt makes one of a bi-encoder", kind="scorer")
        self._scorer = scorer

    @property
    def model(self) -> str:
        """Identity of the model's document side, 32 hexadecimal digits: other weights or inputs, another identity."""
        return self._scorer.records.vector_side

    @property
    def dimension(self) -> int:
        """Of a vector."""
        return self._scorer.records.hidden

    def query(self, text: str) -> Floats:
        """Return a query's vector, ``(dimension,)`` of norm 1.

        Raises:
            InferenceError: it could not be encoded.
        """
        try:
            return _normed(self._scorer.encoded(text)["vector"].reshape(-1))
        except Exception as error:
            raise InferenceError(f"{self._scorer.model} failed: {error}", model=self._scorer.model) from error

    def documents(self, texts: Sequence[str | LongText], states: StateStore | None = None) -> Floats:
        """Return documents' vectors, ``(n, dimension)`` of norm 1; their states are kept, so that each is encoded once.

        Args:
            texts: as the model reads them.
            states: a store that is to have their states, besides the model's own.

        Raises:
            InferenceError: a text could not be encoded.
            OsrerankError: a store takes nothing.
        """
        if self._scorer.store is None and states is None:  # nobody will need the other passages
            texts = [text.cut()[0][0] if isinstance(text, LongText) else text for text in texts]
        records, _ = self._scorer.recall(texts, states)
        rows = [_first(records[key]).vector for key in self._scorer.keys_of(texts)]
        return _normed(np.array(rows, dtype=np.float32).reshape(len(rows), self.dimension))


def _first(kept: Kept) -> Record:
    return kept.passages[0] if isinstance(kept, LongRecord) else kept


def _normed(vectors: npt.NDArray[np.float32]) -> Floats:
    lengths = np.sqrt((vectors * vectors).sum(axis=-1, keepdims=True))
    normed: Floats = (vectors / lengths).astype(np.float32)
    return normed
