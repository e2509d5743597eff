"""Order documents by the scores of their parts, which are passages or sentences."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from osrerank.scoring.passages import score_parts
from osrerank.stages.ordering import (
    ScoredCandidate,
    StageAttempt,
    StageOutcome,
    deadline_reason,
    not_scored_reason,
    nothing_scored_error,
    rank_block,
)
from osrerank.types import Candidate, Deadline, PassageScores, Ranking, Scorer, Span
from osrerank.types.reasons import Reason
from osrerank.types.vectors import Part

SplitCandidate = Callable[[Candidate], Iterable[Part]]
"""Returns the parts of a candidate, at least one; it may be a generator."""
ScoreCandidate = Callable[
    [Candidate, Sequence[Span | None], npt.NDArray[np.float32], npt.NDArray[np.float32]], ScoredCandidate
]
"""Returns a candidate's score from the spans, logits and log-odds of its parts; NaN for parts that were not scored."""
LeavesOut = Callable[[Candidate, Sequence[Span | None]], bool]
"""Returns whether a candidate has text that is in none of its parts, from the parts' spans."""


def rank_by_slices(
    scorer: Scorer,
    ranking: Ranking,
    parts_of: SplitCandidate,
    score_candidate: ScoreCandidate,
    *,
    stage: str,
    depth: int,
    part_name: str,
    deadline: Deadline,
    leaves_out: LeavesOut | None = None,
) -> Ranking:
    """Return the ranking with its top ``depth`` ordered by the scores of their parts.

    Args:
        scorer: the model; it scores ``(i,)`` tuples.
        ranking: the ranking so far.
        parts_of: the function that splits a candidate into parts.
        score_candidate: the function that aggregates the scores of a candidate's parts.
        stage: the stage's name.
        depth: the number of candidates that are scored.
        part_name: the word for the parts in messages: ``passages`` or ``sentences``.
        deadline: as for ``Scorer.score``.
        leaves_out: the function that decides whether a candidate has text in none of its parts, and so is truncated.

    Raises:
        DeadlineExceeded: nothing was scored in time.
        InferenceError: no candidate could be scored at all, or a score is not a number.
    """

    def score(block: Sequence[Candidate], readable: Sequence[Candidate]) -> StageOutcome:
        scores = score_slices(
            scorer, ranking.query.text, readable, parts_of, stage=stage, deadline=deadline, leaves_out=leaves_out
        )
        scored_candidates = [
            score_candidate(readable[index], scores.spans[index], scores.logits[index], scores.log_odds[index])
            for index in scores.scored
        ]
        cut = {readable[index].doc_id for index in scores.cut}
        scored_candidates = [
            scored._replace(is_truncated=scored.candidate.doc_id in cut) for scored in scored_candidates
        ]
        failures = {readable[index].doc_id: reason for index, reason in scores.failed.items()}
        attempt = StageAttempt(block, readable, scored_candidates, scores.reached, failures)
        return StageOutcome(attempt, scores.counts(), _reasons(scores, part_name))

    return rank_block(scorer, ranking, score, stage=stage, depth=depth)


def score_slices(
    scorer: Scorer,
    query: str,
    candidates: Sequence[Candidate],
    parts_of: SplitCandidate,
    *,
    stage: str,
    deadline: Deadline,
    leaves_out: LeavesOut | None = None,
) -> PassageScores:
    """Score the parts of candidates, and return the scores.

    Args:
        scorer: the model; it scores ``(i,)`` tuples.
        query: the query's text.
        candidates: candidates with text.
        parts_of: the function that splits a candidate into parts.
        stage: the stage's name, for errors.
        deadline: as for ``Scorer.score``.
        leaves_out: the function that decides whether a candidate has text in none of its parts, and so is truncated.

    Raises:
        DeadlineExceeded: nothing was attempted in time.
        InferenceError: none of the attempted parts could be scored, or a score is not a number.
    """
    parts = [_split_lazily(parts_of, candidate) for candidate in candidates]
    scores = score_parts(scorer, query, parts, deadline=deadline, stage=stage)
    if scores.scored:
        incomplete = {
            index for index in scores.scored if leaves_out and leaves_out(candidates[index], scores.spans[index])
        }
        cut = scores.cut | incomplete
        return replace(scores, cut=cut, truncated=max(len(cut), scores.truncated))
    raise nothing_scored_error(scorer, scores.failures, stage=stage)


def _split_lazily(parts_of: SplitCandidate, candidate: Candidate) -> Iterator[Part]:
    """Yield a candidate's parts; the candidate is split when the first part is requested."""
    yield from parts_of(candidate)


def _reasons(scores: PassageScores, part_name: str) -> list[Reason]:
    """Return the reasons why not all parts were scored."""
    reasons = []
    requested, attempted = scores.asked, scores.attempted
    if scores.unread:
        reasons.append(deadline_reason(f"after {attempted} {part_name}; {scores.unread} candidates have more of them"))
    elif attempted < requested:
        reasons.append(deadline_reason(f"after {attempted} of {requested} {part_name}"))
    if scores.failures:
        reasons.append(not_scored_reason(f"{len(scores.failures)} of {requested} {part_name}"))
    return reasons
