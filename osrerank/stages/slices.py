"""Order documents by the scores of their parts: their passages, or their sentences."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from osrerank.scoring.passages import score_parts
from osrerank.stages.ordering import (
    ScoredCandidate,
    StageAttempt,
    StageOutcome,
    late,
    not_scored,
    nothing_scored,
    rank_block,
)
from osrerank.types import Candidate, Deadline, PassageScores, Ranking, Scorer, Span
from osrerank.types.reasons import Reason
from osrerank.types.vectors import Part

PartsOf = Callable[[Candidate], Iterable[Part]]
"""Maps a candidate to its parts, at least one; it may cut them one by one."""
Judge = Callable[[Candidate, Sequence[Span | None], npt.NDArray[np.float32], npt.NDArray[np.float32]], ScoredCandidate]
"""Maps a candidate, and its parts' spans, logits and log-odds (NaN where there is none), to its score."""
LeavesOut = Callable[[Candidate, Sequence[Span | None]], bool]
"""Tells whether a candidate has text that is in none of its parts, from their spans."""


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
    """Return the ranking with its top ``depth`` ordered by the scores of their parts.

    Args:
        scorer: scores ``(i,)`` tuples.
        ranking: the ranking so far.
        parts_of: cuts a candidate into its parts.
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

    def score(block: Sequence[Candidate], present: Sequence[Candidate]) -> StageOutcome:
        scores = score_slices(
            scorer, ranking.query.text, present, parts_of, stage=stage, deadline=deadline, leaves_out=leaves_out
        )
        judged = [judge(present[at], scores.spans[at], scores.logits[at], scores.log_odds[at]) for at in scores.scored]
        cut = {present[at].doc_id for at in scores.cut}
        judged = [item._replace(cut=item.candidate.doc_id in cut) for item in judged] if cut else judged
        failures = {present[at].doc_id: reason for at, reason in scores.failed.items()}
        attempt = StageAttempt(block, present, judged, scores.reached, failures)
        return StageOutcome(attempt, scores.counts(), _reasons(scores, unit))

    return rank_block(scorer, ranking, score, stage=stage, depth=depth)


def score_slices(
    scorer: Scorer,
    query: str,
    candidates: Sequence[Candidate],
    parts_of: PartsOf,
    *,
    stage: str,
    deadline: Deadline,
    leaves_out: LeavesOut | None = None,
) -> PassageScores:
    """Score the parts of candidates, and return the scores.

    Args:
        scorer: scores ``(i,)`` tuples.
        query: the query's text.
        candidates: candidates with text.
        parts_of: cuts a candidate into its parts.
        stage: the stage's name, for errors.
        deadline: as for ``Scorer.score``.
        leaves_out: tells which candidates count as truncated although no part of them was cut.

    Raises:
        DeadlineExceeded: nothing was attempted in time.
        InferenceError: nothing that was attempted could be scored, or a score is not a number.
    """
    parts = [_later(parts_of, candidate) for candidate in candidates]
    scores = score_parts(scorer, query, parts, deadline=deadline, stage=stage)
    if scores.scored:
        left = {at for at in scores.scored if leaves_out and leaves_out(candidates[at], scores.spans[at])}
        cut = scores.cut | left
        return replace(scores, cut=cut, truncated=max(len(cut), scores.truncated))
    raise nothing_scored(scorer, scores.failures, stage=stage)


def _later(parts_of: PartsOf, candidate: Candidate) -> Iterator[Part]:
    """Yield a candidate's parts; nothing is cut before the first part is asked for."""
    yield from parts_of(candidate)


def _reasons(scores: PassageScores, unit: str) -> list[Reason]:
    """Return why not all parts were scored."""
    reasons = []
    asked, attempted = scores.asked, scores.attempted
    if scores.unread:
        reasons.append(late(f"after {attempted} {unit}; {scores.unread} candidates have more of them"))
    elif attempted < asked:
        reasons.append(late(f"after {attempted} of {asked} {unit}"))
    if scores.failures:
        reasons.append(not_scored(f"{len(scores.failures)} of {asked} {unit}"))
    return reasons
