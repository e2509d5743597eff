"""Turn a stage's scores into a ranking: first the scored candidates by score, then the others in their old order."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from osrerank.errors import DeadlineExceeded, InferenceError
from osrerank.stages.html import lacks_text
from osrerank.types import Candidate, Encoder, PairProbabilities, Ranking, Scorer, Span, StageReport, StageScore
from osrerank.types.candidate_vectors import CandidateVectors
from osrerank.types.reasons import Reason, ReasonCode, join_reasons
from osrerank.types.values import BLANK_TEXT, MAX_UNIT, NO_PARTS

NO_TEXT = "no text in the fields that were asked for"
"""The reason why a hit without any of the requested fields has no score."""
SATURATION = 1e-6
"""The distance from 0 or 1 below which a probability is saturated: different scores might round to the same value."""

Floats = npt.NDArray[np.float64]


class ScoredCandidate(NamedTuple):
    """A candidate with its score from a stage.

    Attributes:
        candidate: the candidate before the stage.
        score: the value to sort by, such as a logit. It is finite, and higher is better.
        unit: the score on the unit interval [0, 1), mapped by a non-decreasing function.
        parts: further values of the stage by name, such as ``{"probability": 0.43}``.
        passage: the span of the passage that decided the score. None if the text was not split.
        is_truncated: whether the text was truncated to the model's window.
    """

    candidate: Candidate
    score: float
    unit: float
    parts: Mapping[str, float] = NO_PARTS
    passage: Span | None = None
    is_truncated: bool = False


@dataclass(frozen=True, slots=True)
class StageAttempt:
    """What a stage has scored when it ends, possibly early because of the deadline.

    Only the candidates above the first unattempted one are reordered. Those below it keep their rank, even if they were
    scored. Otherwise, a few low candidates that happened to be scored would rank above the first pass's best.

    Attributes:
        block: the top candidates of the ranking, which the stage should reorder.
        scorable: the block's candidates with text, in the same order.
        scored: the scored candidates.
        reached: the number of scorable candidates above the first unattempted one.
        failures: why candidates could not be scored, by doc_id.
    """

    block: Sequence[Candidate]
    scorable: Sequence[Candidate]
    scored: Sequence[ScoredCandidate]
    reached: int
    failures: Mapping[str, str]

    @property
    def depth(self) -> int:
        """The number of candidates to reorder: the top of the block, above the first unattempted candidate."""
        if self.reached >= len(self.scorable):
            return len(self.block)
        first_unattempted = self.scorable[self.reached]
        return first_unattempted.rank - 1

    @property
    def scored_in_depth(self) -> list[ScoredCandidate]:
        """The candidates to reorder that have a score. They are not sorted."""
        depth = self.depth
        return [entry for entry in self.scored if entry.candidate.rank <= depth]

    @property
    def unscored(self) -> list[Candidate]:
        """The candidates to reorder that have no score, with their ``failure`` set."""
        scored_ids = {entry.candidate.doc_id for entry in self.scored}
        return [
            candidate._replace(failure=self.failures.get(candidate.doc_id) or _explain_unscored(candidate))
            for candidate in self.block[: self.depth]
            if candidate.doc_id not in scored_ids
        ]


class StageOutcome(NamedTuple):
    """What the scoring function of a stage returns.

    Attributes:
        attempt: the scored and failed candidates.
        counts: the numbers for the stage's report, such as ``{"inferences": 100, "truncated": 3}``.
        reasons: the reasons why not all candidates were scored. Empty if all were.
        pairs: the probabilities of the compared pairs. None unless the stage is a duo stage.
        vectors: the candidates' vectors. None unless the stage compares vectors.
    """

    attempt: StageAttempt
    counts: Mapping[str, Any]
    reasons: Sequence[Reason]
    pairs: PairProbabilities | None = None
    vectors: CandidateVectors | None = None


def rank_block(
    model: Scorer | Encoder,
    ranking: Ranking,
    score: Callable[[Sequence[Candidate], Sequence[Candidate]], StageOutcome],
    *,
    stage: str,
    depth: int,
) -> Ranking:
    """Score and reorder the top ``depth`` candidates of a ranking, and add the stage's report.

    Args:
        model: the stage's model, for the report.
        ranking: the ranking before the stage.
        score: a function that scores candidates. It is called with the top candidates, and with those of them that
            have text (at least one).
        stage: the stage's name.
        depth: the number of candidates that are scored.

    Raises:
        DeadlineExceeded: no candidate was scored in time.
        InferenceError: no candidate could be scored.
    """
    began_s, kind = time.perf_counter(), model.advice.kind
    block = ranking.candidates[:depth]
    scorable = [candidate for candidate in block if not lacks_text(candidate)]
    if not scorable:
        reason = explain_no_text(block) if block else "no candidates"
        code = ReasonCode.NO_TEXT if block else ReasonCode.NO_HITS
        report = StageReport(stage, applied=False, reason=reason, code=code, candidates=len(block))
        return ranking.with_report(report)
    outcome = score(block, scorable)
    attempt, reasons = outcome.attempt, outcome.reasons
    scored, unscored = attempt.scored_in_depth, attempt.unscored
    if not scored:
        failures = attempt.failures if unscored else {}  # without unscored candidates, the first was not attempted
        raise nothing_scored_error(model, failures, stage=stage)
    candidates = reorder(ranking, stage, scored, below=(*unscored, *ranking.candidates[attempt.depth :]))
    n_failed = sum(candidate.failure != BLANK_TEXT for candidate in unscored)  # a blank text needs no score
    if n_failed:
        reasons = [*reasons, not_scored_reason(f"{n_failed} candidates")]
    report = StageReport(
        name=stage,
        applied="partial" if reasons else True,
        reason=join_reasons(reasons),
        code=reasons[0].code if reasons else None,
        model=model.model,
        kind=kind,
        candidates=len(block),
        **outcome.counts,
        failed=len(unscored),
        took_ms=(time.perf_counter() - began_s) * 1000,
        pairs=outcome.pairs,
    )
    vectors = outcome.vectors or ranking.vectors
    return replace(ranking, candidates=candidates, reports=(*ranking.reports, report), vectors=vectors)


def deadline_reason(how_far: str) -> Reason:
    """Return the reason for a stage that the deadline ended. ``how_far`` is a phrase such as "after 2 pairs"."""
    return Reason(ReasonCode.DEADLINE, f"the deadline passed {how_far}")


def not_scored_reason(what: str) -> Reason:
    """Return the reason for a stage that could not score all texts. ``what`` is a phrase such as "2 candidates"."""
    return Reason(ReasonCode.SCORING, f"{what} could not be scored")


def _explain_unscored(candidate: Candidate) -> str:
    return NO_TEXT if candidate.text is None else BLANK_TEXT


def explain_no_text(block: Sequence[Candidate]) -> str:
    """Return why none of the candidates can be scored: they have no text, or their texts are blank."""
    return NO_TEXT if all(candidate.text is None for candidate in block) else "the texts of all candidates are blank"


def unit_interval_scores(scores: Floats, probabilities: Floats) -> list[float]:
    """Map scores ``(n,)`` to the unit interval [0, 1). Usually, a score becomes its probability.

    Near 0 and 1, different scores have the same rounded probability. There, the value is computed from the score, so
    that a logit of 60 still gets a higher value than a logit of 50.
    """
    softsign = (1 + scores / (1 + np.abs(scores))) / 2  # unlike a probability, it is hardly ever rounded to 0 or 1
    # in [0, SATURATION] or [1 - SATURATION, 1]
    near_ends = np.where(probabilities > SATURATION, 1 - SATURATION, 0.0) + SATURATION * softsign
    is_between = (probabilities >= SATURATION) & (probabilities <= 1 - SATURATION)
    units: list[float] = np.where(is_between, probabilities, np.minimum(near_ends, MAX_UNIT)).tolist()
    return units


def nothing_scored_error(
    model: Scorer | Encoder, failures: Mapping[Any, str], *, stage: str
) -> DeadlineExceeded | InferenceError:
    """Return the error for a stage that scored no candidate.

    Args:
        model: the stage's model.
        failures: why each attempted candidate or passage could not be scored. Empty if the deadline passed first.
        stage: the stage's name.
    """
    if not failures:
        return DeadlineExceeded("the deadline passed before any candidate was scored", stage=stage)
    reason = next(iter(failures.values()))
    return InferenceError(f"no candidate could be scored: {reason}", stage=stage, model=model.model)


def reorder(
    ranking: Ranking,
    stage: str,
    scored: Iterable[ScoredCandidate],
    below: Sequence[Candidate],
    *,
    adds_level: bool = True,
) -> tuple[Candidate, ...]:
    """Return the scored candidates sorted by score, and then all others in their old order. Ties keep their order.

    Args:
        ranking: the ranking before the stage.
        stage: the stage's name.
        scored: the scored candidates.
        below: all other candidates, in their old order.
        adds_level: whether the scored candidates get the next level (`StageScore.level`), which puts their hits above
            all others. A blend does not add a level.

    Raises:
        ValueError: the number of candidates differs from the ranking's.
    """
    by_rank = sorted(scored, key=lambda entry: entry.candidate.rank)
    ordered = sorted(by_rank, key=attrgetter("score"), reverse=True)  # ties stay sorted by rank
    last_level = max([candidate.trace[-1].level for candidate in ranking.candidates if candidate.trace], default=0)
    level = last_level + 1 if adds_level else last_level
    top = [_with_score(entry, stage, rank, level) for rank, entry in enumerate(ordered, start=1)]
    tail = [candidate._replace(rank=rank) for rank, candidate in enumerate(below, start=len(top) + 1)]
    if len(top) + len(tail) != len(ranking.candidates):
        raise ValueError(f"stage {stage} returned {len(top) + len(tail)} of {len(ranking.candidates)} candidates")
    return (*top, *tail)


def _with_score(scored: ScoredCandidate, stage: str, rank: int, level: int) -> Candidate:
    """Return the candidate after the stage, with the score in its trace."""
    candidate = scored.candidate
    entry = StageScore(
        stage,
        scored.score,
        rank,
        scored.unit,
        parts=scored.parts,
        passage=scored.passage,
        level=level,
        cut=scored.is_truncated,
    )
    return Candidate(
        candidate.doc_id,
        candidate.text,
        scored.score,
        rank,
        trace=(*candidate.trace, entry),
        failure="",
        sections=candidate.sections,
    )
