"""Let what several threads need at the same time be computed by one of them."""

import threading
from collections.abc import Iterable, Mapping

from osrerank._platform import renew_after_fork
from osrerank.types import Deadline


class Flight:
    """A score that is being computed."""

    def __init__(self) -> None:
        self._landed = threading.Event()
        self._value: float | None = None

    def land(self, value: float | None) -> None:
        """Say what came of it: None for no score."""
        self._value = value
        self._landed.set()

    def wait(self, deadline: Deadline) -> float | None:
        """Return the score; None when it failed or does not come in time."""
        remaining_s = None if deadline.at_s is None else max(0.0, deadline.remaining_s())
        return self._value if self._landed.wait(remaining_s) else None


class Flights:
    """What is being computed in this process, by key."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget what is being computed, as a forked child must: its parent's threads will not land anything there."""
        self._flights: dict[bytes, Flight] = {}
        self._lock = threading.Lock()

    def board(self, keys: Iterable[bytes]) -> tuple[list[bytes], dict[bytes, Flight]]:
        """Return the keys that the caller must compute, and land, and the flights of those that others do."""
        own: list[bytes] = []
        others: dict[bytes, Flight] = {}
        with self._lock:
            for key in keys:
                flight = self._flights.get(key)
                if flight is not None:
                    others[key] = flight
                else:
                    self._flights[key] = Flight()
                    own.append(key)
        return own, others

    def land(self, keys: Iterable[bytes], scores: Mapping[bytes, float]) -> None:
        """Give the scores of own keys to who waits for them; a key without one failed."""
        with self._lock:
            flights = [(self._flights.pop(key), scores.get(key)) for key in keys]
        for flight, score in flights:
            flight.land(score)
