"""The values that flow through osrerank, from a query to a ranking: frozen, slotted dataclasses with tuples inside."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

__all__ = [
    "Advice", "Candidate", "Deadline", "Document", "Hit", "PairProbabilities", "Qrels", "Query", "Ranking", "Run",
    "ScoredDocument", "Scorer", "Scores", "Section", "Span", "Stage", "StagePipeline", "StageReport", "StageScore",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Query:
    """What somebody searches for."""

    query_id: str
    text: str

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError(f"query {self.query_id!r} has no text")


@dataclass(frozen=True, slots=True)
class Document:
    """An indexed unit, as a loader reads it from a collection."""

    doc_id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hit:
    """One hit of a search response, parsed once and never changed."""

    doc_id: str
    index: str
    score: float | None
    source: Mapping[str, Any]
    raw: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Section:
    """One value of a document's field.

    Attributes:
        field: the field's name, as in the request.
        text: the value.
        value: which of the field's values, from 0; None for the only one.
    """

    field: str
    text: str
    value: int | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """The place of a passage in a field's value.

    Attributes:
        field: the field's name, as in the request.
        start, end: its first character, and one past its last, as Python counts them.
        value: which of the field's values, from 0; None for the only one.
    """

    field: str
    start: int
    end: int
    value: int | None = None

    def as_json(self) -> dict[str, str | int]:
        value = {} if self.value is None else {"value": self.value}
        return {"field": self.field, "start": self.start, "end": self.end, **value}


@dataclass(frozen=True, slots=True)
class StageScore:
    """What one stage made of one candidate.

    Attributes:
        stage: the stage's name.
        score: the natural value that the stage sorted by; higher is better.
        rank: the candidate's rank after the stage, from 1.
        unit: the stage's own non-decreasing map of ``score`` to [0, 1).
        parts: other natural values by name, such as ``logit`` and ``probability``.
        passage: the passage that decided, of a stage that scores passages.
        level: how many stages the ranking had passed with this one; 0 for the first pass.
    """

    stage: str
    score: float
    rank: int
    unit: float
    parts: Mapping[str, float] = field(default_factory=dict)
    passage: Span | None = None
    level: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return what a hit's ``_rerank`` says of the stage."""
        passage = {} if self.passage is None else {"passage": self.passage.as_json()}
        return {"score": self.score, "rank": self.rank, **self.parts, **passage}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A document in a ranking.

    Attributes:
        doc_id: unique within its ranking.
        text: what a model reads; None when the hit has no text in the fields asked for.
        score: the natural score of the last stage that scored it, the first pass to begin with.
        rank: place in the ranking, from 1.
        trace: one entry for each stage passed, in order.
        failure: why the last stage that tried could not score it; empty when it could.
        sections: what ``text`` was joined from, for stages that look at passages.
    """

    doc_id: str
    text: str | None
    score: float
    rank: int
    trace: tuple[StageScore, ...] = ()
    failure: str = ""
    sections: tuple[Section, ...] = ()


@dataclass(frozen=True, slots=True)
class PairProbabilities:
    """The pairwise probabilities of a stage that compares candidates.

    Attributes:
        doc_ids: the n candidates, in the stage's input order.
        probabilities: ``(n, n)``: that candidate i is more relevant than candidate j; None where not computed.
    """

    doc_ids: tuple[str, ...]
    probabilities: tuple[tuple[float | None, ...], ...]

    def as_json(self) -> dict[str, Any]:
        return {"doc_ids": list(self.doc_ids), "probabilities": [list(row) for row in self.probabilities]}


@dataclass(frozen=True, slots=True)
class StageReport:
    """What a stage did, for ``response["rerank"]["stages"]``.

    Attributes:
        name: the stage's name.
        applied: True, False or "partial".
        reason: why it was not (wholly) applied; else empty.
        model: the model's name; empty for a stage without one.
        candidates: how many candidates it was asked to order.
        inferences: forward passes computed, without cached scores.
        cached: scores that came from a cache.
        truncated: computed documents that were cut to fit the model.
        query_truncated: whether the query was cut to fit the model.
        failed: candidates that could not be scored.
        took_ms: wall time of the stage, in milliseconds.
        skipped: whether the pipeline left it out on purpose; the reason says why.
        pairs: pairwise probabilities, of a stage that compares candidates.
    """

    name: str
    applied: bool | str
    reason: str = ""
    model: str = ""
    candidates: int = 0
    inferences: int = 0
    cached: int = 0
    truncated: int = 0
    query_truncated: bool = False
    failed: int = 0
    took_ms: float = 0.0
    skipped: bool = False
    pairs: PairProbabilities | None = None


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates of one query, in order.

    Ids are unique, ranks are 1..n and give the order, scores are finite. Scores never increase within the block that
    a stage ranked; a first pass with its own ``sort`` has no such block.
    """

    query: Query
    candidates: tuple[Candidate, ...]
    reports: tuple[StageReport, ...] = ()

    def __post_init__(self) -> None:
        if len({candidate.doc_id for candidate in self.candidates}) != len(self.candidates):
            raise ValueError(f"query {self.query.query_id!r}: a document appears twice in its ranking")
        for rank, candidate in enumerate(self.candidates, start=1):
            if candidate.rank != rank:
                raise ValueError(f"document {candidate.doc_id!r} has rank {candidate.rank} at place {rank}")
            if not math.isfinite(candidate.score):
                raise ValueError(f"document {candidate.doc_id!r} has the score {candidate.score}")

    def with_report(self, report: StageReport) -> Self:
        """Return the same ranking with one more stage's report."""
        return replace(self, reports=(*self.reports, report))


class ScoredDocument(NamedTuple):
    """A line of a TREC run: a document and its score."""

    doc_id: str
    score: float


@dataclass(frozen=True, slots=True)
class Run:
    """The rankings of a system over a query set, as a TREC run file holds them: ids and scores, no texts.

    Attributes:
        rankings: query_id -> documents in rank order.
        name: the run's tag.
        by_rank: whether scores are 1/rank, of a file with ranks and no scores (MS MARCO's three columns).
    """

    rankings: Mapping[str, tuple[ScoredDocument, ...]]
    name: str = "osrerank"
    by_rank: bool = False


@dataclass(frozen=True, slots=True)
class Qrels:
    """Relevance judgments: query_id -> {doc_id: relevance}; relevance may be negative (junk)."""

    judgments: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a call must have answered, on the monotonic clock; None for never."""

    at_s: float | None = None

    @classmethod
    def after_ms(cls, duration_ms: float | None) -> Self:
        """Return a deadline this many milliseconds from now; None gives one that never passes."""
        return cls(None if duration_ms is None else time.monotonic() + duration_ms / 1000)

    def within_ms(self, duration_ms: float | None) -> "Deadline":
        """Return the sooner of this deadline and one this many milliseconds from now; None keeps this one."""
        sooner = Deadline.after_ms(duration_ms)
        return sooner if sooner.remaining_s() < self.remaining_s() else self

    def remaining_s(self) -> float:
        """Return the seconds left: negative after the deadline, infinite without one."""
        return math.inf if self.at_s is None else self.at_s - time.monotonic()

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return self.remaining_s() <= 0


NEVER = Deadline()


@dataclass(frozen=True, slots=True)
class Scores:
    """The answer of a scorer.

    Attributes:
        values: float32 ``(n,)``, a logit per tuple in their order; higher is better; NaN for failed and not attempted.
        failures: index of a tuple -> why it could not be scored.
        reached: how many leading tuples were attempted for sure before the deadline.
        inferences: forward passes computed.
        cached: scores that came from a cache.
        truncated: documents cut to fit the model, among those inferred.
        query_truncated: whether the query was cut to fit the model; known only where something was inferred.
        identity: identity of the model that scored (`Scorer.identity`) where it may change between calls; else empty.
    """

    values: npt.NDArray[np.float32]
    failures: Mapping[int, str] = field(default_factory=dict)
    reached: int = -1
    inferences: int = 0
    cached: int = 0
    truncated: int = 0
    query_truncated: bool = False
    identity: str = ""

    def __post_init__(self) -> None:
        if self.reached < 0:
            object.__setattr__(self, "reached", len(self.values))

    @property
    def attempted(self) -> list[int]:
        """The tuples that were attempted, in order."""
        behind = np.flatnonzero(~np.isnan(self.values[self.reached :])) + self.reached
        failed = [index for index in self.failures if index >= self.reached]
        return [*range(self.reached), *sorted({*behind.tolist(), *failed})]


@dataclass(frozen=True, slots=True)
class Advice:
    """What a model recommends for ordering by its scores; by default nothing but the scores.

    Attributes:
        first_pass_weight: weight, 0 or above, of the first-pass score over the query's best in a linear blend.
        prior_share: weight in [0, 1) of the mono logit difference in a pair's logit, for a duo model.
        passages: whether documents beyond the model's window are read by passages.
    """

    first_pass_weight: float = 0.0
    prior_share: float = 0.0
    passages: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.first_pass_weight < math.inf:
            raise ValueError(f"first_pass_weight is {self.first_pass_weight}; it must be 0 or above")
        if not 0 <= self.prior_share < 1:
            raise ValueError(f"prior_share is {self.prior_share}; it must be 0 or above and below 1")


@runtime_checkable
class Scorer(Protocol):
    """Texts in, one float per tuple out; knows nothing of rankings."""

    @property
    def model(self) -> str:
        """The model's name, for reports."""

    @property
    def identity(self) -> str:
        """All that a score depends on except the texts: model digest, precision, input policy. Part of cache keys."""

    @property
    def advice(self) -> Advice:
        """What the model recommends to whoever orders; none unless a scorer says otherwise."""
        return Advice()

    def score(
        self, query: str, documents: Sequence[str], tuples: Sequence[tuple[int, ...]], *, deadline: Deadline = NEVER
    ) -> Scores:
        """Score tuples of documents against a query.

        Args:
            query: its text.
            documents: their texts.
            tuples: indices into ``documents``: ``(i,)`` for mono, ``(i, j)`` for duo.
            deadline: no batch begins after it; tuples are attempted in about their order.
        """

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Map logits ``(n,)`` to calibrated probabilities ``(n,)``, never decreasing in the logit."""

    def close(self) -> None:
        """Release the model; further calls are errors."""


@runtime_checkable
class Stage(Protocol):
    """A function from a ranking to a ranking: a permutation of its input that touches the top ``depth`` only."""

    @property
    def name(self) -> str:
        """The stage's name in traces and reports."""

    @property
    def depth(self) -> int:
        """How many candidates it reorders, from the top; the others stay below, in their old order."""

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:
        """Return the ranking with its top ``depth`` reordered and one more report."""


FailurePolicy = Literal["first_pass", "raise"]
"""What a failing stage leads to: the best order so far, marked, or its error."""


@runtime_checkable
class StagePipeline(Protocol):
    """Stages applied one after another; the option ``pipeline`` takes one, or a name."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages; each reorders the top of the ranking before it."""

    @property
    def depth(self) -> int:
        """The depth of the deepest stage."""

    def rerank(
        self, ranking: Ranking, *, deadline: Deadline = NEVER, on_failure: FailurePolicy = "first_pass", offset: int = 0
    ) -> Ranking:
        """Apply every stage; see `osrerank.pipeline.Pipeline`."""
