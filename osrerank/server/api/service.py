"""Scores questions of many clients at once, within bounds of number and time. Knows nothing of HTTP."""

import asyncio
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from osrerank.errors import DeadlineExceeded, InferenceError, OsrerankError, Overloaded, ScoringError
from osrerank.scoring.names import HTTP
from osrerank.server.api.limits import ServerLimits
from osrerank.server.api.metrics import DOCUMENTS, HELD
from osrerank.server.api.numbers import separated
from osrerank.server.api.queue import QueuedTask, TaskQueue
from osrerank.service import RerankService
from osrerank.tracing.spans import carried, span
from osrerank.types import Counts, Deadline, Encoder, NeedsWorkers, Scorer, Scores
from osrerank.types.values import BLANK
from osrerank.types.vectors import NeedsServer

RETRY_AFTER_S = 1
"""Seconds after which a refused client should retry where nothing better is known."""
TOKEN_CHARACTERS = 4
"""Characters of a token, for estimates."""
OVERHEAD_TOKENS = 16
"""What a document costs besides its text."""
CHECK_S, CHECK_SERVER_S = 0.03, 0.5
"""How long `ApiService.check` waits for news of this process's model, and of another server's."""
CHECK_MS = 6_000.0
"""Most time for another server to say whether it can score."""


class Busy(Overloaded):
    """Too much is waiting.

    Args:
        message: what is waiting.
        wait_s: the queue's estimate of when there will be room.
        most_s: when everything that waits will have been answered or given up.

    Attributes:
        retry_after_s: when to try again, in whole seconds.
    """

    def __init__(self, message: str, wait_s: float, most_s: float) -> None:
        self.retry_after_s = max(RETRY_AFTER_S, math.ceil(min(wait_s, most_s)))
        super().__init__(f"{message}; try again in {self.retry_after_s} s")


class CutText(ScoringError):  # noqa: N818 - an answer, not a defect
    """A text would have to be cut to fit the model, and the client does not want that."""


class _Terms(NamedTuple):
    """What holds for all tasks of a request; ``scored`` gets the number of documents of each that ends."""

    deadline: Deadline
    scored: list[int]
    whole: bool


@dataclass(frozen=True, slots=True)
class Question:
    """A query and its documents, in the client's order."""

    query: str
    documents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The documents of a question by relevance.

    Attributes:
        order: document indices, best first; ties, and documents that could not be scored, in the client's order.
        probabilities: ``(n,)`` in the client's order, in [0, 1], multiples of 1e-7, higher is better.
        logits: ``(n,)`` likewise, unbounded.
        unscored: how many documents could not be scored; they come last, with numbers below the others'.
        cached: how many scores came from the cache.
        truncated: how many documents were longer than the model reads.
    """

    order: tuple[int, ...]
    probabilities: tuple[float, ...]
    logits: tuple[float, ...]
    unscored: int
    cached: int = 0
    truncated: int = 0


class ApiService:
    """The scorer of a process, shared by all requests of one event loop.

    Args:
        reranker: has the model, the cache and the workers; the caller closes it.
        limits: what is taken on.
    """

    def __init__(self, reranker: RerankService, limits: ServerLimits) -> None:
        self.reranker = reranker
        self.limits = limits
        self._queue = TaskQueue(limits.threads, reranker.clock)
        self._held = 0
        self._fault = "the model is being loaded: try again in a moment"
        self._checking: asyncio.Future[str] | None = None

    @property
    def model(self) -> str:
        """The model's name, without loading it."""
        return self.reranker.model_name

    async def judge(self, questions: Sequence[Question], deadline: Deadline, *, whole: bool = False) -> list[Judgement]:
        """Score all questions. If the caller is cancelled, what is not scored yet is dropped.

        Args:
            questions: the questions of one request.
            deadline: the deadline of the response.
            whole: whether a text that the model cannot read whole is refused.

        Raises:
            CutText: a text is longer than the model reads, or that is not known, and whole texts are wanted.
            Busy: too many documents are waiting, or the answer is not expected in time.
            DeadlineExceeded: not everything could be scored in time.
            ScoringError: the model cannot be loaded, or failed on every document of a question.
            WorkerError: the workers did not answer.
        """
        if whole and self.reranker.settings.backend == HTTP:
            raise CutText("the rerank server behind this one does not report cut texts: leave truncate out")
        count = sum(len(question.documents) for question in questions)
        self._admit(count, sum(map(_tokens, questions)), deadline)
        self._held += count
        HELD.inc(count)
        left: list[bool] = []
        terms = _Terms(replace(deadline, withdrawn=lambda: bool(left)), [], whole)
        try:
            async with asyncio.timeout(_positive(deadline.remaining_s())):
                return await self._judged(questions, terms)
        except (TimeoutError, DeadlineExceeded) as error:
            why = f": {error}" if str(error) else ""
            reason = (
                f"the time given for the request ran out after {min(sum(terms.scored), count)} of {count} documents"
            )
            raise DeadlineExceeded(reason + why) from None
        finally:
            left.append(True)  # what runs ends after its batch
            self._held -= count
            HELD.dec(count)

    async def check(self) -> str:
        """Return why requests cannot be answered now, empty when they can; scores nothing and returns at once."""
        if self._checking is None or self._checking.done():
            before, self._checking = self._checking, asyncio.get_running_loop().run_in_executor(None, self._why_not)
            self._fault = self._fault if before is None else before.result()
        is_far = self.reranker.settings.backend == HTTP
        done, _ = await asyncio.wait([self._checking], timeout=CHECK_SERVER_S if is_far else CHECK_S)
        if done:
            self._fault = self._checking.result()
        if self._fault:
            return self._fault
        if self._held >= self.limits.max_held_documents:
            return f"{self._held} documents are waiting, the most that this server takes"
        wait_s, most_s = self._queue.wait_s(1 << 62), self._most_wait_s
        return f"requests wait for {wait_s:.1f} s, and may for {most_s:g} s" if wait_s > most_s else ""

    def close(self) -> None:
        """Wait for running questions and end the threads; a later question starts new ones."""
        self._queue.close()

    @property
    def _most_wait_s(self) -> float:
        return min(self.limits.max_wait_s, self.limits.timeout_ms / 1000)

    def _why_not(self) -> str:
        """Return why the model cannot be used; it is loaded if it was not."""
        try:
            model = self.reranker.model
            if isinstance(model, NeedsWorkers):
                model.find_workers()
            if isinstance(model, NeedsServer):
                model.check_server(Deadline.after_ms(CHECK_MS))
            found = model.identity
        except OsrerankError as error:
            return str(error)
        return "" if found else "the model has no identity"

    def _admit(self, count: int, tokens: int, deadline: Deadline) -> None:
        """Refuse a request that would be too late; where nothing waits every request is tried."""
        if not self._held:
            return
        request_s = self.limits.timeout_ms / 1000
        if self._held + count > self.limits.max_held_documents:
            raise Busy(f"{self._held} documents are waiting to be scored", self._queue.wait_s(1 << 62), request_s)
        wait_s = self._queue.wait_s(tokens)
        own_s = tokens / self._queue.rate.tokens_per_s
        most_s = min(self.limits.max_wait_s, deadline.remaining_s() - own_s)
        if wait_s > max(0.0, most_s):
            raise Busy(
                f"the request would wait for {wait_s:.1f} s and then take {own_s:.1f} s, which is too long for its "
                "time or --max-wait",
                wait_s - most_s,
                request_s,
            )

    async def _judged(self, questions: Sequence[Question], terms: "_Terms", *, tokens: int = 0) -> list[Judgement]:
        """Return judgements of questions that are scored in tasks of this many tokens; 0 for as many as usual."""
        parts = [_parts(question, tokens or self._queue.task_tokens) for question in questions]
        tasks = [
            QueuedTask(_tokens(part), carried(functools.partial(self._score, part, terms)))
            for some in parts
            for part in some
        ]
        answers = iter(await self._queue.run(tasks))
        scores = [[next(answers) for _ in some] for some in parts]
        known = {one.identity for some in scores for one in some if isinstance(one, Scores) and one.identity}
        if len(known) > 1 and not tokens:  # the model changed meanwhile; a question is scored by one
            terms.scored.clear()
            return await self._judged(questions, terms, tokens=1 << 62)
        model = self.reranker.model
        return [judgement(model, _joined(some, part)) for some, part in zip(scores, parts, strict=True)]

    def _score(self, question: Question, terms: "_Terms") -> Scores | InferenceError:
        """Return a question's scores, or why none of its documents could be scored; count those that were tried."""
        if terms.deadline.passed:
            raise DeadlineExceeded("")  # `judge` has the words
        asked = len(question.documents)
        try:
            with span("osrerank.score", {"gen_ai.operation.name": "rerank", "gen_ai.rerank.candidate.count": asked}):
                cached = not terms.whole  # cached scores do not tell whether a text was cut
                scores = self.reranker.score(question.query, question.documents, terms.deadline, cached=cached)
        except InferenceError as error:
            terms.scored.append(asked)
            return error
        terms.scored.append(len(scores.attempted))
        if terms.whole and (scores.truncated or scores.query_truncated):
            what = "the query is" if scores.query_truncated else "one or more documents are"
            raise CutText(f"{what} longer than the model reads: send shorter texts, or leave truncate out")
        if scores.reached < asked:
            raise DeadlineExceeded("")
        DOCUMENTS.labels("inferred").inc(scores.inferences)
        DOCUMENTS.labels("cached").inc(scores.cached)
        DOCUMENTS.labels("failed").inc(len(scores.failures))
        return scores


def _tokens(question: Question) -> int:
    """Return about how many tokens a question's documents have."""
    characters = sum(map(len, question.documents)) + len(question.query)
    return characters // TOKEN_CHARACTERS + OVERHEAD_TOKENS * len(question.documents)


def _parts(question: Question, tokens: int) -> list[Question]:
    """Return the question in parts of at most this many tokens, or one document."""
    parts: list[list[str]] = [[]]
    room = tokens
    for document in question.documents:
        cost = len(document) // TOKEN_CHARACTERS + OVERHEAD_TOKENS
        if parts[-1] and cost > room:
            parts.append([])
            room = tokens
        parts[-1].append(document)
        room -= cost
    return [Question(question.query, tuple(part)) for part in parts]


def _joined(scores: Sequence[Scores | InferenceError], parts: Sequence[Question]) -> Scores:
    """Return the scores of a question's parts as those of the question.

    Raises:
        InferenceError: no part has any.
    """
    found = [score for score in scores if isinstance(score, Scores)]
    if not found:
        raise next(score for score in scores if isinstance(score, InferenceError))
    values: list[npt.NDArray[np.float32]] = []
    indices: list[range] = []
    failures: dict[int, str] = {}
    start = 0
    for one, part in zip(scores, parts, strict=True):
        size = len(part.documents)
        values.append(one.values if isinstance(one, Scores) else np.full(size, np.nan, dtype=np.float32))
        failed = one.failures if isinstance(one, Scores) else dict.fromkeys(range(size), str(one))
        failures |= {start + at: why for at, why in failed.items()}
        indices.append(range(start, start + size))
        start += size
    odds = Scores.joined_odds([score if isinstance(score, Scores) else None for score in scores], indices, start)
    return Scores(np.concatenate(values), failures, odds=odds, **Counts.total(found))


def judgement(model: Scorer | Encoder, scores: Scores) -> Judgement:
    """Return a model's scores as numbers for clients.

    Raises:
        InferenceError: no document could be scored, and not because all are blank.
    """
    count = len(scores.values)
    scored = [index for index in range(count) if index not in scores.failures]
    why = next((why for why in scores.failures.values() if why != BLANK), "")
    if why and not scored:
        raise InferenceError(f"no document could be scored: {why}", model=model.model)
    unscored = [index for index in range(count) if index in scores.failures]
    logits = scores.log_odds[scored].astype(np.float64)
    ranks = np.argsort(-logits, kind="stable")
    order = (*(scored[rank] for rank in ranks), *unscored)
    ranked = [float(logit) for logit in logits[ranks]]
    chances = [float(chance) for chance in model.probabilities(scores.log_odds[scored])[ranks]]
    keys = [*ranked, *(-math.inf for _ in unscored)]
    return Judgement(
        order=order,
        probabilities=_in_request_order(separated([*chances, *(0.0 for _ in unscored)], keys, lowest=0.0), order),
        logits=_in_request_order(separated([*ranked, *(ranked[-1] if ranked else 0.0 for _ in unscored)], keys), order),
        unscored=len(unscored),
        cached=scores.cached,
        truncated=scores.truncated,
    )


def _in_request_order(values: Sequence[float], order: Sequence[int]) -> tuple[float, ...]:
    """Return values, given in rank order, in the order of the documents."""
    return tuple(value for _, value in sorted(zip(order, values, strict=True)))


def _positive(seconds: float) -> float | None:
    return None if math.isinf(seconds) else max(seconds, 0.0)
