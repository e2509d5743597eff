"""Score the rerank requests of many clients at once, within the server's limits.

A question is a query with its documents. Most requests ask one question, but a request that lists pairs asks one for
each distinct query. For example, the pairs ("cats", "a dog"), ("birds", "a gull") and ("cats", "a cat") make two
questions. The request classes in `osrerank.server.api.dialects` build them, so this module does not depend on HTTP.
"""

import asyncio
import functools
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from osrerank.errors import DeadlineExceeded, InferenceError, OsrerankError, Overloaded, ScoringError
from osrerank.scoring.names import HTTP
from osrerank.server.api.limits import ServerLimits
from osrerank.server.api.metrics import DOCUMENTS, HELD_DOCUMENTS
from osrerank.server.api.numbers import round_without_ties
from osrerank.server.api.queue import QueuedTask, TaskQueue
from osrerank.service import RerankService
from osrerank.tracing.spans import Attributes, bind_trace, span
from osrerank.types import Counts, Deadline, Encoder, NeedsWorkers, Scorer, Scores
from osrerank.types.values import BLANK_TEXT
from osrerank.types.vectors import NeedsServer

RETRY_AFTER_S = 1
"""The minimum time after which a refused client is told to try again, in seconds."""
CHARACTERS_PER_TOKEN = 4
"""The assumed number of characters per token. Token counts are estimated, because only the model tokenises texts."""
OVERHEAD_TOKENS = 16
"""The number of tokens that the estimate adds for each document, whatever the length of its text."""
CHECK_TIMEOUT_S = 0.03
"""How long a readiness check waits for the result of checking the model, in seconds."""
REMOTE_CHECK_TIMEOUT_S = 0.5
"""How long it waits if the model runs in another rerank server behind this one."""
SERVER_CHECK_TIMEOUT_MS = 6_000.0
"""The timeout of the request that checks the rerank server behind this one. It is longer than
`REMOTE_CHECK_TIMEOUT_S`, because the next readiness check can use a late result."""
UNLIMITED_TOKENS = 1 << 62
"""More tokens than any request has. With this maximum size of a task, each question becomes one task. With this size of
a new request, `TaskQueue.estimate_wait_s` returns the time until all requests in the queue are done."""


class Busy(Overloaded):
    """Too many documents are waiting.

    Args:
        message: why the request is refused.
        wait_s: the estimated time until the server can accept the request, in seconds.
        max_s: the longest time that the client may be told to wait, in seconds.

    Attributes:
        retry_after_s: the time after which the client should try again, in whole seconds.
    """

    def __init__(self, message: str, wait_s: float, max_s: float) -> None:
        self.retry_after_s = max(RETRY_AFTER_S, math.ceil(min(wait_s, max_s)))
        super().__init__(f"{message}; try again in {self.retry_after_s} s")


class TextTooLong(ScoringError):  # noqa: N818 - a refusal, not a defect
    """A text is longer than the model's input, and the client does not allow truncation."""


class _RequestContext(NamedTuple):
    """The values that a request's tasks share.

    Attributes:
        deadline: when to stop scoring.
        scored_counts: the number of documents that each task has scored. A task appends its number when it ends.
        refuses_truncation: whether a text that is longer than the model's input is an error.
    """

    deadline: Deadline
    scored_counts: list[int]
    refuses_truncation: bool


@dataclass(frozen=True, slots=True)
class Question:
    """A query and its documents, in the client's order."""

    query: str
    documents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScoredQuestion:
    """The scores and the order of a question's documents.

    Attributes:
        order: the indices of the documents, best first, such as (2, 0, 1) if the third document is the best. Documents
            with equal scores keep the client's order, and documents without a score come last.
        probabilities: the probability of each document ``(n,)`` in the client's order: a multiple of 1e-7 in [0, 1].
            Documents without a score get the lowest probability.
        logits: the logit of each document ``(n,)`` in the client's order. Documents without a score get the lowest
            logit.
        unscored: the number of documents without a score.
        cached: the number of scores that came from the cache.
        truncated: the number of documents that were longer than the model's input.
    """

    order: tuple[int, ...]
    probabilities: tuple[float, ...]
    logits: tuple[float, ...]
    unscored: int
    cached: int = 0
    truncated: int = 0


class ApiService:
    """Queues and scores requests, or refuses them if the server is too busy.

    A server has one instance, whose methods must be called in the server's event loop. The caller closes ``reranker``.
    """

    def __init__(self, reranker: RerankService, limits: ServerLimits) -> None:
        self.reranker = reranker
        self.limits = limits
        self._queue = TaskQueue(limits.threads, reranker.clock)
        self._n_held_documents = 0
        self._model_problem = "the model is being loaded: try again in a moment"
        self._model_check: asyncio.Future[str] | None = None

    @property
    def model(self) -> str:
        """The model's name. Reading it does not load the model."""
        return self.reranker.model_name

    async def score_questions(
        self, questions: Sequence[Question], deadline: Deadline, *, refuses_truncation: bool = False
    ) -> list[ScoredQuestion]:
        """Score all questions of a request. If the caller is cancelled, its tasks that have not started are dropped.

        Raises:
            TextTooLong: truncation is refused, and the model truncates a text or does not report whether it does.
            Busy: too many documents are waiting, or the response would come too late.
            DeadlineExceeded: not all documents could be scored in time.
            ScoringError: the model cannot be loaded, or failed on every document of a question.
            WorkerError: the workers did not reply.
        """
        if refuses_truncation and self.reranker.settings.backend == HTTP:
            raise TextTooLong("the rerank server behind this one does not report truncated texts: leave truncate out")
        n_documents = sum(len(question.documents) for question in questions)
        n_tokens = sum(map(_estimate_tokens, questions))
        self._refuse_if_busy(n_documents, n_tokens, deadline)
        self._n_held_documents += n_documents
        HELD_DOCUMENTS.inc(n_documents)
        request_ended = threading.Event()
        task_deadline = replace(deadline, withdrawn=request_ended.is_set)  # a running task stops when the request ends
        context = _RequestContext(task_deadline, scored_counts=[], refuses_truncation=refuses_truncation)
        remaining_s = deadline.remaining_s()
        timeout_s = None if math.isinf(remaining_s) else max(remaining_s, 0.0)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._score_all(questions, context)
        except (TimeoutError, DeadlineExceeded) as error:
            cause = f": {error}" if str(error) else ""
            n_scored = min(sum(context.scored_counts), n_documents)
            reason = f"the request's time limit passed after {n_scored} of {n_documents} documents"
            raise DeadlineExceeded(reason + cause) from None
        finally:
            request_ended.set()
            self._n_held_documents -= n_documents
            HELD_DOCUMENTS.dec(n_documents)

    async def explain_if_not_ready(self) -> str:
        """Return why the server cannot accept requests now, or "" if it can."""
        await self._update_model_problem()
        if self._model_problem:
            return self._model_problem
        if self._n_held_documents >= self.limits.max_held_documents:
            return f"{self._n_held_documents} documents are waiting, which is the maximum of this server"
        wait_s = self._queue.estimate_wait_s(UNLIMITED_TOKENS)
        max_wait_s = min(self.limits.max_wait_s, self.limits.timeout_ms / 1000)
        if wait_s > max_wait_s:
            return f"a request would wait for {wait_s:.1f} s, longer than the maximum of {max_wait_s:g} s"
        return ""

    def close(self) -> None:
        """Wait for the running tasks, and end the scoring threads. A later request starts new ones."""
        self._queue.close()

    async def _update_model_problem(self) -> None:
        """Let a thread check the model without scoring anything. After a short time, do not wait for its result."""
        if self._model_check is None or self._model_check.done():
            previous_check = self._model_check
            self._model_check = asyncio.get_running_loop().run_in_executor(None, self._check_model)
            if previous_check is not None:  # its result may have come too late for the previous call
                self._model_problem = previous_check.result()
        is_remote = self.reranker.settings.backend == HTTP
        timeout_s = REMOTE_CHECK_TIMEOUT_S if is_remote else CHECK_TIMEOUT_S
        done, _ = await asyncio.wait([self._model_check], timeout=timeout_s)
        if done:
            self._model_problem = self._model_check.result()

    def _check_model(self) -> str:
        """Return why the model cannot score, or "" if it can. Load the model if it is not loaded."""
        try:
            model = self.reranker.model
            if isinstance(model, NeedsWorkers):
                model.find_workers()
            if isinstance(model, NeedsServer):
                model.check_server(Deadline.after_ms(SERVER_CHECK_TIMEOUT_MS))
            identity = model.identity
        except OsrerankError as error:
            return str(error)
        return "" if identity else "the weights of the model cannot be identified"

    def _refuse_if_busy(self, n_documents: int, n_tokens: int, deadline: Deadline) -> None:
        """Refuse a request if too many documents are waiting, or if its response would come too late."""
        if self._n_held_documents == 0:  # an idle server accepts every request
            return
        timeout_s = self.limits.timeout_ms / 1000
        if self._n_held_documents + n_documents > self.limits.max_held_documents:
            reason = f"{self._n_held_documents} documents are waiting to be scored"
            raise Busy(reason, self._queue.estimate_wait_s(UNLIMITED_TOKENS), timeout_s)
        wait_s = self._queue.estimate_wait_s(n_tokens)
        scoring_s = n_tokens / self._queue.rate.tokens_per_s
        max_wait_s = min(self.limits.max_wait_s, deadline.remaining_s() - scoring_s)
        if wait_s > max(0.0, max_wait_s):
            reason = f"the request would wait for {wait_s:.1f} s and then take {scoring_s:.1f} s"
            reason += ", which exceeds its time limit or --max-wait"
            excess_s = wait_s - max_wait_s
            raise Busy(reason, excess_s, timeout_s)

    async def _score_all(
        self, questions: Sequence[Question], context: _RequestContext, *, splits_questions: bool = True
    ) -> list[ScoredQuestion]:
        """Score questions, each in tasks of the queue's preferred size, or each in one task."""
        max_tokens = self._queue.task_tokens if splits_questions else UNLIMITED_TOKENS
        parts_by_question = [_split(question, max_tokens) for question in questions]
        tasks = [
            QueuedTask(_estimate_tokens(part), bind_trace(functools.partial(self._score, part, context)))
            for parts in parts_by_question
            for part in parts
        ]
        outcomes = await self._queue.run(tasks)
        identities = {outcome.identity for outcome in outcomes if isinstance(outcome, Scores) and outcome.identity}
        model_was_replaced = len(identities) > 1
        if model_was_replaced and splits_questions:
            # The scores of two models cannot be compared: score again, with each question in one task.
            context.scored_counts.clear()
            return await self._score_all(questions, context, splits_questions=False)
        model = self.reranker.model
        remaining_outcomes = iter(outcomes)
        scored_questions = []
        for parts in parts_by_question:
            question_outcomes = list(islice(remaining_outcomes, len(parts)))
            scored_questions.append(build_scored_question(model, _join_scores(question_outcomes, parts)))
        return scored_questions

    def _score(self, question: Question, context: _RequestContext) -> Scores | InferenceError:
        """Score the documents of one task. If the model fails on all of them, return its error for `_join_scores`."""
        if context.deadline.passed:
            raise DeadlineExceeded("")  # `score_questions` writes the message
        n_documents = len(question.documents)
        attributes: Attributes = {"gen_ai.operation.name": "rerank", "gen_ai.rerank.candidate.count": n_documents}
        may_use_cache = not context.refuses_truncation  # cached scores do not record whether a text was truncated
        try:
            with span("osrerank.score", attributes):
                scores = self.reranker.score(question.query, question.documents, context.deadline, cached=may_use_cache)
        except InferenceError as error:
            context.scored_counts.append(n_documents)
            return error
        context.scored_counts.append(len(scores.attempted))
        if context.refuses_truncation and (scores.truncated or scores.query_truncated):
            too_long = "the query is" if scores.query_truncated else "one or more documents are"
            raise TextTooLong(f"{too_long} longer than the model's input: send shorter texts, or leave truncate out")
        has_unattempted = scores.reached < n_documents
        if has_unattempted:
            raise DeadlineExceeded("")
        DOCUMENTS.labels("inferred").inc(scores.inferences)
        DOCUMENTS.labels("cached").inc(scores.cached)
        DOCUMENTS.labels("failed").inc(len(scores.failures))
        return scores


def _estimate_tokens(question: Question) -> int:
    characters = sum(map(len, question.documents)) + len(question.query)
    return characters // CHARACTERS_PER_TOKEN + OVERHEAD_TOKENS * len(question.documents)


def _split(question: Question, max_tokens: int) -> list[Question]:
    """Split a question's documents into parts of at most ``max_tokens`` tokens. A longer document is a part alone."""
    parts: list[list[str]] = [[]]
    remaining_tokens = max_tokens
    for document in question.documents:
        tokens = len(document) // CHARACTERS_PER_TOKEN + OVERHEAD_TOKENS
        if parts[-1] and tokens > remaining_tokens:
            parts.append([])
            remaining_tokens = max_tokens
        parts[-1].append(document)
        remaining_tokens -= tokens
    return [Question(question.query, tuple(documents)) for documents in parts]


def _join_scores(outcomes: Sequence[Scores | InferenceError], parts: Sequence[Question]) -> Scores:
    """Join the scores of a question's parts. All documents of a part that failed are reported as failures.

    Raises:
        InferenceError: all parts failed.
    """
    scored = [outcome for outcome in outcomes if isinstance(outcome, Scores)]
    if not scored:
        raise next(outcome for outcome in outcomes if isinstance(outcome, InferenceError))
    values: list[npt.NDArray[np.float32]] = []
    indices_of_parts: list[range] = []
    failures: dict[int, str] = {}
    start = 0  # the index of the part's first document in the question
    for outcome, part in zip(outcomes, parts, strict=True):
        n_documents = len(part.documents)
        if isinstance(outcome, Scores):
            values.append(outcome.values)
            part_failures = outcome.failures
        else:
            values.append(np.full(n_documents, np.nan, dtype=np.float32))
            part_failures = dict.fromkeys(range(n_documents), str(outcome))
        failures |= {start + index: failure for index, failure in part_failures.items()}
        indices_of_parts.append(range(start, start + n_documents))
        start += n_documents
    scores_or_none = [outcome if isinstance(outcome, Scores) else None for outcome in outcomes]
    odds = Scores.merge_log_odds(scores_or_none, indices_of_parts, sum(len(part.documents) for part in parts))
    return Scores(np.concatenate(values), failures, odds=odds, **Counts.total(scored))


def build_scored_question(model: Scorer | Encoder, scores: Scores) -> ScoredQuestion:
    """Turn a model's scores into the probabilities, logits and order of a response.

    Raises:
        InferenceError: no document could be scored, and not all of them are blank.
    """
    n_documents = len(scores.values)
    scored = [index for index in range(n_documents) if index not in scores.failures]
    unscored = [index for index in range(n_documents) if index in scores.failures]
    failure = next((failure for failure in scores.failures.values() if failure != BLANK_TEXT), "")
    if failure and not scored:
        raise InferenceError(f"no document could be scored: {failure}", model=model.model)
    log_odds = scores.log_odds[scored]
    best_first = np.argsort(-log_odds.astype(np.float64), kind="stable")
    order = (*(scored[position] for position in best_first), *unscored)
    # best first: all documents with a score, then those without one
    logits = [float(logit) for logit in log_odds[best_first]]
    sort_keys = logits + [-math.inf] * len(unscored)
    lowest_logit = logits[-1] if logits else 0.0
    logits += [lowest_logit] * len(unscored)
    probabilities = [float(probability) for probability in model.probabilities(log_odds)[best_first]]
    probabilities += [0.0] * len(unscored)
    return ScoredQuestion(
        order=order,
        probabilities=_in_request_order(round_without_ties(probabilities, sort_keys, lowest=0.0), order),
        logits=_in_request_order(round_without_ties(logits, sort_keys), order),
        unscored=len(unscored),
        cached=scores.cached,
        truncated=scores.truncated,
    )


def _in_request_order(values: Sequence[float], order: Sequence[int]) -> tuple[float, ...]:
    """Return the values, which are sorted best first, in the client's order.

    With the order (2, 0, 1), the values (.9, .5, .1) become (.5, .1, .9).
    """
    return tuple(value for _, value in sorted(zip(order, values, strict=True)))
