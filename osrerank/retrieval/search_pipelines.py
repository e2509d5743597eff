"""Find out which search pipeline a search runs under, and what the pipeline does to the hits.

An index's default search pipeline may restrict which documents a user sees, so reranking does not turn it off. The
first pass runs under the pipeline of the plain search, but without osrerank's own rerank processor. If a pipeline ranks
the hits itself, the search is not reranked: a request for more candidates would multiply the calls of its model.

OpenSearch: Search pipelines, https://docs.opensearch.org/latest/search-plugins/search-pipelines/index/
"""

import logging
import math
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from osrerank._log_throttle import LogThrottle
from osrerank.retrieval.engine_finder import EngineFinder
from osrerank.retrieval.expiring import ExpiringCache
from osrerank.retrieval.requests import NO_OPTIONS, SideRequest, index_options, path_of
from osrerank.types.engine import Engine
from osrerank.types.failed import Failed

logger = logging.getLogger(__name__)

NO_PIPELINE = "_none"
"""The value of ``search_pipeline`` that turns an index's default pipeline off."""
OWN_DESCRIPTION = "Reranks with osrerank."
"""The first words of the description of every pipeline that ``osrerank pipeline install`` makes."""
SETTING = "index.search.default_pipeline"
READ_SETTINGS, READ_PIPELINES = "indices:monitor/settings/get", "cluster:admin/search/pipeline/get"
"""The rights to read an index's settings and a pipeline's definition."""
ORDER_KEPT = {"truncate_hits", "collapse", "hybrid_score_explanation"}
"""Response processors that change neither the order of the hits nor their fields."""
FIELDS_CHANGED = {"rename_field", "sort", "split"}
"""Response processors that keep the order of the hits and change their fields."""
NUMBER_CHANGED = {"truncate_hits", "collapse"}
"""Response processors that drop hits."""
NUMBER_KEPT = {"filter_query", "neural_query_enricher", "neural_sparse_two_phase_processor"}
"""Request processors that do not change the number of hits that a search asks for."""


@dataclass(frozen=True, slots=True)
class SearchPipeline:
    """What a search has to know of the search pipeline that it runs under.

    Attributes:
        name: the pipeline's name; empty if the search has no pipeline, or defines it in the request.
        obstacle: the reason why its hits cannot be reranked; empty if they can.
        changes_fields: whether its hits may have other fields than their documents.
        may_shorten: whether it may drop hits, so that a short response is complete.
        lengthens: whether it returns more hits than the search asks for.
        unread: the right that was missing to read the settings or the definition; empty if they were read.
        has_default: whether an index of the search has a default pipeline, or may have one.
        replacement: the definition to send in place of the index's default; None to send none.
    """

    name: str = ""
    obstacle: str = ""
    changes_fields: bool = False
    may_shorten: bool = False
    lengthens: bool = False
    unread: str = ""
    has_default: bool = False
    replacement: Mapping[str, Any] | None = None


NONE = SearchPipeline()
UNREAD = SearchPipeline(unread=READ_SETTINGS, has_default=True)
"""The pipeline of an index whose settings cannot be read."""


@dataclass(slots=True)
class SearchPipelines:
    """Looks up the search pipelines of searches, and caches them for a minute. Safe to use from many threads.

    Args:
        engine: finds out the engine; only OpenSearch has search pipelines.
        clock: a function that returns the time in seconds.
    """

    engine: EngineFinder = field(default_factory=lambda: EngineFinder(Engine.OPENSEARCH))
    clock: Callable[[], float] = time.monotonic
    _defaults: ExpiringCache[str, SearchPipeline | str] = field(init=False)
    _cache: ExpiringCache[str, SearchPipeline] = field(init=False)
    _warned: LogThrottle = field(init=False)

    def __post_init__(self) -> None:
        self._defaults, self._cache = ExpiringCache(self.clock), ExpiringCache(self.clock)
        self._warned = LogThrottle(math.inf, self.clock)

    def find(
        self, index: Any, params: Mapping[str, Any], body: Mapping[str, Any]
    ) -> Generator[SideRequest, Any, SearchPipeline]:
        """Return the search pipeline that a search runs under; yield the requests to look it up, none if it is cached.

        Args:
            index: a name, several, a pattern, or None for all.
            params: the search's URL parameters.
            body: the search's body.
        """
        requested = params.get("search_pipeline", body.get("search_pipeline"))
        if not (yield from self.engine.find()).has_pipelines:
            return NONE
        if requested == NO_PIPELINE:
            return replace(NONE, has_default=True)
        if isinstance(requested, Mapping):
            return parse_pipeline("", requested)
        if requested is not None:
            return replace((yield from self._read_definition(str(requested))), replacement=None)
        return (yield from self.default_of(index, index_options(params)))

    def default_of(
        self, index: Any, options: Mapping[str, Any] = NO_OPTIONS
    ) -> Generator[SideRequest, Any, SearchPipeline]:
        """Return the default pipeline of an index; yield the requests to look it up, none if it is cached.

        A search without an index runs under no default pipeline. So does one whose indices have different defaults.

        Args:
            index: a name, several, a pattern, or None for all.
            options: the search's `osrerank.retrieval.requests.index_options`.
        """
        if not index or not (yield from self.engine.find()).has_pipelines:
            return NONE
        default = self._defaults.get(f"{index}{options}")
        if default is None:
            default = yield from self._read_default(index, options)
        if isinstance(default, SearchPipeline):
            return default
        found = yield from self._read_definition(default)
        return found if found.replacement is None else replace(found, obstacle="")

    def forget(self) -> None:
        """Empty the cache."""
        self._defaults.clear()
        self._cache.clear()

    def _read_default(
        self, index: Any, options: Mapping[str, Any]
    ) -> Generator[SideRequest, Any, SearchPipeline | str]:
        """Yield the request for the indices' settings; return the name of their one default pipeline."""
        key, params = f"{index}{options}", {"flat_settings": "true", **options}
        try:
            answer = yield SideRequest("GET", path_of(index, f"_settings/{SETTING}"), params=params)
            names = {entry["settings"][SETTING] for entry in answer.values()} - {NO_PIPELINE}
        except (Failed, AttributeError, KeyError, TypeError) as error:  # or an unexpected response
            if isinstance(error, Failed) and error.is_absent:  # the search raises the error, unless it is cross-cluster
                if ":" in str(index):
                    self._defaults.put(key, NONE)
                return NONE
            if self._warned.is_due(str(index)):
                logger.warning(
                    "[search-pipeline-unread] the settings of %s cannot be read, so osrerank cannot notice a default "
                    "search pipeline that ranks the hits itself; if a right is missing, grant %s; not logged again: %s",
                    index,
                    READ_SETTINGS,
                    error,
                )
            if isinstance(error, Failed) and error.is_forbidden:
                self._defaults.put(key, UNREAD)
            return UNREAD
        default = names.pop() if len(names) == 1 else replace(NONE, has_default=bool(names))
        self._defaults.put(key, default)
        return default

    def _read_definition(self, name: str) -> Generator[SideRequest, Any, SearchPipeline]:
        cached = self._cache.get(name)
        if cached is not None:
            return cached
        try:
            answer = yield SideRequest("GET", f"/_search/pipeline/{quote(name, safe='')}")
            if name not in answer:  # the search will report the missing pipeline
                return replace(NONE, has_default=True)
            pipeline = parse_pipeline(name, answer[name])
        except (Failed, TypeError) as error:
            problem = (
                f"the definition of the search pipeline {name} cannot be read, so the pipeline may rank the hits itself"
            )
            if not isinstance(error, Failed) or not error.is_forbidden:
                return SearchPipeline(name, problem, unread=READ_PIPELINES, has_default=True)
            pipeline = SearchPipeline(
                name, f"{problem}: grant {READ_PIPELINES}", unread=READ_PIPELINES, has_default=True
            )
        self._cache.put(name, pipeline)
        return pipeline


def under_pipeline(
    pipeline: str | Mapping[str, Any] | None, body: Mapping[str, Any], params: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the body and the URL parameters of a request, with a search pipeline added.

    Args:
        pipeline: a name, sent as a URL parameter because every version accepts that; a definition, sent in the body; or
            None for the index's default.
        body: the request's body.
        params: its URL parameters.
    """
    if pipeline is None:
        return {**body}, {**params}
    if isinstance(pipeline, str):
        return {**body}, {**params, "search_pipeline": pipeline}
    return {**body, "search_pipeline": pipeline}, {**params}


def parse_pipeline(name: str, definition: Mapping[str, Any]) -> SearchPipeline:
    """Return what a search has to know of a pipeline.

    Args:
        name: the pipeline's name; empty if the request defines it.
        definition: the pipeline in the form of ``GET _search/pipeline``, or of ``search_pipeline`` in a request.
    """
    before, kinds = _kinds(definition, "request_processors"), _kinds(definition, "response_processors")
    ranking_kinds = sorted(kinds - ORDER_KEPT - FIELDS_CHANGED)
    is_own = str(definition.get("description", "")).startswith(OWN_DESCRIPTION)
    subject = f"the search pipeline {name}" if name else "the search pipeline of the request"
    obstacle = f"{subject} ranks the hits itself, or may do so ({', '.join(ranking_kinds)})" if ranking_kinds else ""
    return SearchPipeline(
        name,
        obstacle,
        changes_fields=bool(FIELDS_CHANGED & kinds),
        may_shorten=bool(NUMBER_CHANGED & kinds or before - NUMBER_KEPT),
        lengthens="oversample" in before and "truncate_hits" not in kinds,
        has_default=True,
        replacement=_without_rerank(definition) if is_own and ranking_kinds == ["rerank"] else None,
    )


def _kinds(definition: Mapping[str, Any], part: str) -> set[str]:
    """Return the kinds of a pipeline's processors."""
    return {kind for step in definition.get(part) or () if isinstance(step, Mapping) for kind in step}


def _without_rerank(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pipeline without its rerank processor, to send with a request; empty if it has no other processors.

    An empty pipeline turns off the index's default. Unlike ``_none``, OpenSearch before 2.18 accepts it in the body,
    where a multi-search needs it.
    """
    parts = {name: steps for name, steps in definition.items() if name.endswith("_processors")}
    parts["response_processors"] = [step for step in parts["response_processors"] if "rerank" not in step]
    return {name: steps for name, steps in parts.items() if steps}
