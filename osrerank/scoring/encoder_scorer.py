"""Use an encoder (a bi-encoder) as a scorer: the score is the similarity of the query's and the document's vectors."""

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
        """Score single documents by the similarity of their vectors to the query's vector; see `Scorer.score`.

        Each tuple is ``(document index,)``, because an encoder does not compare documents with each other.
        """
        if any(len(indices) != 1 for indices in tuples):
            raise ValueError("a bi-encoder scores single documents; pairs of documents need a duo model")
        values = np.full(len(tuples), np.nan, dtype=np.float32)
        if not tuples or deadline.passed:
            return Scores(values, reached=0)
        pending_query = self.vectors.encode_query(query)  # in another thread, while documents are read and encoded
        indices = list(dict.fromkeys(index for (index,) in tuples))
        found = self.vectors.find((documents[index] for index in indices), deadline)
        # strict=False: if time is short, `find` returns only the first documents
        found_documents = dict(zip(indices, found.documents, strict=False))
        # The texts are not split here, so each one is its own only part, with the part index 0.
        records = {index: document.records[0] for index, document in found_documents.items() if document.records}
        query_vectors = pending_query.result()
        similarities = self._compare(query_vectors.rows[0], records)
        query_was_truncated = bool(query_vectors.cut)
        query_bit = QUERY_TRUNCATED_BIT if query_was_truncated else 0
        truncation_bits = np.zeros(len(tuples), dtype=np.uint8)
        failures: dict[int, str] = {}
        for position, (index,) in enumerate(tuples):
            document = found_documents.get(index)
            similarity = similarities.get(index, math.nan)
            if math.isfinite(similarity):
                values[position] = similarity
                truncation_bits[position] = int(records[index].is_truncated) | query_bit
            elif document is not None and (document.records or document.failures):  # tried before the deadline
                # without a failure, the encoder returned a vector, but its similarity is NaN or infinite
                failures[position] = document.failures.get(0, NOT_FINITE.format(model=self.model))
        scores = Scores(
            values,
            failures,
            reached=count_leading_attempts(values, failures),
            cuts=truncation_bits,
            inferences=len(records),
            encoded=found.n_encoded,
            known=found.n_stored,
            query_truncated=query_was_truncated,
        )
        return replace(scores, truncated=len(scores.truncated_documents(tuples)))

    def _compare(self, query_vector: Floats, records: Mapping[int, VectorRecord]) -> dict[int, float]:
        """Return the similarity of each record to the query. The keys of both dicts are the documents' indices."""
        if not records:
            return {}
        similarities = self.encoder.similarity(query_vector, stack_vectors(list(records.values())))
        return dict(zip(records, similarities.tolist(), strict=True))

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        return self.encoder.probabilities(logits)

    def chunks(self, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Split texts into chunks that fit into the encoder's window; see `split_into_chunks`."""
        return split_into_chunks(self.encoder, query, texts)

    def close(self) -> None:
        self.vectors.close()
        self.encoder.close()
