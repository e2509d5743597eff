"""Describe how a late-interaction model reads a text, and which token vectors it keeps."""

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """The settings that a late-interaction model has in addition to those of an encoder.

    Attributes:
        query_marker: token after a query's first special token, such as ``[Q]``; empty for no marker.
        document_marker: token after a document's first special token, such as ``[D]``; empty for no marker.
        expansion: token that fills short queries, such as ``[MASK]``, and has a vector like any other token; empty for
            no expansion.
        expanded_to: number of tokens to which shorter queries are filled.
        attends_to_expansion: whether the query's own tokens attend to the filling tokens.
        skipped: tokens of a document whose vectors are dropped, such as punctuation.
        pool_factor: about how many of a document's vectors are merged into one; 1 turns merging off.
    """

    query_marker: str = ""
    document_marker: str = ""
    expansion: str = ""
    expanded_to: int = 0
    attends_to_expansion: bool = False
    skipped: tuple[str, ...] = ()
    pool_factor: float = 1

    def __post_init__(self) -> None:
        if bool(self.expansion) != (self.expanded_to > 0):
            raise ValueError(f"expansion is {self.expansion!r} and expanded_to {self.expanded_to}; set both or neither")
        if not self.pool_factor >= 1:
            raise ValueError(f"pool_factor is {self.pool_factor}; it must be 1 or above")

    @property
    def hides_expansion(self) -> bool:
        """Whether the query's own tokens do not attend to the filling tokens, which attend to them."""
        return bool(self.expansion) and not self.attends_to_expansion

    def to_json(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        defaults = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "TokenVectors":
        """Return the settings that `to_json` returned as JSON."""
        return cls(**{**content, "skipped": tuple(content.get("skipped", ()))})
