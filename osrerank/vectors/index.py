"""Store records in a side index, ``osrerank-vectors-NAME``, beside the index NAME on the same engine.

The indices of a data stream share one, named after the stream.

So the cluster shards and replicates the vectors, and every machine that searches finds them. The application's
documents are never written to, so no right to write them is needed. A document's id is the record's key; its fields are
the model's label and the record: on a cluster a binary doc value, neither in ``_source`` nor indexed; on the embedded
engine in ``_source``. The index is hidden, so patterns do not match it.
"""

import base64
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from osrerank.types.engine import Engine, stream_of

PREFIX = "osrerank-vectors-"
"""Prefix of side indices' names."""
OLD_SUFFIX = "-osrerank-vectors"
"""Suffix of the names that older versions gave them; those are read no more."""
FIELD, MODEL = "record", "model"
"""Fields of a side index's documents: the record, and the label of its model."""
READ_AT_ONCE = 250
"""Records per read request: some 100 KB in the profile ``standard``."""
BULK_BYTES = 4 << 20
"""Approximate bytes of records per bulk request."""
POSITION = "position-"
"""Prefix of the ids of documents that say how far builds came; records have other ids, and the field `MODEL`."""
LACKING, LACKING_PARTS = "lacking-", 16
"""Prefix of the ids of documents that say what searches lacked, and how many of these there may be."""
EXISTS = "resource_already_exists_exception"
"""Type of the error that an engine gives when an index to be created exists."""


def side_index(index: str) -> str:
    """Return the name of an index's side index, which is on the index's own cluster."""
    cluster, colon, name = index.rpartition(":")
    return f"{cluster}{colon}{PREFIX}{stream_of(name)}"


class RecordRequests(NamedTuple):
    """Builds the requests for records that an engine understands, and reads its answers.

    Attributes:
        engine: the engine.
    """

    engine: Engine

    def settings(self) -> dict[str, Any]:
        """Return the body that creates a side index."""
        if self.engine.is_embedded:
            named = {MODEL: {"type": "keyword"}}
            return {"settings": {"index": {"hidden": True}}, "mappings": {"dynamic": False, "properties": named}}
        fields: dict[str, Any] = {FIELD: {"type": "binary", "doc_values": True}, MODEL: {"type": "keyword"}}
        mapping = {"dynamic": False, "_source": {"enabled": False}, "properties": fields}
        no_pipelines = {"default_pipeline": "_none", "final_pipeline": "_none"}
        settings: dict[str, Any] = {"hidden": True, "auto_expand_replicas": "0-1", **no_pipelines}
        return {"settings": {"index": settings}, "mappings": mapping}

    def reading(self, indices: Iterable[str], keys: Sequence[bytes]) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Return the path, URL parameters and body of a POST that reads records of side indices."""
        return self._by_ids(sorted(indices), [key.hex() for key in keys], track_total_hits=False, sort=["_doc"])

    def reading_positions(
        self, indices: Sequence[str], keys: Sequence[bytes]
    ) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Return the path, URL parameters and body of a POST that reads what builds keep of themselves."""
        return self._by_ids(indices, [f"{POSITION}{key.hex()}" for key in keys], seq_no_primary_term=True)

    def reading_lacking(self, index: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Return the path, URL parameters and body of a POST that reads which documents searches lacked."""
        return self._by_ids([index], [f"{LACKING}{part}" for part in range(LACKING_PARTS)])

    def _by_ids(
        self, indices: Sequence[str], ids: Sequence[str], **options: Any
    ) -> tuple[str, dict[str, Any], dict[str, Any]]:
        if self.engine.is_embedded:
            return "/_mget", {}, {"docs": [{"_index": name, "_id": doc_id} for name in indices for doc_id in ids]}
        body = {"size": len(ids), "query": {"ids": {"values": ids}}, **self.wanted(), **options}
        return f"/{','.join(indices)}/_search", {"ignore_unavailable": "true", **self.engine.no_pipeline}, body

    def position(self, answer: Mapping[str, Any]) -> tuple[bytes, Mapping[str, Any]]:
        """Return the bytes in an answer to `reading_positions` of one key, empty if there are none, and the hit."""
        hits = answer["docs"] if self.engine.is_embedded else answer["hits"]["hits"]
        return (self._content(hits[0]), hits[0]) if hits else (b"", {})

    def positions(self, answer: Mapping[str, Any]) -> dict[bytes, bytes]:
        """Return what an answer to `reading_positions` has, by key."""
        entries = answer["docs"] if self.engine.is_embedded else answer["hits"]["hits"]
        return self.records({**entry, "_id": entry["_id"].removeprefix(POSITION)} for entry in entries)

    def lacking(self, answer: Mapping[str, Any]) -> dict[str, "LackingCounts"]:
        """Return what an answer to `reading_lacking` has, by the id of the document that says it."""
        entries = answer["docs"] if self.engine.is_embedded else answer["hits"]["hits"]
        contents = ((entry["_id"], self._content(entry)) for entry in entries)
        return {doc_id: read_lacking(content) for doc_id, content in contents if content}

    def found(self, answer: Mapping[str, Any]) -> dict[bytes, bytes]:
        """Return the records in an answer to `reading`, by key; anything else is left out."""
        return self.records(answer["docs"] if self.engine.is_embedded else answer["hits"]["hits"])

    def is_there(self, answer: Mapping[str, Any]) -> bool:
        """Return whether at least one of the side indices exists, by an answer to `reading`."""
        if self.engine.is_embedded:
            return any("error" not in entry for entry in answer["docs"])
        return bool(answer.get("_shards", {}).get("total", 1))

    def wanted(self) -> dict[str, Any]:
        """Return the part of a search's body that asks for records."""
        return {} if self.engine.is_embedded else {"docvalue_fields": [FIELD], "_source": False}

    def records(self, entries: Iterable[Mapping[str, Any]]) -> dict[bytes, bytes]:
        """Return the records in hits, by key; anything else is left out."""
        read = (self._entry(entry) for entry in entries)
        return {key: record for key, record in read if record}

    def _entry(self, entry: Mapping[str, Any]) -> tuple[bytes, bytes]:
        try:
            return bytes.fromhex(entry["_id"]), self._content(entry)
        except (TypeError, ValueError):  # written by another program
            return b"", b""

    def _content(self, entry: Mapping[str, Any]) -> bytes:
        """Return the bytes of a document of a side index; empty if another program wrote it."""
        fields = entry.get("_source") if self.engine.is_embedded else entry.get("fields")
        content = (fields or {}).get(FIELD, "")
        try:
            encoded: str = content[0] if isinstance(content, list) else content
            whole = encoded + "=" * (-len(encoded) % 4)  # a cluster gives doc values without the padding
            return base64.b64decode(whole, validate=True)
        except (AttributeError, IndexError, TypeError, ValueError):
            return b""


LackingCounts = Counter[tuple[str, str]]
"""Index and id of a document -> how often a search found it without a vector."""


def write_lacking(side: str, part: int, counts: Sequence[tuple[tuple[str, str], int]]) -> str:
    """Return the body of a bulk request that tells builders what searches lacked.

    The engine refuses it while builders have not yet taken what the same part said before.
    """
    action = {"create": {"_index": side, "_id": f"{LACKING}{part}"}}
    content = json.dumps([[index, doc_id, count] for (index, doc_id), count in counts])
    return f"{json.dumps(action)}\n{json.dumps({FIELD: base64.b64encode(content.encode()).decode()})}\n"


def read_lacking(content: bytes) -> LackingCounts:
    """Return the counts that `write_lacking` wrote; empty if another program wrote them."""
    try:
        return Counter({(str(index), str(doc_id)): int(count) for index, doc_id, count in json.loads(content)})
    except (ValueError, TypeError):
        return Counter()


def writing(index: str, records: Mapping[bytes, bytes], model: str) -> Iterator[str]:
    """Yield the bodies of bulk requests that write a model's records to a side index."""
    lines: list[str] = []
    size = 0
    for key, record in records.items():
        action = {"index": {"_index": index, "_id": key.hex()}}
        document = {FIELD: base64.b64encode(record).decode(), MODEL: model}
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
        answer: the answer to the request.
        action: what the request asked for; deleting a record that is gone is never a refusal.
    """
    accepted = (404,) if action == "delete" else ()
    lines = [line[action] for line in answer["items"]]
    refused = [line for line in lines if line["status"] >= 300 and line["status"] not in accepted]
    if not refused:
        return ""
    kind = (refused[0].get("error") or {}).get("type", "unknown")
    return f"{len(refused)} of {len(answer['items'])} records were refused: {kind}"
