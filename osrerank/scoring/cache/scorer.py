"""Cache scores, so that each pair of query and document is scored only once.

If several threads of a process need the same score at once, one thread computes it for all. Processes do not wait for
each other: if two processes need the same score at once, both compute and store it.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_client import Counter as CounterMetric

from osrerank.scoring.cache.in_flight import InFlight
from osrerank.scoring.cache.local import CachedScore, EmptyStore, LocalStore, SharedStore
from osrerank.scoring.passages import split_into_chunks
from osrerank.settings import Settings, split_keys
from osrerank.types import NEVER, Advice, Counts, Deadline, Scorer, Scores
from osrerank.types.scores import QUERY_TRUNCATED_BIT, count_leading_attempts

MEGABYTE = 1_000_000

HITS = CounterMetric("osrerank_score_cache_hits", "Scores that need not be computed, by where they were.", ["where"])
MISSES = CounterMetric("osrerank_score_cache_misses", "Scores that were not in the cache.")


def add_cache(scorer: Scorer, settings: Settings) -> "CachedScorer":
    """Return a scorer with a cache in this process and, if the settings name a Redis, a cache in that Redis."""
    store: SharedStore = EmptyStore()
    if settings.redis_url is not None and settings.cache_mb > 0:
        from osrerank.scoring.cache.signing import EntrySigner  # noqa: PLC0415 - only where scores are shared
        from osrerank.scoring.cache.store import RedisStore  # noqa: PLC0415 - imports redis

        url, signer = settings.redis_url.get_secret_value(), EntrySigner(split_keys(settings.signing_key))
        store = RedisStore(url, ttl_s=settings.cache_ttl_s, max_bytes=settings.cache_mb * MEGABYTE, signer=signer)
    return CachedScorer(scorer, store, LocalStore(settings.cache_local_mb * MEGABYTE))


class CachedScorer:
    """A scorer that looks scores up in this process, then in Redis, and stores new scores in both.

    Cached scores are returned even after the deadline.

    Args:
        scorer: computes the scores that are not cached.
        shared: the cache in Redis, which processes share.
        local: the cache in this process.
    """

    def __init__(self, scorer: Scorer, shared: SharedStore, local: LocalStore) -> None:
        self._scorer = scorer
        self._shared = shared
        self._local = local
        self._in_flight = InFlight()

    @property
    def model(self) -> str:
        return self._scorer.model

    @property
    def identity(self) -> str:
        return self._scorer.identity

    @property
    def advice(self) -> Advice:
        return self._scorer.advice

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        return self._scorer.probabilities(logits)

    def chunks(self, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        return split_into_chunks(self._scorer, query, texts)

    def score(
        self, query: str, documents: Sequence[str], tuples: Sequence[tuple[int, ...]], *, deadline: Deadline = NEVER
    ) -> Scores:
        """Return cached scores, and compute the missing ones; see `Scorer.score`.

        This thread claims the missing keys, so that others that need them wait for it. After its own, it waits for the
        keys that others have claimed, and computes those for which the others have failed.
        """
        identity = self._scorer.identity
        keys = score_keys(identity, query, documents, tuples)
        cached_scores, expiring_scores = self._read(keys)
        missing_keys = list(dict.fromkeys(key for key in keys if key not in cached_scores))
        if not missing_keys:
            self._shared.write(expiring_scores)
            counts = {"cached": len(keys)}
            return _combine_scores(keys, cached_scores, failures={}, tuples=tuples, identity=identity, counts=counts)
        claimed_keys, pending_scores = self._in_flight.claim(missing_keys)
        new_scores = _NewScores()  # what the waiting threads get if `_compute` raises
        try:
            new_scores = self._compute(claimed_keys, keys, query, documents, tuples, deadline)
        finally:
            self._in_flight.complete(claimed_keys, new_scores.scores if new_scores.is_from(identity) else {})
        if not new_scores.is_from(identity):  # the model was replaced meanwhile, so cached scores are invalid
            return self._scorer.score(query, documents, tuples, deadline=deadline)
        awaited_scores = {key: pending.wait(deadline) for key, pending in pending_scores.items()}
        received_scores = {key: score for key, score in awaited_scores.items() if score is not None}
        HITS.labels("computing").inc(len(received_scores))
        cached_scores |= received_scores
        unanswered_keys = [key for key, score in awaited_scores.items() if score is None]
        if unanswered_keys and not deadline.passed:
            retried_scores = self._compute(unanswered_keys, keys, query, documents, tuples, deadline)
            if not retried_scores.is_from(identity):
                return self._scorer.score(query, documents, tuples, deadline=deadline)
            new_scores = new_scores.merge(retried_scores)
        self._local.write({**received_scores, **new_scores.scores})
        self._shared.write({**expiring_scores, **new_scores.scores})
        counts = Counts.total(new_scores.results)
        counts["cached"] += _count_not_computed(keys, cached_scores, new_scores.scores)
        return _combine_scores(
            keys,
            {**cached_scores, **new_scores.scores},
            failures=new_scores.failures,
            tuples=tuples,
            identity=identity,
            counts=counts,
        )

    def close(self) -> None:
        self._scorer.close()
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connections to Redis, but not the scorer."""
        self._shared.close()

    def _read(self, keys: Sequence[bytes]) -> tuple[dict[bytes, CachedScore], dict[bytes, CachedScore]]:
        """Return the cached scores by key, and those of them that will expire unless they are written again."""
        local_scores = self._local.read(keys)
        other_keys = list(dict.fromkeys(key for key in keys if key not in local_scores))
        shared_scores, expiring_scores = self._shared.read(other_keys)
        self._local.write(shared_scores)
        HITS.labels("process").inc(len(local_scores))
        HITS.labels("redis").inc(len(shared_scores))
        MISSES.inc(len(other_keys) - len(shared_scores))
        return {**local_scores, **shared_scores}, expiring_scores

    def _compute(
        self,
        keys_to_compute: Iterable[bytes],
        keys: Sequence[bytes],
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        deadline: Deadline,
    ) -> "_NewScores":
        """Score one tuple for each key. If several tuples have the same key, the first one is scored."""
        # reversed, so that the first of several tuples with the same key is kept
        index_by_key = {key: index for index, key in reversed(list(enumerate(keys)))}
        ordered_keys = sorted(keys_to_compute, key=index_by_key.__getitem__)
        if not ordered_keys:
            return _NewScores()
        selected_tuples = [tuples[index_by_key[key]] for key in ordered_keys]
        scores = self._scorer.score(query, documents, selected_tuples, deadline=deadline)
        cuts = np.zeros(len(ordered_keys), dtype=np.uint8) if scores.cuts is None else scores.cuts
        scores_by_key: dict[bytes, CachedScore] = {
            key: _as_cached_score(float(value), float(log_odds), int(cut))
            for key, value, log_odds, cut in zip(ordered_keys, scores.values, scores.log_odds, cuts, strict=True)
            if np.isfinite(value)
        }
        failures = {ordered_keys[index]: reason for index, reason in scores.failures.items()}
        return _NewScores(scores_by_key, failures, (scores,), scores.identity)


@dataclass(frozen=True, slots=True)
class _NewScores:
    """The scores that one call of `CachedScorer.score` has computed.

    Attributes:
        scores: the scores by key.
        failures: why a score could not be computed, by key.
        results: the return values of the scorer.
        identity: the identity of the model that computed the scores, or "" if it never changes or if nothing was
            computed.
    """

    scores: Mapping[bytes, CachedScore] = field(default_factory=dict)
    failures: Mapping[bytes, str] = field(default_factory=dict)
    results: tuple[Scores, ...] = ()
    identity: str = ""

    def is_from(self, identity: str) -> bool:
        """Return whether a model with this identity computed the scores."""
        return self.identity in ("", identity)

    def merge(self, other: "_NewScores") -> "_NewScores":
        """Return the scores of both objects in one."""
        scores, failures = {**self.scores, **other.scores}, {**self.failures, **other.failures}
        return _NewScores(scores, failures, (*self.results, *other.results), self.identity)


def _combine_scores(
    keys: Sequence[bytes],
    scores: Mapping[bytes, CachedScore],
    *,
    failures: Mapping[bytes, str],
    tuples: Sequence[tuple[int, ...]],
    identity: str,
    counts: Mapping[str, Any],
) -> Scores:
    """Return the scores of all tuples. Truncated texts are counted even if their scores were cached.

    Args:
        keys: the cache key of each tuple.
        scores: the cached and the new scores.
        failures: why a score could not be computed, by key.
        tuples: the indices of each tuple's documents.
        identity: identity of the model that computed the scores.
        counts: the other fields of `Scores`, such as ``{"cached": 3}``.
    """
    values, log_odds, cuts = _to_arrays(keys, scores)
    failures_by_index = {index: failures[key] for index, key in enumerate(keys) if key in failures}
    reached = count_leading_attempts(values, failures_by_index)
    combined_scores = Scores(values, failures_by_index, reached, identity, log_odds, cuts)
    # a scorer that returns no cuts counts truncated texts, and only cuts tell of those whose scores were cached
    truncated = max(counts.get("truncated", 0), len(combined_scores.truncated_documents(tuples)))
    query_truncated = bool(counts.get("query_truncated") or (cuts & QUERY_TRUNCATED_BIT).any())
    return replace(combined_scores, **{**counts, "truncated": truncated, "query_truncated": query_truncated})


def score_keys(identity: str, query: str, documents: Sequence[str], tuples: Sequence[tuple[int, ...]]) -> list[bytes]:
    """Return the cache key of each tuple: 16 bytes of BLAKE2b over identity, query and the tuple's texts.

    Each text is hashed separately first, so that texts whose concatenations are equal get different keys.
    """
    prefix = _hash(identity.encode()) + _hash(_encode(query))
    hashes = {index: _hash(_encode(documents[index])) for indices in tuples for index in indices}
    return [_hash(prefix + b"".join(hashes[index] for index in indices)) for indices in tuples]


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _count_not_computed(
    keys: Sequence[bytes], cached: Mapping[bytes, CachedScore], new: Mapping[bytes, CachedScore]
) -> int:
    """Count the tuples that were not computed, because their score was cached, or because they repeat a tuple."""
    n_cached = sum(key in cached for key in keys)
    n_repeated = sum(count - 1 for key, count in Counter(keys).items() if key in new)
    return n_cached + n_repeated


def _to_arrays(
    keys: Sequence[bytes], scores: Mapping[bytes, CachedScore]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None, npt.NDArray[np.uint8]]:
    """Return the values, log-odds and cuts ``(n,)`` of `Scores`. The value of a key without a score is NaN.

    The log-odds are None if they equal the values.
    """
    values = np.empty(len(keys), dtype=np.float32)
    log_odds = np.empty(len(keys), dtype=np.float32)
    cuts = np.zeros(len(keys), dtype=np.uint8)
    for index, key in enumerate(keys):
        score = scores.get(key, np.nan)
        if isinstance(score, tuple):
            values[index], log_odds[index], cuts[index] = score
        else:
            values[index] = log_odds[index] = score
    are_equal = np.array_equal(log_odds, values, equal_nan=True)
    return values, None if are_equal else log_odds, cuts


def _as_cached_score(value: float, log_odds: float, cut: int) -> CachedScore:
    """Return only the value if nothing was truncated and the log-odds equal it."""
    return value if log_odds == value and not cut else (value, log_odds, cut)
