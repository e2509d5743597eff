"""An encoder that encodes queries in this process, and documents on workers."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from osrerank.scoring.bi_encoder import BiEncoder
from osrerank.scoring.remote.scorer import RemoteScorer
from osrerank.types import NEVER, Advice, Deadline, Side, Vectors
from osrerank.types.vectors import Floats, Rows
from osrerank.vectors.record import Bits, VectorRecord, record_size, stack_vectors


class RemoteEncoder:
    """Encodes queries with a model in this process, and documents on workers that use the same model.

    Args:
        encoder: the model in this process, which encodes queries and compares vectors.
        workers: the client of the workers, which encode documents.
        bits: precision of the vectors that workers return, in bits per number.
    """

    def __init__(self, encoder: BiEncoder, workers: RemoteScorer, bits: Bits) -> None:
        self._encoder, self._workers, self._bits = encoder, workers, bits

    @property
    def model(self) -> str:
        return self._encoder.model

    @property
    def identity(self) -> str:
        return self._encoder.identity

    @property
    def key(self) -> str:
        return self._encoder.key

    @property
    def dimensions(self) -> int:
        return self._encoder.dimensions

    @property
    def advice(self) -> Advice:
        return self._encoder.advice

    def encode(self, texts: Sequence[str], side: Side, *, deadline: Deadline = NEVER) -> Vectors:
        """Encode queries in this process and documents on workers.

        Raises:
            InferenceError: the workers use another model.
            Overloaded, TaskFailed, WorkerError: see `RemoteScorer.score`.
        """
        if side == "query":
            return self._encoder.encode(texts, side, deadline=deadline)
        max_bytes = record_size(self._bits, self.dimensions, self._encoder.max_token_vectors)
        records_or_errors = self._workers.encode_documents(
            texts, identity=self.identity, bits=self._bits, max_bytes=max_bytes, deadline=deadline
        )
        has_token_vectors = self.advice.kind == "late-interaction"
        records: dict[int, VectorRecord] = {}
        failures: dict[int, str] = {}
        for index, record_or_error in records_or_errors.items():
            if isinstance(record_or_error, str):
                failures[index] = record_or_error
                continue
            record, _ = VectorRecord.parse_body(memoryview(record_or_error))
            if record is not None and record.fits(self.dimensions, self._bits, has_token_vectors=has_token_vectors):
                records[index] = record
            else:
                failures[index] = "the worker returned no vector for this text"
        rows_by_index: dict[int, Floats] = {}
        if records:  # `stack_vectors` needs at least one
            rows_by_index = dict(zip(records, stack_vectors(list(records.values())), strict=True))
        no_vector = np.full(self.dimensions, np.nan, dtype=np.float32)
        rows: Rows = [rows_by_index.get(index, no_vector) for index in range(len(texts))]
        if not has_token_vectors:  # one vector per text: return a matrix
            rows = np.array(rows).reshape(len(texts), -1)
        truncated_indices = frozenset(index for index, record in records.items() if record.is_truncated)
        return Vectors(rows, failures, truncated_indices)

    def similarity(self, query: Floats, vectors: Rows) -> Floats:
        return self._encoder.similarity(query, vectors)

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        return self._encoder.probabilities(logits)

    def chunks(self, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        return self._encoder.chunks(query, texts)

    def find_workers(self, deadline: Deadline = NEVER) -> int:
        """Return the number of live workers. Raises `WorkerError` if there are none by the deadline."""
        return self._workers.find_workers(deadline)

    def close(self) -> None:
        self._workers.close()
        self._encoder.close()
