"""Order documents by the scores of their parts: their passages, or their sentences."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from osrerank.scoring.passages import score_parts
from osrerank.stages.ordering import Attempt, Judged, Outcome, nothing_scored, rank_block
from osrerank.types import Candidate, Deadline, PassageScores, Ranking, Scorer, Span
from osrerank.types.vectors import Part

PartsOf = Callable[[Candidate], Iterable[Part]]
"""Candidate -> its parts, at least one; it may cut them one by one."""
Judge = Callable[[Candidate, Sequence[Span | None], npt.NDArray[np.float32], npt.NDArray[np.float32]], Judged]
"""Candidate, places, logits and log-odds of its parts (NaN where there is none) -> what is made of them."""
LeavesOut = Callable[[Candidate, Sequence[Span | None]], bool]
"""Candidate, places of its parts -> whether they lack some of its text."""


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

    def score(block: Sequence[Candidate], present: Sequence[Candidate]) -> Outcome:
        scores = score_slices(scorer, ranking.query.text, present, parts_of, stage=stage, deadline=deadline)
        judged = [judge(present[at], scores.places[at], scores.logits[at], scores.log_odds[at]) for at in scores.scored]
        shortened = {at for at in scores.scored if leaves_out and leaves_out(present[at], scores.places[at])}
        cut = {present[at].doc_id for at in shortened | scores.cut}
        judged = [replace(one, cut=one.candidate.doc_id in cut) for one in judged] if cut else judged
        failures = {present[place].doc_id: reason for place, reason in scores.failed.items()}
        attempt = Attempt(block, present, judged, scores.reached, failures)
        counts = {**scores.counts(), "truncated": max(len(cut), scores.truncated)}
        return Outcome(attempt, counts, _reasons(scores, unit))

    return rank_block(scorer, ranking, score, stage=stage, depth=depth)


def score_slices(
    scorer: Scorer,
    query: str,
    candidates: Sequence[Candidate],
    parts_of: PartsOf,
    *,
    stage: str,
    deadline: Deadline,
) -> PassageScores:
    """Return the scores of candidates' parts.

    Args:
        scorer: scores ``(i,)`` tuples.
        query: the query's text.
        candidates: with text.
        parts_of: returns the parts of a candidate.
        stage: whose name errors carry.
        deadline: as for ``Scorer.score``.

    Raises:
        DeadlineExceeded: nothing was attempted in time.
        InferenceError: nothing that was attempted could be scored, or a score is not a number.
    """
    parts = [_later(parts_of, one) for one in candidates]
    scores = score_parts(scorer, query, parts, deadline=deadline, stage=stage)
    if scores.scored:
        return scores
    raise nothing_scored(scorer, scores.failures, stage=stage)


def _later(parts_of: PartsOf, candidate: Candidate) -> Iterator[Part]:
    """Yield a candidate's parts; nothing is cut before the first is asked for."""
    yield from parts_of(candidate)


def _reasons(scores: PassageScores, unit: str) -> list[str]:
    """Return why not all parts were scored."""
    reasons = []
    asked, attempted = scores.asked, scores.attempted
    if scores.unread:
        reasons.append(f"the deadline passed after {attempted} {unit}; {scores.unread} candidates have more of them")
    elif attempted < asked:
        reasons.append(f"the deadline passed after {attempted} of {asked} {unit}")
    if scores.failures:
        reasons.append(f"{len(scores.failures)} of {asked} {unit} could not be scored")
    return reasons
