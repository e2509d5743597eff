"""The fields with vectors of indices, found by their mappings and kept while these are believed."""

import threading
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

from opensearchpy import TransportError

from osrerank.errors import VectorsError
from osrerank.retrieval.requests import SideRequest, path_of
from osrerank.retrieval.vector_field import VectorField

KEPT_S = 60.0
"""How long a mapping is believed without being read again."""
MOST_KEPT = 1_000


class FoundVectors:
    """The fields with vectors of what is searched. Safe to use from many threads.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str | None], tuple[float, VectorField]] = {}

    def of(self, index: Any, name: str | None) -> Generator[SideRequest, Any, VectorField]:
        """Yield the request for a mapping, mostly none, and return the field.

        Args:
            index: a name, several, a pattern, or None for all.
            name: the field's; None for the one that the mapping names.

        Raises:
            VectorsError: there is no such field, or the mapping cannot be read.
            TransportError: the cluster was not reached.
        """
        key = path_of(index, "_mapping"), name
        with self._lock:
            at_s, field = self._known.get(key, (-KEPT_S, None))
        if field is not None and self._clock() - at_s < KEPT_S:
            return field
        try:
            mappings: Mapping[str, Any] = yield SideRequest("GET", key[0])
        except TransportError as error:
            if not isinstance(error.status_code, int):
                raise
            raise VectorsError(f"the mapping cannot be read ({error})", kind="field") from error
        field = VectorField.of(mappings, name)
        with self._lock:
            if len(self._known) >= MOST_KEPT:
                self._known.clear()
            self._known[key] = self._clock(), field
        return field

    def forget(self, index: Any, name: str | None) -> None:
        """Read the mapping again at the next search."""
        with self._lock:
            self._known.pop((path_of(index, "_mapping"), name), None)
