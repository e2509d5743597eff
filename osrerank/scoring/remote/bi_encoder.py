"""A bi-encoder on workers: what has vectors is scored here, and the rest of the documents is encoded there."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from osrerank._pause import Pause
from osrerank.errors import InferenceError, ModelLoadError, WorkerError
from osrerank.scoring.card import ModelCard
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.locate import locate_here
from osrerank.scoring.model_files import read_card
from osrerank.scoring.onnx_scorer import EncoderBackend
from osrerank.scoring.passages import score_parts
from osrerank.scoring.remote.chunks import MOST_PAIRS
from osrerank.scoring.remote.messages import MOST_RECORD_BYTES
from osrerank.scoring.remote.scorer import RemoteScorer, sent
from osrerank.scoring.remote.worker_group import FRESH_S
from osrerank.scoring.vectors.configured import VectorStorage
from osrerank.scoring.vectors.making import Made
from osrerank.scoring.vectors.record import Record
from osrerank.scoring.vectors.records import KEY_BYTES, Records
from osrerank.scoring.vectors.scorer import BiEncoderScorer
from osrerank.scoring.vectors.store import REST_S
from osrerank.settings import Settings
from osrerank.types import NEVER, Advice, Deadline, LongText, PassageScores, RequestVectors, Scorer, Scores

UNREADABLE = "the records of the workers cannot be read here: give them and this process one OSRERANK_VECTORS_KEY"

Found = TypeVar("Found", Scores, PassageScores)

logger = logging.getLogger(__name__)


def with_vectors(workers: RemoteScorer, settings: Settings, model: str) -> Scorer:
    """Return the scorer of a model on workers, which uses vectors where the model is here and has some."""
    directory = locate_here(model)
    if directory is None:
        return workers
    try:
        card = read_card(directory, name="" if Path(model).expanduser().is_dir() else model)
        if not card.is_bi_encoder or not card.onnx:
            return workers
        backend = EncoderBackend.load(directory, card, threads=settings.threads)
        builder = InputBuilder.load(directory, card)
    except ModelLoadError as error:
        logger.warning("[vectors-unused] document vectors are not used, workers score everything: %s", error)
        return workers
    vectors = VectorStorage.of(settings)
    return BiEncoderOnWorkers(directory, card, builder, backend, vectors, workers)


class WorkersMaker:
    """Lets workers make records.

    Args:
        workers: of the model.
        records: what they must be.
        identity: returns that of the model here, which the workers must have.
    """

    def __init__(self, workers: RemoteScorer, records: Records, identity: Callable[[], str]) -> None:
        self._workers, self._records, self._identity = workers, records, identity
        self._unreadable = Pause(REST_S)

    @property
    def is_unreadable(self) -> bool:
        """Whether workers answered with records that are none here, just now."""
        return self._unreadable.is_on

    def make(self, texts: Sequence[str], deadline: Deadline) -> Made:
        texts = [sent(text) for text in texts]  # a longer one has the same record, and in the workers this key
        keys = self._records.keys_of(texts)
        most = max(1, min(MOST_PAIRS, MOST_RECORD_BYTES // (self._records.most_bytes + KEY_BYTES)))
        found = self._workers.records(texts, most=most, deadline=deadline)
        if found.identity != self._identity():
            raise InferenceError(f"workers have another model than this process: {found.identity}")
        read = self._records.read({key: found.contents[key] for key in keys if key in found.contents})
        if found.contents and not read:
            error = InferenceError(UNREADABLE)
            self._unreadable.begin(error)
            raise error
        made = {at: one for at, key in enumerate(keys) if isinstance(one := read.get(key), Record)}
        lacking = dict.fromkeys(found.answered - made.keys(), "the worker sent no record of it")
        return Made(made, {**lacking, **found.failures})


class BiEncoderOnWorkers(BiEncoderScorer):
    """Scores documents whose vectors are known, and has workers make the vectors of the others.

    While workers have another model than this process, they score everything.

    Args:
        directory, card, builder, backend, vectors: as of `BiEncoderScorer`.
        workers: of the same model.
    """

    def __init__(
        self,
        directory: Path,
        card: ModelCard,
        builder: InputBuilder,
        backend: EncoderBackend,
        vectors: VectorStorage,
        workers: RemoteScorer,
    ) -> None:
        super().__init__(directory, card, builder, backend, vectors)
        self._workers = workers
        self._maker: WorkersMaker = WorkersMaker(workers, self.records, lambda: self._own_identity)
        self._agrees, self._asked_until = True, 0.0

    @property
    def _own_identity(self) -> str:
        """Of the model in this process; workers with another backend or dtype have the same."""
        return super().identity

    @property
    def identity(self) -> str:
        return self._own_identity if self._agree() else self._workers.identity

    @property
    def advice(self) -> Advice:
        return self.card.advice if self._agree() else self._workers.advice

    @property
    def keeps_vectors(self) -> bool:
        return super().keeps_vectors and self._agree()

    def score(
        self,
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        *,
        deadline: Deadline = NEVER,
        vectors: RequestVectors | None = None,
    ) -> Scores:
        """Score what is known here, and the rest when workers have made its vectors.

        Raises:
            Overloaded, TaskFailed, WorkerError: as `RemoteScorer.score`, where nothing is known.
        """
        known = partial(super().score, query, documents, tuples, deadline=deadline, vectors=vectors)
        if (scores := self._here(known)) is not None:
            return scores
        return self._workers.score(query, documents, tuples, deadline=deadline)

    def score_passages(
        self,
        query: str,
        texts: Sequence[str | LongText],
        *,
        deadline: Deadline = NEVER,
        vectors: RequestVectors | None = None,
    ) -> PassageScores:
        known = partial(super().score_passages, query, texts, deadline=deadline, vectors=vectors)
        if (scores := self._here(known)) is not None:
            return scores
        parts = [text.cut() if isinstance(text, LongText) else [(text, None)] for text in texts]
        return score_parts(self._workers, query, parts, deadline=deadline)

    def find_workers(self, deadline: Deadline = NEVER) -> None:
        """As of `osrerank.types.NeedsWorkers`."""
        self._workers.find_workers(deadline)

    def close(self) -> None:
        super().close()
        self._workers.close()

    def _here(self, call: Callable[[], Found]) -> Found | None:
        """Return what is computed here; None where the workers must score everything."""
        if not self._agree():
            return None
        try:
            found = call()
        except InferenceError:
            if not self._maker.is_unreadable:
                raise
            return None
        return None if self._maker.is_unreadable else replace(found, identity=self._own_identity)

    def _agree(self) -> bool:
        """Return whether workers have this process' model; so they have while there are none. Asked once a second."""
        if self._maker.is_unreadable:
            return False
        if time.monotonic() < self._asked_until:
            return self._agrees
        try:
            agrees, lasts_s = self._workers.identity == self._own_identity, FRESH_S
        except WorkerError:
            agrees, lasts_s = True, REST_S
        if not agrees and self._agrees:
            logger.warning("[vectors-unused] workers have another %s than this process and score all", self.model)
        self._agrees, self._asked_until = agrees, time.monotonic() + lasts_s
        return agrees
