"""Sign messages, so that nobody without a key can forge or alter one on the broker.

A signature is HMAC-SHA256 (RFC 2104) over the whole message. Requests, replies and heartbeats have different derived
keys, so that one kind cannot pass for another. Fields of a message limit its replay: a request's id and deadline
(`osrerank_workers.replays`), a reply's chunk id, a heartbeat's time (`osrerank.scoring.remote.worker_registry`).
Messages are not encrypted.
"""

import hmac
import logging
from collections.abc import Sequence
from typing import Literal, Self

from osrerank._seldom import Seldom
from osrerank.errors import PayloadError
from osrerank.metrics import MESSAGES_REFUSED
from osrerank.scoring.remote.messages import MOST_BYTES
from osrerank.settings import Settings, keys_of

Kind = Literal["request", "reply", "heartbeat"]
KINDS: tuple[Kind, ...] = ("request", "reply", "heartbeat")

PURPOSE = b"osrerank workers 3 "
SIGNED = b"\xc1"
"""The first byte of a signed message, with which no MessagePack begins; the signature and the message follow it."""
SIGNATURE_BYTES = 32
LOG_EVERY_S = 60.0
"""The least time between two log lines about the same kind of refusal, in seconds; all refusals are counted."""
UNSIGNED_RISK = (
    "OSRERANK_SIGNING_KEY is not set: whoever can write to the broker can forge scores and divert requests; "
    "give clients and workers the same key"
)

logger = logging.getLogger(__name__)
_due = Seldom(LOG_EVERY_S)


class Signer:
    """Signs messages, and checks the signatures of received ones.

    Args:
        keys: messages are signed with the first key and accepted with any; without keys, they are not signed, and
            signed ones are refused.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = {kind: [hmac.digest(key, PURPOSE + kind.encode(), "sha256") for key in keys] for kind in KINDS}
        self.signs = bool(keys)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return a signer with the keys of the settings' ``signing_key``."""
        return cls(keys_of(settings.signing_key))

    def seal(self, kind: Kind, message: bytes) -> bytes:
        """Return a message behind its signature; without keys, the message alone."""
        if not self.signs:
            return message
        return SIGNED + hmac.digest(self._keys[kind][0], message, "sha256") + message

    def open(self, kind: Kind, sealed: object) -> bytes:
        """Check a message's signature, and return the message without it.

        Raises:
            PayloadError: the message is not signed, is signed with an unknown key, or is signed although this process
                has no key.
        """
        if not isinstance(sealed, bytes):
            raise PayloadError(f"a message is bytes, not {type(sealed).__name__}")
        if len(sealed) > MOST_BYTES + len(SIGNED) + SIGNATURE_BYTES:
            raise PayloadError(f"a message of {len(sealed):,} bytes is larger than allowed ({MOST_BYTES:,})")
        if not sealed.startswith(SIGNED):
            if self.signs:
                raise PayloadError(
                    "a message is not signed: give its sender the OSRERANK_SIGNING_KEY", reason="unsigned"
                )
            return sealed
        if not self.signs:
            raise PayloadError("a message is signed, and this process has no OSRERANK_SIGNING_KEY", reason="no_key")
        body = len(SIGNED) + SIGNATURE_BYTES
        signature, message = sealed[len(SIGNED) : body], sealed[body:]
        if not any(hmac.compare_digest(signature, hmac.digest(key, message, "sha256")) for key in self._keys[kind]):
            raise PayloadError("a message is not signed with a known OSRERANK_SIGNING_KEY", reason="wrong_key")
        return message


def count_refusal(kind: Kind, error: PayloadError) -> None:
    """Count a refused message by kind and reason, and log it, at most once a minute for each kind and reason."""
    MESSAGES_REFUSED.labels(kind, error.reason).inc()
    if _due.is_due((kind, error.reason)):
        logger.warning("[message-refused] refused a %s: %s; not logged again for %g s", kind, error, LOG_EVERY_S)
