"""The option ``cutoff``: remove the lowest hits, so that a minimum fraction of the returned hits is relevant."""

from dataclasses import dataclass
from typing import Any

from osrerank.options.parse import invalid_option, is_fraction, parse_options


@dataclass(frozen=True, slots=True)
class Cutoff:
    """Where a reranked list ends.

    Attributes:
        precision: the minimum fraction of the returned hits that must be relevant, such as 0.9. It must be above 0 and
            below 1, and the option is required. The fraction is estimated by the index's calibration
            (``osrerank calibrate``).
    """

    precision: float = 0.0

    def __post_init__(self) -> None:
        if not (is_fraction(self.precision) and 0 < self.precision < 1):
            raise invalid_option("cutoff.precision", self.precision, "a number above 0 and below 1")

    @classmethod
    def of(cls, value: Any) -> "Cutoff | None":
        """Parse the ``cutoff`` option: a dict of options, or None. Raises `ConfigError` if it is invalid."""
        return parse_options(cls, value, "cutoff")
