"""Which searches are in a share of the traffic: chosen by a key, alike on every machine."""

import hashlib

SALT = "osrerank share"
"""Keeps the draw apart from other digests of the same key."""


def is_chosen(share: float, key: str) -> bool:
    """Return whether the searches of a key are in a share; a greater share has all keys of a smaller one.

    Args:
        share: in [0, 1]; 0 chooses none and 1 all.
        key: of whoever searches, such as the session's id.
    """
    digest = hashlib.sha256(f"{SALT}\0{key}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8]) < share * 2**64
