"""Sign messages, so that nobody without a signing key can forge or alter a message on the broker.

A signature is HMAC-SHA256 (RFC 2104) over the whole message. A different key is derived for each kind of message, so a
reply cannot pass for a request. Replays are limited by the id and deadline of a request (`osrerank_workers.replays`),
the chunk id of a reply, and the time of a heartbeat (`osrerank.scoring.remote.worker_registry`). Messages are not
encrypted.
"""

import hmac
import logging
from collections.abc import Sequence
from itertools import product
from typing import Literal, Self

from osrerank._log_throttle import LogThrottle
from osrerank.errors import PayloadError
from osrerank.metrics import MESSAGES_REFUSED
from osrerank.scoring.remote.messages import MAX_MESSAGE_BYTES
from osrerank.settings import Settings, split_keys

Kind = Literal["request", "reply", "heartbeat"]
KINDS: tuple[Kind, ...] = ("request", "reply", "heartbeat")
REASONS = ("malformed", "unsigned", "no_key", "wrong_key", "expired", "replayed", "misplaced")
"""The values of `PayloadError.reason`."""

PURPOSE = b"osrerank workers 3 "
"""The key of a message is derived from this text followed by the kind of message."""
SIGNED = b"\xc1"
"""First byte of a signed message, before the signature and the content. No MessagePack begins with this byte."""
SIGNATURE_BYTES = 32
LOG_EVERY_S = 60.0
"""Minimum time between two log lines with the same kind and reason, in seconds. A metric counts all refusals."""
UNSIGNED_RISK = (
    "OSRERANK_SIGNING_KEY is not set, so everybody who can write to the broker can forge scores and divert requests; "
    "set the same key for clients and workers"
)

logger = logging.getLogger(__name__)
_log_limit = LogThrottle(LOG_EVERY_S)

for _labels in product(KINDS, REASONS):
    MESSAGES_REFUSED.labels(*_labels)  # 0 from the start: Prometheus sees no increase if a counter begins with 1


class Signer:
    """Signs messages, and verifies the signatures of received messages.

    Args:
        keys: signing keys. The first key signs messages, and a signature by any key is accepted. If there are none,
            messages are not signed, and signed messages are refused.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = {kind: [hmac.digest(key, PURPOSE + kind.encode(), "sha256") for key in keys] for kind in KINDS}
        self.has_key = bool(keys)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return a signer with the keys in the setting ``signing_key``."""
        return cls(split_keys(settings.signing_key))

    def sign(self, kind: Kind, message: bytes) -> bytes:
        """Return a message preceded by its signature. If there are no keys, return the message unchanged."""
        if not self.has_key:
            return message
        return SIGNED + hmac.digest(self._keys[kind][0], message, "sha256") + message

    def verify(self, kind: Kind, signed: object) -> bytes:
        """Verify a message's signature, and return the message without it.

        Raises:
            PayloadError: the message is too large or not signed, its key is unknown, or this process has no key.
        """
        if not isinstance(signed, bytes):
            raise PayloadError(f"a message must be bytes, not {type(signed).__name__}")
        if len(signed) > MAX_MESSAGE_BYTES + len(SIGNED) + SIGNATURE_BYTES:
            raise PayloadError(f"a message of {len(signed):,} bytes is too large; the maximum is {MAX_MESSAGE_BYTES:,}")
        if not signed.startswith(SIGNED):
            if self.has_key:
                raise PayloadError(
                    "a message is not signed; set OSRERANK_SIGNING_KEY also in the process that sends it",
                    reason="unsigned",
                )
            return signed
        if not self.has_key:
            raise PayloadError(
                "a message is signed; set its sender's OSRERANK_SIGNING_KEY also in this process", reason="no_key"
            )
        start = len(SIGNED) + SIGNATURE_BYTES
        signature, message = signed[len(SIGNED) : start], signed[start:]
        if not any(hmac.compare_digest(signature, hmac.digest(key, message, "sha256")) for key in self._keys[kind]):
            raise PayloadError(
                "a message is signed with another key; set the same OSRERANK_SIGNING_KEY in both processes",
                reason="wrong_key",
            )
        return message


def count_refusal(kind: Kind, error: PayloadError) -> None:
    """Count a refused message by kind and reason. Each kind and reason is logged at most once a minute."""
    MESSAGES_REFUSED.labels(kind, error.reason).inc()
    if _log_limit.should_log((kind, error.reason)):
        logger.warning("[message-refused] refused a %s: %s; not logged again for %g s", kind, error, LOG_EVERY_S)
