"""The option ``cutoff``, which says where a reranked list ends."""

from dataclasses import dataclass
from typing import Any

from osrerank.options.parse import is_share, read_options, unusable

CLIFF = "cliff"
EXPECTED = '"cliff", {"precision": 0.9} or None'
"""The values that the option may have, for error messages."""


@dataclass(frozen=True, slots=True)
class Cutoff:
    """Where a reranked list ends: at the largest gap in probability, or before its precision falls below a minimum.

    Attributes:
        cliff: whether the list ends at the largest gap between the probabilities of two neighbours.
        precision: the least share of the hits kept that must be relevant, above 0 and below 1, as estimated by the
            index's calibration (``osrerank calibrate``).
    """

    cliff: bool = False
    precision: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.cliff, bool):
            raise unusable("cutoff.cliff", self.cliff, "True or False")
        if self.precision is not None and not (is_share(self.precision) and 0 < self.precision < 1):
            raise unusable("cutoff.precision", self.precision, "a share above 0 and below 1")
        if self.cliff == (self.precision is not None):
            raise unusable("cutoff", {"cliff": self.cliff, "precision": self.precision}, EXPECTED)

    @classmethod
    def of(cls, value: Any) -> "Cutoff | None":
        """Read the option; None if it was not given.

        Raises:
            ConfigError: the value, or a key or value in it, cannot be used.
        """
        if value == CLIFF:
            return cls(cliff=True)
        if isinstance(value, str | bool):
            raise unusable("cutoff", value, EXPECTED)
        return read_options(cls, value, "cutoff")
