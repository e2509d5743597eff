"""One log line about searches that are slow because of scoring: which option would help."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from osrerank._seldom import Seldom
from osrerank.options.rerank import Rerank

logger = logging.getLogger(__name__)

SLOW_S = 1.0
"""A search that takes longer is slow."""
due = Seldom()


def advise(answer: Mapping[str, Any], options: Rerank, took_s: float) -> None:
    """Log what would make a slow search faster, if scoring took most of its time; at most once a minute.

    Args:
        answer: the reranked response.
        options: of the search.
        took_s: time that the search took with its first pass, in seconds.
    """
    scoring = max(answer["rerank"]["stages"], key=lambda stage: float(stage["took_ms"]), default=None)
    if scoring is None or scoring["took_ms"] / 1000 <= took_s / 2 or not due.is_due():
        return
    logger.warning(
        "[slow-search] a search took %.1f s, %.1f s of them in the stage %s: "
        "%s inferences for %s candidates with %s; %s",
        took_s,
        scoring["took_ms"] / 1000,
        scoring["name"],
        scoring["inferences"],
        scoring["candidates"],
        scoring["model"],
        _advice(scoring, options, answer["hits"]["hits"]),
    )


def _advice(scoring: Mapping[str, Any], options: Rerank, hits: Sequence[Mapping[str, Any]]) -> str:
    """Return what would make the slowest stage faster: stored vectors, or other options."""
    if encoded := scoring.get("encoded"):
        index = next((str(hit.get("_index")) for hit in hits), "NAME")
        return f"{encoded} texts had no stored vectors: osrerank vectors build --index {index} encodes them beforehand"
    name = "duo_depth" if scoring["name"] == "duo" else "depth"
    depth = options.duo_depth if scoring["name"] == "duo" else options.least_depth
    ways = [f"a lower {name} than {depth} is less work"]
    if options.deadline_ms is None:
        ways.append("deadline_ms bounds it")
    ways.append("workers or a GPU (backend) do it faster")
    return ", ".join(ways)
