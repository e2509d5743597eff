"""The option ``rm3``: expand a query by pseudo-relevance feedback (RM3). `osrerank.retrieval.rm3` implements it."""

from dataclasses import dataclass
from typing import Any

from osrerank.options.parse import invalid_option, is_count, is_fraction, is_nonempty_string, parse_options


@dataclass(frozen=True, slots=True)
class Rm3:
    """How a query is expanded with terms from its best documents (feedback documents).

    Attributes:
        documents: the number of feedback documents.
        terms: the maximum number of terms that a feedback document contributes, and that are added in total.
        weight: the weight of the original query in the expanded query, in [0, 1].
        field: the field that is searched, and that the terms come from. If None, it is the first searched field that is
            not a title. A field named ``headline`` counts as a title.
        max_document_share: the maximum fraction of the index's documents that contain an added term, in [0, 1]. More
            frequent terms are not added.
        min_length: the minimum length of an added term, in characters.
        max_length: the maximum length of an added term, in characters.
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
                raise invalid_option(f"rm3.{name}", getattr(self, name), "a whole number of at least 1")
        for name in ("weight", "max_document_share"):
            if not is_fraction(getattr(self, name)):
                raise invalid_option(f"rm3.{name}", getattr(self, name), "a number in [0, 1]")
        if self.field is not None and not is_nonempty_string(self.field):
            raise invalid_option("rm3.field", self.field, "a field's name, or None")

    @classmethod
    def of(cls, value: Any) -> "Rm3 | None":
        """Parse the ``rm3`` option: True, a dict of options, or None. Raises `ConfigError` if it is invalid."""
        return parse_options(cls, value, "rm3")
