"""Choose a share of the searches by a digest of their keys, so that every machine chooses the same ones."""

import hashlib

SALT = "osrerank share"
"""Makes this digest of a key differ from digests of the same key for other purposes."""


def is_chosen(share: float, key: str) -> bool:
    """Return whether a key's searches are in the share; a larger share includes all keys of a smaller one.

    Args:
        share: in [0, 1]; 0 chooses none and 1 all.
        key: identifies the user or session.
    """
    digest = hashlib.sha256(f"{SALT}\0{key}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8]) < share * 2**64
