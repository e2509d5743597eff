"""Where candidates come from besides the first pass's query; `osrerank.search.union` finds them."""

from dataclasses import dataclass
from typing import Any

from osrerank.options.parse import is_count, is_name, read_options, unusable

MAX_VECTORS = 1_000


@dataclass(frozen=True, slots=True)
class Candidates:
    """The second source of candidates.

    Attributes:
        vectors: documents whose vectors are nearest to the query's, 1 to 1,000.
        field: the field that has the vectors; None for the one that the mapping names, else ``osrerank_vector``.
    """

    vectors: int = 100
    field: str | None = None

    def __post_init__(self) -> None:
        if not is_count(self.vectors) or self.vectors > MAX_VECTORS:
            raise unusable("candidates.vectors", self.vectors, f"a count from 1 to {MAX_VECTORS:,}")
        if self.field is not None and not is_name(self.field):
            raise unusable("candidates.field", self.field, "a field's name or None")

    @classmethod
    def of(cls, value: Any) -> "Candidates | None":
        """Read the ``candidates`` option of a search: True, a dict of options, or None.

        Raises:
            ConfigError: it is none of these, or a key or value in it cannot be used.
        """
        return read_options(cls, value, "candidates")
