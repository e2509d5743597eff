"""What is known of the stored vectors of a ranking's candidates."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class CandidateVectors:
    """What is known of the vectors of a ranking's candidates; a candidate is named by its ``doc_id``.

    Attributes:
        model_key: stands for the model and all else that the vectors depend on except the texts.
        texts: candidate -> the text that is encoded, a `str` or a `LongText`; only of the first candidates if a
            deadline was too short.
        keys: candidate -> the key of that text's record.
        known: key -> a record that was stored before, `osrerank.vectors.records.Kept`.
        made: key -> a record that a stage made.
    """

    model_key: bytes
    texts: Mapping[str, Any]
    keys: Mapping[str, bytes]
    known: Mapping[bytes, Any] = field(default_factory=dict)
    made: Mapping[bytes, Any] = field(default_factory=dict)

    def knowing(self, records: Mapping[bytes, Any]) -> "CandidateVectors":
        """Return a copy that knows more records."""
        return replace(self, known={**self.known, **records}) if records else self

    @property
    def lacking(self) -> dict[str, bytes]:
        """The candidates whose records are not known, with the records' keys."""
        return {doc_id: key for doc_id, key in self.keys.items() if key not in self.known}
