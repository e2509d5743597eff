"""Rerank OpenSearch or Elasticsearch results with BERT: ``client.search(query, rerank=True)``."""

import importlib
import os
from typing import TYPE_CHECKING, Any

from osrerank._version import __version__ as __version__

if TYPE_CHECKING:
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

# Since version 1.29, ONNX Runtime sends telemetry unless this variable is set before onnxruntime is imported. A value
# that the user has set is kept: 0 allows telemetry.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

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

_MODULES = {
    "Client": "osrerank.client",
    "CutMarks": "osrerank.marks",
    "DuoStage": "osrerank.stages.duo",
    "HitMarks": "osrerank.marks",
    "InterleaveMarks": "osrerank.marks",
    "MonoStage": "osrerank.stages.mono",
    "OsrerankError": "osrerank.errors",
    "Pairs": "osrerank.options.pairs",
    "Pipeline": "osrerank.pipeline",
    "Rerank": "osrerank.options.rerank",
    "RerankMarks": "osrerank.marks",
    "RerankOptions": "osrerank.options.rerank",
    "Reranker": "osrerank.reranker",
    "StageMarks": "osrerank.marks",
    "StageScoreMarks": "osrerank.marks",
    "TrafficMarks": "osrerank.marks",
    "UbiMarks": "osrerank.marks",
    "connect": "osrerank.client",
    "wrap": "osrerank.existing",
}
"""The module that defines each public name. A module is imported when one of its names is first used."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used. Python calls this function for names that the module lacks."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value  # so that Python finds the name next time
    return value


def __dir__() -> list[str]:
    """Return the names of this module, including public ones that are not imported yet."""
    return sorted({*globals(), *__all__})
