"""The values that osrerank passes around, such as queries and rankings, and the protocols of models and stages."""

from osrerank.types.scores import NEVER, Advice, Counts, Deadline, Scorer, Scores
from osrerank.types.stages import FailurePolicy, Stage, StagePipeline
from osrerank.types.values import (
    Candidate,
    Document,
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
from osrerank.types.vectors import CutsTexts, Encoder, LongText, NeedsWorkers, PassageScores, Side, Vectors, is_encoder

__all__ = [
    "NEVER",
    "Advice",
    "Candidate",
    "Counts",
    "CutsTexts",
    "Deadline",
    "Document",
    "Encoder",
    "FailurePolicy",
    "LongText",
    "NeedsWorkers",
    "PairProbabilities",
    "PassageScores",
    "Qrels",
    "Query",
    "Ranking",
    "Run",
    "ScoredDocument",
    "Scorer",
    "Scores",
    "Section",
    "Side",
    "Span",
    "Stage",
    "StagePipeline",
    "StageReport",
    "StageScore",
    "Vectors",
    "is_encoder",
]  # fmt: skip
