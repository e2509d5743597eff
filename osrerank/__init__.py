"""Rerank OpenSearch results with BERT: ``client.search(query, rerank=True)``."""

import os

# From 1.29 on ONNX Runtime reports its use to its makers unless this is set before it is imported; `0` allows it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from osrerank._version import __version__ as __version__
from osrerank.client import Client, connect
from osrerank.errors import OsrerankError
from osrerank.existing import wrap
from osrerank.marks import (
    CutMarks,
    HitMarks,
    InterleaveMarks,
    RerankMarks,
    StageMarks,
    StageScoreMarks,
    TrafficMarks,
    UbiMarks,
)
from osrerank.options.pairs import Pairs
from osrerank.options.rerank import Rerank, RerankOptions
from osrerank.pipeline import Pipeline
from osrerank.reranker import Reranker
from osrerank.stages.duo import DuoStage
from osrerank.stages.mono import MonoStage

__all__ = [
    "Client",
    "CutMarks",
    "DuoStage",
    "HitMarks",
    "InterleaveMarks",
    "MonoStage",
    "OsrerankError",
    "Pairs",
    "Pipeline",
    "Rerank",
    "RerankMarks",
    "RerankOptions",
    "Reranker",
    "StageMarks",
    "StageScoreMarks",
    "TrafficMarks",
    "UbiMarks",
    "connect",
    "wrap",
]
