"""The document vectors of a ranking's candidates, as records: the form in which vectors are stored."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class CandidateVectors:
    """The vector records of a ranking's candidates.

    If there is little time before the deadline, ``texts`` and ``keys`` contain only the first candidates.

    Attributes:
        model_key: a digest of everything that determines a vector besides the text, above all the model.
        texts: the text to encode for each ``doc_id``, a `str` or a `LongText`.
        keys: the key of the text's record for each ``doc_id``.
        stored_records: the records that were in a store, by key, as `osrerank.vectors.records.TextRecord`.
        new_records: the records that a stage computed in this search, by key.
    """

    model_key: bytes
    texts: Mapping[str, Any]
    keys: Mapping[str, bytes]
    stored_records: Mapping[bytes, Any] = field(default_factory=dict)
    new_records: Mapping[bytes, Any] = field(default_factory=dict)

    def with_stored(self, records: Mapping[bytes, Any]) -> "CandidateVectors":
        """Return a copy with more stored records."""
        return replace(self, stored_records={**self.stored_records, **records}) if records else self

    @property
    def missing_keys(self) -> dict[str, bytes]:
        """The keys of the texts without a stored record, by ``doc_id``."""
        return {doc_id: key for doc_id, key in self.keys.items() if key not in self.stored_records}
