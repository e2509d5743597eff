"""Cache scores, so that a pair of query and document is computed once; a missing or slow cache only costs time.

A pair that several threads of a process need at once is computed once. Processes do not wait for each other: two that
need the same pair at the same time both compute it, and both write the same score.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_client import Counter as Count

from osrerank.scoring.cache.in_flight import InFlight
from osrerank.scoring.cache.local import Kept, LocalStore, NoStore, SharedScores
from osrerank.scoring.passages import chunks_of
from osrerank.settings import Settings, keys_of
from osrerank.types import NEVER, Advice, Counts, Deadline, Scorer, Scores
from osrerank.types.scores import QUERY_CUT

MEGABYTE = 1_000_000

HITS = Count("osrerank_score_cache_hits", "Scores that need not be computed, by where they were.", ["where"])
MISSES = Count("osrerank_score_cache_misses", "Scores that were asked of the cache and not there.")


def behind_cache(scorer: Scorer, settings: Settings) -> "CachedScorer":
    """Put a scorer behind the settings' cache, which is in this process and, if the settings name one, in Redis."""
    store: SharedScores = NoStore()
    if settings.redis_url is not None and settings.cache_mb > 0:
        from osrerank.scoring.cache.signing import EntrySigner  # noqa: PLC0415 - only where scores are shared
        from osrerank.scoring.cache.store import RemoteStore  # noqa: PLC0415 - imports redis

        url, signer = settings.redis_url.get_secret_value(), EntrySigner(keys_of(settings.signing_key))
        store = RemoteStore(url, ttl_s=settings.cache_ttl_s, most_bytes=settings.cache_mb * MEGABYTE, signer=signer)
    return CachedScorer(scorer, store, LocalStore(settings.cache_local_mb * MEGABYTE))


class CachedScorer:
    """A scorer that looks scores up in this process' memory, then in Redis, and stores new ones in both.

    Cached scores are returned even after the deadline.

    Args:
        scorer: computes the scores that are not cached.
        remote: the cache that processes share, in Redis.
        local: the cache in this process; None for none.
    """

    def __init__(self, scorer: Scorer, remote: SharedScores, local: LocalStore | None = None) -> None:
        self._scorer = scorer
        self._remote = remote
        self._local = LocalStore(0) if local is None else local
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
        return chunks_of(self._scorer, query, texts)

    def score(
        self,
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        *,
        deadline: Deadline = NEVER,
    ) -> Scores:
        identity = self._scorer.identity
        keys = score_keys(identity, query, documents, tuples)
        known, fading = self._read(keys)
        absent = list(dict.fromkeys(key for key in keys if key not in known))
        if not absent:
            self._remote.write(fading)
            return _answer(keys, known, {}, tuples, identity, {"cached": len(keys)})
        own, others = self._in_flight.claim(absent)
        fresh = _Fresh({})
        try:
            fresh = self._compute(own, keys, query, documents, tuples, deadline)
        finally:
            self._in_flight.complete(own, fresh.scores if fresh.identity in ("", identity) else {})
        if fresh.identity not in ("", identity):  # the model was replaced meanwhile, so cached scores are void
            return self._scorer.score(query, documents, tuples, deadline=deadline)
        shared = {key: score for key, pending in others.items() if (score := pending.wait(deadline)) is not None}
        HITS.labels("computing").inc(len(shared))
        known |= shared
        left = [key for key in others if key not in shared]
        if left and not deadline.passed:
            more = self._compute(left, keys, query, documents, tuples, deadline)
            if more.identity not in ("", identity):
                return self._scorer.score(query, documents, tuples, deadline=deadline)
            fresh = fresh.plus(more)
        self._local.write({**shared, **fresh.scores})
        self._remote.write({**fading, **fresh.scores})
        counts = Counts.total(fresh.answers)
        counts["cached"] += _spared(keys, known, fresh.scores)
        return _answer(keys, {**known, **fresh.scores}, fresh.failures, tuples, identity, counts)

    def close(self) -> None:
        self._scorer.close()
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connections to Redis, and leave the scorer as it is."""
        self._remote.close()

    def _read(self, keys: Sequence[bytes]) -> tuple[dict[bytes, Kept], dict[bytes, Kept]]:
        """Return the cached scores by key, and those that must be rewritten to stay."""
        near = self._local.read(keys)
        asked = list(dict.fromkeys(key for key in keys if key not in near))
        far, fading = self._remote.read(asked)
        self._local.write(far)
        HITS.labels("process").inc(len(near))
        HITS.labels("redis").inc(len(far))
        MISSES.inc(len(asked) - len(far))
        return {**near, **far}, fading

    def _compute(
        self,
        wanted: Iterable[bytes],
        keys: Sequence[bytes],
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        deadline: Deadline,
    ) -> "_Fresh":
        """Score one tuple for each of the wanted keys, the first that has the key."""
        index_of = {key: index for index, key in reversed(list(enumerate(keys)))}
        ordered = sorted(wanted, key=index_of.__getitem__)
        if not ordered:
            return _Fresh({})
        asked = [tuples[index_of[key]] for key in ordered]
        answer = self._scorer.score(query, documents, asked, deadline=deadline)
        cuts = np.zeros(len(ordered), dtype=np.uint8) if answer.cuts is None else answer.cuts
        scores: dict[bytes, Kept] = {
            key: _kept(float(value), float(odds), int(cut))
            for key, value, odds, cut in zip(ordered, answer.values, answer.log_odds, cuts, strict=True)
            if np.isfinite(value)
        }
        failures = {ordered[index]: reason for index, reason in answer.failures.items()}
        return _Fresh(scores, failures, (answer,), answer.identity)


class _Fresh:
    """Scores that were just computed, by key, with the scorer's answers."""

    def __init__(
        self,
        scores: Mapping[bytes, Kept],
        failures: Mapping[bytes, str] | None = None,
        answers: tuple[Scores, ...] = (),
        identity: str = "",
    ) -> None:
        self.scores = dict(scores)
        self.failures = dict(failures or {})
        self.answers = answers
        self.identity = identity

    def plus(self, other: "_Fresh") -> "_Fresh":
        """Return these scores and the other ones together."""
        scores, failures = {**self.scores, **other.scores}, {**self.failures, **other.failures}
        return _Fresh(scores, failures, (*self.answers, *other.answers), self.identity)


def _answer(
    keys: Sequence[bytes],
    scores: Mapping[bytes, Kept],
    why: Mapping[bytes, str],
    tuples: Sequence[tuple[int, ...]],
    identity: str,
    counts: Mapping[str, Any],
) -> Scores:
    """Return the scores of all tuples, from cached and new ones; texts that were cut count in either case."""
    values, cuts = _values(keys, scores), _cuts(keys, scores)
    failures = {index: why[key] for index, key in enumerate(keys) if key in why}
    unreached = (index for index in np.flatnonzero(np.isnan(values)).tolist() if index not in failures)
    reached = next(unreached, len(keys))
    answer = Scores(values, failures, reached, identity, _odds(keys, scores), cuts)
    truncated = max(counts.get("truncated", 0), len(answer.cut_documents(tuples)))
    query_truncated = bool(counts.get("query_truncated") or (cuts & QUERY_CUT).any())
    return replace(answer, **{**counts, "truncated": truncated, "query_truncated": query_truncated})


def score_keys(identity: str, query: str, documents: Sequence[str], tuples: Sequence[tuple[int, ...]]) -> list[bytes]:
    """Return the cache key of each tuple: 16 bytes of BLAKE2b over identity, query and the tuple's texts.

    Each part is hashed first, so that texts which only together have the same characters get different keys.
    """
    start = _hash(identity.encode()) + _hash(_bytes(query))
    hashes = {index: _hash(_bytes(documents[index])) for indices in tuples for index in indices}
    return [_hash(start + b"".join(hashes[index] for index in indices)) for indices in tuples]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _spared(keys: Sequence[bytes], known: Mapping[bytes, Kept], fresh: Mapping[bytes, Kept]) -> int:
    """Return how many tuples got a score without a computation: a known one, or that of an equal tuple of the call."""
    return sum(key in known for key in keys) + sum(count - 1 for key, count in Counter(keys).items() if key in fresh)


def _values(keys: Sequence[bytes], scores: Mapping[bytes, Kept]) -> npt.NDArray[np.float32]:
    """Return the scores ``(n,)`` of the keys; NaN for a key without a score."""
    found = (scores.get(key, np.nan) for key in keys)
    return np.array([score[0] if isinstance(score, tuple) else score for score in found], dtype=np.float32)


def _odds(keys: Sequence[bytes], scores: Mapping[bytes, Kept]) -> npt.NDArray[np.float32] | None:
    """Return the log-odds ``(n,)`` of the keys; None if all are equal to the scores."""
    found = [scores.get(key, np.nan) for key in keys]
    if not any(isinstance(score, tuple) and score[1] != score[0] for score in found):
        return None
    return np.array([score[1] if isinstance(score, tuple) else score for score in found], dtype=np.float32)


def _cuts(keys: Sequence[bytes], scores: Mapping[bytes, Kept]) -> npt.NDArray[np.uint8]:
    """Return, for each key, the bits that say which texts were cut ``(n,)``, as in `Scores.cuts`."""
    found = (scores.get(key) for key in keys)
    return np.array([score[2] if isinstance(score, tuple) else 0 for score in found], dtype=np.uint8)


def _kept(value: float, odds: float, cuts: int) -> Kept:
    return value if odds == value and not cuts else (value, odds, cuts)
