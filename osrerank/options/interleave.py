"""The option ``interleave``: show two rankings on one page, to learn which one users click.

`osrerank.search.interleave` implements it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from osrerank.errors import ConfigError
from osrerank.options.parse import is_name, unusable

DIFFER = (
    "pipeline", "depth", "mono_depth", "duo_depth", "pairs", "fields",
    "separator", "blend", "blend_weight", "passages", "sentences",
)  # fmt: skip
"""The options in which the two rankings may differ: those that determine the order of the shared first pass's hits."""
MAX_NAME = 100
"""The most characters of an experiment's name."""


@dataclass(frozen=True, slots=True)
class Interleave:
    """The second ranking (team B) that is interleaved with the search's own (team A), and the user who sees the list.

    Attributes:
        others: the options in which team B differs from the search: a dict, or (name, value) pairs. In a search's
            ``rerank`` they are called ``with``.
        key: the id of the user or session; required. The same key, name and query always get the same draw, so that the
            pages of a list agree. Only a digest of the key is stored.
        name: the name of the experiment, for UBI's records; ``osrerank interleave`` reports on each name separately.
    """

    others: Mapping[str, Any] | tuple[tuple[str, Any], ...] = ()
    key: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if not is_name(self.key):
            raise unusable("interleave.key", self.key, "a text that is not empty, such as the session's id")
        name: Any = self.name  # a caller may pass anything
        if not isinstance(name, str) or len(name) > MAX_NAME:
            raise unusable("interleave.name", self.name, f"a text of at most {MAX_NAME} characters")
        if not isinstance(self.others, Mapping | tuple):
            raise unusable("interleave.with", self.others, "a dict of the options that differ")
        for option in dict(self.others):
            if option not in DIFFER:
                message = f"rerank option interleave.with cannot have {option!r}; both rankings share one first pass"
                message += f" and one call, and what may differ is {', '.join(DIFFER)}"
                raise ConfigError(message, setting=f"rerank.interleave.with.{option}", source="argument")

    @classmethod
    def of(cls, value: Any) -> "Interleave | None":
        """Read the ``interleave`` option of a search: a dict with ``with``, ``key`` and perhaps ``name``, or None.

        Raises:
            ConfigError: the value is none of these, or a key or value in it cannot be used.
        """
        if value is None or isinstance(value, cls):
            return value
        if not isinstance(value, Mapping) or not {"with", "key"} <= set(value) <= {"with", "key", "name"}:
            raise unusable("interleave", value, "a dict with the keys 'with', 'key' and perhaps 'name', or None")
        return cls(value["with"], value["key"], value.get("name", ""))
