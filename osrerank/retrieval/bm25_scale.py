"""Bring the BM25 scores of all engines to the scale of Anserini.

Elasticsearch, and OpenSearch before version 3, multiply BM25 by k1 + 1, as Lucene did until LUCENE-8563. This module
divides their scores by this factor. Anserini and OpenSearch 3 do not multiply. Weights of BM25 scores, such as those of
Birch, were trained with Anserini's scores, so they need its scale.
"""

import logging
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from osrerank._log_throttle import LogThrottle
from osrerank.retrieval.expiring import ExpiringCache
from osrerank.retrieval.requests import NO_OPTIONS, SideRequest, build_path
from osrerank.types import Ranking
from osrerank.types.engine_errors import EngineError
from osrerank.types.values import BM25_SCORE

logger = logging.getLogger(__name__)

DEFAULT_K1 = 1.2
"""The default k1 of OpenSearch and Elasticsearch."""
FIRST_VERSION_WITHOUT_FACTOR = 3
"""The first major version of OpenSearch that does not multiply BM25 by k1 + 1."""
SIMILARITY = "index.similarity.default"
"""The prefix of the index settings for the similarity, such as ``index.similarity.default.k1``."""
NON_BM25_QUERIES = {
    "hybrid", "neural", "neural_sparse", "knn", "script_score", "constant_score", "rank_feature", "distance_feature",
}  # fmt: skip
"""Query types whose scores do not come from BM25."""


@dataclass(frozen=True, slots=True)
class Bm25Scale:
    """The factor k1 + 1 by which the engine multiplies the BM25 scores of each index.

    Attributes:
        default: the factor of the indices that are not in ``factors``. It is 1 if the engine does not multiply.
        factors: the factors of the indices whose settings define a similarity, such as ``{"papers": 1.9}``.
    """

    default: float = 1.0
    factors: Mapping[str, float] = field(default_factory=dict)

    def rescale(self, ranking: Ranking, hits: Sequence[Mapping[str, Any]]) -> Ranking:
        """Return a first pass's ranking in which each candidate also has its BM25 score without the factor.

        The first-pass score stays as it is. The BM25 score is stored beside it, in the first pass's `StageScore.parts`,
        under the name `BM25_SCORE`. ``hits`` are the candidates' hits, in the same order.
        """
        if self == NO_FACTOR:
            return ranking
        candidates = []
        for candidate, hit in zip(ranking.candidates, hits, strict=True):
            factor = self.factors.get(hit.get("_index", ""), self.default)
            candidates.append(candidate.with_first_parts({BM25_SCORE: candidate.text_score / factor}))
        return replace(ranking, candidates=tuple(candidates))


NO_FACTOR = Bm25Scale()
"""The scale of an engine that does not multiply BM25."""


def find_response_scale(response: Any) -> Bm25Scale:
    """Return the scale of the response to a search that the caller sent without osrerank.

    Only a response object of elasticsearch-py says which engine sent it. For any other response, return `NO_FACTOR`.
    """
    headers = getattr(getattr(response, "meta", None), "headers", None) or {}
    is_elasticsearch = headers.get("x-elastic-product") == "Elasticsearch"
    return Bm25Scale(DEFAULT_K1 + 1) if is_elasticsearch else NO_FACTOR


class Bm25ScaleCache:
    """Looks up the BM25 scale of indices, and caches it for a minute. Safe to use from many threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._cache: ExpiringCache[str, Bm25Scale] = ExpiringCache(clock)
        self._log_throttle = LogThrottle(math.inf, clock)

    def forget(self) -> None:
        """Empty the cache."""
        self._cache.clear()

    def find(
        self, index: Any, body: Mapping[str, Any], options: Mapping[str, Any] = NO_OPTIONS
    ) -> Generator[SideRequest, Any, Bm25Scale]:
        """Return the scale of a search's scores.

        If it is not cached, the generator first yields requests. The caller sends their responses to the generator.
        """
        if NON_BM25_QUERIES & (body.get("query") or {}).keys():  # their scores have no factor
            return NO_FACTOR
        key = f"{index}{options}"  # the options decide which indices a pattern stands for
        scale = self._cache.get(key)
        if scale is not None:
            return scale
        try:
            scale = yield from _read_scale(index, options)
        except (EngineError, AttributeError, KeyError, TypeError, ValueError) as error:
            # a request failed, or a response does not have the expected form
            if self._log_throttle.should_log(str(index)):
                logger.warning(
                    "[score-scale-unread] osrerank cannot read the engine's version or the similarity of %s (%s); it "
                    "assumes BM25 without the factor k1 + 1, as in OpenSearch 3; this is not logged again",
                    index,
                    error,
                )
            return NO_FACTOR
        self._cache.put(key, scale)
        return scale


def _read_scale(index: Any, options: Mapping[str, Any]) -> Generator[SideRequest, Any, Bm25Scale]:
    """Read the engine's version, then the similarity of each index if this version multiplies BM25."""
    engine = yield SideRequest("GET", "/")
    version = engine["version"]
    is_opensearch = version.get("distribution") == "opensearch"
    if is_opensearch and int(version["number"].partition(".")[0]) >= FIRST_VERSION_WITHOUT_FACTOR:
        return NO_FACTOR
    try:
        params = {"flat_settings": "true", **options}
        response = yield SideRequest("GET", build_path(index, f"_settings/{SIMILARITY}.*"), params=params)
    except EngineError as error:
        if error.is_absent:  # the search itself will raise this error
            return NO_FACTOR
        raise
    return Bm25Scale(DEFAULT_K1 + 1, {name: _read_factor(entry["settings"]) for name, entry in response.items()})


def _read_factor(settings: Mapping[str, Any]) -> float:
    """Return the factor k1 + 1 from an index's settings, or 1 for a similarity other than BM25."""
    is_bm25 = settings.get(f"{SIMILARITY}.type", "BM25") == "BM25"
    return float(settings.get(f"{SIMILARITY}.k1", DEFAULT_K1)) + 1 if is_bm25 else 1.0
