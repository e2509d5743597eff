"""The option ``interleave``: mix the hits of two rankings on one page, to find out which ranking users prefer.

`osrerank.search.interleave` implements it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from osrerank.errors import ConfigError
from osrerank.options.parse import invalid_option, is_nonempty_string

SECOND_RANKING_OPTIONS = (
    "pipeline", "depth", "mono_depth", "duo_depth", "pairs", "fields",
    "separator", "blend", "blend_weight", "passages", "sentences",
)  # fmt: skip
"""The options in which the second ranking can differ. Both rankings reorder the hits of the same first pass."""
MAX_NAME_CHARACTERS = 100
"""The maximum length of an experiment's name."""


@dataclass(frozen=True, slots=True)
class Interleave:
    """A second ranking (team B in the response), which is interleaved with the ranking of the search (team A).

    Attributes:
        others: the options in which the second ranking differs from the first, as a dict or (name, value) pairs. A
            search gives them as ``with``: ``{"with": {"pipeline": "vectors"}, "key": session_id}``.
        key: the id of the user or session. It is required. Key, name and query seed the random mixture, so that all
            pages of a search come from the same mixed list. Only a digest of the key is stored.
        name: the experiment's name in UBI records (User Behavior Insights). ``osrerank interleave`` reports on each
            experiment separately.
    """

    others: Mapping[str, Any] | tuple[tuple[str, Any], ...] = ()
    key: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if not is_nonempty_string(self.key):
            raise invalid_option("interleave.key", self.key, "a non-empty string, such as the session's id")
        name: Any = self.name  # a caller might pass another type
        if not isinstance(name, str) or len(name) > MAX_NAME_CHARACTERS:
            raise invalid_option("interleave.name", self.name, f"a string of at most {MAX_NAME_CHARACTERS} characters")
        if not isinstance(self.others, Mapping | tuple):
            raise invalid_option("interleave.with", self.others, "a dict of options for team B")
        for option in dict(self.others):
            if option not in SECOND_RANKING_OPTIONS:
                message = (
                    f"rerank option interleave.with cannot override {option!r}, because both rankings share one first "
                    f"pass and one call; it can override {', '.join(SECOND_RANKING_OPTIONS)}"
                )
                raise ConfigError(message, setting=f"rerank.interleave.with.{option}", source="argument")

    @classmethod
    def of(cls, value: Any) -> "Interleave | None":
        """Parse the ``interleave`` option of a search: a dict with ``with``, ``key`` and optionally ``name``, or None.

        Raises:
            ConfigError: the value has another type, an unknown key, or an invalid value.
        """
        if value is None or isinstance(value, cls):
            return value
        if not isinstance(value, Mapping) or not {"with", "key"} <= set(value) <= {"with", "key", "name"}:
            raise invalid_option("interleave", value, "a dict with 'with', 'key' and optionally 'name', or None")
        return cls(value["with"], value["key"], value.get("name", ""))
