"""The option ``cutoff``, which ends a reranked list where its precision would fall."""

from dataclasses import dataclass
from typing import Any

from osrerank.options.parse import is_share, read_options, unusable


@dataclass(frozen=True, slots=True)
class Cutoff:
    """The end of a reranked list: before its precision falls below a minimum.

    Attributes:
        precision: the least share of the returned hits that must be relevant, above 0 and below 1, as the index's
            calibration estimates it (``osrerank calibrate``). It has no default.
    """

    precision: float = 0.0

    def __post_init__(self) -> None:
        if not (is_share(self.precision) and 0 < self.precision < 1):
            raise unusable("cutoff.precision", self.precision, "a share above 0 and below 1")

    @classmethod
    def of(cls, value: Any) -> "Cutoff | None":
        """Read the ``cutoff`` option of a search: a dict of options, or None.

        Raises:
            ConfigError: the value is neither, or a key or value in it cannot be used.
        """
        return read_options(cls, value, "cutoff")
