"""The stored vectors of a ranking's candidates, and the vectors that a search computes for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class CandidateVectors:
    """The vectors of a ranking's candidates.

    A record (`osrerank.vectors.records.TextRecord`) has the vectors of one text: a single one, or one per passage or
    token. Candidates with equal texts have the same record. If the deadline is near, the lowest-ranked candidates are
    left out of ``texts`` and ``keys``.

    Attributes:
        model_key: a digest of the model and of all other settings that change a text's vector.
        texts: the text of each candidate by ``doc_id``, as a `str`, or as a `LongText` if it is split into passages.
        keys: the key of each candidate's record by ``doc_id``. It is a digest of the model key and the text.
        stored_records: the records that a vector store already had, by key.
        new_records: the records that a stage computed in this search, by key.
    """

    model_key: bytes
    texts: Mapping[str, Any]
    keys: Mapping[str, bytes]
    stored_records: Mapping[bytes, Any] = field(default_factory=dict)
    new_records: Mapping[bytes, Any] = field(default_factory=dict)

    def with_stored_records(self, records: Mapping[bytes, Any]) -> "CandidateVectors":
        """Return a copy with more stored records."""
        return replace(self, stored_records={**self.stored_records, **records}) if records else self

    @property
    def missing_keys(self) -> dict[str, bytes]:
        """The keys of the candidates without a stored record, by ``doc_id``."""
        return {doc_id: key for doc_id, key in self.keys.items() if key not in self.stored_records}
