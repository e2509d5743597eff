"""Save the order of a search's hits for a minute, so that later pages continue the first page without gaps or repeats.

An order is saved only if the search for the next page might rank the hits differently:

- under a deadline, because the machine may be busier by then, or more vectors may be stored;
- after a failure of a stage;
- with the depth ``"auto"``.

Ids and scores are saved, but no texts. A later page shows only hits that the search engine returns for it, so users
see only hits that they are allowed to see.
"""

import hashlib
import json
import logging
import marshal
import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, NamedTuple

from cachetools import TTLCache

from osrerank._caches import SharedCache
from osrerank._pause import Pause
from osrerank._redis import open_redis
from osrerank.options.rerank import Rerank
from osrerank.pipeline import find_applied
from osrerank.recipe import Recipe
from osrerank.response import FIRST_PASS
from osrerank.scoring.cache.signing import Signatures
from osrerank.service import RerankService
from osrerank.types import Candidate, Ranking, Span, StageReport, StageScore
from osrerank.types.reasons import SearchWarning, WarningCode

TTL_S = 60
"""The time after its last use at which an order is deleted, in seconds."""
MAX_BYTES = 16_000_000
"""The maximum size of all orders in a process's memory. Beyond it, the least recently used orders are deleted."""
MAX_ORDER_BYTES = 1_000_000
"""The maximum size of an order. A larger order is not saved."""
MAX_JSON_BYTES = 50_000_000
"""The maximum decompressed size of an order in Redis, so that a damaged value cannot fill the memory."""
TIMEOUT_S = 0.1
"""The timeout of a call to Redis, in seconds."""
PAUSE_S = 10.0
"""How long Redis is not called after a failed call, in seconds."""
PREFIX = "osrerank:orders:3:"
"""The beginning of the keys in Redis. It contains the version of the format."""
SIGNING_PURPOSE = b"osrerank orders 1"
"""The keys for orders are derived from the signing keys and this text, so that no other signature is accepted."""
SIGNATURE_BYTES = 32
"""The size of the signature that follows an order in Redis."""
PRESENTATION = {
    "from", "from_", "size", "search_after", "_source", "_source_includes", "_source_excludes", "fields",
    "stored_fields", "docvalue_fields", "script_fields", "highlight", "explain", "version", "seq_no_primary_term",
    "aggs", "aggregations", "suggest", "profile", "track_total_hits", "timeout", "ext", "human", "pretty",
    "error_trace", "filter_path", "typed_keys", "rest_total_hits_as_int", "request_timeout", "request_cache",
    "opaque_id",
}  # fmt: skip
"""The keys of a search's body and parameters that change which hits and details it shows, but not their order."""
MAY_OVERLAP = SearchWarning(
    "this page may repeat or miss hits of earlier pages, because it was ranked differently than the first page",
    WarningCode.PAGES_APART,
)

logger = logging.getLogger(__name__)


class Order(NamedTuple):
    """The order of a first page's hits, in types that `marshal` and JSON can write.

    Attributes:
        head: a JSON text with the identity of the models, the warnings and the reports of the stages.
        hits: for each hit, its name such as "notes/7", its ``failure``, and its scores from all stages after the first
            pass.
    """

    head: str
    hits: list[Any]


class OrderStore:
    """Saves orders for a minute: in this process and, if the settings name a Redis, there for all processes.

    An order in Redis takes precedence. If Redis fails, the orders in this process are used.

    Safe to use from many threads.

    Args:
        redis_url: the URL of Redis. If None, orders are saved in this process alone.
        clock: returns the time in seconds.
        signing_keys: the first key signs the orders in Redis, and an order is used only if one of the keys signed it.
            If there are none, all orders are used.

    Attributes:
        is_empty: whether no order is saved. With Redis, it is always False, because other processes may save orders.
    """

    def __init__(
        self,
        redis_url: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        signing_keys: Sequence[bytes] = (),
    ) -> None:
        self._signatures = Signatures(signing_keys, SIGNING_PURPOSE, SIGNATURE_BYTES)
        self._redis: Any = (
            None if redis_url is None else open_redis(redis_url, connect_s=TIMEOUT_S, response_s=TIMEOUT_S)
        )
        self._redis_pause = Pause(PAUSE_S, self._log_failure)
        self._orders = SharedCache(lambda: TTLCache[str, bytes](MAX_BYTES, TTL_S, clock, getsizeof=len))
        self.is_empty = redis_url is None

    def read(self, key: str) -> Order | None:
        """Return the order saved under a key, and keep it for another minute. Return None if there is no such order.

        Raises:
            ValueError, TypeError, zlib.error: the value in Redis is not an order.
        """
        if self._redis is not None:
            replies: list[Any] = self._redis_pause.attempt(lambda: self._read_remote(key), default=[])
            if replies:  # none if Redis failed, now or a moment ago
                content_in_redis = replies[0]
                return self._from_redis(key, content_in_redis) if isinstance(content_in_redis, bytes) else None
        with self._orders as orders:
            content = orders.get(key)
            if content is not None:
                orders[key] = content  # so that it expires later
        return None if content is None else Order(*marshal.loads(content))  # noqa: S302 - this process wrote it

    def write(self, key: str, order: Order) -> None:
        """Save an order under a key, in place of an earlier one."""
        content = marshal.dumps((order.head, order.hits))  # JSON takes four times as long
        if len(content) > MAX_ORDER_BYTES:
            self.drop(key)
            return
        if self._redis is not None:
            value = self._for_redis(key, order)
            self._redis_pause.attempt(lambda: self._redis.set(PREFIX + key, value, ex=TTL_S), default=None)
        with self._orders as orders:
            orders[key] = content
            self.is_empty = False

    def drop(self, key: str) -> None:
        """Delete the order saved under a key."""
        if self._redis is not None:
            self._redis_pause.attempt(lambda: self._redis.unlink(PREFIX + key), default=None)
        with self._orders as orders:
            orders.pop(key, None)
            self.is_empty = self._redis is None and not orders

    def close(self) -> None:
        """Close the connections to Redis."""
        if self._redis is not None:
            self._redis_pause.attempt(self._redis.close, default=None)

    def _read_remote(self, key: str) -> list[Any]:
        """Return Redis's replies to two commands: the order, or None; and whether its expiry was postponed."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.get(PREFIX + key)
        pipeline.expire(PREFIX + key, TTL_S)
        replies: list[Any] = pipeline.execute()
        return replies

    def _for_redis(self, key: str, order: Order) -> bytes:
        return self._signatures.sign(key.encode(), zlib.compress(json.dumps(order).encode(), 1))

    def _from_redis(self, key: str, value: bytes) -> Order | None:
        """Return the order in a value of Redis, or None if it has no valid signature, although there is a key."""
        if self._signatures.has_key:
            content, signature = value[:-SIGNATURE_BYTES], value[-SIGNATURE_BYTES:]
            if not self._signatures.is_valid(key.encode(), content, signature):
                return None
        return Order(*json.loads(zlib.decompressobj().decompress(value, MAX_JSON_BYTES)))

    def _log_failure(self, error: Exception, is_first: bool) -> None:  # noqa: FBT001 - `Pause` passes it by position
        """Log that Redis failed. ``is_first`` is False if another thread's call failed just before."""
        if is_first:
            logger.warning(
                "[orders-away] Redis failed; for %g s, pages served by different processes may repeat or miss hits: %s",
                PAUSE_S,
                type(error).__name__,
            )


@dataclass(frozen=True, slots=True)
class PageOrder:
    """The order of one search's hits: saves it with the first page, and gives it to the later pages.

    Attributes:
        store: the store of all searches' orders.
        service: the service that holds the models.
        key_parts: the parts of the search that decide its hits and their order, such as the query and the index. The
            order is saved under a digest of them, the options and the names of the models.
    """

    store: OrderStore
    service: RerankService
    key_parts: tuple[Any, ...]

    def read(
        self, first_pass: Ranking, hits: Sequence[Mapping[str, Any]], options: Rerank, recipe: Recipe | None
    ) -> Ranking | None:
        """Return the hits of a later page's search in the saved order of the first page, or None if no order is saved.

        Args:
            first_pass: the ranking of the first pass.
            hits: the response's hits, in the order of ``first_pass``.
            options: the options of the ranking.
            recipe: the stages of the ranking. None if their models are not loaded yet.
        """
        try:
            order = self.store.read(self._key(options))
            if order is None:
                return None
            return _restore_ranking(order, first_pass, _hit_names(hits), _model_identity(recipe))
        except (ValueError, TypeError, KeyError, zlib.error):  # another version or another program wrote the value
            return None

    def save(
        self,
        ranking: Ranking,
        ids: Sequence[str],
        hits: Sequence[Mapping[str, Any]],
        options: Rerank,
        recipe: Recipe | None,
    ) -> None:
        """Save the order of a first page's hits.

        Args:
            ranking: the reranked hits.
            ids: the ids of the first pass's candidates, in its order.
            hits: the response's hits, in the same order as ``ids``.
            options: the options of the ranking.
            recipe: the stages of the ranking.
        """
        names = dict(zip(ids, _hit_names(hits), strict=True))
        self.store.write(self._key(options), _make_order(ranking, names, _model_identity(recipe)))

    def drop(self, options: Rerank) -> None:
        """Delete the saved order of an earlier first page."""
        self.store.drop(self._key(options))

    def _key(self, options: Rerank) -> str:
        settings = self.service.settings
        models = settings.model, settings.vector_model, settings.duo_model, settings.backend
        values = [*map(_without_presentation, self.key_parts), repr(options), repr(models)]
        return hashlib.blake2b(json.dumps(values, sort_keys=True, default=repr).encode(), digest_size=16).hexdigest()


def _without_presentation(value: Any) -> Any:
    """Return a body, or other part of a search, without the entries that change only what is shown of the hits."""
    value = value.to_dict() if hasattr(value, "to_dict") else value
    if not isinstance(value, Mapping):
        return value
    return {name: entry for name, entry in value.items() if name.lower() not in PRESENTATION}


def is_reproducible(ranking: Ranking, options: Rerank) -> bool:
    """Return whether the same search would rank the hits in the same order, because all stages ran in full."""
    return options.depth != "auto" and (not ranking.reports or find_applied(ranking.reports) is True)


def with_overlap_warning(ranking: Ranking, options: Rerank) -> Ranking:
    """Return a later page's ranking, with a warning if the first page may have been ranked differently."""
    if is_reproducible(ranking, options):
        return ranking
    return replace(ranking, warnings=(*ranking.warnings, MAY_OVERLAP))


def _model_identity(recipe: Recipe | None) -> str:
    """Return a text that identifies the models and their versions. It is empty if no model is loaded."""
    if recipe is None or not recipe.models:
        return ""
    try:
        return repr(recipe.identity)
    except Exception as error:  # noqa: BLE001 - no worker replies
        return type(error).__name__  # differs from every identity, because no model has ranked these hits


def _hit_names(hits: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the name of each hit in an order, such as "notes/7"."""
    return [f"{hit.get('_index')}/{hit['_id']}" for hit in hits]


def _make_order(ranking: Ranking, names: Mapping[str, str], identity: str) -> Order:
    """Return the order of a ranking, with the scores and reports of its stages.

    Args:
        ranking: the reranked hits.
        names: the name of each hit by the candidate's id.
        identity: the identity of the models that ranked the hits.
    """
    head = {
        "identity": identity,
        "warnings": [(warning, warning.code) for warning in ranking.warnings],
        "reports": [_report_values(report) for report in ranking.reports],
    }
    hits = [
        (names[candidate.doc_id], candidate.failure, [_score_values(entry) for entry in candidate.trace[1:]])
        for candidate in ranking.candidates
    ]
    return Order(json.dumps(head), hits)


def _report_values(report: StageReport) -> dict[str, Any]:
    """Return the fields of a stage's report without its pairs, which only the first page shows."""
    return {part.name: getattr(report, part.name) for part in fields(report) if part.name != "pairs"}


def _score_values(entry: StageScore) -> tuple[Any, ...]:
    """Return a stage's score as Python's numbers and texts, because `marshal` would write NumPy's numbers as bytes."""
    parts = {name: float(value) for name, value in entry.parts.items()}
    passage = None if entry.passage is None else astuple(entry.passage)
    return entry.stage, float(entry.score), entry.rank, float(entry.unit), parts, passage, entry.level, bool(entry.cut)


def _restore_ranking(order: Order, first_pass: Ranking, names: Sequence[str], identity: str) -> Ranking | None:
    """Return hits in a saved order, followed by hits that are not in it. Return None if other models ranked the order.

    If the search no longer finds a hit of the saved order, a placeholder gets its rank, so that the hits below it do
    not move to an earlier page.
    """
    head = json.loads(order.head)
    saved_identity = head["identity"]
    if identity and saved_identity and identity != saved_identity:
        return None
    remaining = dict(zip(names, first_pass.candidates, strict=True))
    ordered = [
        _restore_hit(remaining.pop(name) if name in remaining else _placeholder(name), failure, trace)
        for name, failure, trace in order.hits
    ]
    reports = tuple(_without_costs(StageReport(**report)) for report in head["reports"])
    warnings = tuple(SearchWarning(sentence, code) for sentence, code in head["warnings"])
    return Ranking(first_pass.query, _renumber([*ordered, *remaining.values()]), reports, warnings)


def _restore_hit(hit: Candidate, failure: str, trace: Sequence[Sequence[Any]]) -> Candidate:
    """Return a hit with its saved stage scores."""
    entries = [
        StageScore(stage, score, rank, unit, parts, None if passage is None else Span(*passage), level, cut)
        for stage, score, rank, unit, parts, passage, level, cut in trace
    ]
    score = entries[-1].score if entries else hit.score
    return hit._replace(score=score, trace=(*hit.trace, *entries), failure=failure)


def _placeholder(name: str) -> Candidate:
    """Return a placeholder for a hit that the search no longer finds. No response shows it."""
    first_pass_score = StageScore(FIRST_PASS, score=0.0, rank=1, unit=0.0)
    return Candidate(f"\0{name}", text=None, score=0.0, rank=1, trace=(first_pass_score,))


def _renumber(hits: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Assign ranks from 1 in the given order. If a ``_score`` exceeds the one above, lower it to the one above.

    A ``_score`` of 1.25 has the level 1 and the unit 0.25.
    """
    renumbered, score_above = [], math.inf
    for rank, hit in enumerate(hits, start=1):
        *earlier, last = hit.trace
        if last.level + last.unit > score_above:
            last = last._replace(level=int(score_above), unit=score_above - int(score_above))
        score_above = last.level + last.unit
        renumbered.append(hit._replace(rank=rank, trace=(*earlier, last)))
    return tuple(renumbered)


def _without_costs(report: StageReport) -> StageReport:
    """Return a stage's report with its counts and its time set to 0, because nothing was computed for this page."""
    return replace(report, inferences=0, cached=0, encoded=0, known=0, lacking=0, took_ms=0.0)
