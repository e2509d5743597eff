"""Orders of hits that the same search may not give again, kept so that its pages join.

An order is kept where a deadline, a failure or the depth ``"auto"`` made it: with more vectors known, the next page
would be cut out of another list. Kept are ids and scores, no texts. The order is applied to the hits that OpenSearch
returns for the later page, so nobody sees a hit that he may not.
"""

import hashlib
import json
import logging
import math
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from osrerank._pause import Pause
from osrerank._redis import open_redis
from osrerank.options.rerank import Rerank
from osrerank.pipeline import applied
from osrerank.response import FIRST_PASS
from osrerank.service import RerankService
from osrerank.types import Candidate, Ranking, Span, StageReport, StageScore

KEPT_S = 60
"""How long an order is kept after it was last used, in seconds."""
MOST_BYTES, MOST_OF_ONE = 16_000_000, 1_000_000
"""What the orders in a process may take, and a single one anywhere."""
TIMEOUT_S, REST_S = 0.1, 10.0
"""Time for an answer of Redis, and how long it is left alone after a failure, in seconds."""
PREFIX = "osrerank:orders:1:"
PRESENTATION = {
    "from", "from_", "size", "_source", "_source_includes", "_source_excludes", "fields", "stored_fields",
    "docvalue_fields", "script_fields", "highlight", "explain", "version", "seq_no_primary_term", "aggs",
    "aggregations", "suggest", "profile", "track_total_hits", "timeout", "ext", "human", "pretty", "error_trace",
    "filter_path", "typed_keys", "rest_total_hits_as_int", "request_timeout", "request_cache", "opaque_id",
    "x-opaque-id", "x-request-id", "traceparent", "tracestate", "user-agent", "accept", "content-type",
}  # fmt: skip
"""Parts of a search, and headers, that do not change its list of hits, or only which part of it is shown."""
MOST_CONTENT = 50_000_000
"""Bytes of an order that is not compressed."""
MAY_NOT_JOIN = "this page may repeat or lack hits of the pages before it: their order is not kept any more"

logger = logging.getLogger(__name__)


class Orders:
    """Keeps orders for a minute: in this process and, where one is named, in Redis for all processes.

    Redis holds over the process; where it fails, the process' own orders are used. Safe to use from many threads.

    Args:
        redis_url: of the Redis; None for none.
        clock: returns seconds.

    Attributes:
        is_empty: whether there is surely none.
    """

    def __init__(self, redis_url: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._redis: Any = None if redis_url is None else open_redis(redis_url, connect_s=TIMEOUT_S, answer_s=TIMEOUT_S)
        self._calls = Pause(REST_S, self._report)
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self.is_empty = redis_url is None

    def read(self, key: str) -> bytes | None:
        """Return an order, which is then kept for another minute; None where there is none."""
        if self._redis is not None:
            found: list[Any] = self._calls.attempt(lambda: self._read_remote(key), [])
            if found:
                return found[0] if isinstance(found[0], bytes) else None
        with self._lock:
            until_s, order = self._kept.get(key, (0.0, b""))
            if until_s <= self._clock():
                return None
            self._put(key, order)
            return order

    def write(self, key: str, order: bytes) -> None:
        """Keep an order in place of an earlier one of this key; an empty one is none."""
        order = order if len(order) <= MOST_OF_ONE else b""
        if self._redis is not None:
            name = PREFIX + key
            change = (lambda: self._redis.set(name, order, ex=KEPT_S)) if order else (lambda: self._redis.unlink(name))
            self._calls.attempt(change, None)
        with self._lock:
            self._kept.pop(key, None)
            if order:
                self._put(key, order)
            self.is_empty = self._redis is None and not self._kept

    def close(self) -> None:
        """Close the connections to Redis."""
        if self._redis is not None:
            self._calls.attempt(self._redis.close, None)

    def _put(self, key: str, order: bytes) -> None:
        """Keep an order as the newest, and drop what is too old or too much; the lock is held."""
        now_s = self._clock()
        self._kept[key] = now_s + KEPT_S, order
        self._kept.move_to_end(key)
        while self._kept:
            until_s, _ = next(iter(self._kept.values()))
            if until_s > now_s and sum(len(kept) for _, kept in self._kept.values()) <= MOST_BYTES:
                return
            self._kept.popitem(last=False)

    def _read_remote(self, key: str) -> list[Any]:
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.get(PREFIX + key)
        pipeline.expire(PREFIX + key, KEPT_S)
        found: list[Any] = pipeline.execute()
        return found

    def _report(self, error: Exception, is_first: bool) -> None:  # noqa: FBT001 - as `Pause` gives it
        if is_first:
            logger.warning(
                "[orders-away] Redis failed, so for %g s pages of other processes may not join: %s",
                REST_S,
                type(error).__name__,
            )


@dataclass(frozen=True, slots=True)
class PageOrder:
    """The order of a search's hits, of which this page may be a later one.

    Attributes:
        orders: keeps it.
        service: has the models.
        asked: what the hits and their order depend on besides options and models; only its digest is kept.
    """

    orders: Orders
    service: RerankService
    asked: tuple[Any, ...]

    def ranked(
        self,
        compute: Callable[[], Ranking],
        found: Ranking,
        hits: Sequence[Mapping[str, Any]],
        options: Rerank,
        offset: int,
    ) -> Ranking:
        """Return the hits in the order of the first page, if this is a later one and that order is kept; else computed.

        Args:
            compute: returns the hits in a new order.
            found: the hits as OpenSearch found them.
            hits: as they are in the response, in the same order.
            options: of the order.
            offset: of the page; the first one's order is always computed.
        """
        names = [f"{hit.get('_index')}/{hit['_id']}" for hit in hits]
        if offset:
            kept = None if self.orders.is_empty else self.orders.read(self._key(options))
            ranking = None if kept is None else _restored(kept, found, names, _identity(options, self.service))
            return ranking or _doubted(compute(), options)
        ranked = compute()
        if _comes_again(ranked, options):
            if not self.orders.is_empty:
                self.orders.write(self._key(options), b"")
        else:
            by_id = dict(zip((one.doc_id for one in found.candidates), names, strict=True))
            self.orders.write(self._key(options), _content(ranked, by_id, _identity(options, self.service)))
        return ranked

    def _key(self, options: Rerank) -> str:
        settings = self.service.settings
        models = settings.model, settings.vector_model, settings.duo_model, settings.backend, settings.rerank_url
        parts = [*map(_listed, self.asked), repr(options), repr(models)]
        return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=repr).encode(), digest_size=16).hexdigest()


def _listed(part: Any) -> Any:
    """Return a part of a search without what is presentation alone."""
    part = part.to_dict() if hasattr(part, "to_dict") else part
    if not isinstance(part, Mapping):
        return part
    return {name: value for name, value in part.items() if name.lower() not in PRESENTATION}


def _comes_again(ranking: Ranking, options: Rerank) -> bool:
    """Return whether the same search will give the same order: it was not cut short, or wholly left out on purpose."""
    return options.depth != "auto" and (not ranking.reports or applied(ranking.reports) is True)


def _doubted(ranking: Ranking, options: Rerank) -> Ranking:
    """Return the ranking of a later page that was computed by itself, with a warning where it may be another one."""
    if _comes_again(ranking, options):
        return ranking
    return replace(ranking, warnings=(*ranking.warnings, MAY_NOT_JOIN))


def _identity(options: Rerank, service: RerankService) -> str:
    """Return what the models are, as far as they are loaded: a search does not wait for one to compare."""
    try:
        is_loaded = all(model.is_encoder is not None for model in service.models_of(options))
        return repr(service.identity(options)) if is_loaded else ""
    except Exception as error:  # noqa: BLE001 - a model that cannot be loaded made no part of the order
        return type(error).__name__


def _content(ranking: Ranking, names: Mapping[str, str], identity: str) -> bytes:
    """Return an order as bytes."""
    hits = [[names[one.doc_id], one.failure, [asdict(entry) for entry in one.trace[1:]]] for one in ranking.candidates]
    reports = [asdict(replace(report, pairs=None)) for report in ranking.reports]
    content = {"identity": identity, "warnings": ranking.warnings, "reports": reports, "hits": hits}
    return zlib.compress(json.dumps(content).encode(), 1)


def _restored(content: bytes, found: Ranking, names: Sequence[str], identity: str) -> Ranking | None:
    """Return hits in a kept order, new ones last; None where it is not one, or of other models.

    A hit of the order that was not found now keeps its place, so that no later one moves to an earlier page.
    """
    try:
        kept = json.loads(zlib.decompressobj().decompress(content, MOST_CONTENT))
        if "" not in (identity, kept["identity"]) and identity != kept["identity"]:
            return None
        there = dict(zip(names, found.candidates, strict=True))
        ordered = [_as_kept(there.pop(name) if name in there else _gone(name), *one) for name, *one in kept["hits"]]
        reports = tuple(_as_read(StageReport(**report)) for report in kept["reports"])
        candidates = _in_places([*ordered, *there.values()])
        return Ranking(found.query, candidates, reports, tuple(kept["warnings"]))
    except (ValueError, TypeError, KeyError, zlib.error):  # of another version, or of somebody else
        return None


def _as_kept(hit: Candidate, failure: str, trace: Sequence[Mapping[str, Any]]) -> Candidate:
    """Return a hit with its kept scores."""
    entries = [StageScore(**{**one, "passage": Span(**one["passage"]) if one["passage"] else None}) for one in trace]
    score = entries[-1].score if entries else hit.score
    return replace(hit, score=score, trace=(*hit.trace, *entries), failure=failure)


def _gone(name: str) -> Candidate:
    """Return what stands in the place of a hit that was not found; it is in no response."""
    return Candidate(f"\0{name}", None, 0.0, 1, (StageScore(FIRST_PASS, 0.0, 1, 0.0),))


def _in_places(hits: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return hits with the ranks of their places, none of a higher ``_score`` than the one before."""
    placed, least = [], math.inf
    for rank, hit in enumerate(hits, start=1):
        *before, last = hit.trace
        if last.level + last.unit > least:
            last = replace(last, level=int(least), unit=least - int(least))
        least = last.level + last.unit
        placed.append(replace(hit, rank=rank, trace=(*before, last)))
    return tuple(placed)


def _as_read(report: StageReport) -> StageReport:
    """Return a stage's report without what was computed for the first page."""
    return replace(report, inferences=0, cached=0, encoded=0, known=0, lacking=0, took_ms=0.0)
