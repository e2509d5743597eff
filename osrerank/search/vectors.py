"""Document vectors that a search reads from side indices, and writes there before it returns."""

from collections import defaultdict
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from opensearchpy import ConnectionTimeout, RequestError, TransportError

from osrerank.retrieval.requests import SideRequest
from osrerank.search.call import Reranked
from osrerank.search.step import Scoring
from osrerank.vectors.index import EXISTS, READ_AT_ONCE, Form, refusal, side_index, writing
from osrerank.vectors.records import FetchedVectors
from osrerank.vectors.store import Guard

REQUEST_S = 2.0
"""The longest time that a search gives a request for vectors, in seconds."""
SHORT_S = 0.05
"""With less time left after a request has timed out, the deadline was short, and the cluster is not to blame."""
MOST_GUARDS = 1000
"""Indices, or groups of them that are searched together, whose failures are remembered."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a search found in its side indices.

    Attributes:
        vectors: the records.
        places: the side index that each key belongs to.
    """

    vectors: FetchedVectors
    places: Mapping[bytes, str]


class SideVectors:
    """Reads and writes the side indices of what is searched; a cluster that refuses costs time only.

    Args:
        is_embedded: whether the engine is the embedded one.
    """

    def __init__(self, *, is_embedded: bool) -> None:
        self._form = Form(is_embedded)
        self._guard = lru_cache(MOST_GUARDS)(partial(Guard, "index"))

    def around(self, call: Reranked, response: Any) -> Generator[SideRequest | Scoring, Any, Any]:
        """Yield the steps that rerank a response with the vectors of its hits, and return the call's answer."""
        brought = yield from self._read(call, response)
        answer = yield Scoring(partial(call.finish, response, brought.vectors if brought else None))
        if brought:
            yield from self._write(call, brought)
        return answer

    def _read(self, call: Reranked, response: Any) -> Generator[SideRequest | Scoring, Any, Fetched | None]:
        """Yield the requests for the vectors of a response's hits, and return them; None where none are needed."""
        if not _timeout_s(call):
            return None
        keys: Mapping[bytes, str] = yield Scoring(partial(call.by.vector_keys, response))
        places = {key: side_index(index) for key, index in keys.items()}
        every, names = list(places), sorted(set(places.values()))
        guard = self._guard(",".join(names))
        if not every or guard.read.is_on:
            return None
        found: dict[bytes, bytes] = {}
        for start in range(0, len(every), READ_AT_ONCE):
            if not (timeout_s := _timeout_s(call)):
                break
            path, params, body = self._form.reading(names, every[start : start + READ_AT_ONCE])
            try:
                answer = yield SideRequest("POST", path, body, {**params, "request_timeout": timeout_s})
            except TransportError as error:
                if call.by.deadline.remaining_s() > SHORT_S or not isinstance(error, ConnectionTimeout):
                    guard.read.begin(error)
                return None
            found |= self._form.found(answer)
        return Fetched(FetchedVectors(found), places)

    def _write(self, call: Reranked, brought: Fetched) -> Generator[SideRequest, Any, None]:
        """Yield the requests that write what a search computed, as far as its deadline leaves time."""
        by_index: defaultdict[str, dict[bytes, bytes]] = defaultdict(dict)
        for key, record in brought.vectors.new.items():
            if key in brought.places:
                by_index[brought.places[key]][key] = record
        for index, records in by_index.items():
            guard = self._guard(index)
            if guard.write.is_on:
                continue
            try:
                refused = yield from self._write_to(call, index, records)
            except TransportError as error:
                if call.by.deadline.remaining_s() > SHORT_S or not isinstance(error, ConnectionTimeout):
                    guard.write.begin(error)
            else:
                if refused:
                    guard.write.begin(OSError(refused))

    def _write_to(self, call: Reranked, index: str, records: Mapping[bytes, bytes]) -> Generator[SideRequest, Any, str]:
        """Yield the requests that write to a side index, and return why a record was refused; empty where none was."""
        made = False
        for lines in writing(index, records):
            if not (timeout_s := _timeout_s(call)):
                break
            made = made or (yield from self._make(index, timeout_s))
            answer = yield SideRequest("POST", "/_bulk", lines, {"request_timeout": timeout_s})
            if reason := refusal(answer):
                return reason
        return ""

    def _make(self, index: str, timeout_s: float) -> Generator[SideRequest, Any, bool]:
        """Yield the requests that make a side index where there is none: a bulk request would map it otherwise."""
        if not (yield SideRequest("HEAD", f"/{index}", params={"request_timeout": timeout_s})):
            try:
                yield SideRequest("PUT", f"/{index}", self._form.settings(), {"request_timeout": timeout_s})
            except RequestError as error:  # another search was faster
                if error.error != EXISTS:
                    raise
        return True


def _timeout_s(call: Reranked) -> float:
    """Return how long a request of a search may take; 0 after its deadline."""
    return min(max(call.by.deadline.remaining_s(), 0.0), REQUEST_S)
