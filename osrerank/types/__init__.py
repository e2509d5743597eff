"""The values that flow through osrerank, and the protocols of its parts."""

from osrerank.types.scores import NEVER, Advice, Counts, Deadline, RequestVectors, Scorer, Scores
from osrerank.types.stages import FailurePolicy, Stage, StagePipeline
from osrerank.types.values import (
    Candidate,
    Document,
    Hit,
    PairProbabilities,
    Qrels,
    Query,
    Ranking,
    Run,
    ScoredDocument,
    Section,
    Span,
    StageReport,
    StageScore,
)
from osrerank.types.vectors import CutsTexts, HasVectors, LongText, NeedsWorkers, PassageScores, ScoresPassages

__all__ = [
    "NEVER",
    "Advice",
    "Candidate",
    "Counts",
    "CutsTexts",
    "Deadline",
    "Document",
    "FailurePolicy",
    "HasVectors",
    "Hit",
    "LongText",
    "NeedsWorkers",
    "PairProbabilities",
    "PassageScores",
    "Qrels",
    "Query",
    "Ranking",
    "RequestVectors",
    "Run",
    "ScoredDocument",
    "Scorer",
    "Scores",
    "ScoresPassages",
    "Section",
    "Span",
    "Stage",
    "StagePipeline",
    "StageReport",
    "StageScore",
]  # fmt: skip
