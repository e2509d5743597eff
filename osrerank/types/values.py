"""Queries, documents, candidates and rankings: immutable values that hold tuples.

Classes with an object per hit are named tuples, which take half as long to create as frozen dataclasses.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from osrerank.types.candidate_vectors import CandidateVectors
from osrerank.types.reasons import ReasonCode, Warned
from osrerank.types.scores import Counts

SPEAKS = re.compile(r"[^\W_]")
"""Matches a letter or a digit."""
BLANK = "its text is blank: nothing but space, punctuation and symbols"
"""Why a blank text is not scored."""
BELOW_ONE = 1.0 - 2.0**-40
"""The largest fraction of ``_score``: added to hundreds of stages, it does not round up to the next whole number."""
BM25 = "bm25"
"""The name of the part of a first-pass score that is BM25 without the engine's factor k1 + 1, if it has that factor."""
TEXT = "text"
"""The name of the part of a first-pass score that comes from the text, without the query's boosts, if it has any."""
NO_PARTS: Mapping[str, float] = MappingProxyType({})
"""The parts of a score without parts."""


def is_blank(text: str | None) -> bool:
    """Return whether a text is None or has neither a letter nor a digit."""
    return text is None or SPEAKS.search(text) is None


@dataclass(frozen=True, slots=True)
class Query:
    """A query and its id; the text is not blank."""

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


class Section(NamedTuple):
    """One value of a document's field.

    Attributes:
        field: the name of the field, as in the request.
        text: the value as text.
        value: the value's index among the field's values, from 0; None if it is the only one.
    """

    field: str
    text: str
    value: int | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Where a passage begins and ends in a field's value.

    Attributes:
        field: the field's name, as in the request.
        start, end: its first character, and one past its last, as Python counts them.
        value: the value's index among the field's values, from 0; None if it is the only one.
    """

    field: str
    start: int
    end: int
    value: int | None = None

    def as_json(self) -> dict[str, str | int]:
        value = {} if self.value is None else {"value": self.value}
        return {"field": self.field, "start": self.start, "end": self.end, **value}


class StageScore(NamedTuple):
    """One stage's score of one candidate.

    Attributes:
        stage: the stage's name.
        score: the value that the stage sorted by, unscaled; higher is better.
        rank: the candidate's rank after the stage, from 1.
        unit: the score mapped to [0, 1) by a non-decreasing function of the stage.
        parts: name -> further values of the stage, such as ``logit`` and ``probability``.
        passage: the passage that decided the score; None if the text was not split.
        level: the number of stages up to and including this one, without blends; 0 for the first pass.
        cut: whether the model read only a part of the text.
    """

    stage: str
    score: float
    rank: int
    unit: float
    parts: Mapping[str, float] = NO_PARTS
    passage: Span | None = None
    level: int = 0
    cut: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the stage's entry in a hit's ``_rerank``."""
        passage = {} if self.passage is None else {"passage": self.passage.as_json()}
        cut = {"truncated": True} if self.cut else {}
        return {"score": self.score, "rank": self.rank, **self.parts, **passage, **cut}


class Candidate(NamedTuple):
    """A document in a ranking.

    Attributes:
        doc_id: the document's id, unique within the ranking.
        text: the text for the models; None if the hit has none of the fields that models read.
        score: the unscaled score of the last stage that scored the candidate; at first, the first pass's.
        rank: the candidate's rank, from 1.
        trace: the stages' scores, one entry per stage passed, in order.
        failure: why the last stage that tried could not score the candidate; empty if it was scored.
        sections: the field values that ``text`` was joined from, for stages that read passages.
    """

    doc_id: str
    text: str | None
    score: float
    rank: int
    trace: tuple[StageScore, ...] = ()
    failure: str = ""
    sections: tuple[Section, ...] = ()

    @property
    def text_score(self) -> float:
        """The first pass's score, without the boosts of the query where these are known."""
        first = self.trace[0]
        return first.parts.get(TEXT, first.score) if first.parts else first.score

    def with_first_parts(self, parts: Mapping[str, float]) -> Self:
        """Return the candidate with more parts of its first-pass score."""
        first, *others = self.trace
        return self._replace(trace=(first._replace(parts={**first.parts, **parts}), *others))


@dataclass(frozen=True, slots=True)
class PairProbabilities:
    """The pairwise probabilities of a stage that compares candidates.

    Attributes:
        doc_ids: the ids of the n candidates, in the stage's input order.
        probabilities: the probabilities ``(n, n)`` that candidate i is more relevant than candidate j; None if not
            computed.
    """

    doc_ids: tuple[str, ...]
    probabilities: tuple[tuple[float | None, ...], ...]

    def as_json(self) -> dict[str, Any]:
        return {"doc_ids": list(self.doc_ids), "probabilities": [list(row) for row in self.probabilities]}


@dataclass(frozen=True, slots=True)
class StageReport(Counts):
    """What a stage did, for ``response["rerank"]["stages"]``.

    Attributes:
        name: the stage's name.
        applied: whether the stage was applied: True, False or "partial".
        reason: why it was not applied, or only in part; else empty.
        code: the kind of that reason; None without one.
        model: the model's name; empty for a stage without a model.
        kind: the model's kind, ``bi-encoder``, ``late-interaction``, ``cross-encoder`` or ``duo``; or empty.
        candidates: the number of candidates that the stage had to order.
        failed: the number of candidates that could not be scored.
        lacking: the number of candidates that a deadline left without a vector, or without one for each passage.
        took_ms: the wall time of the stage, in milliseconds.
        skipped: whether the pipeline left the stage out on purpose; the reason says why.
        pairs: the pairwise probabilities, if the stage compares candidates; else None.
    """

    name: str
    applied: bool | str
    reason: str = ""
    code: ReasonCode | None = None
    model: str = ""
    kind: str = ""
    candidates: int = 0
    failed: int = 0
    lacking: int = 0
    took_ms: float = 0.0
    skipped: bool = False
    pairs: PairProbabilities | None = None


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates of one query, in order.

    Ids are unique, ranks are 1..n and give the order, scores are finite. Scores never increase within the block that
    a stage ranked; a first pass with its own ``sort`` has no such block.

    Attributes:
        query: the query.
        candidates: the candidates, in order.
        reports: the report of each stage, in order.
        warnings: the sentences that say where the answer differs from the request.
        vectors: the candidates' vector records; None if no stage compares vectors.
    """

    query: Query
    candidates: tuple[Candidate, ...]
    reports: tuple[StageReport, ...] = ()
    warnings: tuple[Warned, ...] = ()
    vectors: CandidateVectors | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len({candidate.doc_id for candidate in self.candidates}) != len(self.candidates):
            raise ValueError(f"query {self.query.query_id!r}: a document appears twice in its ranking")
        for rank, candidate in enumerate(self.candidates, start=1):
            if candidate.rank != rank or not isfinite(candidate.score):
                reason = f"rank {candidate.rank} and score {candidate.score} at rank {rank}"
                raise ValueError(f"document {candidate.doc_id!r} has {reason}")

    def with_report(self, report: StageReport) -> Self:
        """Return the same ranking with a stage's report added."""
        return replace(self, reports=(*self.reports, report))

    def reordered(self, candidates: tuple[Candidate, ...], report: StageReport) -> Self:
        """Return the ranking with its candidates in a stage's order, and the stage's report."""
        return replace(self, candidates=candidates, reports=(*self.reports, report))


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
        by_rank: whether scores are 1 / rank, because the file has ranks and no scores (MS MARCO's three columns).
    """

    rankings: Mapping[str, tuple[ScoredDocument, ...]]
    name: str = "osrerank"
    by_rank: bool = False


@dataclass(frozen=True, slots=True)
class Qrels:
    """Relevance judgments: query_id -> {doc_id: relevance}; relevance may be negative (junk)."""

    judgments: Mapping[str, Mapping[str, int]]
