"""The option ``traffic``: which searches are reranked for users; `osrerank.search.shadow` applies it."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from osrerank.options.parse import is_name, is_share, read_options, unusable

SALT = "osrerank share"
"""Makes this digest of a key differ from digests of the same key for other purposes."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Which searches are reranked: a share of them. In shadow mode, the share is run again to record what would change.

    Attributes:
        share: the share of the searches that are reranked, or with ``shadow`` run again after the answer, in [0, 1];
            the others return the first pass.
        key: the id of the user or session, whose searches are all in the share or all outside; not in a settings file.
            Without a key, the query's text decides.
        shadow: whether to answer with the first pass and, after the answer, to run the search again with reranking, to
            record what that would have changed. Not together with ``interleave``.
    """

    share: float = 1.0
    key: str | None = None
    shadow: bool = False

    def __post_init__(self) -> None:
        if not is_share(self.share):
            raise unusable("traffic.share", self.share, "the share of the searches to rerank, a number from 0 to 1")
        if self.key is not None and not is_name(self.key):
            expected = "a text that is not empty, such as the session's id, or None"
            raise unusable("traffic.key", self.key, expected)
        if not isinstance(self.shadow, bool):
            raise unusable("traffic.shadow", self.shadow, "True or False")

    @classmethod
    def of(cls, value: Any, defaults: "Traffic | None" = None) -> "Traffic | None":
        """Read the ``traffic`` option of a search: a dict of options, or None for all searches.

        Args:
            value: the option's value.
            defaults: the options that a dict leaves out, so that a search can add its key to the settings file's.

        Raises:
            ConfigError: the value is neither, or a key or value in it cannot be used.
        """
        if defaults is not None and isinstance(value, Mapping):
            value = {**asdict(defaults), **value}
        return read_options(cls, value, "traffic")

    @property
    def is_chosen(self) -> bool:
        """Whether the key's searches are in the share; a larger share includes all keys of a smaller one."""
        digest = hashlib.sha256(f"{SALT}\0{self.key or ''}".encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8]) < self.share * 2**64
