"""Score the parts of many documents in one call: their passages, or their sentences."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from osrerank.errors import DeadlineExceeded, InferenceError
from osrerank.stages.ordering import NO_TEXT, Attempt, Judged, settle
from osrerank.types import Candidate, Deadline, Ranking, Scorer, Scores, Span, StageReport

PartsOf = Callable[[Candidate], Sequence[tuple[str, Span | None]]]
"""Candidate -> its parts as the model reads them, at least one, each with its place in the source; None for all."""
Judge = Callable[[Candidate, Sequence[Span | None], npt.NDArray[np.float32]], Judged]
"""Candidate, places and logits of its parts (NaN where there is none) -> what is made of them."""
LeavesOut = Callable[[Candidate, Sequence[Span | None]], bool]
"""Candidate, places of its parts -> whether they lack some of its text."""


@dataclass(frozen=True, slots=True)
class SliceScores:
    """The scores of the parts of several documents.

    Attributes:
        logits: for each document float32 ``(n_parts,)``, NaN where a part failed or was not reached.
        failures: document -> why none of its parts could be scored, among those reached.
        reached: how many leading documents had at least one part attempted; some behind them may have too.
        asked: number of parts of all documents.
        failed: parts that could not be scored.
        scores: the scorer's own answer.
    """

    logits: tuple[npt.NDArray[np.float32], ...]
    failures: Mapping[int, str]
    reached: int
    asked: int
    failed: int
    scores: Scores

    @property
    def scored(self) -> list[int]:
        """The documents of which at least one part was scored."""
        return [place for place, logits in enumerate(self.logits) if not np.isnan(logits).all()]


def rank_by_slices(
    scorer: Scorer,
    ranking: Ranking,
    parts_of: PartsOf,
    judge: Judge,
    *,
    stage: str,
    depth: int,
    unit: str,
    deadline: Deadline,
    leaves_out: LeavesOut | None = None,
) -> Ranking:
    """Return the ranking with its top ``depth`` ordered by their parts' scores.

    Args:
        scorer: scores ``(i,)`` tuples.
        ranking: the ranking so far.
        parts_of: returns the parts of a candidate.
        judge: turns the parts' scores into the candidate's.
        stage: the stage's name.
        depth: how many candidates are scored.
        unit: what the parts are called: ``passages``, ``sentences``.
        deadline: as for ``Scorer.score``.
        leaves_out: tells which candidates count as truncated although no part of them was cut.

    Raises:
        DeadlineExceeded: nothing was scored in time.
        InferenceError: no candidate could be scored at all, or a score is not a number.
    """
    started = time.perf_counter()
    block = ranking.candidates[:depth]
    present = [candidate for candidate in block if candidate.text is not None]
    if not present:
        reason = NO_TEXT if block else "no candidates"
        return ranking.with_report(StageReport(stage, applied=False, reason=reason, candidates=len(block)))
    parts = [parts_of(candidate) for candidate in present]
    texts = [[text for text, _span in one] for one in parts]
    places = [[span for _text, span in one] for one in parts]
    scores = score_slices(scorer, ranking.query.text, texts, stage=stage, deadline=deadline)
    judged = [judge(present[at], places[at], scores.logits[at]) for at in scores.scored]
    shortened = sum(leaves_out(present[at], places[at]) for at in scores.scored) if leaves_out is not None else 0
    failures = {present[place].doc_id: reason for place, reason in scores.failures.items()}
    attempt = Attempt(block, present, judged, scores.reached, failures)
    candidates = settle(ranking, stage, attempt)
    report = report_of(
        scorer,
        stage,
        scores,
        unit=unit,
        candidates=len(block),
        failed=attempt.failed,
        shortened=shortened,
        took_ms=(time.perf_counter() - started) * 1000,
    )
    return Ranking(ranking.query, candidates, (*ranking.reports, report))


def score_slices(
    scorer: Scorer, query: str, parts: Sequence[Sequence[str]], *, stage: str, deadline: Deadline
) -> SliceScores:
    """Score the parts of documents, the first of every document before the second of any.

    So a deadline cuts off later parts before it leaves a document without a score.

    Args:
        scorer: scores ``(i,)`` tuples.
        query: the query's text.
        parts: for each document at least one text.
        stage: whose name errors carry.
        deadline: as for ``Scorer.score``.

    Raises:
        DeadlineExceeded: nothing was scored in time.
        InferenceError: no document could be scored at all, or a score is not a number.
    """
    order = sorted((turn, place) for place, texts in enumerate(parts) for turn in range(len(texts)))
    texts = [parts[place][turn] for turn, place in order]
    scores = scorer.score(query, texts, [(at,) for at in range(len(texts))], deadline=deadline)
    attempted = scores.attempted
    if not attempted:
        raise DeadlineExceeded("the deadline passed before any candidate was scored", stage=stage)
    logits = tuple(np.full(len(texts), np.nan, dtype=np.float32) for texts in parts)
    why: dict[int, str] = {}
    for at in attempted:
        turn, place = order[at]
        if at in scores.failures:
            why.setdefault(place, scores.failures[at])
        elif not np.isfinite(scores.values[at]):
            message = f"model {scorer.model} gave a score that is not a number"
            raise InferenceError(message, stage=stage, model=scorer.model)
        else:
            logits[place][turn] = scores.values[at]
    failures = {place: reason for place, reason in why.items() if np.isnan(logits[place]).all()}
    tried = {order[at][1] for at in attempted}
    if len(failures) == len(tried):
        reason = next(iter(failures.values()))
        raise InferenceError(f"no candidate could be scored: {reason}", stage=stage, model=scorer.model)
    reached = next((place for place in range(len(parts)) if place not in tried), len(parts))
    return SliceScores(logits, failures, reached, len(texts), len(scores.failures), scores)


def report_of(
    scorer: Scorer,
    stage: str,
    parts: SliceScores,
    *,
    unit: str,
    candidates: int,
    failed: int,
    took_ms: float,
    shortened: int = 0,
) -> StageReport:
    """Return the report of a stage that scored parts of documents.

    Args:
        scorer: whose model it was.
        stage: its name.
        parts: the scores of the parts.
        unit: what the parts are called: ``passages``, ``sentences``.
        candidates: documents that the stage was asked to order.
        failed: documents that could not be scored.
        took_ms: wall time of the stage, in milliseconds.
        shortened: documents of which some text is in no part.
    """
    reasons = []
    attempted = len(parts.scores.attempted)
    if attempted < parts.asked:
        reasons.append(f"the deadline passed after {attempted} of {parts.asked} {unit}")
    if parts.failed:
        reasons.append(f"{parts.failed} of {parts.asked} {unit} could not be scored")
    if failed:
        reasons.append(f"{failed} candidates could not be scored")
    return StageReport(
        name=stage,
        applied="partial" if reasons else True,
        reason="; ".join(reasons),
        model=scorer.model,
        candidates=candidates,
        **{**parts.scores.counts(), "truncated": parts.scores.truncated + shortened},
        failed=failed,
        took_ms=took_ms,
    )
