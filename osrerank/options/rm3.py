"""The option ``rm3``: how a query is expanded by pseudo-relevance feedback; `osrerank.retrieval.rm3` implements it."""

from dataclasses import dataclass
from typing import Any

from osrerank.options.parse import is_count, is_name, is_share, read_options, unusable


@dataclass(frozen=True, slots=True)
class Rm3:
    """How a query is expanded with terms of the documents that it finds.

    Attributes:
        documents: the number of feedback documents.
        terms: the number of terms kept of each feedback document, and of all of them together.
        weight: the weight of the original query in the expanded one, in [0, 1].
        field: the field that is searched and that the terms come from; None for the first searched field whose name is
            not like a title's.
        max_document_share: the largest share of the documents that a feedback term may occur in, in [0, 1].
        min_length: the length of the shortest feedback term, in characters.
        max_length: the length of the longest feedback term, in characters.
    """

    documents: int = 10
    terms: int = 10
    weight: float = 0.5
    field: str | None = None
    max_document_share: float = 0.1
    min_length: int = 2
    max_length: int = 20

    def __post_init__(self) -> None:
        for name in ("documents", "terms", "min_length", "max_length"):
            if not is_count(getattr(self, name)):
                raise unusable(f"rm3.{name}", getattr(self, name), "a count from 1 on")
        for name in ("weight", "max_document_share"):
            if not is_share(getattr(self, name)):
                raise unusable(f"rm3.{name}", getattr(self, name), "a number in [0, 1]")
        if self.field is not None and not is_name(self.field):
            raise unusable("rm3.field", self.field, "a field's name, or None")

    @classmethod
    def of(cls, value: Any) -> "Rm3 | None":
        """Read the ``rm3`` option of a search: True, a dict of options, or None.

        Raises:
            ConfigError: the value is none of these, or a key or value in it cannot be used.
        """
        return read_options(cls, value, "rm3")
