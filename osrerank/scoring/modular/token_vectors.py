"""How a late-interaction model reads a text, and which of its tokens' vectors are kept."""

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """What late interaction adds to an encoder.

    Attributes:
        query_marker: the token behind a query's first special token, such as ``[Q]``; empty for none.
        document_marker: the same of a document.
        expansion: the token that short queries are filled with, such as ``[MASK]``; it has a vector like any other.
            Empty for none.
        expanded_to: how many tokens a shorter query is filled to.
        attends_to_expansion: whether the query's own tokens see the filling ones.
        skipped: tokens of a document that have no vector, such as punctuation.
        pool_factor: a document's vectors are merged to about one in so many; 1 for none.
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
            raise ValueError(f"expansion is {self.expansion!r} and expanded_to {self.expanded_to}; name both or none")
        if not self.pool_factor >= 1:
            raise ValueError(f"pool_factor is {self.pool_factor}; it must be 1 or above")

    @property
    def hides_expansion(self) -> bool:
        """Whether the filling tokens see the query's own, and these do not see them."""
        return bool(self.expansion) and not self.attends_to_expansion

    def to_json(self) -> dict[str, Any]:
        """Return the fields that do not have their default."""
        defaults = {one.name: one.default for one in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "TokenVectors":
        """Return what `to_json` wrote."""
        return cls(**{**content, "skipped": tuple(content.get("skipped", ()))})
