"""Describe which tokens a late-interaction model adds to a text, and which of the token vectors it keeps."""

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class TokenVectorSettings:
    """The settings of a late-interaction model that other encoders do not have.

    With the marker ``[Q]`` and an expansion to 8 tokens, the query "red wine" becomes ``[CLS] [Q] red wine [SEP] [MASK]
    [MASK] [MASK]``.

    Attributes:
        query_marker: token after a query's first special token, such as ``[Q]``. "" if queries have no marker.
        document_marker: token after a document's first special token, such as ``[D]``. "" if documents have no marker.
        expansion: token that is appended to short queries, such as ``[MASK]``, and gets a vector like any other token.
            "" if queries are not expanded.
        expanded_to: number of tokens to which short queries are expanded. 0 if queries are not expanded.
        attends_to_expansion: whether a query's own tokens attend to the appended tokens.
        skipped: tokens of a document whose vectors are dropped, such as punctuation.
        pool_factor: mean number of a document's vectors that are merged into one. 1 means that none are merged.
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
        """Whether the appended tokens attend to the query's own tokens, but not the reverse."""
        return bool(self.expansion) and not self.attends_to_expansion

    def to_json(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        defaults = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "TokenVectorSettings":
        """Read the settings from the output of `to_json`."""
        return cls(**{**content, "skipped": tuple(content.get("skipped", ()))})
