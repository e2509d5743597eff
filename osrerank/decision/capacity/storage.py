"""What scores, states, vectors and messages take."""

from dataclasses import asdict, dataclass
from typing import Any

from osrerank.decision.capacity.predict import Traffic
from osrerank.decision.capacity.rates import Rates
from osrerank.scoring.cache.store import REMOTE_ENTRY_BYTES
from osrerank.settings import Settings

MEGABYTE = 1_000_000
DAY_S = 86_400
SIDE_INDEX_BYTES = 300
"""What a side index takes for a record more than the file, about: docs/states.md has 1,000 and 705 bytes."""
VECTOR_BYTES = 106
"""What OpenSearch takes for a vector beside one byte a dimension: docs/candidates.md has 490 for 384."""
MESSAGE_BYTES = 400
"""What a chunk's messages have beside its texts, about."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The score cache in Redis.

    Attributes:
        new_per_s: scores that are computed, and kept, in a second.
        redis_bytes: that they may take (``OSRERANK_CACHE_MB``).
        kept_s: how long one is kept that nobody asks for: at least, and at most.
        day_bytes: what a day's scores would take.
    """

    new_per_s: float
    redis_bytes: float
    kept_s: tuple[float, float]
    day_bytes: float


@dataclass(frozen=True, slots=True)
class States:
    """The states of all documents, each read as one text.

    Attributes:
        file_bytes: in the file, or about as much in a Redis.
        states_mb: ``OSRERANK_STATES_MB`` that keeps them all: twice the size, as the older half may go.
        side_index_bytes: in a side index.
        core_hours: of computing them.
        vectors_bytes: what an index grows by where searches find candidates by vectors, too.
    """

    file_bytes: float
    states_mb: int
    side_index_bytes: float
    core_hours: float
    vectors_bytes: float


@dataclass(frozen=True, slots=True)
class Storage:
    """What is stored and sent.

    Attributes:
        scores: the cache.
        states: None where the model has none, or the number of documents is not known.
        broker_bytes_per_s: of texts that go through the broker, where workers score whole pairs.
    """

    scores: Scores
    states: States | None
    broker_bytes_per_s: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def storage(traffic: Traffic, rates: Rates, settings: Settings, documents: int | None) -> Storage:
    """Return what a load and a collection take.

    Args:
        traffic: what is asked.
        rates: of the model.
        settings: how much scores may take, and how long they live.
        documents: of the collection; None where it is not known.
    """
    asked = traffic.searches_per_s * (1 - traffic.hit_rate)
    sent = asked * (traffic.depth * rates.document_characters + MESSAGE_BYTES)
    return Storage(_scores(asked * traffic.depth, settings), _states(rates, documents), sent)


def _scores(new_per_s: float, settings: Settings) -> Scores:
    """Return what the cache keeps: each of its two generations has half of the entries."""
    most = settings.cache_mb * MEGABYTE
    turn_s = min(most / 2 / REMOTE_ENTRY_BYTES / new_per_s, settings.cache_ttl_s / 2) if new_per_s else 0.0
    return Scores(new_per_s, most, (turn_s, 2 * turn_s), new_per_s * DAY_S * REMOTE_ENTRY_BYTES)


def _states(rates: Rates, documents: int | None) -> States | None:
    states = rates.states
    if states is None or documents is None:
        return None
    stored = documents * states.record_bytes
    return States(
        file_bytes=stored,
        states_mb=-(-round(2 * stored) // MEGABYTE),
        side_index_bytes=documents * (states.record_bytes + SIDE_INDEX_BYTES),
        core_hours=documents * states.encode_s * rates.threads / 3600,
        vectors_bytes=documents * (states.dimension + VECTOR_BYTES),
    )
