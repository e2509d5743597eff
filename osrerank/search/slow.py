"""Log advice for searches that scoring makes slow, or whose documents lack vectors."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from osrerank._seldom import Seldom
from osrerank.options.rerank import VECTORS_MONO, Rerank

logger = logging.getLogger(__name__)

SLOW_S = 1.0
"""A search that takes longer than this counts as slow, in seconds."""
GUIDE = "https://github.com/osrerank/osrerank/blob/main/docs/production.md"
due = Seldom()
once = Seldom(math.inf)


def build_command(index: str, note: str) -> str:
    """Return the shell command that builds an index's vectors, followed by a note on why; it ends a message."""
    return f"osrerank vectors build --index {index}   ({note})"


def advise(answer: Mapping[str, Any], options: Rerank, took_s: float) -> None:
    """Log what would make a slow search faster, if a stage took most of its time; at most once a minute.

    Args:
        answer: the reranked response.
        options: the search's options.
        took_s: time that the search took, its first pass included, in seconds.
    """
    scoring = max(answer["rerank"]["stages"], key=lambda stage: float(stage["took_ms"]), default=None)
    if scoring is None or scoring["took_ms"] / 1000 <= took_s / 2 or not due.is_due():
        return
    logger.warning(
        "[slow-search] a search took %.1f s, %.1f s of them in the stage %s: "
        "%s inferences for %s candidates with %s; %s (%s)",
        took_s,
        scoring["took_ms"] / 1000,
        scoring["name"],
        scoring["inferences"],
        scoring["candidates"],
        scoring["model"],
        _advice(scoring, options, answer["hits"]["hits"]),
        GUIDE,
    )


def tell_lacking(answer: Mapping[str, Any]) -> None:
    """Log how many documents were not encoded before the deadline, once for each index in a process."""
    lacking = max((stage.get("lacking", 0) for stage in answer["rerank"]["stages"]), default=0)
    if lacking and once.is_due(index := _index_of(answer["hits"]["hits"])):
        candidates = max(stage["candidates"] for stage in answer["rerank"]["stages"])
        logger.warning(
            "[vectors-lacking] the deadline of a search passed before its documents were encoded; not logged again; "
            "build all vectors beforehand: %s",
            build_command(index, f"{lacking} of the {candidates} candidates of this search lacked vectors"),
        )


def _index_of(hits: Sequence[Mapping[str, Any]]) -> str:
    return next((str(hit.get("_index")) for hit in hits), "NAME")


def _advice(scoring: Mapping[str, Any], options: Rerank, hits: Sequence[Mapping[str, Any]]) -> str:
    """Return what would make the slowest stage faster: stored vectors or, for a cross-encoder, other options."""
    if lacked := scoring.get("encoded", 0) + scoring.get("lacking", 0):
        note = f"{lacked} texts of this search had no stored vectors"
        return f"build the vectors beforehand: {build_command(_index_of(hits), note)}"
    if scoring["name"] == "vectors":
        return "all vectors were known: the processor or the vector store is busy (osrerank_vectors_errors_total)"
    name, depth = "depth", options.least_depth
    if scoring["name"] == "duo":
        name, depth = "duo_depth", options.duo_depth
    elif options.pipeline in VECTORS_MONO:
        name, depth = "mono_depth", options.mono_depth
    ways = [f"a lower {name} than {depth} is less work"]
    if options.named_deadline_ms is None:
        ways.append("deadline_ms bounds it")
    ways.append("workers or a GPU (backend) do it faster")
    return ", ".join(ways)
