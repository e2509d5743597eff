"""The vector records of a ranking's candidates: those that were stored before, and new ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class CandidateVectors:
    """The vector records of a ranking's candidates.

    Attributes:
        model_key: a key for the model and everything else that the vectors depend on, except the texts.
        texts: candidate's ``doc_id`` -> the text to encode, a `str` or a `LongText`; only for the first candidates if
            the deadline was too short.
        keys: candidate's ``doc_id`` -> the key of its text's record.
        known: key -> the record that was stored before, an `osrerank.vectors.records.TextRecord`.
        made: key -> the record that a stage computed.
    """

    model_key: bytes
    texts: Mapping[str, Any]
    keys: Mapping[str, bytes]
    known: Mapping[bytes, Any] = field(default_factory=dict)
    made: Mapping[bytes, Any] = field(default_factory=dict)

    def with_known(self, records: Mapping[bytes, Any]) -> "CandidateVectors":
        """Return a copy with more known records."""
        return replace(self, known={**self.known, **records}) if records else self

    @property
    def lacking(self) -> dict[str, bytes]:
        """The candidates whose records are not known, with the records' keys."""
        return {doc_id: key for doc_id, key in self.keys.items() if key not in self.known}
