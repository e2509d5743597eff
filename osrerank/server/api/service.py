"""Scores questions of many clients at once, within bounds of number and time. Knows nothing of HTTP."""

import asyncio
import math
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from osrerank.errors import DeadlineExceeded, InferenceError, Overloaded
from osrerank.server.api.limits import Limits
from osrerank.server.api.metrics import DOCUMENTS, HELD
from osrerank.server.api.numbers import separated
from osrerank.service import RerankService
from osrerank.types import Deadline, Scorer, Scores

RETRY_AFTER_S = 1
"""Seconds after which a refused client should retry; a full default queue takes a CPU longer, and a GPU less."""


@dataclass(frozen=True, slots=True)
class Question:
    """A query and its documents, in the client's order."""

    query: str
    documents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The documents of a question by relevance.

    Attributes:
        order: places in the documents, best first; ties, and documents that could not be scored, in the client's order.
        probabilities: ``(n,)`` in the client's order, in [0, 1], multiples of 1e-7, higher is better.
        logits: ``(n,)`` likewise, unbounded.
        unscored: how many documents could not be scored; they come last, with numbers below the others'.
    """

    order: tuple[int, ...]
    probabilities: tuple[float, ...]
    logits: tuple[float, ...]
    unscored: int


class Service:
    """The scorer of a process, shared by all requests.

    Args:
        reranker: has the model, the cache and the workers; the caller closes it.
        limits: what is taken on.
    """

    def __init__(self, reranker: RerankService, limits: Limits) -> None:
        self.reranker = reranker
        self.limits = limits
        self._threads: ThreadPoolExecutor | None = None
        self._counting = threading.Lock()
        self._held = 0

    @property
    def model(self) -> str:
        """The model's name from the settings, so that no model need be loaded."""
        return self.reranker.settings.model

    async def judge(self, questions: Sequence[Question], deadline: Deadline, *, cached: bool = True) -> list[Judgement]:
        """Score all questions.

        Args:
            questions: of one request.
            deadline: of the response.
            cached: whether scores may come from the cache, if there is one.

        Raises:
            Overloaded: too many documents are waiting.
            DeadlineExceeded: not everything could be scored in time.
            ScoringError: the model cannot be loaded, or failed on every document of a question.
            WorkerError: the workers did not answer.
        """
        self._admit(sum(len(question.documents) for question in questions))
        futures = [self._submit(question, deadline, cached=cached) for question in questions]
        try:
            async with asyncio.timeout(_positive(deadline.remaining_s())):
                return [await asyncio.wrap_future(future) for future in futures]
        except TimeoutError:
            raise DeadlineExceeded("the time given for the request ran out before everything was scored") from None
        finally:
            for future in futures:
                future.cancel()  # a question without a thread is dropped; a running one ends at the deadline

    def close(self) -> None:
        """Wait for running questions and end the threads; a later question starts new ones."""
        with self._counting:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=True, cancel_futures=True)

    def _admit(self, count: int) -> None:
        with self._counting:
            if self._held and self._held + count > self.limits.max_held_documents:
                raise Overloaded(f"{self._held} documents are waiting to be scored; try again in {RETRY_AFTER_S} s")
            self._held += count
        HELD.inc(count)

    def _submit(self, question: Question, deadline: Deadline, *, cached: bool) -> Future[Judgement]:
        with self._counting:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.limits.threads, thread_name_prefix="osrerank-serve")
            future = self._threads.submit(self._judge, question, deadline, cached=cached)
        future.add_done_callback(lambda _: self._release(len(question.documents)))
        return future

    def _release(self, count: int) -> None:
        with self._counting:
            self._held -= count
        HELD.dec(count)

    def _judge(self, question: Question, deadline: Deadline, *, cached: bool) -> Judgement:
        if deadline.passed:
            raise DeadlineExceeded("the time given for the request ran out before its turn came")
        scorer = self.reranker.scorer(cached=cached)
        asked = len(question.documents)
        scores = self.reranker.score(question.query, question.documents, deadline, cached=cached)
        if scores.reached < asked:
            reason = f"the time given for the request ran out after {scores.reached} of {asked} documents"
            raise DeadlineExceeded(reason, model=scorer.model)
        DOCUMENTS.labels("inferred").inc(scores.inferences)
        DOCUMENTS.labels("cached").inc(scores.cached)
        DOCUMENTS.labels("failed").inc(len(scores.failures))
        return judgement(scorer, scores)


def judgement(scorer: Scorer, scores: Scores) -> Judgement:
    """Return a scorer's scores as numbers for clients.

    Raises:
        InferenceError: no document could be scored.
    """
    count = len(scores.values)
    scored = [place for place in range(count) if place not in scores.failures]
    if not scored:
        why = next(iter(scores.failures.values()))
        raise InferenceError(f"no document could be scored: {why}", model=scorer.model)
    unscored = [place for place in range(count) if place in scores.failures]
    logits = scores.values[scored].astype(np.float64)
    ranks = np.argsort(-logits, kind="stable")
    order = (*(scored[rank] for rank in ranks), *unscored)
    ranked = [float(logit) for logit in logits[ranks]]
    chances = [float(chance) for chance in scorer.probabilities(scores.values[scored])[ranks]]
    keys = [*ranked, *(-math.inf for _ in unscored)]
    return Judgement(
        order=order,
        probabilities=_placed(separated([*chances, *(0.0 for _ in unscored)], keys, lowest=0.0), order),
        logits=_placed(separated([*ranked, *(ranked[-1] for _ in unscored)], keys), order),
        unscored=len(unscored),
    )


def _placed(values: Sequence[float], order: Sequence[int]) -> tuple[float, ...]:
    """Return values, given in rank order, in the order of the documents."""
    return tuple(value for _, value in sorted(zip(order, values, strict=True)))


def _positive(seconds: float) -> float | None:
    return None if math.isinf(seconds) else max(seconds, 0.0)
