"""Sign cached scores, so that nobody without a signing key can forge a score in Redis, or move it to another pair.

A signature is HMAC-SHA256 (RFC 2104) over a score's cache key and value, truncated to 16 bytes. The cache key is a
digest of model, query and document (`osrerank.scoring.cache.scorer.score_keys`), so a score is valid only for the pair
that was scored.
"""

import hmac
import logging
from collections.abc import Sequence

from osrerank._log_throttle import LogThrottle

PURPOSE = b"osrerank scores 1"
"""What signing keys are derived for, so that a signed score is no valid message between clients and workers."""
SIGNATURE_BYTES = 16
LOG_EVERY_S = 60.0
"""Minimum time between two log lines with the same reason, in seconds."""
REFUSALS = {
    "unsigned": "it is not signed: set the same OSRERANK_SIGNING_KEY for all processes that share the cache",
    "wrong_key": "it is not signed with a known OSRERANK_SIGNING_KEY, or it was altered",
    "no_key": "it is signed, and this process has no OSRERANK_SIGNING_KEY",
}
"""Why a cached score is refused, by the reason's short name."""

logger = logging.getLogger(__name__)


class EntrySigner:
    """Signs cached values, and verifies their signatures.

    Args:
        keys: signing keys. The first key signs values, and a signature by any key is accepted. If there are none,
            values are not signed, and signed values are refused.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = [hmac.digest(key, PURPOSE, "sha256") for key in keys]
        self.added_bytes = SIGNATURE_BYTES if keys else 0
        self._log_limit = LogThrottle(LOG_EVERY_S)

    def sign(self, key: bytes, value: bytes) -> bytes:
        """Return the value of a cache key, followed by its signature."""
        return value + _signature(self._keys[0], key, value) if self._keys else value

    def verify(self, key: bytes, signed: bytes, size: int) -> bytes | None:
        """Return the value, the first ``size`` bytes. If the signature is invalid, log that and return None."""
        value, signature = signed[:size], signed[size:]
        reason = self._refusal_reason(key, value, signature)
        if not reason:
            return value
        if self._log_limit.should_log(reason):
            logger.warning(
                "[score-refused] ignored a cached score, and computed it again: %s; not logged again for %g s",
                REFUSALS[reason],
                LOG_EVERY_S,
            )
        return None

    def _refusal_reason(self, key: bytes, value: bytes, signature: bytes) -> str:
        """Return the reason to refuse a value, as a key of `REFUSALS`. Returns "" if the signature is valid."""
        if not signature:
            return "unsigned" if self._keys else ""
        if not self._keys:
            return "no_key"
        is_valid = any(hmac.compare_digest(signature, _signature(secret, key, value)) for secret in self._keys)
        return "" if is_valid else "wrong_key"


def _signature(secret: bytes, key: bytes, value: bytes) -> bytes:
    return hmac.digest(secret, key + value, "sha256")[:SIGNATURE_BYTES]
