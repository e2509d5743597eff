"""Put BM25 scores on the scale of OpenSearch 3 and Anserini, on which absolute weights such as Birch's are learnt.

Before version 3, OpenSearch multiplies BM25 by k1 + 1, as Elasticsearch still does; Lucene removed the factor with
LUCENE-8563.
"""

import logging
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from osrerank._log_throttle import LogThrottle
from osrerank.retrieval.expiring import ExpiringCache
from osrerank.retrieval.requests import NO_OPTIONS, SideRequest, path_of
from osrerank.types import Ranking
from osrerank.types.failed import Failed
from osrerank.types.values import BM25

logger = logging.getLogger(__name__)

K1 = 1.2
"""The engines' default."""
WITHOUT_FACTOR = 3
"""The first major version of OpenSearch that does not multiply BM25 by the factor."""
SIMILARITY = "index.similarity.default"
OTHERS = {
    "hybrid", "neural", "neural_sparse", "knn", "script_score", "constant_score", "rank_feature", "distance_feature",
}  # fmt: skip
"""Queries whose scores do not come from BM25."""


@dataclass(frozen=True, slots=True)
class Bm25Scale:
    """The factors by which the engine multiplies BM25.

    Attributes:
        default: the factor of an index with the default similarity; 1 if the engine has no factor.
        factors: index -> factor, for indices whose settings name a similarity.
    """

    default: float = 1.0
    factors: Mapping[str, float] = field(default_factory=dict)

    def applied(self, ranking: Ranking, hits: Sequence[Mapping[str, Any]]) -> Ranking:
        """Return a first pass's ranking in which the parts of each score include BM25 without the factor.

        Args:
            ranking: the candidates, in the order of the hits.
            hits: the hits.
        """
        if self == PLAIN:
            return ranking
        candidates = []
        for candidate, hit in zip(ranking.candidates, hits, strict=True):
            factor = self.factors.get(hit.get("_index", ""), self.default)
            candidates.append(candidate.with_first_parts({BM25: candidate.text_score / factor}))
        return replace(ranking, candidates=tuple(candidates))


PLAIN = Bm25Scale()


def scale_of(response: Any) -> Bm25Scale:
    """Return the scale of a response's scores: Elasticsearch's if a response object of elasticsearch-py says so."""
    headers = getattr(getattr(response, "meta", None), "headers", None) or {}
    return Bm25Scale(K1 + 1) if headers.get("x-elastic-product") == "Elasticsearch" else PLAIN


class Bm25Scales:
    """Looks up the BM25 scale of indices, and caches it for a minute. Safe to use from many threads.

    Args:
        clock: a function that returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._cache: ExpiringCache[str, Bm25Scale] = ExpiringCache(clock)
        self._warned = LogThrottle(math.inf, clock)

    def forget(self) -> None:
        """Empty the cache."""
        self._cache.clear()

    def find(
        self, index: Any, body: Mapping[str, Any], options: Mapping[str, Any] = NO_OPTIONS
    ) -> Generator[SideRequest, Any, Bm25Scale]:
        """Return the scale of a search's scores; yield the requests to look it up, none if it is cached.

        Args:
            index: a name, several, a pattern, or None for all.
            body: the search's body.
            options: the search's `osrerank.retrieval.requests.index_options`.
        """
        if OTHERS & (body.get("query") or {}).keys():
            return PLAIN
        key = f"{index}{options}"
        scale = self._cache.get(key)
        if scale is None:
            try:
                scale = yield from _read(index, options)
            except (Failed, AttributeError, KeyError, TypeError, ValueError) as error:  # or an unexpected response
                if self._warned.is_due(str(index)):
                    logger.warning(
                        "[score-scale-unread] the engine's version or the similarity of %s cannot be read: osrerank "
                        "assumes BM25 without the factor k1 + 1, as in OpenSearch 3; not logged again: %s",
                        index,
                        error,
                    )
                return PLAIN
            self._cache.put(key, scale)
        return scale


def _read(index: Any, options: Mapping[str, Any]) -> Generator[SideRequest, Any, Bm25Scale]:
    """Yield the requests for the engine's version and the indices' similarities; return the scale."""
    version = (yield SideRequest("GET", "/"))["version"]
    is_opensearch = version.get("distribution") == "opensearch"
    if is_opensearch and int(version["number"].partition(".")[0]) >= WITHOUT_FACTOR:
        return PLAIN
    try:
        params = {"flat_settings": "true", **options}
        answer = yield SideRequest("GET", path_of(index, f"_settings/{SIMILARITY}.*"), params=params)
    except Failed as failed:
        if failed.is_absent:  # the search will raise it
            return PLAIN
        raise
    return Bm25Scale(K1 + 1, {name: _factor(entry["settings"]) for name, entry in answer.items()})


def _factor(settings: Mapping[str, Any]) -> float:
    """Return the factor of an index's default similarity."""
    is_bm25 = settings.get(f"{SIMILARITY}.type", "BM25") == "BM25"
    return float(settings.get(f"{SIMILARITY}.k1", K1)) + 1 if is_bm25 else 1.0
