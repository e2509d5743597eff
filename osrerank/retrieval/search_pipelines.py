"""Find out which search pipeline a search runs under, and what the pipeline does to the hits.

An index's default search pipeline may restrict which documents a user sees, so reranking does not turn it off: the
first pass runs under the pipeline that the plain search would run under, without osrerank's own rerank processor. A
pipeline that ranks the hits itself is left alone: a request for more candidates would multiply the calls of its model.

OpenSearch: Search pipelines, https://docs.opensearch.org/latest/search-plugins/search-pipelines/index/
"""

import logging
import math
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from osrerank._seldom import Seldom
from osrerank.retrieval.expiring import ExpiringCache
from osrerank.retrieval.found_engine import FoundEngine
from osrerank.retrieval.requests import NO_OPTIONS, SideRequest, index_options, path_of
from osrerank.types.engine import Engine
from osrerank.types.failed import Failed

logger = logging.getLogger(__name__)

NO_PIPELINE = "_none"
"""The value of ``search_pipeline`` that turns an index's default pipeline off."""
OWN_DESCRIPTION = "Reranks with osrerank."
"""The beginning of the description of every pipeline that ``osrerank pipeline install`` makes."""
SETTING = "index.search.default_pipeline"
READ_SETTINGS, READ_PIPELINES = "indices:monitor/settings/get", "cluster:admin/search/pipeline/get"
"""The rights that reading an index's settings and a pipeline's definition need."""
ORDER_KEPT = {"truncate_hits", "collapse", "hybrid_score_explanation"}
"""Response processors that change neither the order of the hits nor their fields."""
FIELDS_CHANGED = {"rename_field", "sort", "split"}
"""Response processors that keep the order of the hits and change their fields."""
NUMBER_CHANGED = {"truncate_hits", "collapse"}
"""Response processors that drop hits."""
NUMBER_KEPT = {"filter_query", "neural_query_enricher", "neural_sparse_two_phase_processor"}
"""Request processors that do not change how many hits are asked for."""


@dataclass(frozen=True, slots=True)
class SearchPipeline:
    """What a search has to know of the search pipeline that it runs under.

    Attributes:
        name: the pipeline's name; empty if there is none, or the request defines it.
        obstacle: why hits that come through it are not reranked; empty if they are.
        changes_fields: whether hits that come through it may have other fields than their documents.
        may_shorten: whether it may change the number of hits, so that a short response is no sign of a loss.
        lengthens: whether it returns more hits than were asked for.
        unread: the right that reading the settings or the definition needs, if they could not be read; else empty.
        has_default: whether an index of the search has a default pipeline, or may have one.
        instead: the definition to send in place of the index's default; None to send none.
    """

    name: str = ""
    obstacle: str = ""
    changes_fields: bool = False
    may_shorten: bool = False
    lengthens: bool = False
    unread: str = ""
    has_default: bool = False
    instead: Mapping[str, Any] | None = None


NONE = SearchPipeline()
UNREAD = SearchPipeline(unread=READ_SETTINGS, has_default=True)
"""The pipeline of an index whose settings cannot be read."""


@dataclass(slots=True)
class SearchPipelines:
    """Finds the search pipelines of searches, and caches them for a minute. Safe to use from many threads.

    Args:
        engine: finds the engine; only OpenSearch has search pipelines.
        clock: returns seconds.
    """

    engine: FoundEngine = field(default_factory=lambda: FoundEngine(Engine.OPENSEARCH))
    clock: Callable[[], float] = time.monotonic
    _defaults: ExpiringCache[str, SearchPipeline | str] = field(init=False)
    _known: ExpiringCache[str, SearchPipeline] = field(init=False)
    _once: Seldom = field(init=False)

    def __post_init__(self) -> None:
        self._defaults, self._known = ExpiringCache(self.clock), ExpiringCache(self.clock)
        self._once = Seldom(math.inf, self.clock)

    def of(
        self, index: Any, params: Mapping[str, Any], body: Mapping[str, Any]
    ) -> Generator[SideRequest, Any, SearchPipeline]:
        """Return the search pipeline that a search runs under; yield the requests to look it up, none if it is cached.

        Args:
            index: a name, several, a pattern, or None for all.
            params: the search's URL parameters.
            body: the search's body.
        """
        given = params.get("search_pipeline", body.get("search_pipeline"))
        if not (yield from self.engine.of()).has_pipelines:
            return NONE
        if given == NO_PIPELINE:
            return replace(NONE, has_default=True)
        if isinstance(given, Mapping):
            return described("", given)
        if given is not None:
            return replace((yield from self._named(str(given))), instead=None)
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
        if not index or not (yield from self.engine.of()).has_pipelines:
            return NONE
        default = self._defaults.get(f"{index}{options}")
        if default is None:
            default = yield from self._read_default(index, options)
        if isinstance(default, SearchPipeline):
            return default
        found = yield from self._named(default)
        return found if found.instead is None else replace(found, obstacle="")

    def forget(self) -> None:
        """Read the settings and definitions again that are cached."""
        self._defaults.clear()
        self._known.clear()

    def _read_default(
        self, index: Any, options: Mapping[str, Any]
    ) -> Generator[SideRequest, Any, SearchPipeline | str]:
        """Yield the request for the indices' settings; return the name of their one default pipeline."""
        key, params = f"{index}{options}", {"flat_settings": "true", **options}
        try:
            answer = yield SideRequest("GET", path_of(index, f"_settings/{SETTING}"), params=params)
            names = {entry["settings"][SETTING] for entry in answer.values()} - {NO_PIPELINE}
        except (Failed, AttributeError, KeyError, TypeError) as error:  # the last three: another form
            if isinstance(error, Failed) and error.is_absent:  # the search raises it, but for another cluster's index
                if ":" in str(index):
                    self._defaults.put(key, NONE)
                return NONE
            if self._once.is_due(str(index)):
                logger.warning(
                    "[search-pipeline-unread] the settings of %s cannot be read, so a default search pipeline that "
                    "ranks the hits itself is not noticed; if a right is missing, grant %s; not logged again: %s",
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

    def _named(self, name: str) -> Generator[SideRequest, Any, SearchPipeline]:
        known = self._known.get(name)
        if known is not None:
            return known
        try:
            answer = yield SideRequest("GET", f"/_search/pipeline/{quote(name, safe='')}")
            if name not in answer:  # the search will say that it is not defined
                return replace(NONE, has_default=True)
            found = described(name, answer[name])
        except (Failed, TypeError) as error:
            why = (
                f"the definition of the search pipeline {name} cannot be read, so the pipeline may rank the hits itself"
            )
            if not isinstance(error, Failed) or not error.is_forbidden:
                return SearchPipeline(name, why, unread=READ_PIPELINES, has_default=True)
            found = SearchPipeline(name, f"{why}: grant {READ_PIPELINES}", unread=READ_PIPELINES, has_default=True)
        self._known.put(name, found)
        return found


def named_in(
    pipeline: str | Mapping[str, Any] | None, body: Mapping[str, Any], params: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the body and the URL parameters of a request that runs under a search pipeline.

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


def described(name: str, definition: Mapping[str, Any]) -> SearchPipeline:
    """Return what a search has to know of a pipeline.

    Args:
        name: its name; empty for one that the request defines.
        definition: as ``GET _search/pipeline`` returns it, or as a request has it in ``search_pipeline``.
    """
    before, kinds = _kinds(definition, "request_processors"), _kinds(definition, "response_processors")
    others = sorted(kinds - ORDER_KEPT - FIELDS_CHANGED)
    is_own = str(definition.get("description", "")).startswith(OWN_DESCRIPTION)
    called = f"the search pipeline {name}" if name else "the search pipeline of the request"
    obstacle = f"{called} ranks the hits itself, or may do so ({', '.join(others)})" if others else ""
    return SearchPipeline(
        name,
        obstacle,
        changes_fields=bool(FIELDS_CHANGED & kinds),
        may_shorten=bool(NUMBER_CHANGED & kinds or before - NUMBER_KEPT),
        lengthens="oversample" in before and "truncate_hits" not in kinds,
        has_default=True,
        instead=_without_rerank(definition) if is_own and others == ["rerank"] else None,
    )


def _kinds(definition: Mapping[str, Any], part: str) -> set[str]:
    """Return the kinds of a pipeline's processors."""
    return {kind for step in definition.get(part) or () if isinstance(step, Mapping) for kind in step}


def _without_rerank(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pipeline without its rerank processor, to be sent with a request; empty if nothing is left.

    An empty one turns an index's default pipeline off. Unlike ``_none``, it is also accepted in the body before
    OpenSearch 2.18, as the searches of a multi-search need it.
    """
    kept = {name: steps for name, steps in definition.items() if name.endswith("_processors")}
    kept["response_processors"] = [step for step in kept["response_processors"] if "rerank" not in step]
    return {name: steps for name, steps in kept.items() if steps}
