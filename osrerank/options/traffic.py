"""The option ``traffic``: rerank only some of the searches, or rerank them in the background (shadow mode).

`osrerank.search.shadow` implements shadow mode.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from osrerank.options.parse import invalid_option, is_fraction, is_nonempty_string, parse_options

SALT = "osrerank share"
"""A prefix of the hashed keys. Another program that splits the same keys by a hash thus splits them differently."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Which searches are reranked, and whether users see the reranked hits.

    Attributes:
        share: the fraction of the searches that are reranked, in [0, 1]. The other searches return the first pass.
        key: the id of the user or session. Either all searches with the same key are reranked, or none of them is. If
            None, the query is the key. A settings file cannot set it.
        shadow: whether every search returns the first pass. The chosen searches are then reranked in the background, to
            record how reranking would change the order. It cannot be combined with ``interleave``.
    """

    share: float = 1.0
    key: str | None = None
    shadow: bool = False

    def __post_init__(self) -> None:
        if not is_fraction(self.share):
            raise invalid_option("traffic.share", self.share, "a number in [0, 1], the share of the searches to rerank")
        if self.key is not None and not is_nonempty_string(self.key):
            raise invalid_option("traffic.key", self.key, "a non-empty string, such as the session's id, or None")
        if not isinstance(self.shadow, bool):
            raise invalid_option("traffic.shadow", self.shadow, "True or False")

    @classmethod
    def of(cls, value: Any, defaults: "Traffic | None" = None) -> "Traffic | None":
        """Parse the ``traffic`` option of a search.

        Args:
            value: a dict of options, or None to rerank all searches.
            defaults: the values of the options that the dict leaves out, usually from the settings file.

        Raises:
            ConfigError: the value has another type, an unknown key, or an invalid value.
        """
        if defaults is not None and isinstance(value, Mapping):
            value = {**asdict(defaults), **value}
        return parse_options(cls, value, "traffic")

    @property
    def is_chosen(self) -> bool:
        """Whether searches with this key are reranked. A chosen key remains chosen if ``share`` is increased."""
        # before a search reads this, it has replaced the key None by its query
        digest = hashlib.sha256(f"{SALT}\0{self.key or ''}".encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8]) < self.share * 2**64
