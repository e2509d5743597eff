"""Log advice for searches that scoring makes slow, or whose documents lack vectors."""

import logging
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any

from osrerank._log_throttle import LogThrottle
from osrerank.options.rerank import VECTORS_MONO, Rerank
from osrerank.retrieval.requests import SideRequest
from osrerank.search.plan import Plan
from osrerank.search.searcher import Searcher
from osrerank.search.step import SendLater, Step
from osrerank.types import StageReport
from osrerank.types.reasons import ReasonCode

logger = logging.getLogger(__name__)

SLOW_S = 1.0
"""A search that takes longer than this counts as slow, in seconds."""
GUIDE = "https://github.com/osrerank/osrerank/blob/main/docs/production.md"
due = LogThrottle()
once = LogThrottle(math.inf)


def build_command(index: str, note: str) -> str:
    """Return the shell command that builds an index's vectors, followed by a note on why; it ends a message."""
    return f"osrerank vectors build --index {index}   ({note})"


def advise(
    hits: Sequence[Mapping[str, Any]], stages: Sequence[StageReport], took_s: float, plan: Plan, searcher: Searcher
) -> Generator[Step, Any, None]:
    """Yield the steps that log what would make a search faster: if it was slow, or its documents lack vectors.

    A build reads the fields of ``rerank=True``. If the search chose its own, the build's are looked up in the
    background, and the line says how to build vectors of the search's fields.

    Args:
        hits: those of the response.
        stages: what each stage did.
        took_s: time that the search took, its first pass included, in seconds.
        plan: of the search.
        searcher: the state that the client's searches share.
    """
    index = next((str(hit.get("_index")) for hit in hits), "")
    lines = [*_slow(stages, plan.options, took_s, index), *_lacking(stages, index)]
    if not lines:
        return
    defaults, options = searcher.defaults.of(index), plan.options
    has_own_fields = not isinstance(plan.call.query, str) or (options.fields, options.query_fields) != (
        defaults.fields,
        defaults.query_fields,
    )
    if index and has_own_fields and plan.names:
        yield SendLater(_log(lines, index, plan.names, searcher))
    else:
        for line in lines:
            line("")


Line = Callable[[str], None]
"""Logs a line, given what must be done before a build of vectors."""


def _log(
    lines: Sequence[Line], index: str, read_fields: Sequence[str], searcher: Searcher
) -> Generator[SideRequest, Any, None]:
    """Yield the requests that look up which fields a build reads, and log the lines."""
    build_fields = (yield from searcher.fields_of(searcher.defaults.of(index), index, as_built=False)).read
    before_building = ""
    if set(build_fields) != set(read_fields):
        by_build, by_search = ", ".join(build_fields) or "no field", ", ".join(read_fields)
        names = ", ".join(f'"{name}"' for name in read_fields)
        before_building = (
            f"a build would read {by_build}, and this search reads {by_search}: "
            f'first write fields = [{names}] under [index."{index}".rerank] in osrerank.toml, then '
        )
    for line in lines:
        line(before_building)


def _slow(stages: Sequence[StageReport], options: Rerank, took_s: float, index: str) -> list[Line]:
    """Return the line on a slow search, if a stage took most of its time and none was logged in the last minute."""
    stage = max(stages, key=lambda stage: stage.took_ms, default=None)
    if took_s <= SLOW_S or stage is None or stage.took_ms / 1000 <= took_s / 2 or not due.is_due():
        return []
    return [partial(_slow_line, stage, options, took_s, index)]


def _slow_line(stage: StageReport, options: Rerank, took_s: float, index: str, before_building: str) -> None:
    work = f"{stage.inferences} inferences for {stage.candidates} candidates with {stage.model}"
    details = [work if stage.candidates else stage.reason, _remedy(stage, options, index, before_building)]
    logger.warning(
        "[slow-search] a search took %.1f s, %.1f s of them in the stage %s: %s (%s)",
        took_s,
        stage.took_ms / 1000,
        stage.name,
        "; ".join(filter(None, details)),
        GUIDE,
    )


def _lacking(stages: Sequence[StageReport], index: str) -> list[Line]:
    """Return the line on documents that were not encoded before the deadline, once for each index in a process."""
    lacking = max((stage.lacking for stage in stages), default=0)
    if not lacking or not once.is_due(index):
        return []
    note = f"{lacking} of the {max(stage.candidates for stage in stages)} candidates of this search lacked vectors"
    return [partial(_lacking_line, note, index)]


def _lacking_line(note: str, index: str, before_building: str) -> None:
    logger.warning(
        "[vectors-lacking] the deadline of a search passed before its documents were encoded; not logged again; "
        "%sbuild all vectors beforehand: %s",
        before_building,
        build_command(index or "NAME", note),
    )


def _remedy(stage: StageReport, options: Rerank, index: str, before_building: str) -> str:
    """Return what would make the slowest stage faster: stored vectors or, for a cross-encoder, other options."""
    note = "no text was encoded in time" if stage.name == "vectors" and stage.code is ReasonCode.DEADLINE else ""
    if lacked := stage.encoded + stage.lacking:
        note = f"{lacked} texts of this search had no stored vectors"
    if note and (lacked or not stage.known):
        return f"{before_building}build the vectors beforehand: {build_command(index or 'NAME', note)}"
    if stage.name == "vectors":
        busy = "all vectors were known: the processor or the vector store is busy (osrerank_vectors_errors_total)"
        return busy if stage.known else ""
    name, depth = "depth", options.min_depth
    if stage.name == "duo":
        name, depth = "duo_depth", options.duo_depth
    elif options.pipeline in VECTORS_MONO:
        name, depth = "mono_depth", options.mono_depth
    remedies = [f"a lower {name} than {depth} is less work"]
    if options.explicit_deadline_ms is None:
        remedies.append("deadline_ms bounds it")
    remedies.append("workers or a GPU (backend) do it faster")
    return ", ".join(remedies)
