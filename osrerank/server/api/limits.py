"""The limits of the work that the server accepts."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of a server; requests beyond them are refused, never truncated.

    Attributes:
        max_body_bytes: the maximum size of one request, in bytes.
        max_documents: the maximum number of documents in one request.
        max_held_bytes: the maximum size of all requests in progress together, in bytes.
        max_held_documents: the maximum number of documents that wait or are being scored. A request that arrives when
            there are no others is always accepted.
        max_wait_s: the maximum estimated wait of a request before it is scored, in seconds. A request that
            cannot be scored within its own timeout is refused, too.
        timeout_ms: the default and the maximum timeout of a request, in milliseconds.
        body_timeout_s: the timeout of a request's body, in seconds.
        threads: the number of requests, or parts of them, that are scored at once; the scorer merges their batches.
    """

    max_body_bytes: int = 32 * 2**20
    max_documents: int = 10_000
    max_held_bytes: int = 256 * 2**20
    max_held_documents: int = 20_000
    max_wait_s: float = math.inf
    timeout_ms: float = 30_000.0
    body_timeout_s: float = 30.0
    threads: int = 32
