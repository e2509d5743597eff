"""Estimate how long the missing vectors of an index take to build, and how much space they need.

For the estimate, some of the index's texts are encoded for a few seconds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from osrerank.client import Client
from osrerank.errors import ConfigError
from osrerank.indexing.documents import BATCH_SIZE, document_vectors
from osrerank.search.coverage import Coverage, ModelText
from osrerank.search.slow import build_command
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.store import VECTORS_OFF

WARM_UP_TEXTS = 8
"""The number of texts that are encoded before the measurement, because the first batch is slow."""
MEASURED_S = 4.0
"""The minimum duration of the measurement, in seconds. It is shorter only if the texts run out."""
UNITS = ((90, 1, "second"), (90 * 60, 60, "minute"), (48 * 3_600, 3_600, "hour"), (math.inf, 86_400, "day"))
"""The units for durations: the seconds below which a unit is used, the unit's length in seconds, and its name."""
INVERSE_GOLDEN_RATIO = 0.618
"""The inverse of the golden ratio. Its multiples modulo 1 are spread evenly, so each batch samples different texts."""


class EncodingRate(NamedTuple):
    """The measured cost of encoding texts on this machine.

    Attributes:
        characters_per_s: the number of characters encoded in a second.
        text_bytes: the mean stored size of a text's vectors, in bytes.
    """

    characters_per_s: float
    text_bytes: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """The missing vectors of an index, and the cost of building them on this machine.

    Attributes:
        coverage: the numbers of documents with and without vectors.
        build_s: the time to build the missing vectors, in seconds.
        build_bytes: the stored size of the missing vectors in bytes, without the store's overhead.
        rate: the measured speed of encoding. None if no vectors are missing.
    """

    coverage: Coverage
    build_s: float = 0.0
    build_bytes: float = 0.0
    rate: EncodingRate | None = None

    def __str__(self) -> str:
        """Describe the estimate, with the command that builds missing vectors: ``osrerank vectors build ...``."""
        index, counts = self.coverage.index, str(self.coverage)
        if not self.coverage.lacks:
            return f"{index}: {counts}"
        if self.rate is not None:
            counts = f"{counts}; about {format_duration(self.build_s)} here"
        return build_command(index, counts)

    def as_json(self) -> dict[str, Any]:
        """Return the estimate as a dictionary of JSON values."""
        coverage = self.coverage
        return {
            "documents": coverage.documents,
            "built": coverage.built,
            "looked_at": coverage.examined,
            "lacking": coverage.lacks,
            "share": coverage.share,
            "build_s": round(self.build_s, 1),
            "build_bytes": round(self.build_bytes),
        }


def estimate(client: Client, index: str) -> Estimate:
    """Count an index's missing vectors, and measure how fast this machine encodes its texts. No vectors are stored.

    Raises:
        ConfigError: the model is not a bi-encoder, or vectors are turned off.
        InferenceError: a text could not be encoded.
        opensearchpy.OpenSearchException: the index cannot be read.
    """
    vectors = document_vectors(client, index)
    has_side_indices = client.searcher.vectors is not None
    if vectors.store is None and not has_side_indices:
        raise ConfigError(VECTORS_OFF, setting="vectors", source="environment")
    coverage = client.coverage(index)
    if not coverage.texts:
        return Estimate(coverage)
    rate = measure_rate(vectors, coverage.texts)
    # Equal texts are encoded once. Assume that as large a fraction is distinct among all texts without vectors as among
    # the examined ones.
    distinct_fraction = len(coverage.texts) / coverage.examined_lacking
    n_missing_texts = coverage.lacks * distinct_fraction
    mean_characters = sum(text.characters for text in coverage.texts) / len(coverage.texts)
    build_s = n_missing_texts * mean_characters / rate.characters_per_s
    return Estimate(coverage, build_s, n_missing_texts * rate.text_bytes, rate)


def measure_rate(vectors: DocumentVectors, texts: Sequence[ModelText]) -> EncodingRate:
    """Measure the cost of encoding texts of these lengths, in batches of the size that builds use."""
    texts_by_length = sorted(texts, key=lambda text: text.characters)
    vectors.measure_cost([text.text for text in _sample_evenly(texts_by_length, WARM_UP_TEXTS, 0.5)])
    n_texts, n_characters, total_s, total_bytes = 0, 0, 0.0, 0
    size = WARM_UP_TEXTS
    while not n_texts or (total_s < MEASURED_S and n_texts < len(texts_by_length)):
        size = min(2 * size, BATCH_SIZE)  # small batches first, because a slow machine needs seconds for a large batch
        n_full_batches = n_texts / BATCH_SIZE
        batch = _sample_evenly(texts_by_length, size, offset=(n_full_batches * INVERSE_GOLDEN_RATIO) % 1)
        batch_s, batch_bytes = vectors.measure_cost([text.text for text in batch])
        total_s += batch_s
        total_bytes += batch_bytes
        n_texts += len(batch)
        n_characters += sum(text.characters for text in batch)
    return EncodingRate(n_characters / total_s, total_bytes / n_texts)


def format_duration(seconds: float) -> str:
    """Return a duration in words, such as "40 seconds" or "9 minutes"."""
    unit_s, unit = next((unit_s, unit) for max_s, unit_s, unit in UNITS if seconds < max_s)
    count = max(1, round(seconds / unit_s))
    return f"{count:,} {unit}{'' if count == 1 else 's'}"


def _sample_evenly(texts: Sequence[ModelText], count: int, offset: float) -> list[ModelText]:
    """Return up to ``count`` evenly spaced texts, shifted by ``offset`` times their distance.

    Of 100 texts, the count 4 and the offset 0.5 choose those with the indices 12, 37, 62 and 87.
    """
    step = max(1.0, len(texts) / count)
    return [texts[int((number + offset) * step)] for number in range(min(count, len(texts)))]
