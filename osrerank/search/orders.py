"""Keep the order of a search's hits for a minute, so that later pages continue the first page without gaps or repeats.

An order is kept if the next page might be computed in another: under a deadline, because the machine may be busy by
then, or more vectors known; after a failure; and with the depth ``"auto"``. Ids and scores are kept, but no texts. The
order is applied to the hits that OpenSearch returns for the later page, so that nobody sees a hit that they may not
see.
"""

import hashlib
import json
import logging
import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

from cachetools import TTLCache

from osrerank._caches import SharedCache
from osrerank._pause import Pause
from osrerank._redis import open_redis
from osrerank.options.rerank import Rerank
from osrerank.pipeline import applied
from osrerank.recipe import Recipe
from osrerank.response import FIRST_PASS
from osrerank.service import RerankService
from osrerank.types import Candidate, Ranking, Span, StageReport, StageScore
from osrerank.types.reasons import Warned, WarningCode

KEPT_S = 60
"""How long an order is kept after it was last used, in seconds."""
MOST_BYTES, MOST_OF_ONE = 16_000_000, 1_000_000
"""Size limits in bytes: of all orders in a process, and of a single order anywhere."""
TIMEOUT_S, REST_S = 0.1, 10.0
"""How long Redis may take to answer, and how long it is not called after a failure, in seconds."""
PREFIX = "osrerank:orders:2:"
PRESENTATION = {
    "from", "from_", "size", "search_after", "_source", "_source_includes", "_source_excludes", "fields",
    "stored_fields", "docvalue_fields", "script_fields", "highlight", "explain", "version", "seq_no_primary_term",
    "aggs", "aggregations", "suggest", "profile", "track_total_hits", "timeout", "ext", "human", "pretty",
    "error_trace", "filter_path", "typed_keys", "rest_total_hits_as_int", "request_timeout", "request_cache",
    "opaque_id",
}  # fmt: skip
"""Parts of a search that change only which hits and details it shows, not the order of its hits."""
MOST_CONTENT = 50_000_000
"""The largest size of an order after decompression, in bytes."""
MAY_NOT_JOIN = Warned(
    "this page may repeat or miss hits of earlier pages: it is not in the order of the first", WarningCode.PAGES_APART
)

logger = logging.getLogger(__name__)


class Orders:
    """Keeps orders for a minute: in this process and, if one is configured, in Redis for all processes.

    An order in Redis takes precedence; if Redis fails, the process' own orders are used. Safe to use from many threads.

    Args:
        redis_url: URL of the Redis; None for this process alone.
        clock: returns seconds.

    Attributes:
        is_empty: whether certainly no order is kept.
    """

    def __init__(self, redis_url: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._redis: Any = None if redis_url is None else open_redis(redis_url, connect_s=TIMEOUT_S, answer_s=TIMEOUT_S)
        self._calls = Pause(REST_S, self._report)
        self._kept = SharedCache(lambda: TTLCache[str, bytes](MOST_BYTES, KEPT_S, clock, getsizeof=len))
        self.is_empty = redis_url is None

    def read(self, key: str) -> bytes | None:
        """Return the order that is kept under a key, and keep it for another minute; None if there is none."""
        if self._redis is not None:
            found: list[Any] = self._calls.attempt(lambda: self._read_remote(key), [])
            if found:
                return found[0] if isinstance(found[0], bytes) else None
        with self._kept as kept:
            order = kept.get(key)
            if order is not None:
                kept[key] = order
            return order

    def write(self, key: str, order: bytes) -> None:
        """Keep an order under a key, in place of an earlier one; an empty order deletes it."""
        order = order if len(order) <= MOST_OF_ONE else b""
        if self._redis is not None:
            name = PREFIX + key
            change = (lambda: self._redis.set(name, order, ex=KEPT_S)) if order else (lambda: self._redis.unlink(name))
            self._calls.attempt(change, None)
        with self._kept as kept:
            kept.pop(key, None)
            if order:
                kept[key] = order
            self.is_empty = self._redis is None and not kept

    def close(self) -> None:
        """Close the connections to Redis."""
        if self._redis is not None:
            self._calls.attempt(self._redis.close, None)

    def _read_remote(self, key: str) -> list[Any]:
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.get(PREFIX + key)
        pipeline.expire(PREFIX + key, KEPT_S)
        found: list[Any] = pipeline.execute()
        return found

    def _report(self, error: Exception, is_first: bool) -> None:  # noqa: FBT001 - `Pause` passes it by position
        if is_first:
            logger.warning(
                "[orders-away] Redis failed; for %g s, pages served by different processes may repeat or miss hits: %s",
                REST_S,
                type(error).__name__,
            )


@dataclass(frozen=True, slots=True)
class PageOrder:
    """Gives all pages of a search the order that its first page had.

    Attributes:
        orders: keeps the orders.
        service: holds the models.
        asked: the parts of the search that its hits and their order depend on, besides options and models; only their
            digest is kept.
    """

    orders: Orders
    service: RerankService
    asked: tuple[Any, ...]

    def read(
        self, found: Ranking, hits: Sequence[Mapping[str, Any]], options: Rerank, recipe: Recipe | None
    ) -> Ranking | None:
        """Return a later page's hits in the order that was kept for the first page; None if none is kept.

        Args:
            found: the first pass's ranking.
            hits: the response's hits, in the same order.
            options: the options of the ranking.
            recipe: its stages.
        """
        kept = None if self.orders.is_empty else self.orders.read(self._key(options))
        return None if kept is None else _restored(kept, found, _names(hits), _identity(recipe))

    def keep(
        self,
        ranked: Ranking,
        found: Sequence[str],
        hits: Sequence[Mapping[str, Any]],
        options: Rerank,
        recipe: Recipe | None,
    ) -> None:
        """Keep the order of a first page's hits.

        Args:
            ranked: the hits in their new order.
            found: the ids of the first pass's candidates.
            hits: the response's hits, in the order of the first pass.
            options: the options of the ranking.
            recipe: its stages.
        """
        by_id = dict(zip(found, _names(hits), strict=True))
        self.orders.write(self._key(options), _content(ranked, by_id, _identity(recipe)))

    def drop(self, options: Rerank) -> None:
        """Drop the order that an earlier first page of the ranking had."""
        self.orders.write(self._key(options), b"")

    def _key(self, options: Rerank) -> str:
        settings = self.service.settings
        models = settings.model, settings.vector_model, settings.duo_model, settings.backend
        parts = [*map(_listed, self.asked), repr(options), repr(models)]
        return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=repr).encode(), digest_size=16).hexdigest()


def _listed(part: Any) -> Any:
    """Return a part of a search without the options that only change how its hits are presented."""
    part = part.to_dict() if hasattr(part, "to_dict") else part
    if not isinstance(part, Mapping):
        return part
    return {name: value for name, value in part.items() if name.lower() not in PRESENTATION}


def comes_again(ranking: Ranking, options: Rerank) -> bool:
    """Return whether the same search will give the same order: all stages were applied, or none was meant to be."""
    return options.depth != "auto" and (not ranking.reports or applied(ranking.reports) is True)


def doubted(ranking: Ranking, options: Rerank) -> Ranking:
    """Return the ranking that was computed for a later page, with a warning if it may differ from the first page's."""
    if comes_again(ranking, options):
        return ranking
    return replace(ranking, warnings=(*ranking.warnings, MAY_NOT_JOIN))


def _identity(recipe: Recipe | None) -> str:
    """Return the identity of a ranking's models; "" if they made no order, because they are not loaded or failed."""
    if recipe is None or not recipe.models:
        return ""
    try:
        return repr(recipe.identity)
    except Exception as error:  # noqa: BLE001 - workers that are away had no part in the order
        return type(error).__name__


def _names(hits: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"{hit.get('_index')}/{hit['_id']}" for hit in hits]


def _content(ranking: Ranking, names: Mapping[str, str], identity: str) -> bytes:
    """Return an order as compressed JSON, with the scores and reports of its stages."""
    hits = [(names[candidate.doc_id], candidate.failure, candidate.trace[1:]) for candidate in ranking.candidates]
    reports = [asdict(replace(report, pairs=None)) for report in ranking.reports]
    content = {
        "identity": identity,
        "warnings": [(one, one.code) for one in ranking.warnings],
        "reports": reports,
        "hits": hits,
    }
    return zlib.compress(json.dumps(content, default=_as_json).encode(), 1)


def _restored(content: bytes, found: Ranking, names: Sequence[str], identity: str) -> Ranking | None:
    """Return hits in a kept order, new ones last; None if the order cannot be read, or other models made it.

    A hit of the kept order that is no longer found keeps its rank, so that no later hit moves to an earlier page.
    """
    try:
        kept = json.loads(zlib.decompressobj().decompress(content, MOST_CONTENT))
        if "" not in (identity, kept["identity"]) and identity != kept["identity"]:
            return None
        left = dict(zip(names, found.candidates, strict=True))
        ordered = [_as_kept(left.pop(name) if name in left else _gone(name), *marks) for name, *marks in kept["hits"]]
        reports = tuple(_as_read(StageReport(**report)) for report in kept["reports"])
        candidates = _renumbered([*ordered, *left.values()])
        warnings = tuple(Warned(sentence, code) for sentence, code in kept["warnings"])
        return Ranking(found.query, candidates, reports, warnings)
    except (ValueError, TypeError, KeyError, zlib.error):  # written by another version, or by another program
        return None


def _as_json(part: Span | Mapping[str, float]) -> Any:
    """Return a part of a stage's score that JSON cannot encode by itself."""
    return astuple(part) if isinstance(part, Span) else dict(part)


def _as_kept(hit: Candidate, failure: str, trace: Sequence[Sequence[Any]]) -> Candidate:
    """Return a hit with the stage scores that were kept for it."""
    entries = [
        StageScore(stage, score, rank, unit, parts, passage and Span(*passage), level, cut)
        for stage, score, rank, unit, parts, passage, level, cut in trace
    ]
    score = entries[-1].score if entries else hit.score
    return hit._replace(score=score, trace=(*hit.trace, *entries), failure=failure)


def _gone(name: str) -> Candidate:
    """Return a placeholder for a hit that is no longer found; it holds the hit's rank, and no response shows it."""
    return Candidate(f"\0{name}", None, 0.0, 1, (StageScore(FIRST_PASS, 0.0, 1, 0.0),))


def _renumbered(hits: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return hits with ranks from 1 in the given order; a hit's ``_score`` is lowered to the one before if higher."""
    ranked, least = [], math.inf
    for rank, hit in enumerate(hits, start=1):
        *before, last = hit.trace
        if last.level + last.unit > least:
            last = last._replace(level=int(least), unit=least - int(least))
        least = last.level + last.unit
        ranked.append(hit._replace(rank=rank, trace=(*before, last)))
    return tuple(ranked)


def _as_read(report: StageReport) -> StageReport:
    """Return a stage's report with counts and time set to 0, because nothing was computed for this page."""
    return replace(report, inferences=0, cached=0, encoded=0, known=0, lacking=0, took_ms=0.0)
