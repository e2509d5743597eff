"""Turn a stage's scores into a ranking: sort the scored candidates, keep the rest below, set the ranks."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from osrerank.errors import DeadlineExceeded, InferenceError
from osrerank.stages.html import lacks_text
from osrerank.types import Candidate, Encoder, PairProbabilities, Ranking, Scorer, Span, StageReport, StageScore
from osrerank.types.candidate_vectors import CandidateVectors
from osrerank.types.reasons import Reason, ReasonCode, joined
from osrerank.types.values import BELOW_ONE, BLANK, NO_PARTS

NO_TEXT = "no text in the fields that were asked for"
SPREAD = 1e-6
"""Where a probability is this close to 0 or 1, the unit follows the score instead, so that hits do not tie."""


Floats = npt.NDArray[np.float64]


class ScoredCandidate(NamedTuple):
    """A candidate with the score that a stage gave it.

    Attributes:
        candidate: as it came into the stage.
        score: the value to sort by, finite, on the stage's own scale; higher is better.
        unit: ``score`` mapped to [0, 1) by a non-decreasing function of the stage.
        parts: name -> other values of the stage, such as the probability.
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
    """Which of its candidates a stage scored, which failed, and how far it came before the deadline.

    Only the longest prefix of candidates without a gap is put in order. Candidates that were scored below it keep their
    rank: otherwise a few with known vectors from far below would rank above the first pass's best.

    Attributes:
        block: the candidates that the stage was to order.
        readable: the block's candidates whose text is not blank, in order.
        judged: candidates that were scored.
        reached: all readable candidates before this index were attempted before the deadline; later ones may be scored
            too.
        failures: doc_id -> why it could not be scored.
    """

    block: Sequence[Candidate]
    readable: Sequence[Candidate]
    judged: Sequence[ScoredCandidate]
    reached: int
    failures: Mapping[str, str]

    @property
    def depth(self) -> int:
        """Length of the block's longest prefix in which all candidates were attempted or have no text to score."""
        return len(self.block) if self.reached >= len(self.readable) else self.readable[self.reached].rank - 1

    @property
    def ordered(self) -> list[ScoredCandidate]:
        """The scored candidates of that prefix."""
        depth = self.depth
        return [item for item in self.judged if item.candidate.rank <= depth]

    @property
    def unscored(self) -> list[Candidate]:
        """The candidates of that prefix that could not be scored, each with its ``failure`` set."""
        judged = {item.candidate.doc_id for item in self.judged}
        return [
            candidate._replace(failure=self.failures.get(candidate.doc_id) or _why_unscored(candidate))
            for candidate in self.block[: self.depth]
            if candidate.doc_id not in judged
        ]


class StageOutcome(NamedTuple):
    """What a stage's scoring function returns.

    Attributes:
        attempt: which candidates were scored.
        counts: the scorer's counts, as `osrerank.types.Counts.counts` returns them.
        reasons: why not all candidates were scored, apart from those that failed.
        pairs: probabilities of the pairs that were compared, from a duo stage.
        vectors: what is known of the candidates' vectors after a stage that compares them.
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
        model: the model, whose name and kind the report has.
        ranking: the ranking so far.
        score: called with the top candidates, and with those of them whose text is not blank (at least one), which it
            scores.
        stage: the stage's name.
        depth: how many candidates are scored.
    """
    started, kind = time.perf_counter(), model.advice.kind
    block = ranking.candidates[:depth]
    readable = [candidate for candidate in block if not lacks_text(candidate)]
    if not readable:
        reason = without_text(block) if block else "no candidates"
        code = ReasonCode.NO_TEXT if block else ReasonCode.NO_HITS
        report = StageReport(stage, applied=False, reason=reason, code=code, candidates=len(block))
        return ranking.with_report(report)
    attempt, counts, reasons, pairs, vectors = score(block, readable)
    ordered, unscored = attempt.ordered, attempt.unscored
    if not ordered:
        raise nothing_scored(model, attempt.failures if unscored else {}, stage=stage)
    candidates = reorder(ranking, stage, ordered, (*unscored, *ranking.candidates[attempt.depth :]))
    if failed := sum(candidate.failure != BLANK for candidate in unscored):  # a blank text needs no score
        reasons = [*reasons, not_scored(f"{failed} candidates")]
    report = StageReport(
        name=stage,
        applied="partial" if reasons else True,
        reason=joined(reasons),
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


def late(how_far: str) -> Reason:
    """Return the reason of a stage that the deadline ended; the text begins with "after" and says how far it came."""
    return Reason(ReasonCode.DEADLINE, f"the deadline passed {how_far}")


def not_scored(what: str) -> Reason:
    """Return the reason of a stage whose model could not score some of its texts."""
    return Reason(ReasonCode.SCORING, f"{what} could not be scored")


def _why_unscored(candidate: Candidate) -> str:
    return NO_TEXT if candidate.text is None else BLANK


def without_text(block: Sequence[Candidate]) -> str:
    """Return why none of these candidates, which have no text to score, is scored."""
    return NO_TEXT if all(candidate.text is None for candidate in block) else "the texts of all candidates are blank"


def units_of(scores: Floats, probabilities: Floats) -> list[float]:
    """Map scores ``(n,)`` to [0, 1): to their probabilities, except where these are nearly 0 or 1.

    There the map goes on increasing with the score, whereas rounded probabilities are equal.
    """
    unsaturated = (1 + scores / (1 + np.abs(scores))) / 2
    spread = np.where(probabilities > SPREAD, 1 - SPREAD, 0.0) + SPREAD * unsaturated
    is_between = (probabilities >= SPREAD) & (probabilities <= 1 - SPREAD)
    units: list[float] = np.where(is_between, probabilities, np.minimum(spread, BELOW_ONE)).tolist()
    return units


def nothing_scored(
    model: Scorer | Encoder, failures: Mapping[Any, str], *, stage: str
) -> DeadlineExceeded | InferenceError:
    """Return the error to raise if a stage scored no candidate at all.

    Args:
        model: the model that the error names.
        failures: what was attempted -> why it could not be scored; empty if nothing was attempted in time.
        stage: the stage's name.
    """
    if not failures:
        return DeadlineExceeded("the deadline passed before any candidate was scored", stage=stage)
    reason = next(iter(failures.values()))
    return InferenceError(f"no candidate could be scored: {reason}", stage=stage, model=model.model)


def reorder(
    ranking: Ranking, stage: str, judged: Iterable[ScoredCandidate], rest: Sequence[Candidate], *, counts: bool = True
) -> tuple[Candidate, ...]:
    """Return the judged candidates by score, ties by their rank so far, then the rest as given.

    Args:
        ranking: before the stage.
        stage: its name.
        judged: the candidates that it scored.
        rest: all others.
        counts: whether the stage adds 1 to a hit's ``_score``; a blend, as part of the stage before, does not.

    Raises:
        ValueError: judged and rest are not together a permutation of the ranking.
    """
    ordered = sorted(judged, key=lambda item: (-item.score, item.candidate.rank))
    level = counts + max([one.trace[-1].level for one in ranking.candidates if one.trace], default=0)
    scored = [_ranked(item, stage, rank, level) for rank, item in enumerate(ordered, start=1)]
    below = [item._replace(rank=rank) for rank, item in enumerate(rest, start=len(scored) + 1)]
    if len(scored) + len(below) != len(ranking.candidates):
        raise ValueError(f"stage {stage} returned {len(scored) + len(below)} of {len(ranking.candidates)} candidates")
    return (*scored, *below)


def _ranked(item: ScoredCandidate, stage: str, rank: int, level: int) -> Candidate:
    entry = StageScore(stage, item.score, rank, item.unit, item.parts, item.passage, level, item.cut)
    before = item.candidate
    return Candidate(before.doc_id, before.text, item.score, rank, (*before.trace, entry), "", before.sections)
