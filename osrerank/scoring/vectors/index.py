"""Store records in a side index, ``NAME-osrerank-vectors``, beside the index NAME on the same engine.

So the cluster shards and replicates the vectors, and every machine that searches finds them. The application's
documents are never written, so no right to write them is needed. A document's id is the record's key, and its only
field is the record: on OpenSearch a binary doc value, neither in ``_source`` nor indexed; on the embedded engine in
``_source``. The index is hidden, so the application's patterns do not match it.
"""

import base64
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from opensearchpy import NotFoundError, OpenSearch, RequestError

from osrerank.errors import OsrerankError
from osrerank.scoring.vectors.store import REST_S, Guard, Size

SUFFIX, OLDER_SUFFIX = "-osrerank-vectors", "-osrerank-states"
"""Suffixes of side indices: today's, and that of 0.2, whose records are the same."""
FIELD = "record"
READ_AT_ONCE = 250
"""Records per read request: some 100 KB in the profile ``standard``."""
BULK_BYTES = 4 << 20
"""Approximate bytes of records per bulk request."""
KEEP_ALIVE = "5m"
EXISTS = "resource_already_exists_exception"

logger = logging.getLogger(__name__)


def side_index(index: str) -> str:
    """Return the name of an index's side index."""
    return f"{index}{SUFFIX}"


class Form(NamedTuple):
    """The requests that an engine understands, and how to read its answers.

    Attributes:
        is_embedded: whether it is the embedded engine.
    """

    is_embedded: bool

    def settings(self) -> dict[str, Any]:
        """Return the body that creates a side index."""
        if self.is_embedded:
            return {"settings": {"index": {"hidden": True}}, "mappings": {"dynamic": False, "properties": {}}}
        binary = {"type": "binary", "doc_values": True}
        mapping = {"dynamic": False, "_source": {"enabled": False}, "properties": {FIELD: binary}}
        return {"settings": {"index": {"hidden": True, "auto_expand_replicas": "0-1"}}, "mappings": mapping}

    def reading(self, indices: Iterable[str], keys: Sequence[bytes]) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Return the path, URL parameters and body of a POST that reads records of side indices."""
        names, ids = sorted(indices), [key.hex() for key in keys]
        if self.is_embedded:
            return "/_mget", {}, {"docs": [{"_index": name, "_id": one} for name in names for one in ids]}
        body = {
            "size": len(ids),
            "query": {"ids": {"values": ids}},
            **self.wanted(),
            "track_total_hits": False,
            "sort": ["_doc"],
        }
        return f"/{','.join(names)}/_search", {"ignore_unavailable": "true", "search_pipeline": "_none"}, body

    def found(self, answer: Mapping[str, Any]) -> dict[bytes, bytes]:
        """Return the records in an answer to `reading`, by key; anything else is left out."""
        return self.records(answer["docs"] if self.is_embedded else answer["hits"]["hits"])

    def wanted(self) -> dict[str, Any]:
        """Return the part of a search's body that asks for records."""
        return {} if self.is_embedded else {"docvalue_fields": [FIELD], "_source": False}

    def records(self, entries: Iterable[Mapping[str, Any]]) -> dict[bytes, bytes]:
        """Return the records in hits, by key; anything else is left out."""
        read = (self._entry(entry) for entry in entries)
        return {key: record for key, record in read if record}

    def _entry(self, entry: Mapping[str, Any]) -> tuple[bytes, bytes]:
        place = entry.get("_source") if self.is_embedded else entry.get("fields")
        content = (place or {}).get(FIELD, "")
        try:
            encoded: str = content[0] if isinstance(content, list) else content
            whole = encoded + "=" * (-len(encoded) % 4)  # OpenSearch gives doc values without the padding
            return bytes.fromhex(entry["_id"]), base64.b64decode(whole, validate=True)
        except (AttributeError, IndexError, TypeError, ValueError):  # somebody else wrote it
            return b"", b""


def writing(index: str, records: Mapping[bytes, bytes]) -> Iterator[str]:
    """Yield the bodies of bulk requests that write records to a side index."""
    lines: list[str] = []
    size = 0
    for key, record in records.items():
        action, document = {"index": {"_index": index, "_id": key.hex()}}, {FIELD: base64.b64encode(record).decode()}
        lines.append(f"{json.dumps(action)}\n{json.dumps(document)}\n")
        size += len(record)
        if size >= BULK_BYTES:
            yield "".join(lines)
            lines, size = [], 0
    if lines:
        yield "".join(lines)


def refusal(answer: Mapping[str, Any], action: str = "index") -> str:
    """Return why a bulk request refused records, without quoting them; empty if it accepted all.

    Args:
        answer: to the request.
        action: what it asked for; what is deleted may be gone already.
    """
    accepted = (404,) if action == "delete" else ()
    lines = [line[action] for line in answer["items"]]
    refused = [line for line in lines if line["status"] >= 300 and line["status"] not in accepted]
    if not refused:
        return ""
    kind = (refused[0].get("error") or {}).get("type", "unknown")
    return f"{len(refused)} of {len(answer['items'])} records were refused: {kind}"


def every_hit(
    client: OpenSearch, index: str, body: Mapping[str, Any], *, is_embedded: bool
) -> Iterator[Mapping[str, Any]]:
    """Yield all hits that a search has at its start, in arbitrary order.

    Args:
        client: of the engine.
        index: its name.
        body: of the search; its ``size`` is that of a page.
        is_embedded: whether it is the embedded engine, which does not scroll.
    """
    body = {**body, "sort": ["_doc"]}
    if is_embedded:
        page = client.search(body=body, index=index)["hits"]["hits"]
        while page:
            yield from page
            page = client.search(body={**body, "search_after": page[-1]["sort"]}, index=index)["hits"]["hits"]
        return
    params = {"scroll": KEEP_ALIVE, "search_pipeline": "_none"}  # an index may have a pipeline of its own
    answer = client.search(body=body, index=index, params=params)
    try:
        while page := answer["hits"]["hits"]:
            yield from page
            answer = client.scroll(body={"scroll_id": answer["_scroll_id"], "scroll": KEEP_ALIVE})
    finally:
        client.clear_scroll(body={"scroll_id": [answer["_scroll_id"]]})


class IndexStore:
    """The side index of one index, for building, counting and deleting records; searches read it by themselves.

    Args:
        client: a client of the engine; the caller closes it.
        index: the application's index, by its own name.
        is_embedded: whether it is the embedded engine.
        rest_s: pause after a failure of reading, or of writing, in seconds.

    Attributes:
        beside: the application's index.
        index: the side index.
    """

    name = "index"

    def __init__(self, client: OpenSearch, index: str, *, is_embedded: bool, rest_s: float = REST_S) -> None:
        self.beside, self.index, self._older = index, side_index(index), f"{index}{OLDER_SUFFIX}"
        self._client = client
        self._form = Form(is_embedded)
        self._guard = Guard(self.name, self.index, rest_s)

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        return self._guard.read.attempt(lambda: self._read(keys), {}) if keys else {}

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
        self._make()
        for lines in writing(self.index, records):
            if reason := refusal(self._client.bulk(body=lines)):
                raise OSError(reason)
        return len(records)

    def _make(self) -> None:
        if self._client.indices.exists(index=self.index):
            return
        try:
            self._client.indices.create(index=self.index, body=self._form.settings())
        except RequestError as error:  # another process was faster
            if error.error != EXISTS:
                raise

    def size(self) -> Size:
        if not self._client.indices.exists(index=self.index):
            return Size(0, 0, 0)
        self._client.indices.refresh(index=self.index)
        count = int(self._client.count(index=self.index)["count"])
        if self._form.is_embedded:
            return Size(count, 0, 0)
        stored = self._client.indices.stats(index=self.index)["_all"]["primaries"]["store"]
        return Size(count, int(stored["size_in_bytes"]), 0)

    def take_over(self) -> int:
        """Move the records of 0.2's side index into this one; return how many there were."""
        if not self._client.indices.exists(index=self._older):
            return 0
        self._client.indices.refresh(index=self._older)
        form = self._form
        body = {"size": READ_AT_ONCE, "query": {"match_all": {}}, **form.wanted()}
        every = every_hit(self._client, self._older, body, is_embedded=form.is_embedded)
        count = 0
        while some := list(islice(every, READ_AT_ONCE)):
            count += self._write(form.records(some))
        self._client.indices.refresh(index=self.index)
        self._client.indices.delete(index=self._older)
        logger.warning(
            "[vectors-taken-over] %d document vectors were moved from %s to %s", count, self._older, self.index
        )
        return count

    def older(self) -> int:
        if not self._client.indices.exists(index=self._older):
            return 0
        return int(self._client.count(index=self._older)["count"])

    def prune(self, kept: Iterable[Sequence[bytes]]) -> int:
        wanted = {key.hex() for keys in kept for key in keys}
        if not self._client.indices.exists(index=self.index):
            return 0
        self._client.indices.refresh(index=self.index)
        body = {"size": READ_AT_ONCE, "query": {"match_all": {}}, "_source": False}
        every = every_hit(self._client, self.index, body, is_embedded=self._form.is_embedded)
        others = (hit["_id"] for hit in every if hit["_id"] not in wanted)
        while some := list(islice(others, READ_AT_ONCE)):
            answer = self._client.bulk(body=[{"delete": {"_index": self.index, "_id": one}} for one in some])
            if reason := refusal(answer, "delete"):
                raise OsrerankError(f"{self.index} was pruned only in part: {reason}")
        return self.size().records

    def drop(self) -> int:
        count = self.size().records + self.older()
        for name in (self.index, self._older):
            with suppress(NotFoundError):
                self._client.indices.delete(index=name)
        return count
