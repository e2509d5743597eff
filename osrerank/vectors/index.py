"""The format of side indices: ``osrerank-vectors-NAME`` has the records of the index NAME, on the same engine.

The cluster shards and replicates the vectors, and every machine that searches finds them. Nobody needs the right to
write to the application's index. The indices of a data stream share a side index, which is named after the stream.

The id of a document is the key of a record. Its fields are the label of the model and the record: on a cluster as a
binary doc value, which is neither in ``_source`` nor indexed; in the embedded engine in ``_source``. A side index is
hidden, so patterns do not match it.
"""

import base64
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from osrerank.types.engine import Engine, data_stream

PREFIX = "osrerank-vectors-"
"""The prefix of the names of side indices."""
OLD_SUFFIX = "-osrerank-vectors"
"""The suffix of the names that older versions gave to side indices, which are not read any more."""
FIELD, MODEL = "record", "model"
"""The fields of the documents of a side index: the record, and the label of its model."""
READ_AT_ONCE = 250
"""The maximum number of records of a read request: some 100 KB in the profile ``standard``."""
BULK_BYTES = 4 << 20
"""The approximate size of the records of a bulk request, in bytes."""
POSITION = "position-"
"""The prefix of the ids of documents with the positions of builds; unlike records, they have no field `MODEL`."""
REPORT, MAX_REPORTS = "lacking-", 16
"""The prefix of the ids of reports, which list documents that lacked vectors in searches, and their maximum number."""
EXISTS = "resource_already_exists_exception"
"""The type of the error that an engine returns when an index to be created exists."""
PostRequest = tuple[str, dict[str, Any], dict[str, Any]]
"""The path, the URL parameters and the body of a POST request."""
LackingCounts = Counter[tuple[str, str]]
"""Index and id of a document -> the number of searches in which it lacked a vector."""


def side_index(index: str) -> str:
    """Return the name of an index's side index, which is on the same cluster as the index."""
    cluster, colon, name = index.rpartition(":")
    return f"{cluster}{colon}{PREFIX}{data_stream(name)}"


class RecordRequests(NamedTuple):
    """Makes the requests for the documents of side indices that an engine understands, and reads its answers.

    Attributes:
        engine: the engine.
    """

    engine: Engine

    def settings(self) -> dict[str, Any]:
        """Return the body that creates a side index."""
        if self.engine.is_embedded:
            mapping = {"dynamic": False, "properties": {MODEL: {"type": "keyword"}}}
            return {"settings": {"index": {"hidden": True}}, "mappings": mapping}
        fields: dict[str, Any] = {FIELD: {"type": "binary", "doc_values": True}, MODEL: {"type": "keyword"}}
        mapping = {"dynamic": False, "_source": {"enabled": False}, "properties": fields}
        no_pipelines = {"default_pipeline": "_none", "final_pipeline": "_none"}
        settings: dict[str, Any] = {"hidden": True, "auto_expand_replicas": "0-1", **no_pipelines}
        return {"settings": {"index": settings}, "mappings": mapping}

    def request_records(self, indices: Iterable[str], keys: Sequence[bytes]) -> PostRequest:
        """Return the request for the records of these keys."""
        return self._by_ids(sorted(indices), [key.hex() for key in keys], track_total_hits=False, sort=["_doc"])

    def request_positions(self, indices: Sequence[str], keys: Sequence[bytes]) -> PostRequest:
        """Return the request for the positions of builds under these keys."""
        return self._by_ids(indices, [f"{POSITION}{key.hex()}" for key in keys], seq_no_primary_term=True)

    def request_reports(self, index: str) -> PostRequest:
        """Return the request for the reports of documents without vectors."""
        return self._by_ids([index], [f"{REPORT}{number}" for number in range(MAX_REPORTS)])

    def _by_ids(self, indices: Sequence[str], ids: Sequence[str], **options: Any) -> PostRequest:
        if self.engine.is_embedded:
            return "/_mget", {}, {"docs": [{"_index": name, "_id": doc_id} for name in indices for doc_id in ids]}
        body = {"size": len(ids), "query": {"ids": {"values": ids}}, **self.record_fields(), **options}
        return f"/{','.join(indices)}/_search", {"ignore_unavailable": "true", **self.engine.no_pipeline}, body

    def read_position(self, response: Mapping[str, Any]) -> tuple[bytes, Mapping[str, Any]]:
        """Return the content in a response to `request_positions` of one key, and its hit; both empty without a hit."""
        hits = self._hits(response)
        return (self._content(hits[0]), hits[0]) if hits else (b"", {})

    def read_positions(self, response: Mapping[str, Any]) -> dict[bytes, bytes]:
        """Return the contents in a response to `request_positions`, by key."""
        hits = self._hits(response)
        return self._contents({**hit, "_id": hit["_id"].removeprefix(POSITION)} for hit in hits)

    def read_reports(self, response: Mapping[str, Any]) -> dict[str, LackingCounts]:
        """Return the counts in a response to `request_reports`, by the id of the report."""
        contents = ((hit["_id"], self._content(hit)) for hit in self._hits(response))
        return {doc_id: _parse_report(content) for doc_id, content in contents if content}

    def read_records(self, response: Mapping[str, Any]) -> dict[bytes, bytes]:
        """Return the records in a response to `request_records`, by key; other documents are left out."""
        return self._contents(self._hits(response))

    def _hits(self, response: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        hits: Sequence[Mapping[str, Any]] = response["docs"] if self.engine.is_embedded else response["hits"]["hits"]
        return hits

    def is_there(self, response: Mapping[str, Any]) -> bool:
        """Return whether a response to `request_records` shows that at least one of the side indices exists."""
        if self.engine.is_embedded:
            return any("error" not in hit for hit in response["docs"])
        return bool(response.get("_shards", {}).get("total", 1))

    def record_fields(self) -> dict[str, Any]:
        """Return the part of a search body that asks for the records of hits."""
        return {} if self.engine.is_embedded else {"docvalue_fields": [FIELD], "_source": False}

    def _contents(self, hits: Iterable[Mapping[str, Any]]) -> dict[bytes, bytes]:
        """Return the contents of hits, by key; hits without content, or with another id, are left out."""
        contents: dict[bytes, bytes] = {}
        for hit in hits:
            with suppress(TypeError, ValueError):  # another program wrote it
                contents[bytes.fromhex(hit["_id"])] = self._content(hit)
        return {key: content for key, content in contents.items() if content}

    def _content(self, hit: Mapping[str, Any]) -> bytes:
        """Return the content of a document of a side index; it is empty if another program wrote the document."""
        fields = hit.get("_source") if self.engine.is_embedded else hit.get("fields")
        value = (fields or {}).get(FIELD, "")
        try:
            encoded: str = value[0] if isinstance(value, list) else value
            padded = encoded + "=" * (-len(encoded) % 4)  # clusters leave the padding of doc values out
            return base64.b64decode(padded, validate=True)
        except (AttributeError, IndexError, TypeError, ValueError):
            return b""


def write_report(side: str, number: int, counts: Sequence[tuple[tuple[str, str], int]]) -> str:
    """Return the body of a bulk request that writes a report of documents without vectors, for builders.

    The engine refuses the request while the last report with this number exists, because no builder has taken it.

    Args:
        side: the side index.
        number: the number of the report, below `MAX_REPORTS`.
        counts: index and id of a document, and the number of searches in which it lacked a vector.
    """
    action = {"create": {"_index": side, "_id": f"{REPORT}{number}"}}
    content = json.dumps([[index, doc_id, count] for (index, doc_id), count in counts])
    return f"{json.dumps(action)}\n{json.dumps({FIELD: base64.b64encode(content.encode()).decode()})}\n"


def _parse_report(content: bytes) -> LackingCounts:
    """Parse a report's counts; return no counts if another program wrote the report."""
    try:
        return Counter({(str(index), str(doc_id)): int(count) for index, doc_id, count in json.loads(content)})
    except (ValueError, TypeError):
        return Counter()


def write_records(index: str, records: Mapping[bytes, bytes], model: str) -> Iterator[str]:
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


def refusal(response: Mapping[str, Any], action: str = "index") -> str:
    """Return the reason why a bulk request refused records, without quoting them; empty if it accepted all records.

    Args:
        response: the response to the request.
        action: the action of the request; deleting a record that does not exist is not a refusal.
    """
    entries = [item[action] for item in response["items"]]
    accepted_statuses = (404,) if action == "delete" else ()
    refused = [entry for entry in entries if entry["status"] >= 300 and entry["status"] not in accepted_statuses]
    if not refused:
        return ""
    error_type = (refused[0].get("error") or {}).get("type", "unknown")
    return f"{len(refused)} of {len(entries)} records were refused: {error_type}"
