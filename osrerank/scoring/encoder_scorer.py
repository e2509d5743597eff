"""Use an encoder as a scorer: a score is the similarity of the query's and the document's vectors."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from osrerank.scoring.passages import chunks_of
from osrerank.types import NEVER, Advice, Deadline, Scores
from osrerank.types.scores import QUERY_CUT
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.record import rows_of

NOT_FINITE = "{model} returned a score that is not a finite number"


class EncoderScorer:
    """Scores texts with an encoder where a scorer is expected, for example for sentences or on workers.

    Args:
        vectors: source of the documents' vectors, which reads stored vectors and encodes the other documents.
    """

    def __init__(self, vectors: DocumentVectors) -> None:
        self.vectors, self.encoder = vectors, vectors.encoder

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
        self,
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        *,
        deadline: Deadline = NEVER,
    ) -> Scores:
        if any(len(indices) != 1 for indices in tuples):
            raise ValueError("a bi-encoder scores single documents; pairs of documents need a duo model")
        values = np.full(len(tuples), np.nan, dtype=np.float32)
        if not tuples or deadline.passed:
            return Scores(values, reached=0)
        encoded_query = self.vectors.encoded_query(query)
        indices = list(dict.fromkeys(index for (index,) in tuples))
        vectors = self.vectors.find((documents[index] for index in indices), deadline)
        reached = dict(zip(indices, vectors.documents, strict=False))  # fewer if the deadline passed
        records = {index: document.records[0] for index, document in reached.items() if document.records}
        encoded = encoded_query.result()
        rows = rows_of(list(records.values())) if records else np.empty((0, self.encoder.dimensions), np.float32)
        logits = dict(zip(records, self.encoder.similarity(encoded.rows[0], rows).tolist(), strict=True))
        cuts = np.zeros(len(tuples), dtype=np.uint8)
        failures: dict[int, str] = {}
        for position, (index,) in enumerate(tuples):
            logit = logits.get(index, math.nan)
            if math.isfinite(logit):
                values[position] = logit
                cuts[position] = records[index].cut | QUERY_CUT * bool(encoded.cut)
            elif index in records or (index in reached and reached[index].failures):
                failures[position] = reached[index].failures.get(0, NOT_FINITE.format(model=self.model))
        unreached = (position for position in np.flatnonzero(np.isnan(values)).tolist() if position not in failures)
        scores = Scores(
            values,
            failures,
            next(unreached, len(tuples)),
            cuts=cuts,
            inferences=len(records),
            encoded=vectors.encoded,
            known=vectors.known,
            query_truncated=bool(encoded.cut),
        )
        return replace(scores, truncated=len(scores.cut_documents(tuples)))

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        return self.encoder.probabilities(logits)

    def chunks(self, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Split texts into chunks that fit the encoder, as `osrerank.types.CutsTexts.chunks`.

        Raises:
            ConfigError: the encoder's tokenizer is not in this process.
        """
        return chunks_of(self.encoder, query, texts)

    def close(self) -> None:
        self.vectors.close()
        self.encoder.close()
