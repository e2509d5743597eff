"""Sign cached scores, so that nobody without a signing key can forge a score in Redis.

A signature is HMAC-SHA256 (RFC 2104) over a score's cache key and value, truncated to 16 bytes. The cache key is a
digest of model, query and document (`osrerank.scoring.cache.scorer.score_keys`), so that a signed score of one document
is not valid for another.
"""

import hmac
import logging
from collections.abc import Sequence

from osrerank._log_throttle import LogThrottle

PURPOSE = b"osrerank scores 1"
"""The keys for scores are derived from the signing keys and this text.

Messages between clients and workers are signed with other derived keys, so none of them is accepted as a score.
"""
SIGNATURE_BYTES = 16
LOG_EVERY_S = 60.0
"""Minimum time between two log lines with the same reason, in seconds."""
REFUSALS = {
    "unsigned": "it is not signed: set the same OSRERANK_SIGNING_KEY for all processes that share the cache",
    "wrong_key": "it is signed with another OSRERANK_SIGNING_KEY, or it was altered",
    "no_key": "it is signed, but this process has no OSRERANK_SIGNING_KEY: set the same as in the other processes",
}
"""Why a cached score is refused, for the log, by a short name."""

logger = logging.getLogger(__name__)


class Signatures:
    """Signs values under their keys, with the signing keys of a process.

    Args:
        signing_keys: the first key signs values, and a signature by any key is valid.
        purpose: the text from which, with the signing keys, other keys are derived. So a signature for another purpose
            is not valid.
        size: the number of bytes of a signature.
    """

    def __init__(self, signing_keys: Sequence[bytes], purpose: bytes, size: int) -> None:
        self._derived_keys = [hmac.digest(key, purpose, "sha256") for key in signing_keys]
        self._size = size
        self.has_key = bool(signing_keys)

    def sign(self, key: bytes, value: bytes) -> bytes:
        """Return the value of a key, followed by its signature. Without signing keys, return the value unchanged."""
        return value + self._compute(self._derived_keys[0], key, value) if self.has_key else value

    def is_valid(self, key: bytes, value: bytes, signature: bytes) -> bool:
        """Return whether one of the signing keys made the signature of this value under this key."""
        return any(
            hmac.compare_digest(signature, self._compute(derived_key, key, value)) for derived_key in self._derived_keys
        )

    def _compute(self, derived_key: bytes, key: bytes, value: bytes) -> bytes:
        return hmac.digest(derived_key, key + value, "sha256")[: self._size]


class EntrySigner:
    """Signs the values of a cache, and verifies their signatures.

    Args:
        signing_keys: the first key signs values, and a signature by any key is accepted. If there are none, values are
            not signed, and signed values are refused.

    Attributes:
        added_bytes: how many bytes a signature adds to a value. 0 without signing keys.
    """

    def __init__(self, signing_keys: Sequence[bytes] = ()) -> None:
        self._signatures = Signatures(signing_keys, PURPOSE, SIGNATURE_BYTES)
        self.added_bytes = SIGNATURE_BYTES if signing_keys else 0
        self._log_limit = LogThrottle(LOG_EVERY_S)

    def sign(self, cache_key: bytes, value: bytes) -> bytes:
        """Return the value of a cache key, followed by its signature."""
        return self._signatures.sign(cache_key, value)

    def verify(self, cache_key: bytes, signed_value: bytes, size: int) -> bytes | None:
        """Return the value, the first ``size`` bytes. If the signature is invalid, log that and return None."""
        value, signature = signed_value[:size], signed_value[size:]
        reason = self._refusal_reason(cache_key, value, signature)
        if not reason:
            return value
        if self._log_limit.should_log(reason):
            logger.warning(
                "[score-refused] ignored a cached score, and computed it again: %s; not logged again for %g s",
                REFUSALS[reason],
                LOG_EVERY_S,
            )
        return None

    def _refusal_reason(self, cache_key: bytes, value: bytes, signature: bytes) -> str:
        """Return why the value is refused, as a key of `REFUSALS`, or "" if it is accepted."""
        if not signature:
            return "unsigned" if self._signatures.has_key else ""
        if not self._signatures.has_key:
            return "no_key"
        return "" if self._signatures.is_valid(cache_key, value, signature) else "wrong_key"
