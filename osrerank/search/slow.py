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
"""The duration, in seconds, above which a search counts as slow."""
GUIDE = "https://github.com/osrerank/osrerank/blob/main/docs/production.md"
due = LogThrottle()
once = LogThrottle(math.inf)


def build_command(index: str, note: str) -> str:
    """Return the shell command that builds an index's vectors, with a note in brackets, for the end of a message."""
    return f"osrerank vectors build --index {index}   ({note})"


def advise(
    hits: Sequence[Mapping[str, Any]], stages: Sequence[StageReport], took_s: float, plan: Plan, searcher: Searcher
) -> Generator[Step, Any, None]:
    """Yield the steps that log how to make a search faster, if it was slow or its documents lack vectors.

    A build encodes the fields that ``rerank=True`` uses. If the search names other fields, the fields of a build are
    looked up in the background, and the log line says how to build vectors of the search's fields.

    Args:
        hits: the hits of the response.
        stages: the report of each stage.
        took_s: the duration of the search with its first pass, in seconds.
        plan: the plan of the search.
        searcher: the state that the client's searches share.
    """
    index = next((str(hit.get("_index")) for hit in hits), "")
    advice = [*_slow_search_advice(stages, plan.options, took_s, index), *_missing_vectors_advice(stages, index)]
    if not advice:
        return
    defaults, options = searcher.defaults.options_for(index), plan.options
    has_own_fields = not isinstance(plan.call.query, str) or (options.fields, options.query_fields) != (
        defaults.fields,
        defaults.query_fields,
    )
    if index and has_own_fields and plan.names:
        yield SendLater(_log_for_fields(advice, index, plan.names, searcher))
    else:
        for log_line in advice:
            log_line("")


LogLine = Callable[[str], None]
"""Logs a line of advice; the argument says what must be done before a build of vectors."""


def _log_for_fields(
    advice: Sequence[LogLine], index: str, read_fields: Sequence[str], searcher: Searcher
) -> Generator[SideRequest, Any, None]:
    """Yield the requests that look up which fields a build encodes, and log the advice."""
    build_fields = (
        yield from searcher.fields_of(searcher.defaults.options_for(index), index, uses_build_fields=False)
    ).model_fields
    before_building = ""
    if set(build_fields) != set(read_fields):
        by_build, by_search = ", ".join(build_fields) or "no field", ", ".join(read_fields)
        names = ", ".join(f'"{name}"' for name in read_fields)
        before_building = (
            f"a build would encode {by_build}, and this search uses {by_search}: "
            f'first write fields = [{names}] under [index."{index}".rerank] in osrerank.toml, then '
        )
    for log_line in advice:
        log_line(before_building)


def _slow_search_advice(stages: Sequence[StageReport], options: Rerank, took_s: float, index: str) -> list[LogLine]:
    """Return the advice on a slow search, if one stage took most of the time; at most one line a minute is logged."""
    stage = max(stages, key=lambda stage: stage.took_ms, default=None)
    if took_s <= SLOW_S or stage is None or stage.took_ms / 1000 <= took_s / 2 or not due.should_log():
        return []
    return [partial(_log_slow_search, stage, options, took_s, index)]


def _log_slow_search(stage: StageReport, options: Rerank, took_s: float, index: str, before_building: str) -> None:
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


def _missing_vectors_advice(stages: Sequence[StageReport], index: str) -> list[LogLine]:
    """Return the advice on documents that were not encoded before the deadline, once for each index in a process."""
    lacking = max((stage.lacking for stage in stages), default=0)
    if not lacking or not once.should_log(index):
        return []
    note = f"{lacking} of the {max(stage.candidates for stage in stages)} candidates of this search lacked vectors"
    return [partial(_log_missing_vectors, note, index)]


def _log_missing_vectors(note: str, index: str, before_building: str) -> None:
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
    remedies = [f"lower {name} (now {depth})"]
    if options.explicit_deadline_ms is None:
        remedies.append("set deadline_ms to limit the time")
    remedies.append("use workers or a GPU (backend)")
    return ", ".join(remedies)
