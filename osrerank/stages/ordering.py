"""Turn a stage's scores into a ranking: scored candidates by score, and the other ones below in their old order."""

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
SATURATION = 1e-6
"""Probabilities this close to 0 or 1 might round to the same value, so the score is used in their place."""


Floats = npt.NDArray[np.float64]


class ScoredCandidate(NamedTuple):
    """A candidate with its score from a stage.

    Attributes:
        candidate: the candidate before the stage.
        score: the value to sort by, finite, on the stage's scale; higher is better.
        unit: ``score`` mapped to [0, 1) by a non-decreasing function.
        parts: further values of the stage by name, such as the probability.
        passage: the span of the passage that decided the score; None if the text was not split.
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
    """The candidates that a stage scored, those that failed, and how many it reached before the deadline.

    Only the longest prefix without a gap is reordered. Scored candidates below it keep their rank. Otherwise a few
    candidates from far below, whose vectors are stored, would rank above the first pass's best.

    Attributes:
        block: the candidates that the stage was to order.
        readable: the block's candidates whose text is not blank, in order.
        scored: the scored candidates.
        reached: the number of leading readable candidates that were attempted before the deadline. Candidates after
            them may be scored as well.
        failures: doc_id -> the reason why the candidate could not be scored.
    """

    block: Sequence[Candidate]
    readable: Sequence[Candidate]
    scored: Sequence[ScoredCandidate]
    reached: int
    failures: Mapping[str, str]

    @property
    def depth(self) -> int:
        """The length of the block's longest prefix in which all candidates were attempted or have no text."""
        return len(self.block) if self.reached >= len(self.readable) else self.readable[self.reached].rank - 1

    @property
    def ordered(self) -> list[ScoredCandidate]:
        """The scored candidates of that prefix."""
        depth = self.depth
        return [entry for entry in self.scored if entry.candidate.rank <= depth]

    @property
    def unscored(self) -> list[Candidate]:
        """The candidates of that prefix without a score, with their ``failure`` set."""
        scored_ids = {entry.candidate.doc_id for entry in self.scored}
        return [
            candidate._replace(failure=self.failures.get(candidate.doc_id) or _unscored_reason(candidate))
            for candidate in self.block[: self.depth]
            if candidate.doc_id not in scored_ids
        ]


class StageOutcome(NamedTuple):
    """The return value of a stage's scoring function.

    Attributes:
        attempt: the scored and failed candidates.
        counts: the model's counts, as `osrerank.types.Counts.counts` returns them.
        reasons: the reasons why not all candidates were scored.
        pairs: the probabilities of the compared pairs, from a duo stage; else None.
        vectors: the candidates' vectors, from a stage that compares vectors; else None.
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
    """Score and reorder the top ``depth`` of a ranking; return the new ranking with the stage's report.

    Args:
        model: the stage's model; the report has its name and kind.
        ranking: the ranking before the stage.
        score: a function that scores candidates. Its arguments are the top candidates, and those of them whose text is
            not blank (at least one).
        stage: the stage's name.
        depth: the number of candidates that are scored.
    """
    started, kind = time.perf_counter(), model.advice.kind
    block = ranking.candidates[:depth]
    readable = [candidate for candidate in block if not lacks_text(candidate)]
    if not readable:
        reason = no_text_reason(block) if block else "no candidates"
        code = ReasonCode.NO_TEXT if block else ReasonCode.NO_HITS
        report = StageReport(stage, applied=False, reason=reason, code=code, candidates=len(block))
        return ranking.with_report(report)
    attempt, counts, reasons, pairs, vectors = score(block, readable)
    ordered, unscored = attempt.ordered, attempt.unscored
    if not ordered:
        raise nothing_scored_error(model, attempt.failures if unscored else {}, stage=stage)
    candidates = reorder(ranking, stage, ordered, (*unscored, *ranking.candidates[attempt.depth :]))
    if failed := sum(candidate.failure != BLANK_TEXT for candidate in unscored):  # a blank text needs no score
        reasons = [*reasons, not_scored_reason(f"{failed} candidates")]
    report = StageReport(
        name=stage,
        applied="partial" if reasons else True,
        reason=join_reasons(reasons),
        code=reasons[0].code if reasons else None,
        model=model.model,
        kind=kind,
        candidates=len(block),
        **counts,
        failed=len(unscored),
        took_ms=(time.perf_counter() - started) * 1000,
        pairs=pairs,
    )
    return replace(
        ranking, candidates=candidates, reports=(*ranking.reports, report), vectors=vectors or ranking.vectors
    )


def deadline_reason(how_far: str) -> Reason:
    """Return the reason for a stage that the deadline ended; ``how_far`` is a text such as "after 2 pairs"."""
    return Reason(ReasonCode.DEADLINE, f"the deadline passed {how_far}")


def not_scored_reason(what: str) -> Reason:
    """Return the reason for a stage whose model could not score some of its texts."""
    return Reason(ReasonCode.SCORING, f"{what} could not be scored")


def _unscored_reason(candidate: Candidate) -> str:
    return NO_TEXT if candidate.text is None else BLANK_TEXT


def no_text_reason(block: Sequence[Candidate]) -> str:
    """Return the reason for candidates without text, none of which can be scored."""
    return NO_TEXT if all(candidate.text is None for candidate in block) else "the texts of all candidates are blank"


def unit_interval_scores(scores: Floats, probabilities: Floats) -> list[float]:
    """Map scores ``(n,)`` to [0, 1): to their probabilities, unless these are nearly 0 or 1.

    Near 0 and 1, the map still increases with the score, whereas rounded probabilities would be equal.
    """
    unsaturated = (1 + scores / (1 + np.abs(scores))) / 2
    spread = np.where(probabilities > SATURATION, 1 - SATURATION, 0.0) + SATURATION * unsaturated
    is_between = (probabilities >= SATURATION) & (probabilities <= 1 - SATURATION)
    units: list[float] = np.where(is_between, probabilities, np.minimum(spread, MAX_UNIT)).tolist()
    return units


def nothing_scored_error(
    model: Scorer | Encoder, failures: Mapping[Any, str], *, stage: str
) -> DeadlineExceeded | InferenceError:
    """Return the error of a stage that scored no candidate.

    Args:
        model: the stage's model.
        failures: an attempted item -> the reason why it could not be scored; empty if none was attempted in time.
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
    """Return the scored candidates by score, ties by their previous rank, and then the other candidates in their order.

    Args:
        ranking: the ranking before the stage.
        stage: the stage's name.
        scored: the scored candidates.
        below: all other candidates.
        adds_level: whether the stage adds 1 to a hit's ``_score``. A blend shares the level of the stage before it.

    Raises:
        ValueError: the number of candidates differs from the ranking's.
    """
    by_rank = sorted(scored, key=lambda entry: entry.candidate.rank)
    ordered = sorted(by_rank, key=attrgetter("score"), reverse=True)  # a reverse sort keeps the order of ties
    last_level = max([candidate.trace[-1].level for candidate in ranking.candidates if candidate.trace], default=0)
    level = last_level + 1 if adds_level else last_level
    top = [_with_score(entry, stage, rank, level) for rank, entry in enumerate(ordered, start=1)]
    tail = [candidate._replace(rank=rank) for rank, candidate in enumerate(below, start=len(top) + 1)]
    if len(top) + len(tail) != len(ranking.candidates):
        raise ValueError(f"stage {stage} returned {len(top) + len(tail)} of {len(ranking.candidates)} candidates")
    return (*top, *tail)


def _with_score(scored: ScoredCandidate, stage: str, rank: int, level: int) -> Candidate:
    """Return a candidate with a stage's score added to its trace."""
    score = StageScore(stage, scored.score, rank, scored.unit, scored.parts, scored.passage, level, scored.is_truncated)
    candidate = scored.candidate
    trace = (*candidate.trace, score)
    return Candidate(candidate.doc_id, candidate.text, scored.score, rank, trace, "", candidate.sections)
