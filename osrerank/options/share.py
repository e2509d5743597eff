"""Choose a share of the searches by their keys, alike on every machine."""

import hashlib

SALT = "osrerank share"
"""Makes the digest differ from all others of the same key."""


def is_chosen(share: float, key: str) -> bool:
    """Return whether a key's searches are in a share; a larger share includes all keys of a smaller one.

    Args:
        share: in [0, 1]; 0 chooses none and 1 all.
        key: names the user or session.
    """
    digest = hashlib.sha256(f"{SALT}\0{key}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8]) < share * 2**64
