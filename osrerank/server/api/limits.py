"""The limits of the work that the server accepts."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of a server; requests beyond them are refused, never cut.

    Attributes:
        max_body_bytes: the largest size of one request, in bytes.
        max_documents: the most documents of one request.
        max_held_bytes: the most bytes of all requests that are being read or answered.
        max_held_documents: the most documents that wait or are being scored; a single request is always accepted.
        max_wait_s: the longest time that a request may be expected to wait before it is scored, in seconds; its own
            time limit counts, too.
        timeout_ms: the time limit of a request that sets none, and the longest that one may set, in milliseconds.
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
