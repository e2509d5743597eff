"""Turn a stage's scores into a ranking: sort the scored candidates, keep the others below, set the ranks."""

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
SPREAD = 1e-6
"""The distance from 0 or 1 within which a unit follows the score, not the probability, so that hits do not tie."""


Floats = npt.NDArray[np.float64]


class ScoredCandidate(NamedTuple):
    """A candidate with the score that a stage gave it.

    Attributes:
        candidate: the candidate before the stage.
        score: the value to sort by, finite, on the stage's scale; higher is better.
        unit: ``score`` mapped to [0, 1) by a non-decreasing function.
        parts: name -> another value of the stage, such as the probability.
        passage: the passage with the decisive score, if passages were scored.
        cut: whether the model read only a part of the text.
    """

    candidate: Candidate
    score: float
    unit: float
    parts: Mapping[str, float] = NO_PARTS
    passage: Span | None = None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class StageAttempt:
    """The candidates that a stage scored, those that failed, and how many it reached before the deadline.

    Only the longest prefix without a gap is put in order. Scored candidates below it keep their rank. Otherwise a few
    candidates from far below, whose vectors are known, would rank above the first pass's best.

    Attributes:
        block: the candidates that the stage was to order.
        readable: the block's candidates whose text is not blank, in order.
        judged: the scored candidates.
        reached: the number of leading readable candidates that were attempted before the deadline; later ones may be
            scored, too.
        failures: doc_id -> the reason why the candidate could not be scored.
    """

    block: Sequence[Candidate]
    readable: Sequence[Candidate]
    judged: Sequence[ScoredCandidate]
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
        return [scored for scored in self.judged if scored.candidate.rank <= depth]

    @property
    def unscored(self) -> list[Candidate]:
        """The candidates of that prefix without a score, with their ``failure`` set."""
        judged = {scored.candidate.doc_id for scored in self.judged}
        return [
            candidate._replace(failure=self.failures.get(candidate.doc_id) or _why_unscored(candidate))
            for candidate in self.block[: self.depth]
            if candidate.doc_id not in judged
        ]


class StageOutcome(NamedTuple):
    """The return value of a stage's scoring function.

    Attributes:
        attempt: the scored and failed candidates.
        counts: the scorer's counts, as `osrerank.types.Counts.counts` returns them.
        reasons: the reasons why not all candidates were attempted.
        pairs: the probabilities of the compared pairs; None except for a duo stage.
        vectors: the candidates' vectors, with new ones; None except for a stage that compares vectors.
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
    """Score the top ``depth`` of a ranking and put them in order; return the new ranking with the stage's report.

    Args:
        model: the model; the report has its name and kind.
        ranking: the ranking so far.
        score: the scoring function; its arguments are the top candidates, and those of them whose text is not blank (at
            least one).
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
    """Return the reason for a stage that the deadline ended; ``how_far`` such as "after 2 pairs"."""
    return Reason(ReasonCode.DEADLINE, f"the deadline passed {how_far}")


def not_scored_reason(what: str) -> Reason:
    """Return the reason for a stage whose model could not score some of its texts."""
    return Reason(ReasonCode.SCORING, f"{what} could not be scored")


def _why_unscored(candidate: Candidate) -> str:
    return NO_TEXT if candidate.text is None else BLANK_TEXT


def no_text_reason(block: Sequence[Candidate]) -> str:
    """Return the reason why none of these candidates, which lack text, is scored."""
    return NO_TEXT if all(candidate.text is None for candidate in block) else "the texts of all candidates are blank"


def units_of(scores: Floats, probabilities: Floats) -> list[float]:
    """Map scores ``(n,)`` to [0, 1): to their probabilities, unless these are nearly 0 or 1.

    Near 0 and 1, the map still increases with the score, whereas rounded probabilities would be equal.
    """
    unsaturated = (1 + scores / (1 + np.abs(scores))) / 2
    spread = np.where(probabilities > SPREAD, 1 - SPREAD, 0.0) + SPREAD * unsaturated
    is_between = (probabilities >= SPREAD) & (probabilities <= 1 - SPREAD)
    units: list[float] = np.where(is_between, probabilities, np.minimum(spread, MAX_UNIT)).tolist()
    return units


def nothing_scored_error(
    model: Scorer | Encoder, failures: Mapping[Any, str], *, stage: str
) -> DeadlineExceeded | InferenceError:
    """Return the error to raise if a stage scored no candidate at all.

    Args:
        model: the model that the error names.
        failures: an attempted item -> the reason why it could not be scored; empty if none was attempted in time.
        stage: the stage's name.
    """
    if not failures:
        return DeadlineExceeded("the deadline passed before any candidate was scored", stage=stage)
    reason = next(iter(failures.values()))
    return InferenceError(f"no candidate could be scored: {reason}", stage=stage, model=model.model)


def reorder(
    ranking: Ranking, stage: str, judged: Iterable[ScoredCandidate], below: Sequence[Candidate], *, counts: bool = True
) -> tuple[Candidate, ...]:
    """Return the judged candidates by score, ties by their rank so far, and below them the others in their order.

    Args:
        ranking: the ranking before the stage.
        stage: the stage's name.
        judged: the scored candidates.
        below: all other candidates.
        counts: whether the stage adds 1 to a hit's ``_score``; a blend does not, as a part of the stage before it.

    Raises:
        ValueError: ``judged`` and ``below`` together have another number of candidates than the ranking.
    """
    by_rank = sorted(judged, key=lambda scored: scored.candidate.rank)
    ordered = sorted(by_rank, key=attrgetter("score"), reverse=True)  # a reverse sort keeps the order of ties, too
    level = counts + max([candidate.trace[-1].level for candidate in ranking.candidates if candidate.trace], default=0)
    top = [_ranked(scored, stage, rank, level) for rank, scored in enumerate(ordered, start=1)]
    tail = [candidate._replace(rank=rank) for rank, candidate in enumerate(below, start=len(top) + 1)]
    if len(top) + len(tail) != len(ranking.candidates):
        raise ValueError(f"stage {stage} returned {len(top) + len(tail)} of {len(ranking.candidates)} candidates")
    return (*top, *tail)


def _ranked(scored: ScoredCandidate, stage: str, rank: int, level: int) -> Candidate:
    entry = StageScore(stage, scored.score, rank, scored.unit, scored.parts, scored.passage, level, scored.cut)
    before = scored.candidate
    trace = (*before.trace, entry)
    return Candidate(before.doc_id, before.text, scored.score, rank, trace, "", before.sections)
