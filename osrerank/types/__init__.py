"""The values that flow through osrerank, and the protocols of its parts."""

from osrerank.types.scores import NEVER, Advice, Counts, Deadline, RequestStates, Scorer, Scores
from osrerank.types.stages import FailurePolicy, Stage, StagePipeline
from osrerank.types.states import CutsTexts, HasStates, LongText, NeedsWorkers, PassageScores, ScoresPassages
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

__all__ = [
    "NEVER",
    "Advice",
    "Candidate",
    "Counts",
    "CutsTexts",
    "Deadline",
    "Document",
    "FailurePolicy",
    "HasStates",
    "Hit",
    "LongText",
    "NeedsWorkers",
    "PairProbabilities",
    "PassageScores",
    "Qrels",
    "Query",
    "Ranking",
    "RequestStates",
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
