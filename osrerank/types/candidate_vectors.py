"""The stored form of the document vectors of a ranking's candidates, which `osrerank.vectors` calls records."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class CandidateVectors:
    """The vector records of a ranking's candidates.

    Under a short deadline, ``texts`` and ``keys`` contain only the first candidates.

    Attributes:
        model_key: a digest of the model and of everything else that the vectors depend on except the texts.
        texts: the text to encode, a `str` or a `LongText`, by ``doc_id``.
        keys: the key of the text's record, by ``doc_id``.
        stored_records: the records that were in a store, `osrerank.vectors.records.TextRecord`, by key.
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
        """The keys of the records that are not stored, by ``doc_id``."""
        return {doc_id: key for doc_id, key in self.keys.items() if key not in self.stored_records}
