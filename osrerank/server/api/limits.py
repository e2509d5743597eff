"""Limit how much the rerank API accepts: bytes and documents per request and in total, and time."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of a server. It refuses requests beyond them.

    Attributes:
        max_body_bytes: the maximum size of a request's body before and after decompression, in bytes.
        max_documents: the maximum number of documents in a request.
        max_held_bytes: the maximum size of the bodies of all requests together, in bytes.
        max_held_documents: the maximum number of documents that are waiting or being scored. A request may exceed it if
            no other request is in progress.
        max_wait_s: the maximum estimated time that a request may wait until it is scored, in seconds. A request that
            cannot be scored within its timeout is also refused.
        timeout_ms: the default and the maximum timeout of a request, in milliseconds.
        body_timeout_s: the time in which a request's body must arrive, in seconds.
        threads: the maximum number of tasks that are scored at once. A small request is one task, and a large request
            is split into several.
    """

    max_body_bytes: int = 32 * 2**20
    max_documents: int = 10_000
    max_held_bytes: int = 256 * 2**20
    max_held_documents: int = 20_000
    max_wait_s: float = math.inf
    timeout_ms: float = 30_000.0
    body_timeout_s: float = 30.0
    threads: int = 32
