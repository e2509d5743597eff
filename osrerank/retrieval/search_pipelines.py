"""Find out which search pipeline applies to a search, and what the pipeline does to the hits.

An index's default search pipeline can restrict which documents a user sees. So the pipeline also applies to the first
pass, except for a rerank processor that osrerank installed. If a pipeline ranks the hits itself, the search is not
reranked, because the pipeline's model would have to score all candidates of the first pass, not only the page.

OpenSearch: Search pipelines, https://docs.opensearch.org/latest/search-plugins/search-pipelines/index/
"""

import logging
import math
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from osrerank._log_throttle import LogThrottle
from osrerank.retrieval.engine_finder import EngineFinder
from osrerank.retrieval.expiring import ExpiringCache
from osrerank.retrieval.requests import NO_OPTIONS, SideRequest, build_path, select_index_options
from osrerank.types.engine_errors import EngineError

logger = logging.getLogger(__name__)

NO_PIPELINE_NAME = "_none"
"""The value of ``search_pipeline`` that turns an index's default pipeline off."""
OSRERANK_DESCRIPTION = "Reranks with osrerank."
"""The first words of the description of all pipelines that ``osrerank pipeline install`` creates."""
DEFAULT_PIPELINE_SETTING = "index.search.default_pipeline"
SETTINGS_PERMISSION = "indices:monitor/settings/get"
"""The permission to read an index's settings."""
PIPELINES_PERMISSION = "cluster:admin/search/pipeline/get"
"""The permission to read a pipeline's definition."""
FIELD_PRESERVING_PROCESSORS = {"truncate_hits", "collapse", "hybrid_score_explanation"}
"""Response processors that change neither the order of the hits nor their fields."""
FIELD_CHANGING_PROCESSORS = {"rename_field", "sort", "split"}
"""Response processors that change fields, but not the order of the hits. ``sort`` sorts the values of a field."""
SHORTENING_PROCESSORS = {"truncate_hits", "collapse"}
"""Response processors that drop hits."""
SIZE_KEEPING_PROCESSORS = {"filter_query", "neural_query_enricher", "neural_sparse_two_phase_processor"}
"""Request processors that do not change the number of hits that a search requests."""


@dataclass(frozen=True, slots=True)
class SearchPipeline:
    """A search pipeline, and what it does to the hits.

    Attributes:
        name: the pipeline's name. Empty if the search has no pipeline, or defines it in the request.
        blocking_reason: why the hits cannot be reranked. Empty if they can.
        changes_fields: whether the hits might contain fields that their documents do not.
        may_shorten: whether the pipeline might drop hits. A response with few hits can then be complete.
        adds_hits: whether the pipeline returns more hits than the search requests.
        missing_permission: the permission that the user needs to read the settings or the definition. Empty if they
            were read.
        has_default: whether an index of the search might have a default pipeline. Always True if the search requests a
            pipeline or ``_none``, because the default was then not looked up.
        replacement: the definition to send in place of the index's default pipeline. If None, the default applies.
    """

    name: str = ""
    blocking_reason: str = ""
    changes_fields: bool = False
    may_shorten: bool = False
    adds_hits: bool = False
    missing_permission: str = ""
    has_default: bool = False
    replacement: Mapping[str, Any] | None = None


NO_PIPELINE = SearchPipeline()
"""Stands for a search without a search pipeline."""
UNKNOWN_PIPELINE = SearchPipeline(missing_permission=SETTINGS_PERMISSION, has_default=True)
"""The pipeline of an index whose settings cannot be read."""


class SearchPipelines:
    """Looks up the search pipelines of searches, and caches them for a minute. Safe to use from many threads."""

    def __init__(self, engine: EngineFinder, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        # by index and options: the name of the default pipeline, or what applies if there is no name
        self._defaults: ExpiringCache[str, SearchPipeline | str] = ExpiringCache(clock)
        self._definitions: ExpiringCache[str, SearchPipeline] = ExpiringCache(clock)  # by the pipeline's name
        self._log_throttle = LogThrottle(math.inf, clock)

    def find(
        self, index: Any, params: Mapping[str, Any], body: Mapping[str, Any]
    ) -> Generator[SideRequest, Any, SearchPipeline]:
        """Return the pipeline that applies to a search. Yield the requests to look it up, unless it is cached."""
        engine = yield from self._engine.find()
        if not engine.has_pipelines:
            return NO_PIPELINE
        requested_pipeline = params.get("search_pipeline", body.get("search_pipeline"))
        if requested_pipeline == NO_PIPELINE_NAME:
            return replace(NO_PIPELINE, has_default=True)
        if isinstance(requested_pipeline, Mapping):
            return parse_pipeline("", requested_pipeline)
        if requested_pipeline is not None:
            pipeline = yield from self._read_definition(str(requested_pipeline))
            return replace(pipeline, replacement=None)  # only a default pipeline is replaced
        return (yield from self.find_default(index, select_index_options(params)))

    def find_default(
        self, index: Any, options: Mapping[str, Any] = NO_OPTIONS
    ) -> Generator[SideRequest, Any, SearchPipeline]:
        """Return the default pipeline of an index. Yield the requests to look it up, unless it is cached.

        OpenSearch applies no default pipeline to a search that names no index, or indices with different defaults.
        """
        if not index:
            return NO_PIPELINE
        engine = yield from self._engine.find()
        if not engine.has_pipelines:
            return NO_PIPELINE
        default = self._defaults.get(f"{index}{options}")
        if default is None:
            default = yield from self._read_default(index, options)
        if isinstance(default, SearchPipeline):
            return default
        pipeline = yield from self._read_definition(default)
        if pipeline.replacement is not None:
            pipeline = replace(pipeline, blocking_reason="")  # the replacement does not rank the hits
        return pipeline

    def forget(self) -> None:
        """Empty the cache."""
        self._defaults.clear()
        self._definitions.clear()

    def _read_default(
        self, index: Any, options: Mapping[str, Any]
    ) -> Generator[SideRequest, Any, SearchPipeline | str]:
        """Read the name of the indices' default pipeline from their settings.

        Returns a pipeline instead of a name if the indices have no default pipeline or different ones, or if their
        settings cannot be read (`UNKNOWN_PIPELINE`).
        """
        key = f"{index}{options}"
        try:
            path = build_path(index, f"_settings/{DEFAULT_PIPELINE_SETTING}")
            response = yield SideRequest("GET", path, params={"flat_settings": "true", **options})
            names = {entry["settings"][DEFAULT_PIPELINE_SETTING] for entry in response.values()} - {NO_PIPELINE_NAME}
        except (EngineError, AttributeError, KeyError, TypeError) as error:
            # the request failed, or the response does not have the expected form
            if isinstance(error, EngineError) and error.is_absent:
                if ":" in str(index):  # the index is on another cluster; otherwise, the search will raise this error
                    self._defaults.put(key, NO_PIPELINE)
                return NO_PIPELINE
            if self._log_throttle.should_log(str(index)):
                logger.warning(
                    "[search-pipeline-unread] osrerank cannot read the settings of %s (%s), so it may miss a default "
                    "search pipeline that ranks the hits itself; if the user lacks the permission, grant %s; not "
                    "logged again",
                    index,
                    error,
                    SETTINGS_PERMISSION,
                )
            if isinstance(error, EngineError) and error.is_forbidden:
                self._defaults.put(key, UNKNOWN_PIPELINE)
            return UNKNOWN_PIPELINE
        default: SearchPipeline | str = replace(NO_PIPELINE, has_default=bool(names))
        if len(names) == 1:  # OpenSearch applies none of several defaults
            default = names.pop()
        self._defaults.put(key, default)
        return default

    def _read_definition(self, name: str) -> Generator[SideRequest, Any, SearchPipeline]:
        """Read what the pipeline of this name does. If that fails, the result has a ``blocking_reason``."""
        cached = self._definitions.get(name)
        if cached is not None:
            return cached
        try:
            response = yield SideRequest("GET", f"/_search/pipeline/{quote(name, safe='')}")
            if name not in response:  # the search will report the missing pipeline
                return replace(NO_PIPELINE, has_default=True)
            pipeline = parse_pipeline(name, response[name])
        except (EngineError, TypeError) as error:
            is_forbidden = isinstance(error, EngineError) and error.is_forbidden
            fix = f": grant {PIPELINES_PERMISSION}" if is_forbidden else ""
            pipeline = SearchPipeline(
                name,
                f"the definition of the search pipeline {name} cannot be read, so the pipeline may rank the hits itself"
                f"{fix}",
                missing_permission=PIPELINES_PERMISSION,
                has_default=True,
            )
            if not is_forbidden:  # the next search may be able to read it
                return pipeline
        self._definitions.put(name, pipeline)
        return pipeline


def add_pipeline(
    pipeline: str | Mapping[str, Any] | None, body: Mapping[str, Any], params: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the body and the URL parameters of a request, with a search pipeline added.

    The pipeline is a name or a definition. A name is sent as a URL parameter, because all versions of OpenSearch accept
    it there. A definition is sent in the body. If ``pipeline`` is None, the index's default pipeline applies.
    """
    if pipeline is None:
        return {**body}, {**params}
    if isinstance(pipeline, str):
        return {**body}, {**params, "search_pipeline": pipeline}
    return {**body, "search_pipeline": pipeline}, {**params}


def parse_pipeline(name: str, definition: Mapping[str, Any]) -> SearchPipeline:
    """Find out from a pipeline's definition what it does to the hits. Its name is empty if the request defines it."""
    request_kinds = _list_processor_kinds(definition, "request_processors")
    response_kinds = _list_processor_kinds(definition, "response_processors")
    ranking_kinds = sorted(response_kinds - FIELD_PRESERVING_PROCESSORS - FIELD_CHANGING_PROCESSORS)
    is_installed_by_osrerank = str(definition.get("description", "")).startswith(OSRERANK_DESCRIPTION)
    blocking_reason = ""
    if ranking_kinds:
        subject = f"the search pipeline {name}" if name else "the search pipeline of the request"
        blocking_reason = f"{subject} ranks the hits itself, or may do so ({', '.join(ranking_kinds)})"
    may_request_fewer_hits = bool(request_kinds - SIZE_KEEPING_PROCESSORS)
    return SearchPipeline(
        name,
        blocking_reason,
        changes_fields=bool(FIELD_CHANGING_PROCESSORS & response_kinds),
        may_shorten=bool(SHORTENING_PROCESSORS & response_kinds) or may_request_fewer_hits,
        adds_hits="oversample" in request_kinds and "truncate_hits" not in response_kinds,
        has_default=True,
        replacement=_remove_rerank(definition) if is_installed_by_osrerank and ranking_kinds == ["rerank"] else None,
    )


def _list_processor_kinds(definition: Mapping[str, Any], section: str) -> set[str]:
    """Return the kinds of the processors in a section, ``{"rerank"}`` for ``[{"rerank": {...}}]``."""
    processors = definition.get(section) or ()
    return {kind for processor in processors if isinstance(processor, Mapping) for kind in processor}


def _remove_rerank(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pipeline's definition without its rerank processor, to send with a request.

    If no other processors remain, the result is ``{}``, which turns off the index's default pipeline. The name
    ``_none`` does the same, but OpenSearch before 2.18 does not accept it in the body, where a multi-search needs it.
    """
    sections = {name: processors for name, processors in definition.items() if name.endswith("_processors")}
    sections["response_processors"] = [
        processor for processor in sections["response_processors"] if "rerank" not in processor
    ]
    return {name: processors for name, processors in sections.items() if processors}
