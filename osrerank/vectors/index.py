"""Build and parse the requests for side indices: hidden indices in which the engine stores the document vectors.

The side index of ``news`` is called ``osrerank-vectors-news``. It is hidden, so patterns like ``*`` do not match it.
The backing indices of a data stream share a side index. A side index is sharded and replicated like any index, all
machines that search can use it, and nobody needs permission to write to the original index.

A record is the stored form of a document's vectors (`osrerank.vectors.records`). The side index has a document for each
record, such as ``{"_id": "9f3c...", "record": "T1JTMQg...", "model": "osrerank/e5-small 1a2b3c4d"}``. Its id is the
record's key in hexadecimal. On a cluster, the record is a doc value. In the embedded engine, it is in ``_source``.
"""

import base64
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from osrerank.types.engine import Engine, find_data_stream

PREFIX = "osrerank-vectors-"
"""The prefix of the names of side indices."""
OLD_SUFFIX = "-osrerank-vectors"
"""The suffix of side indices of older versions, which are no longer used."""
RECORD_FIELD = "record"
"""The field of a side index that contains a record in base64."""
MODEL_FIELD = "model"
"""The field of a side index that contains the label of a record's model."""
READ_BATCH_SIZE = 250
"""The maximum number of records in a response: about 100 KB in the profile ``standard``."""
BULK_BYTES = 4 * 1024 * 1024
"""The approximate maximum size of the records in a bulk request, in bytes. The last record can exceed it."""
BUILD_PREFIX = "position-"
"""The prefix of the ids of *build states*: documents with a build's progress or fields. They have no `MODEL_FIELD`."""
REPORT_PREFIX = "lacking-"
"""The prefix of the ids of reports, in which searches list documents without vectors for the next build."""
MAX_REPORTS = 16
"""The number of reports that a side index can contain at a time."""
ALREADY_EXISTS = "resource_already_exists_exception"
"""The engine's error type if the index to create exists."""
PostRequest = tuple[str, dict[str, Any], dict[str, Any]]
"""The path, the URL parameters and the body of a POST request."""
MissingVectorCounts = Counter[tuple[str, str]]
"""The number of searches in which a document had no vector, such as ``{("news", "7"): 3}`` for the document 7."""


def side_index(index: str) -> str:
    """Return the name of an index's side index: ``eu:osrerank-vectors-news`` for ``eu:news`` on the cluster ``eu``."""
    cluster, colon, name = index.rpartition(":")
    return f"{cluster}{colon}{PREFIX}{find_data_stream(name)}"


class RecordRequests(NamedTuple):
    """Builds requests for the documents of side indices, and parses the responses."""

    engine: Engine

    def build_creation_body(self) -> dict[str, Any]:
        """Return the body of the request that creates a side index."""
        settings: dict[str, Any] = {"hidden": True}
        properties: dict[str, Any] = {MODEL_FIELD: {"type": "keyword"}}
        mapping: dict[str, Any] = {"dynamic": False, "properties": properties}
        if not self.engine.is_embedded:
            settings |= {"auto_expand_replicas": "0-1", "default_pipeline": "_none", "final_pipeline": "_none"}
            properties[RECORD_FIELD] = {"type": "binary", "doc_values": True}
            mapping["_source"] = {"enabled": False}
        return {"settings": {"index": settings}, "mappings": mapping}

    def request_records(self, indices: Iterable[str], keys: Sequence[bytes]) -> PostRequest:
        """Return the request for the records with these keys."""
        return self._request_ids(sorted(indices), [key.hex() for key in keys], track_total_hits=False, sort=["_doc"])

    def request_build_states(self, indices: Sequence[str], keys: Sequence[bytes]) -> PostRequest:
        """Return the request for the build states with these keys."""
        return self._request_ids(indices, [f"{BUILD_PREFIX}{key.hex()}" for key in keys], seq_no_primary_term=True)

    def request_reports(self, index: str) -> PostRequest:
        """Return the request for all reports of documents without vectors."""
        return self._request_ids([index], [f"{REPORT_PREFIX}{number}" for number in range(MAX_REPORTS)])

    def _request_ids(self, indices: Sequence[str], ids: Sequence[str], **options: Any) -> PostRequest:
        if self.engine.is_embedded:
            return "/_mget", {}, {"docs": [{"_index": name, "_id": doc_id} for name in indices for doc_id in ids]}
        body = {
            "size": len(ids),
            "query": {"ids": {"values": ids}},
            "docvalue_fields": [RECORD_FIELD],
            "_source": False,
            **options,
        }
        return f"/{','.join(indices)}/_search", {"ignore_unavailable": "true", **self.engine.no_pipeline}, body

    def parse_records(self, response: Mapping[str, Any]) -> dict[bytes, bytes]:
        """Return the records in a response to `request_records`, by key."""
        return self._read_contents((hit["_id"], hit) for hit in self._read_hits(response))

    def parse_build_state(self, response: Mapping[str, Any]) -> tuple[bytes, Mapping[str, Any]]:
        """Return the content and the hit in a response to `request_build_states` for one key. Both can be empty.

        The hit has the sequence number, which tells whether another builder changed the build state.
        """
        hits = self._read_hits(response)
        if not hits:
            return b"", {}
        return self._read_content(hits[0]), hits[0]

    def parse_build_states(self, response: Mapping[str, Any]) -> dict[bytes, bytes]:
        """Return the contents of a response to `request_build_states`, by key."""
        hits = self._read_hits(response)
        return self._read_contents((hit["_id"].removeprefix(BUILD_PREFIX), hit) for hit in hits)

    def parse_reports(self, response: Mapping[str, Any]) -> dict[str, MissingVectorCounts]:
        """Return the counts of each report in a response to `request_reports`, by report id, such as ``lacking-0``."""
        contents = ((hit["_id"], self._read_content(hit)) for hit in self._read_hits(response))
        return {doc_id: _parse_report(content) for doc_id, content in contents if content}

    def _read_hits(self, response: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        hits: Sequence[Mapping[str, Any]] = response["docs"] if self.engine.is_embedded else response["hits"]["hits"]
        return hits

    def has_side_index(self, response: Mapping[str, Any]) -> bool:
        """Return whether a response to `request_records` shows that one of the side indices exists."""
        if self.engine.is_embedded:
            return any("error" not in hit for hit in response["docs"])
        n_searched_shards = response.get("_shards", {}).get("total", 1)
        return bool(n_searched_shards)

    def _read_contents(self, hits: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[bytes, bytes]:
        """Return the contents of hits by key, given pairs (key in hexadecimal, hit).

        Documents that another program wrote are left out.
        """
        contents: dict[bytes, bytes] = {}
        for hexadecimal_key, hit in hits:
            with suppress(TypeError, ValueError):
                contents[bytes.fromhex(hexadecimal_key)] = self._read_content(hit)
        return {key: content for key, content in contents.items() if content}

    def _read_content(self, hit: Mapping[str, Any]) -> bytes:
        """Return the content of a hit. It is empty if another program wrote the document."""
        fields = hit.get("_source") if self.engine.is_embedded else hit.get("fields")
        value = (fields or {}).get(RECORD_FIELD, "")
        try:
            encoded: str = value[0] if isinstance(value, list) else value
            padded = encoded + "=" * (-len(encoded) % 4)  # clusters omit the padding of doc values
            return base64.b64decode(padded, validate=True)
        except (AttributeError, IndexError, TypeError, ValueError):
            return b""


def build_report_body(side_index_name: str, number: int, counts: Sequence[tuple[tuple[str, str], int]]) -> str:
    """Return the body of a bulk request that writes a report of documents without vectors.

    The engine rejects the request with status 409 if no build has read the previous report with this number.

    Args:
        side_index_name: the name of the side index.
        number: the number of the report, from 0 to `MAX_REPORTS` - 1.
        counts: items of `MissingVectorCounts`, such as ``(("news", "7"), 3)``.
    """
    action = {"create": {"_index": side_index_name, "_id": f"{REPORT_PREFIX}{number}"}}
    content = json.dumps([[index, doc_id, count] for (index, doc_id), count in counts])
    return f"{json.dumps(action)}\n{json.dumps({RECORD_FIELD: base64.b64encode(content.encode()).decode()})}\n"


def _parse_report(content: bytes) -> MissingVectorCounts:
    """Return the counts in a report such as ``[["news", "7", 3]]``. Return none if another program wrote it."""
    try:
        return Counter({(str(index), str(doc_id)): int(count) for index, doc_id, count in json.loads(content)})
    except (ValueError, TypeError):
        return Counter()


def build_record_bodies(side_index_name: str, records: Mapping[bytes, bytes], model: str) -> Iterator[str]:
    """Yield the bodies of bulk requests that write records to a side index, with the label of their model."""
    lines: list[str] = []
    size = 0
    for key, record in records.items():
        action = {"index": {"_index": side_index_name, "_id": key.hex()}}
        document = {RECORD_FIELD: base64.b64encode(record).decode(), MODEL_FIELD: model}
        lines.append(f"{json.dumps(action)}\n{json.dumps(document)}\n")
        size += len(record)
        if size >= BULK_BYTES:
            yield "".join(lines)
            lines, size = [], 0
    if lines:
        yield "".join(lines)


def describe_bulk_failure(response: Mapping[str, Any], action: str = "index") -> str:
    """Return why a bulk request failed in part, such as "2 of 250 records were refused: ...", or "" if it succeeded.

    Args:
        response: the response of the bulk request.
        action: the action of all items. For ``delete``, a record that does not exist is not a failure.
    """
    items = [item[action] for item in response["items"]]
    failed_items = [item for item in items if item["status"] >= 300]
    if action == "delete":
        failed_items = [item for item in failed_items if item["status"] != 404]
    if not failed_items:
        return ""
    error_type = (failed_items[0].get("error") or {}).get("type", "unknown")
    return f"{len(failed_items)} of {len(items)} records were refused: {error_type}"
