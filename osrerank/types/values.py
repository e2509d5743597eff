"""Immutable values of a search and of an evaluation: queries, documents, candidates, rankings, runs, judgments.

Values that exist once per hit are named tuples, because creating a frozen dataclass takes twice as long.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from osrerank.types.candidate_vectors import CandidateVectors
from osrerank.types.reasons import ReasonCode, SearchWarning
from osrerank.types.scores import Counts

LETTER_OR_DIGIT = re.compile(r"[^\W_]")
BLANK_TEXT = "its text is blank: nothing but space, punctuation and symbols"
"""The reason why a blank text is not scored."""
MAX_UNIT = 1.0 - 2.0**-40
"""The maximum of `StageScore.unit`. With a unit nearer to 1, level + unit would be rounded up to the next level."""
BM25_SCORE = "bm25"
"""A key of `StageScore.parts`: the BM25 score divided by k1 + 1. Present if the engine multiplies BM25 by k1 + 1."""
TEXT_SCORE = "text"
"""A key of `StageScore.parts`: the score of the query's text, without its boosts. Present if the query has boosts."""
NO_PARTS: Mapping[str, float] = MappingProxyType({})


def is_blank(text: str | None) -> bool:
    """Return whether a text is None or contains neither a letter nor a digit."""
    return text is None or LETTER_OR_DIGIT.search(text) is None


def replace_surrogates(text: str) -> str:
    """Replace unpaired surrogates with question marks. JSON can contain them, but UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True, slots=True)
class Query:
    """A query and its id. The text must not be empty or only white space."""

    query_id: str
    text: str

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError(f"query {self.query_id!r} has no text")


@dataclass(frozen=True, slots=True)
class Document:
    """A document of a test collection, before it is indexed. ``metadata`` has its other fields."""

    doc_id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Section(NamedTuple):
    """The text of one value of a document's field.

    Attributes:
        field: the field's name as in the request, such as ``title`` or ``highlight:title``.
        text: the value's text.
        value: the index of the value in the field's list of values, from 0. None if the field has a single value.
    """

    field: str
    text: str
    value: int | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """The location of a passage in a document.

    Attributes:
        field, value: the field's name and the index of its value, as in the passage's `Section`.
        start, end: the passage is ``section.text[start:end]``.
    """

    field: str
    start: int
    end: int
    value: int | None = None

    def as_json(self) -> dict[str, str | int]:
        """Return the location as JSON values: ``{"field": "text", "start": 120, "end": 480}``."""
        value_index = {} if self.value is None else {"value": self.value}
        return {"field": self.field, "start": self.start, "end": self.end, **value_index}


class StageScore(NamedTuple):
    """The score that a stage gave to a candidate.

    Attributes:
        stage: the stage's name.
        score: the value that the stage sorted by, in the stage's own range. Higher is better.
        rank: the candidate's rank after the stage, from 1.
        unit: a number in [0, 1) that gives the same order as the score.
        parts: further values by name, such as ``{"logit": 1.2, "probability": 0.77}``.
        passage: the passage that decided the score. None if the text was not split.
        level: how many stages have reranked the candidate. The first pass, blends and boosts do not count. A hit's
            ``_score`` is level + unit, so that candidates which a later stage reranked are above the others.
        cut: whether the text was longer than the model's window, so that the model did not read its end.
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
        """Return the stage's entry in a hit's ``_rerank``, such as ``{"score": 1.2, "rank": 3, "logit": 1.2}``."""
        passage = {} if self.passage is None else {"passage": self.passage.as_json()}
        truncated = {"truncated": True} if self.cut else {}
        return {"score": self.score, "rank": self.rank, **self.parts, **passage, **truncated}


class Candidate(NamedTuple):
    """A document in a ranking.

    Attributes:
        doc_id: the document's id, unique within the ranking.
        text: the text that models score. None if the hit does not have the fields that models use.
        score: the score of the latest stage that scored the candidate, or of the first pass.
        rank: the candidate's rank, from 1.
        trace: the scores of the first pass and of each stage that scored the candidate, in order.
        failure: why the latest stage could not score the candidate. Empty if it could.
        sections: the field values that are joined to ``text``. Stages that score passages locate them by these values.
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
        """The first-pass score, without the query's boosts if they could be separated from it."""
        first_pass = self.trace[0]
        return first_pass.parts.get(TEXT_SCORE, first_pass.score)

    def with_first_parts(self, parts: Mapping[str, float]) -> Self:
        """Return the candidate with more values, such as ``{"bm25": 4.1}``, in the first pass's `StageScore.parts`."""
        first_pass, *later = self.trace
        return self._replace(trace=(first_pass._replace(parts={**first_pass.parts, **parts}), *later))


@dataclass(frozen=True, slots=True)
class PairProbabilities:
    """The pairwise probabilities of a stage that compares candidates.

    Attributes:
        doc_ids: the ids of the n candidates, in their order before the stage.
        probabilities: ``probabilities[i][j]`` is the probability that candidate i is more relevant than candidate j. It
            is None if it was not computed.
    """

    doc_ids: tuple[str, ...]
    probabilities: tuple[tuple[float | None, ...], ...]

    def as_json(self) -> dict[str, Any]:
        """Return JSON values: ``{"doc_ids": ["a", "b"], "probabilities": [[None, 0.8], [0.3, None]]}``."""
        return {"doc_ids": list(self.doc_ids), "probabilities": [list(row) for row in self.probabilities]}


@dataclass(frozen=True, slots=True)
class StageReport(Counts):
    """What a stage did: an entry of ``response["rerank"]["stages"]``.

    Attributes:
        name: the stage's name.
        applied: True if the stage reordered its candidates, ``"partial"`` if it reordered some of them, or False.
        reason: why the stage was not applied, or was applied only partially. Empty if it was applied fully.
        code: the code of the reason. None if there is no reason.
        model: the model's name. Empty if the stage has no model.
        kind: ``bi-encoder``, ``late-interaction``, ``cross-encoder`` or ``duo``. Empty if the stage has no model.
        candidates: the number of candidates that the stage was given.
        failed: the number of candidates that could not be scored.
        lacking: the number of candidates that had no stored vector, and whose text was not encoded by the deadline.
        took_ms: the wall time of the stage, in milliseconds.
        skipped: whether the pipeline intentionally skipped the stage; ``reason`` has the explanation.
        pairs: the pairwise probabilities. None if the stage does not compare candidates.
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
    """The candidates of a query in ranked order.

    Ids are unique, scores are finite, and ranks count from 1. A stage orders its candidates by falling score. A first
    pass with a ``sort`` can have its scores in any order.

    Attributes:
        candidates: the candidates, best first.
        reports: the reports of the stages, in order.
        warnings: how the response differs from what the caller requested.
        vectors: the candidates' stored and new vectors. None if no stage compares vectors.
    """

    query: Query
    candidates: tuple[Candidate, ...]
    reports: tuple[StageReport, ...] = ()
    warnings: tuple[SearchWarning, ...] = ()
    vectors: CandidateVectors | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len({candidate.doc_id for candidate in self.candidates}) != len(self.candidates):
            raise ValueError(f"the ranking of query {self.query.query_id!r} contains a document twice")
        for rank, candidate in enumerate(self.candidates, start=1):
            if candidate.rank != rank:
                raise ValueError(f"document {candidate.doc_id!r} has rank {candidate.rank}, but is at rank {rank}")
            if not isfinite(candidate.score):
                raise ValueError(
                    f"the score of document {candidate.doc_id!r} is {candidate.score}, not a finite number"
                )

    def with_report(self, report: StageReport) -> Self:
        """Return the ranking with a stage's report added."""
        return replace(self, reports=(*self.reports, report))

    def reordered(self, candidates: tuple[Candidate, ...], report: StageReport) -> Self:
        """Return the ranking with its candidates in a new order, and with the report of the stage that ordered them."""
        return replace(self, candidates=candidates, reports=(*self.reports, report))


class ScoredDocument(NamedTuple):
    """A document of a TREC run and its score."""

    doc_id: str
    score: float


@dataclass(frozen=True, slots=True)
class Run:
    """A TREC run: a system's rankings for a set of queries, as ids and scores without texts.

    Attributes:
        rankings: the documents in rank order, by ``query_id``.
        name: the system's name, the last column of a run file.
        by_rank: whether the scores are 1 / rank, because the file has no scores (MS MARCO's three-column format).
    """

    rankings: Mapping[str, tuple[ScoredDocument, ...]]
    name: str = "osrerank"
    by_rank: bool = False


@dataclass(frozen=True, slots=True)
class Qrels:
    """Relevance judgments: ``{"query 1": {"doc 7": 2}}`` if doc 7 has relevance 2. Spam has a negative relevance."""

    judgments: Mapping[str, Mapping[str, int]]
