"""Use an encoder where a scorer is expected: a score is the similarity of query and document vectors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from osrerank.scoring.passages import split_into_chunks
from osrerank.types import NEVER, Advice, Deadline, Scores
from osrerank.types.scores import NOT_FINITE, QUERY_TRUNCATED_BIT, count_leading_attempts
from osrerank.types.vectors import Floats
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.record import VectorRecord, stack_vectors


class EncoderScorer:
    """Wraps an encoder as a scorer, for code that needs a scorer: the stage for sentences, workers, the HTTP server.

    Args:
        vectors: reads document vectors from a store, or computes them.
    """

    def __init__(self, vectors: DocumentVectors) -> None:
        self.vectors = vectors
        self.encoder = vectors.encoder

    @property
    def model(self) -> str:
        return self.encoder.model

    @property
    def identity(self) -> str:
        return self.encoder.identity

    @property
    def advice(self) -> Advice:
        return self.encoder.advice

    def score(
        self, query: str, documents: Sequence[str], tuples: Sequence[tuple[int, ...]], *, deadline: Deadline = NEVER
    ) -> Scores:
        """Score single documents by the similarity of their vectors to the query's vector; see `Scorer.score`."""
        if any(len(indices) != 1 for indices in tuples):
            raise ValueError("a bi-encoder scores single documents; pairs of documents need a duo model")
        values = np.full(len(tuples), np.nan, dtype=np.float32)
        if not tuples or deadline.passed:
            return Scores(values, reached=0)
        query_encoding = self.vectors.encode_query(query)
        indices = list(dict.fromkeys(index for (index,) in tuples))
        found = self.vectors.find((documents[index] for index in indices), deadline)
        # strict=False: if time is short, `find` returns only the first documents
        documents_by_index = dict(zip(indices, found.documents, strict=False))
        # a document that is not split is its only part, 0
        records = {index: document.records[0] for index, document in documents_by_index.items() if document.records}
        query_vectors = query_encoding.result()
        logits = self._compare(query_vectors.rows[0], records)
        truncation_bits = np.zeros(len(tuples), dtype=np.uint8)
        query_bit = QUERY_TRUNCATED_BIT if query_vectors.cut else 0
        failures: dict[int, str] = {}
        for position, (index,) in enumerate(tuples):
            document = documents_by_index.get(index)
            logit = logits.get(index, math.nan)
            if math.isfinite(logit):
                values[position] = logit
                truncation_bits[position] = int(records[index].is_truncated) | query_bit
            elif document is not None and (document.records or document.failures):  # tried before the deadline
                failures[position] = document.failures.get(0, NOT_FINITE.format(model=self.model))
        scores = Scores(
            values,
            failures,
            count_leading_attempts(values, failures),
            cuts=truncation_bits,
            inferences=len(records),
            encoded=found.n_encoded,
            known=found.n_stored,
            query_truncated=bool(query_vectors.cut),
        )
        return replace(scores, truncated=len(scores.truncated_documents(tuples)))

    def _compare(self, query: Floats, records: Mapping[int, VectorRecord]) -> dict[int, float]:
        """Return the logit of each record with the query's vector, by the document's index."""
        if not records:
            return {}
        logits = self.encoder.similarity(query, stack_vectors(list(records.values())))
        return dict(zip(records, logits.tolist(), strict=True))

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        return self.encoder.probabilities(logits)

    def chunks(self, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Split texts into chunks that fit into the encoder's window; see `split_into_chunks`."""
        return split_into_chunks(self.encoder, query, texts)

    def close(self) -> None:
        self.vectors.close()
        self.encoder.close()
