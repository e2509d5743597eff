"""Use an encoder as a scorer: query and documents are encoded, and a score is the similarity of their vectors."""

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

NOT_FINITE = "{model} gave a score that is not a finite number"


class EncoderScorer:
    """Scores texts with an encoder where a scorer is expected, for example for sentences or on workers.

    Args:
        vectors: gives the vectors of documents: stored ones, or else encoded ones.
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
        needed = list(dict.fromkeys(at for (at,) in tuples))
        found = self.vectors.of((documents[at] for at in needed), deadline)
        read = dict(zip(needed, found.documents, strict=False))  # fewer if the deadline passed
        records = {at: document.records[0] for at, document in read.items() if document.records}
        encoded = encoded_query.result()
        rows = rows_of(list(records.values())) if records else np.empty((0, self.encoder.dimensions), np.float32)
        logits = dict(zip(records, self.encoder.similarity(encoded.rows[0], rows).tolist(), strict=True))
        cuts = np.zeros(len(tuples), dtype=np.uint8)
        failures: dict[int, str] = {}
        for index, (at,) in enumerate(tuples):
            logit = logits.get(at, math.nan)
            if math.isfinite(logit):
                values[index] = logit
                cuts[index] = records[at].cut | QUERY_CUT * bool(encoded.cut)
            elif at in records or (at in read and read[at].failures):
                failures[index] = read[at].failures.get(0, NOT_FINITE.format(model=self.model))
        unreached = (index for index in np.flatnonzero(np.isnan(values)).tolist() if index not in failures)
        scores = Scores(
            values,
            failures,
            next(unreached, len(tuples)),
            cuts=cuts,
            inferences=len(records),
            encoded=found.encoded,
            known=found.known,
            query_truncated=bool(encoded.cut),
        )
        return replace(scores, truncated=len(scores.cut_documents(tuples)))

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        return self.encoder.probabilities(logits)

    def chunks(self, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Return the chunks of texts that fit the encoder, as `osrerank.types.CutsTexts.chunks`.

        Raises:
            ConfigError: the encoder's tokenizer is not in this process.
        """
        return chunks_of(self.encoder, query, texts)

    def close(self) -> None:
        self.vectors.close()
        self.encoder.close()
