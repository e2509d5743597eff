"""Score questions (a query and its documents) of many clients at once, within limits; independent of HTTP."""

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
from osrerank.server.api.numbers import separate
from osrerank.server.api.queue import QueuedTask, TaskQueue
from osrerank.service import RerankService
from osrerank.tracing.spans import bind_trace, span
from osrerank.types import Counts, Deadline, Encoder, NeedsWorkers, Scorer, Scores
from osrerank.types.values import BLANK_TEXT
from osrerank.types.vectors import NeedsServer

RETRY_AFTER_S = 1
"""The minimum Retry-After of a refused request, in seconds."""
TOKEN_CHARACTERS = 4
"""The estimated number of characters of a token."""
OVERHEAD_TOKENS = 16
"""The estimated cost of a document in addition to its text, in tokens."""
CHECK_S, CHECK_SERVER_S = 0.03, 0.5
"""The timeouts of `ApiService.check` for a model of this process and for a remote one, in seconds."""
CHECK_MS = 6_000.0
"""The timeout of a request that checks whether another server can score, in milliseconds."""


class Busy(Overloaded):
    """Too many documents are waiting.

    Args:
        message: the reason.
        wait_s: the estimated time until there is room, in seconds.
        max_s: the maximum of that time, in seconds.

    Attributes:
        retry_after_s: the time after which to try again, in whole seconds.
    """

    def __init__(self, message: str, wait_s: float, max_s: float) -> None:
        self.retry_after_s = max(RETRY_AFTER_S, math.ceil(min(wait_s, max_s)))
        super().__init__(f"{message}; try again in {self.retry_after_s} s")


class CutText(ScoringError):  # noqa: N818 - a refusal, not a defect
    """A text would have to be truncated, which the client does not allow."""


class _Terms(NamedTuple):
    """The terms that all tasks of a request share; each task appends its number of scored documents to ``scored``."""

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
    """The scores and the order of a question's documents.

    Attributes:
        order: the indices of the documents, best first; ties and unscored documents are in the client's order.
        probabilities: the probabilities ``(n,)`` in the client's order, in [0, 1], multiples of 1e-7.
        logits: the logits ``(n,)`` in the client's order, unbounded.
        unscored: the number of documents without a score; they come last, with the lowest numbers.
        cached: the number of scores that came from the cache.
        truncated: the number of documents that were longer than the model reads.
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
        reranker: the service with the model, the cache and the workers; the caller closes it.
        limits: the limits of the accepted work.
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
        """Score all questions of a request; if the caller is cancelled, waiting tasks are dropped.

        Args:
            questions: the questions of one request.
            deadline: the deadline of the response.
            whole: whether to refuse texts that the model would truncate.

        Raises:
            CutText: ``whole`` is set, and a text would be truncated, or it is unknown whether it would be.
            Busy: too many documents are waiting, or the response would come too late.
            DeadlineExceeded: not all documents could be scored in time.
            ScoringError: the model cannot be loaded, or failed on every document of a question.
            WorkerError: the workers did not reply.
        """
        if whole and self.reranker.settings.backend == HTTP:
            raise CutText("the rerank server behind this one does not report cut texts: leave truncate out")
        count = sum(len(question.documents) for question in questions)
        self._admit(count, sum(map(_tokens, questions)), deadline)
        self._held += count
        HELD.inc(count)
        has_ended: list[bool] = []
        terms = _Terms(replace(deadline, withdrawn=lambda: bool(has_ended)), [], whole)
        try:
            async with asyncio.timeout(_positive(deadline.remaining_s())):
                return await self._score_all(questions, terms)
        except (TimeoutError, DeadlineExceeded) as error:
            cause = f": {error}" if str(error) else ""
            reason = f"the request's time limit passed after {min(sum(terms.scored), count)} of {count} documents"
            raise DeadlineExceeded(reason + cause) from None
        finally:
            has_ended.append(True)  # a running task ends after its batch
            self._held -= count
            HELD.dec(count)

    async def check(self) -> str:
        """Return the reason why requests cannot be served now, or an empty string; nothing is scored."""
        if self._checking is None or self._checking.done():
            before, self._checking = self._checking, asyncio.get_running_loop().run_in_executor(None, self._find_fault)
            self._fault = self._fault if before is None else before.result()
        is_remote = self.reranker.settings.backend == HTTP
        done, _ = await asyncio.wait([self._checking], timeout=CHECK_SERVER_S if is_remote else CHECK_S)
        if done:
            self._fault = self._checking.result()
        if self._fault:
            return self._fault
        if self._held >= self.limits.max_held_documents:
            return f"{self._held} documents are waiting, the maximum of this server"
        wait_s, max_s = self._queue.wait_s(1 << 62), self._max_wait_s
        return f"requests wait for {wait_s:.1f} s, longer than the {max_s:g} s that they may" if wait_s > max_s else ""

    def close(self) -> None:
        """Wait for running tasks, and end the threads; a later question starts new ones."""
        self._queue.close()

    @property
    def _max_wait_s(self) -> float:
        return min(self.limits.max_wait_s, self.limits.timeout_ms / 1000)

    def _find_fault(self) -> str:
        """Load the model if necessary; return the reason why it cannot be used, empty if it can."""
        try:
            model = self.reranker.model
            if isinstance(model, NeedsWorkers):
                model.find_workers()
            if isinstance(model, NeedsServer):
                model.check_server(Deadline.after_ms(CHECK_MS))
            identity = model.identity
        except OsrerankError as error:
            return str(error)
        return "" if identity else "the model has no identity"

    def _admit(self, count: int, tokens: int, deadline: Deadline) -> None:
        """Refuse a request whose response would come too late. If nothing waits, every request is accepted."""
        if not self._held:
            return
        request_s = self.limits.timeout_ms / 1000
        if self._held + count > self.limits.max_held_documents:
            raise Busy(f"{self._held} documents are waiting to be scored", self._queue.wait_s(1 << 62), request_s)
        wait_s = self._queue.wait_s(tokens)
        scoring_s = tokens / self._queue.rate.tokens_per_s
        max_s = min(self.limits.max_wait_s, deadline.remaining_s() - scoring_s)
        if wait_s > max(0.0, max_s):
            raise Busy(
                f"the request would wait for {wait_s:.1f} s and then take {scoring_s:.1f} s, which is too long for its "
                "time limit or for --max-wait",
                wait_s - max_s,
                request_s,
            )

    async def _score_all(self, questions: Sequence[Question], terms: "_Terms", *, tokens: int = 0) -> list[Judgement]:
        """Score questions in tasks of about ``tokens`` tokens; 0 is the queue's default. Return their judgements."""
        parts_by_question = [_parts(question, tokens or self._queue.task_tokens) for question in questions]
        tasks = [
            QueuedTask(_tokens(part), bind_trace(functools.partial(self._score, part, terms)))
            for parts_of_question in parts_by_question
            for part in parts_of_question
        ]
        results = iter(await self._queue.run(tasks))
        scores = [[next(results) for _ in parts_of_question] for parts_of_question in parts_by_question]
        scored_parts = [part for outcomes in scores for part in outcomes if isinstance(part, Scores)]
        identities = {part.identity for part in scored_parts if part.identity}
        if len(identities) > 1 and not tokens:  # the model changed meanwhile; one model must score a whole question
            terms.scored.clear()
            return await self._score_all(questions, terms, tokens=1 << 62)
        model = self.reranker.model
        return [
            judgement(model, _join_scores(outcomes, part))
            for outcomes, part in zip(scores, parts_by_question, strict=True)
        ]

    def _score(self, question: Question, terms: "_Terms") -> Scores | InferenceError:
        """Return a question's scores, or the error if no document could be scored; count the attempted documents."""
        if terms.deadline.passed:
            raise DeadlineExceeded("")  # `judge` writes the message
        n_documents = len(question.documents)
        try:
            with span(
                "osrerank.score", {"gen_ai.operation.name": "rerank", "gen_ai.rerank.candidate.count": n_documents}
            ):
                cached = not terms.whole  # cached scores do not record whether a text was truncated
                scores = self.reranker.score(question.query, question.documents, terms.deadline, cached=cached)
        except InferenceError as error:
            terms.scored.append(n_documents)
            return error
        terms.scored.append(len(scores.attempted))
        if terms.whole and (scores.truncated or scores.query_truncated):
            cut_texts = "the query is" if scores.query_truncated else "one or more documents are"
            raise CutText(f"{cut_texts} longer than the model reads: send shorter texts, or leave truncate out")
        if scores.reached < n_documents:
            raise DeadlineExceeded("")
        DOCUMENTS.labels("inferred").inc(scores.inferences)
        DOCUMENTS.labels("cached").inc(scores.cached)
        DOCUMENTS.labels("failed").inc(len(scores.failures))
        return scores


def _tokens(question: Question) -> int:
    """Estimate the number of tokens of a question's documents."""
    characters = sum(map(len, question.documents)) + len(question.query)
    return characters // TOKEN_CHARACTERS + OVERHEAD_TOKENS * len(question.documents)


def _parts(question: Question, tokens: int) -> list[Question]:
    """Split a question into parts of at most ``tokens`` tokens, or of a single longer document."""
    parts: list[list[str]] = [[]]
    tokens_left = tokens
    for document in question.documents:
        cost = len(document) // TOKEN_CHARACTERS + OVERHEAD_TOKENS
        if parts[-1] and cost > tokens_left:
            parts.append([])
            tokens_left = tokens
        parts[-1].append(document)
        tokens_left -= cost
    return [Question(question.query, tuple(part)) for part in parts]


def _join_scores(scores: Sequence[Scores | InferenceError], parts: Sequence[Question]) -> Scores:
    """Join the scores of a question's parts.

    Raises:
        InferenceError: no part has scores.
    """
    scored = [score for score in scores if isinstance(score, Scores)]
    if not scored:
        raise next(score for score in scores if isinstance(score, InferenceError))
    values: list[npt.NDArray[np.float32]] = []
    indices: list[range] = []
    failures: dict[int, str] = {}
    start = 0
    for outcome, part in zip(scores, parts, strict=True):
        size = len(part.documents)
        values.append(outcome.values if isinstance(outcome, Scores) else np.full(size, np.nan, dtype=np.float32))
        failed = outcome.failures if isinstance(outcome, Scores) else dict.fromkeys(range(size), str(outcome))
        failures |= {start + index: failure for index, failure in failed.items()}
        indices.append(range(start, start + size))
        start += size
    odds = Scores.joined_odds([score if isinstance(score, Scores) else None for score in scores], indices, start)
    return Scores(np.concatenate(values), failures, odds=odds, **Counts.total(scored))


def judgement(model: Scorer | Encoder, scores: Scores) -> Judgement:
    """Turn a model's scores into the probabilities, logits and order of a response.

    Raises:
        InferenceError: no document could be scored, and at least one is not blank.
    """
    count = len(scores.values)
    scored = [index for index in range(count) if index not in scores.failures]
    failure = next((failure for failure in scores.failures.values() if failure != BLANK_TEXT), "")
    if failure and not scored:
        raise InferenceError(f"no document could be scored: {failure}", model=model.model)
    unscored = [index for index in range(count) if index in scores.failures]
    logits = scores.log_odds[scored].astype(np.float64)
    ranks = np.argsort(-logits, kind="stable")
    order = (*(scored[rank] for rank in ranks), *unscored)
    ranked = [float(logit) for logit in logits[ranks]]
    probabilities = [float(probability) for probability in model.probabilities(scores.log_odds[scored])[ranks]]
    keys = [*ranked, *(-math.inf for _ in unscored)]
    return Judgement(
        order=order,
        probabilities=_in_request_order(separate([*probabilities, *(0.0 for _ in unscored)], keys, lowest=0.0), order),
        logits=_in_request_order(separate([*ranked, *(ranked[-1] if ranked else 0.0 for _ in unscored)], keys), order),
        unscored=len(unscored),
        cached=scores.cached,
        truncated=scores.truncated,
    )


def _in_request_order(values: Sequence[float], order: Sequence[int]) -> tuple[float, ...]:
    """Reorder values from the order of ranks to the order of the documents."""
    return tuple(value for _, value in sorted(zip(order, values, strict=True)))


def _positive(seconds: float) -> float | None:
    return None if math.isinf(seconds) else max(seconds, 0.0)
