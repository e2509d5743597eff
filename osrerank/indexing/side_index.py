"""Write, count and prune the records of side indices."""

import base64
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, islice
from typing import Any

from cachetools import LRUCache
from opensearchpy import AuthorizationException, ConflictError, NotFoundError, RequestError

from osrerank.client import Client
from osrerank.errors import OsrerankError
from osrerank.types.engine import stream_of
from osrerank.vectors.index import (
    EXISTS,
    FIELD,
    MODEL,
    OLD_SUFFIX,
    POSITION,
    PREFIX,
    READ_AT_ONCE,
    RecordRequests,
    refusal,
    side_index,
    writing,
)
from osrerank.vectors.store import REST_S, Guard, Size

KEEP_ALIVE = "5m"
"""How long the cluster keeps a scroll between two requests."""
MOST_RECENT = 10_000
"""How many records that were written last are kept in memory: some 7 MB."""
MOST_MODELS = 100
"""The most models whose records are counted."""


def every_hit(client: Client, index: str, body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield all hits of a search, as of its start, in arbitrary order.

    Args:
        client: a client of the engine.
        index: the index to search.
        body: the search body; its ``size`` is that of a page.
    """
    body = {**body, "sort": ["_doc"]}
    engine = client.engine
    if engine.is_embedded:  # it does not scroll
        page = client.search(body=body, index=index)["hits"]["hits"]
        while page:
            yield from page
            page = client.search(body={**body, "search_after": page[-1]["sort"]}, index=index)["hits"]["hits"]
        return
    params = {"scroll": KEEP_ALIVE, **engine.no_pipeline}  # an index may have a pipeline of its own
    answer = client.search(body=body, index=index, params=params)
    try:
        while page := answer["hits"]["hits"]:
            yield from page
            answer = client.scroll(body={"scroll_id": answer["_scroll_id"], "scroll": KEEP_ALIVE})
    finally:
        client.clear_scroll(body={"scroll_id": [answer["_scroll_id"]]})


class IndexStore:
    """The side index of one index, for building, counting and deleting records; searches do not use this.

    Args:
        client: a client of the engine; the caller closes it.
        indices: the application's indices whose vectors are in it: an index, or those of a data stream.
        model: label of the model that writes.
        rest_s: pause after a failure of reading, or of writing, in seconds.

    Attributes:
        beside: the application's indices.
        index: the side index.
        model: label of the model that writes.
    """

    name = "index"

    def __init__(self, client: Client, indices: Sequence[str], *, model: str = "", rest_s: float = REST_S) -> None:
        self.beside, self.index = indices, side_index(indices[0])
        self._client, self.model = client, model
        self._form = RecordRequests(client.engine)
        self._guard = Guard(self.name, self.index, rest_s)
        self._recent: LRUCache[bytes, bytes] = LRUCache(MOST_RECENT)  # reads find a record only after a refresh
        self._lock = threading.Lock()

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        with self._lock:
            recent = {key: self._recent[key] for key in keys if key in self._recent}
        left = [key for key in keys if key not in recent]
        found: dict[bytes, bytes] = self._guard.read.attempt(lambda: self._read(left), {}) if left else {}
        return recent | found

    def write(self, records: Mapping[bytes, bytes]) -> int:
        return self._guard.write.attempt(lambda: self._write(records), 0) if records else 0

    def close(self) -> None:
        pass

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for start in range(0, len(keys), READ_AT_ONCE):
            path, params, body = self._form.reading([self.index], keys[start : start + READ_AT_ONCE])
            found |= self._form.found(self._client.transport.perform_request("POST", path, params=params, body=body))
        return found

    def _write(self, records: Mapping[bytes, bytes]) -> int:
        self.create()
        for lines in writing(self.index, records, self.model):
            if reason := refusal(self._client.bulk(body=lines)):
                raise OSError(reason)
        with self._lock:
            self._recent.update(records)
        return len(records)

    def create(self) -> None:
        """Create the side index, empty, if it is not there; searches fill it."""
        if self._client.indices.exists(index=self.index):
            return
        try:
            self._client.indices.create(index=self.index, body=self._form.settings())
        except RequestError as error:  # another process created it first
            if error.error != EXISTS:
                raise

    def refresh(self) -> None:
        """Refresh the side index, so that searches find what was written."""
        self._client.indices.refresh(index=self.index, ignore_unavailable=True)

    def read_position(self, key: bytes) -> tuple[bytes, Any]:
        """Return how far builds came, as bytes, empty if nothing says so; and the version for `write_position`."""
        self.refresh()
        path, params, body = self._form.reading_positions([self.index], [key])
        answer = self._client.transport.perform_request("POST", path, params=params, body=body)
        content, hit = self._form.position(answer)
        return content, (hit["_seq_no"], hit["_primary_term"]) if "_seq_no" in hit else None

    def write_position(self, key: bytes, content: bytes, version: Any) -> Any:
        """Store how far builds came; return the new version, None if another builder changed it since this version.

        The embedded engine does not compare versions: there, the last writer wins.
        """
        self.create()
        params: dict[str, Any] = {}
        if not self._form.engine.is_embedded:
            params = (
                dict(zip(("if_seq_no", "if_primary_term"), version, strict=True)) if version else {"op_type": "create"}
            )
        body = {FIELD: base64.b64encode(content).decode()}
        try:
            answer = self._client.index(index=self.index, id=f"{POSITION}{key.hex()}", body=body, params=params)
        except ConflictError:
            return None
        return answer["_seq_no"], answer["_primary_term"]

    def models(self) -> dict[str, int]:
        """Return the number of records of each model; records that name no model are left out."""
        if not self._client.indices.exists(index=self.index):
            return {}
        body = {"size": 0, "aggs": {"models": {"terms": {"field": MODEL, "size": MOST_MODELS}}}}
        found = self._client.search(index=self.index, body=body)
        buckets = found["aggregations"]["models"]["buckets"]
        return {bucket["key"]: int(bucket["doc_count"]) for bucket in buckets}

    def size(self) -> Size:
        if not self._client.indices.exists(index=self.index):
            return Size(0, 0, 0)
        self._client.indices.refresh(index=self.index)
        count = int(self._client.count(index=self.index, body={"query": {"exists": {"field": MODEL}}})["count"])
        if self._form.engine.is_embedded:
            return Size(count, 0, 0)
        stored = self._client.indices.stats(index=self.index)["_all"]["primaries"]["store"]
        return Size(count, int(stored["size_in_bytes"]), 0)

    def prune(self, kept: Iterable[Sequence[bytes]], positions: Iterable[bytes] = ()) -> int:
        """Delete all records except those of these keys, and all positions of builds except these."""
        wanted = {key.hex() for keys in kept for key in keys} | {f"{POSITION}{key.hex()}" for key in positions}
        if not self._client.indices.exists(index=self.index):
            return 0
        self._client.indices.refresh(index=self.index)
        body = {"size": READ_AT_ONCE, "query": {"match_all": {}}, "_source": False}
        every = every_hit(self._client, self.index, body)
        others = (hit["_id"] for hit in every if hit["_id"] not in wanted)
        while ids := list(islice(others, READ_AT_ONCE)):
            answer = self._client.bulk(body=[{"delete": {"_index": self.index, "_id": doc_id}} for doc_id in ids])
            if reason := refusal(answer, "delete"):
                raise OsrerankError(f"{self.index} was pruned only in part: {reason}")
        return self.size().records

    def drop(self) -> int:
        count = self.size().records
        with suppress(NotFoundError):
            self._client.indices.delete(index=self.index)
        return count


def side_stores(client: Client, names: Sequence[str], model: str = "") -> list[IndexStore]:
    """Return the side indices of the indices that these names, aliases and patterns stand for, with all their indices.

    Args:
        client: a client of the indices.
        names: names, aliases or patterns of indices.
        model: label of the model that writes.

    Raises:
        NotFoundError: there is no such index.
    """
    found = {index for name in names for index in client.indices.get_mapping(index=name)}
    for stream in {stream_of(index) for index in found} - found:
        found |= {*client.indices.get_mapping(index=stream)}
    real = [index for index in found if not index.startswith(PREFIX)]
    groups = groupby(sorted(real, key=lambda index: (side_index(index), index)), side_index)
    return [IndexStore(client, list(indices), model=model) for _, indices in groups]


def orphans(client: Client) -> list[str]:
    """Return the side indices whose index is gone, and those that older versions of osrerank named otherwise.

    None are returned if the user may not list indices.
    """
    try:
        found = client.indices.get(index=f"{PREFIX}*,*{OLD_SUFFIX}", expand_wildcards="all", ignore_unavailable=True)
    except AuthorizationException:
        return []
    sides = {name for name in found if name.startswith(PREFIX)}
    gone = [name for name in sides if not client.indices.exists(index=name.removeprefix(PREFIX))]
    mapped = {name: {*found[name]["mappings"].get("properties", ())} for name in {*found} - sides}
    old = [name for name, fields in mapped.items() if {MODEL} <= fields <= {FIELD, MODEL}]
    return sorted([*gone, *old])
