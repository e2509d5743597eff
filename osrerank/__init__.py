"""Rerank OpenSearch results with BERT: ``client.search(query, rerank=True)``."""

from osrerank.client import Client, connect
from osrerank.errors import OsrerankError
from osrerank.pipeline import Pipeline, Rerank
from osrerank.stages.duo import DuoStage
from osrerank.stages.mono import MonoStage
from osrerank.stages.pairs import Pairs

__version__ = "0.1.0"
__all__ = ["Client", "DuoStage", "MonoStage", "OsrerankError", "Pairs", "Pipeline", "Rerank", "connect"]
