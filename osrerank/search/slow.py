"""Log advice on how to make searches faster, if reranking makes them slow or their documents have no stored vectors."""

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
"""The duration above which a search is slow, in seconds."""
GUIDE = "https://github.com/osrerank/osrerank/blob/main/docs/production.md"
slow_search_throttle = LogThrottle()
missing_vectors_throttle = LogThrottle(math.inf)
LogAdvice = Callable[[str], None]
"""A function that logs advice. Its argument ``before_building`` says what to do before a build of vectors, such as
"first write fields = [...] in osrerank.toml, then ". It is empty if nothing is to be done."""


def build_command(index: str, note: str) -> str:
    """Return the shell command that builds an index's vectors, followed by a note in parentheses."""
    return f"osrerank vectors build --index {index}   ({note})"


def advise(
    hits: Sequence[Mapping[str, Any]], stages: Sequence[StageReport], took_s: float, plan: Plan, searcher: Searcher
) -> Generator[Step, Any, None]:
    """Log how to make a search faster, if it was slow or its documents have no stored vectors.

    A build of vectors encodes the fields of the default rerank options. If the search may use other fields, the build's
    fields are looked up in the background, and the log line says how to build vectors of the search's fields.

    Args:
        hits: the hits of the response.
        stages: the report of each stage.
        took_s: the duration of the search with its first pass, in seconds.
        plan: the plan of the search.
        searcher: the state that the client's searches share.
    """
    index = next((str(hit.get("_index")) for hit in hits), "")  # of the first hit
    advice = [*_slow_search_advice(stages, plan.options, took_s, index), *_missing_vectors_advice(stages, index)]
    if not advice:
        return
    defaults = searcher.defaults.options_for(index)
    named_fields = (plan.options.fields, plan.options.query_fields)
    default_fields = (defaults.fields, defaults.query_fields)
    may_use_other_fields = not isinstance(plan.call.query, str) or named_fields != default_fields
    if index and may_use_other_fields and plan.model_fields:
        yield SendLater(_log_with_build_fields(advice, index, plan.model_fields, searcher))
    else:
        for log_advice in advice:
            log_advice("")


def _log_with_build_fields(
    advice: Sequence[LogAdvice], index: str, search_fields: Sequence[str], searcher: Searcher
) -> Generator[SideRequest, Any, None]:
    """Look up which fields a build of vectors encodes, and log the advice."""
    defaults = searcher.defaults.options_for(index)
    build_fields = (yield from searcher.find_fields(defaults, index, uses_build_fields=False)).model_fields
    before_building = ""
    if set(build_fields) != set(search_fields):
        quoted_fields = ", ".join(f'"{name}"' for name in search_fields)
        before_building = (
            f"a build would encode {', '.join(build_fields) or 'no field'}, and this search uses "
            f"{', '.join(search_fields)}: first write fields = [{quoted_fields}] under "
            f'[index."{index}".rerank] in osrerank.toml, then '
        )
    for log_advice in advice:
        log_advice(before_building)


def _slow_search_advice(stages: Sequence[StageReport], options: Rerank, took_s: float, index: str) -> list[LogAdvice]:
    """Return the advice on a slow search if one stage took most of its time. At most one line a minute is logged."""
    slowest_stage = max(stages, key=lambda stage: stage.took_ms, default=None)
    if took_s <= SLOW_S or slowest_stage is None:
        return []
    is_main_cause = slowest_stage.took_ms / 1000 > took_s / 2
    if not is_main_cause or not slow_search_throttle.should_log():
        return []
    return [partial(_log_slow_search, slowest_stage, options, took_s, index)]


def _log_slow_search(stage: StageReport, options: Rerank, took_s: float, index: str, before_building: str) -> None:
    work = stage.reason
    if stage.candidates:
        work = f"{stage.inferences} inferences for {stage.candidates} candidates with {stage.model}"
    details = [work, _suggest_remedy(stage, options, index, before_building)]
    logger.warning(
        "[slow-search] a search took %.1f s, %.1f s of them in the stage %s: %s (%s)",
        took_s,
        stage.took_ms / 1000,
        stage.name,
        "; ".join(filter(None, details)),
        GUIDE,
    )


def _missing_vectors_advice(stages: Sequence[StageReport], index: str) -> list[LogAdvice]:
    """Return the advice on documents that were not encoded before the deadline. It is logged once for each index."""
    n_missing = max((stage.lacking for stage in stages), default=0)
    if not n_missing or not missing_vectors_throttle.should_log(index):
        return []
    note = f"{n_missing} of the {max(stage.candidates for stage in stages)} candidates of this search lacked vectors"
    return [partial(_log_missing_vectors, note, index)]


def _log_missing_vectors(note: str, index: str, before_building: str) -> None:
    logger.warning(
        "[vectors-lacking] the deadline of a search passed before its documents were encoded; not logged again; "
        "%sbuild all vectors beforehand: %s",
        before_building,
        build_command(index or "NAME", note),
    )


def _suggest_remedy(stage: StageReport, options: Rerank, index: str, before_building: str) -> str:
    """Return what would make a slow stage faster: stored vectors or, for a cross-encoder, other options."""
    n_unstored = stage.encoded + stage.lacking
    was_too_late = stage.name == "vectors" and stage.code is ReasonCode.DEADLINE and not stage.known
    note = ""
    if n_unstored:
        note = f"{n_unstored} texts of this search had no stored vectors"
    elif was_too_late:
        note = "no text was encoded in time"
    if note:
        return f"{before_building}build the vectors beforehand: {build_command(index or 'NAME', note)}"
    if stage.name == "vectors":
        busy = "all vectors were stored: the processor or the vector store is busy (osrerank_vectors_errors_total)"
        return busy if stage.known else ""
    depth_option, depth = "depth", options.min_depth
    if stage.name == "duo":
        depth_option, depth = "duo_depth", options.duo_depth
    elif options.pipeline in VECTORS_MONO:
        depth_option, depth = "mono_depth", options.mono_depth
    remedies = [f"lower {depth_option} (now {depth})"]
    if options.explicit_deadline_ms is None:
        remedies.append("set deadline_ms to limit the time")
    remedies.append("use workers or a GPU (backend)")
    return ", ".join(remedies)
