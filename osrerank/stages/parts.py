"""Rerank documents by the scores of their parts, which are passages or sentences.

The class `PassageScores` holds the scores of parts of either kind.
"""

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

Float32s = npt.NDArray[np.float32]
SplitCandidate = Callable[[Candidate], Iterable[Part]]
"""A function that returns the parts of a candidate, at least one: the text and span of each. It can be a generator."""
ScoreCandidate = Callable[[Candidate, Sequence[Span | None], Float32s, Float32s], ScoredCandidate]
"""A function that aggregates the scores of a candidate's parts.

Its arguments are the candidate, and three sequences with a value for each part: the span, the logit (the model's score)
and the log-odds of relevance, from which the model computes probabilities. For most models, the log-odds are the
logits. Both are NaN for unscored parts.
"""
LeavesWordsOut = Callable[[Candidate, Sequence[Span | None]], bool]
"""A function of a candidate and the spans of its parts. It returns whether words of the candidate are in no part."""


def rank_by_parts(
    scorer: Scorer,
    ranking: Ranking,
    split_candidate: SplitCandidate,
    score_candidate: ScoreCandidate,
    *,
    stage: str,
    depth: int,
    noun: str,
    deadline: Deadline,
    leaves_words_out: LeavesWordsOut | None = None,
) -> Ranking:
    """Rerank the top ``depth`` of a ranking by the scores of the candidates' parts.

    Args:
        scorer: the model, which scores single documents.
        ranking: the ranking before the stage.
        split_candidate: the function that splits a candidate into parts.
        score_candidate: the function that aggregates the scores of a candidate's parts.
        stage: the stage's name.
        depth: the number of candidates that are scored.
        noun: the noun for the parts in messages: ``passages`` or ``sentences``.
        deadline: the time after which no part is split off or scored.
        leaves_words_out: the function that finds candidates with words in no part. They count as truncated. If None,
            such words are not searched for.

    Raises:
        DeadlineExceeded: nothing was scored in time.
        InferenceError: no candidate could be scored at all, or a score is not a number.
    """

    def score(block: Sequence[Candidate], scorable: Sequence[Candidate]) -> StageOutcome:
        """Score the candidates with text (``scorable``) among the top ``depth`` (``block``)."""
        scores = score_all_parts(
            scorer,
            ranking.query.text,
            scorable,
            split_candidate,
            stage=stage,
            deadline=deadline,
            leaves_words_out=leaves_words_out,
        )
        scored_candidates = []
        for index in scores.scored:
            spans, logits, log_odds = scores.spans[index], scores.logits[index], scores.log_odds[index]
            scored = score_candidate(scorable[index], spans, logits, log_odds)
            scored_candidates.append(scored._replace(is_truncated=index in scores.cut))
        # of the candidates without a scored part; `scores.failures` has the reasons of single parts
        failures = {scorable[index].doc_id: reason for index, reason in scores.failed.items()}
        attempt = StageAttempt(block, scorable, scored_candidates, scores.reached, failures)
        return StageOutcome(attempt, scores.counts(), _explain_gaps(scores, noun))

    return rank_block(scorer, ranking, score, stage=stage, depth=depth)


def score_all_parts(
    scorer: Scorer,
    query: str,
    candidates: Sequence[Candidate],
    split_candidate: SplitCandidate,
    *,
    stage: str,
    deadline: Deadline,
    leaves_words_out: LeavesWordsOut | None = None,
) -> PassageScores:
    """Score all parts of the candidates.

    Args:
        scorer: the model, which scores single documents.
        query: the query's text.
        candidates: candidates with text.
        split_candidate: the function that splits a candidate into parts.
        stage: the stage's name, for error messages.
        deadline: the time after which no part is split off or scored.
        leaves_words_out: as for `rank_by_parts`.

    Raises:
        DeadlineExceeded: nothing was scored in time.
        InferenceError: none of the attempted parts could be scored, or a score is not a number.
    """
    parts = [_split_lazily(split_candidate, candidate) for candidate in candidates]
    scores = score_parts(scorer, query, parts, deadline=deadline, stage=stage)
    if not scores.scored:
        raise nothing_scored_error(scorer, scores.failures, stage=stage)
    with_words_left_out = {
        index
        for index in scores.scored
        if leaves_words_out is not None and leaves_words_out(candidates[index], scores.spans[index])
    }
    truncated = scores.cut | with_words_left_out
    # The model may report only how many documents it truncated, but not which ones. Then its count can be higher.
    return replace(scores, cut=truncated, truncated=max(len(truncated), scores.truncated))


def _split_lazily(split_candidate: SplitCandidate, candidate: Candidate) -> Iterator[Part]:
    """Yield a candidate's parts. It is split only when the first part is taken, so that the deadline can prevent it."""
    yield from split_candidate(candidate)


def _explain_gaps(scores: PassageScores, noun: str) -> list[Reason]:
    """Return why not all parts were scored, such as "the deadline passed after 40 of 100 passages"."""
    reasons = []
    n_split_off, n_attempted, n_unfinished = scores.asked, scores.attempted, scores.unread
    if n_unfinished:  # some candidates were not split completely, so the number of all parts is unknown
        how_far = f"after {n_attempted} {noun}; {n_unfinished} candidates have more of them"
        reasons.append(deadline_reason(how_far))
    elif n_attempted < n_split_off:
        reasons.append(deadline_reason(f"after {n_attempted} of {n_split_off} {noun}"))
    if scores.failures:
        reasons.append(not_scored_reason(f"{len(scores.failures)} of {n_split_off} {noun}"))
    return reasons
