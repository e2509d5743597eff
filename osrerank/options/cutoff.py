"""The option ``cutoff``: end a reranked list before its precision falls below a minimum."""

from dataclasses import dataclass
from typing import Any

from osrerank.options.parse import invalid_option, is_share, parse_options


@dataclass(frozen=True, slots=True)
class Cutoff:
    """Where a reranked list ends.

    Attributes:
        precision: the minimum share of the returned hits that must be relevant, above 0 and below 1. The index's
            calibration (``osrerank calibrate``) estimates the share. This option is required.
    """

    precision: float = 0.0

    def __post_init__(self) -> None:
        if not (is_share(self.precision) and 0 < self.precision < 1):
            raise invalid_option("cutoff.precision", self.precision, "a share above 0 and below 1")

    @classmethod
    def of(cls, value: Any) -> "Cutoff | None":
        """Parse the ``cutoff`` option: a dict of options, or None. Raises `ConfigError` if it is invalid."""
        return parse_options(cls, value, "cutoff")
