"""Keep scores, so that a pair is computed once; a cache that is absent or slow costs time only.

Pairs that several threads of a process need at once are computed once. Processes do not wait for each other: two that
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
from osrerank.scoring.cache.local import Kept, LocalStore, NoStore, Store
from osrerank.scoring.passages import chunks_of
from osrerank.settings import Settings, keys_of
from osrerank.types import NEVER, Advice, Counts, Deadline, Scorer, Scores
from osrerank.types.scores import QUERY_CUT

MEGABYTE = 1_000_000

HITS = Count("osrerank_score_cache_hits", "Scores that need not be computed, by where they were.", ["where"])
MISSES = Count("osrerank_score_cache_misses", "Scores that were asked of the cache and not there.")


def behind_cache(scorer: Scorer, settings: Settings) -> "CachedScorer":
    """Return a scorer behind the settings' cache: in this process, and in Redis where they name one."""
    store: Store = NoStore()
    if settings.redis_url is not None:
        from osrerank.scoring.cache.signing import EntrySigner  # noqa: PLC0415 - only where scores are shared
        from osrerank.scoring.cache.store import RemoteStore  # noqa: PLC0415 - imports redis

        url, signer = settings.redis_url.get_secret_value(), EntrySigner(keys_of(settings.cache_key))
        store = RemoteStore(url, ttl_s=settings.cache_ttl_s, most_bytes=settings.cache_mb * MEGABYTE, signer=signer)
    return CachedScorer(scorer, store, LocalStore(settings.cache_local_mb * MEGABYTE))


class CachedScorer:
    """Looks scores up in this process' memory, then in Redis, and stores new ones in both.

    A cached score is returned even after the deadline.

    Args:
        scorer: computes what is not cached.
        remote: the scores that processes share, in Redis.
        local: the scores in this process; none are kept when absent.
    """

    def __init__(self, scorer: Scorer, remote: Store, local: LocalStore | None = None) -> None:
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
        if fresh.identity not in ("", identity):  # the model has changed since, so cached scores are void
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
        """Score the first tuple of each key."""
        place_of = {key: place for place, key in reversed(list(enumerate(keys)))}
        ordered = sorted(wanted, key=place_of.__getitem__)
        if not ordered:
            return _Fresh({})
        asked = [tuples[place_of[key]] for key in ordered]
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
    """What was computed, by key."""

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
        """Return both."""
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
    """Return the answer for all keys; what was cut counts whether or not it was scored now."""
    values, cuts = _values(keys, scores), _cuts(keys, scores)
    failures = {place: why[key] for place, key in enumerate(keys) if key in why}
    open_places = (place for place in np.flatnonzero(np.isnan(values)).tolist() if place not in failures)
    reached = next(open_places, len(keys))
    answer = Scores(values, failures, reached, identity, _odds(keys, scores), cuts)
    truncated = max(counts.get("truncated", 0), len(answer.cut_documents(tuples)))
    query_truncated = bool(counts.get("query_truncated") or (cuts & QUERY_CUT).any())
    return replace(answer, **{**counts, "truncated": truncated, "query_truncated": query_truncated})


def score_keys(identity: str, query: str, documents: Sequence[str], tuples: Sequence[tuple[int, ...]]) -> list[bytes]:
    """Return one key for each tuple: 16 bytes of BLAKE2b over identity, query and the tuple's texts.

    Each part goes in as the hash of itself, so that no two divisions of the same characters meet.
    """
    start = _hash(identity.encode()) + _hash(_bytes(query))
    hashes = {index: _hash(_bytes(documents[index])) for indices in tuples for index in indices}
    return [_hash(start + b"".join(hashes[index] for index in indices)) for indices in tuples]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _spared(keys: Sequence[bytes], known: Mapping[bytes, Kept], fresh: Mapping[bytes, Kept]) -> int:
    """Return how many tuples got a score that was known, or was computed for an equal tuple of the same call."""
    return sum(key in known for key in keys) + sum(count - 1 for key, count in Counter(keys).items() if key in fresh)


def _values(keys: Sequence[bytes], scores: Mapping[bytes, Kept]) -> npt.NDArray[np.float32]:
    """Return the scores ``(n,)``, NaN where there is none."""
    found = (scores.get(key, np.nan) for key in keys)
    return np.array([one[0] if isinstance(one, tuple) else one for one in found], dtype=np.float32)


def _odds(keys: Sequence[bytes], scores: Mapping[bytes, Kept]) -> npt.NDArray[np.float32] | None:
    """Return the log-odds ``(n,)``; None where they are the scores."""
    found = [scores.get(key, np.nan) for key in keys]
    if not any(isinstance(one, tuple) and one[1] != one[0] for one in found):
        return None
    return np.array([one[1] if isinstance(one, tuple) else one for one in found], dtype=np.float32)


def _cuts(keys: Sequence[bytes], scores: Mapping[bytes, Kept]) -> npt.NDArray[np.uint8]:
    """Return what was cut of each tuple ``(n,)``."""
    found = (scores.get(key) for key in keys)
    return np.array([one[2] if isinstance(one, tuple) else 0 for one in found], dtype=np.uint8)


def _kept(value: float, odds: float, cuts: int) -> Kept:
    return value if odds == value and not cuts else (value, odds, cuts)
