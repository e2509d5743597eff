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
missing_vectors_throttle = LogThrottle(math.inf)  # logs once for each index
LogAdvice = Callable[[str], None]
"""A function that logs advice.

If it advises building vectors, its argument ``preparation`` precedes this. The argument says what to do first, such as
"first write fields = [...] in osrerank.toml, then ", or is empty.
"""


def build_command(index: str, note: str) -> str:
    """Return the shell command that builds an index's vectors, followed by a note in parentheses."""
    return f"osrerank vectors build --index {index}   ({note})"


def advise(
    hits: Sequence[Mapping[str, Any]], stages: Sequence[StageReport], took_s: float, plan: Plan, searcher: Searcher
) -> Generator[Step, Any, None]:
    """Log how to make a search faster, if it was slow or its documents have no stored vectors.

    A build of vectors encodes the fields of the default rerank options. A search whose options or query name fields
    may use other ones. Then the build's fields are looked up in the background, and the log line says how to build
    vectors of the search's fields.

    Args:
        hits: the hits of the response.
        stages: the report of each stage.
        took_s: the duration of the search with its first pass, in seconds.
        plan: the plan of the search.
        searcher: the state that the client's searches share.
    """
    index = str(hits[0].get("_index")) if hits else ""
    advice = [
        _slow_search_advice(stages, plan.options, took_s, index),
        _missing_vectors_advice(stages, index),
    ]
    log_functions = [log_advice for log_advice in advice if log_advice is not None]
    if not log_functions:
        return
    defaults = searcher.defaults.options_for(index)
    named_fields = (plan.options.fields, plan.options.query_fields)
    default_fields = (defaults.fields, defaults.query_fields)
    query_may_name_fields = not isinstance(plan.call.query, str)  # a clause, or None for the query in the body
    may_use_other_fields = query_may_name_fields or named_fields != default_fields
    if index and may_use_other_fields and plan.model_fields:
        yield SendLater(_log_with_preparation(log_functions, index, plan.model_fields, searcher))
    else:
        for log_advice in log_functions:
            log_advice("")


def _log_with_preparation(
    log_functions: Sequence[LogAdvice], index: str, search_fields: Sequence[str], searcher: Searcher
) -> Generator[SideRequest, Any, None]:
    """Look up which fields a build of vectors would encode, and log the advice."""
    defaults = searcher.defaults.options_for(index)
    # not the fields of the last build, because the options can have changed since
    fields_of_build = (yield from searcher.find_fields(defaults, index, uses_build_fields=False)).model_fields
    preparation = ""
    if set(fields_of_build) != set(search_fields):
        quoted_fields = ", ".join(f'"{name}"' for name in search_fields)
        preparation = (
            f"a build would encode {', '.join(fields_of_build) or 'no field'}, and this search uses "
            f"{', '.join(search_fields)}: first write fields = [{quoted_fields}] under "
            f'[index."{index}".rerank] in osrerank.toml, then '
        )
    for log_advice in log_functions:
        log_advice(preparation)


def _slow_search_advice(stages: Sequence[StageReport], options: Rerank, took_s: float, index: str) -> LogAdvice | None:
    """Return the advice on a slow search if one stage took most of its time. At most one line a minute is logged."""
    slowest_stage = max(stages, key=lambda stage: stage.took_ms, default=None)
    if took_s <= SLOW_S or slowest_stage is None:
        return None
    is_main_cause = slowest_stage.took_ms / 1000 > took_s / 2
    if not is_main_cause or not slow_search_throttle.should_log():
        return None
    return partial(_log_slow_search, slowest_stage, options, took_s, index)


def _log_slow_search(stage: StageReport, options: Rerank, took_s: float, index: str, preparation: str) -> None:
    cause = stage.reason
    if stage.candidates:
        cause = f"{stage.inferences} inferences for {stage.candidates} candidates with {stage.model}"
    details = [cause, _suggest_remedy(stage, options, index, preparation)]
    logger.warning(
        "[slow-search] a search took %.1f s, %.1f s of them in the stage %s: %s (%s)",
        took_s,
        stage.took_ms / 1000,
        stage.name,
        "; ".join(filter(None, details)),
        GUIDE,
    )


def _missing_vectors_advice(stages: Sequence[StageReport], index: str) -> LogAdvice | None:
    """Return the advice on documents that were not encoded before the deadline. It is logged once for each index."""
    n_not_encoded = max((stage.lacking for stage in stages), default=0)
    if not n_not_encoded or not missing_vectors_throttle.should_log(index):
        return None
    n_candidates = max(stage.candidates for stage in stages)
    note = f"{n_not_encoded} of the {n_candidates} candidates of this search lacked vectors"
    return partial(_log_missing_vectors, note, index)


def _log_missing_vectors(note: str, index: str, preparation: str) -> None:
    logger.warning(
        "[vectors-lacking] the deadline of a search passed before its documents were encoded; not logged again; "
        "%sbuild all vectors beforehand: %s",
        preparation,
        build_command(index or "NAME", note),
    )


def _suggest_remedy(stage: StageReport, options: Rerank, index: str, preparation: str) -> str:
    """Return what would make a slow stage faster: stored vectors or, unless it compares vectors, other options.

    Return "" if it compared no vectors for another reason than the deadline.
    """
    n_not_stored = stage.encoded + stage.lacking
    was_too_late = stage.name == "vectors" and stage.code is ReasonCode.DEADLINE and not stage.known
    note = ""
    if n_not_stored:
        note = f"{n_not_stored} texts of this search had no stored vectors"
    elif was_too_late:
        note = "no text was encoded in time"
    if note:
        return f"{preparation}build the vectors beforehand: {build_command(index or 'NAME', note)}"
    if stage.name == "vectors":
        if not stage.known:  # the stage compared no vectors, for example because its model was still loading
            return ""
        return "all vectors were stored: the processor or the vector store is busy (osrerank_vectors_errors_total)"
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
