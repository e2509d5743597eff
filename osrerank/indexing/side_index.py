"""Write, count and prune side indices: the hidden indices that store the document vectors of other indices.

`osrerank.vectors.index` describes their format. Searches read them with `osrerank.search.side_indices`.
"""

import base64
import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from itertools import islice
from typing import Any

from cachetools import LRUCache
from opensearchpy import AuthorizationException, ConflictError, NotFoundError, OpenSearchException, RequestError

from osrerank.client import Client
from osrerank.errors import OsrerankError
from osrerank.types.engine import find_data_stream
from osrerank.vectors.index import (
    ALREADY_EXISTS,
    BUILD_PREFIX,
    MODEL_FIELD,
    OLD_SUFFIX,
    PREFIX,
    READ_BATCH_SIZE,
    RECORD_FIELD,
    MissingVectorCounts,
    RecordRequests,
    build_record_bodies,
    describe_bulk_failure,
    side_index,
)
from osrerank.vectors.store import Guard, Size

SCROLL_KEEP_ALIVE = "5m"
"""How long the cluster keeps a scroll open between two requests."""
MAX_RECENT_RECORDS = 10_000
"""The maximum number of recently written vectors in memory, about 7 MB. Searches find them only after a refresh."""
MAX_MODELS = 100
"""The maximum number of models in `IndexStore.models`. Beyond it, the models with the fewest vectors are left out."""

logger = logging.getLogger(__name__)


def scroll_hits(client: Client, index: str, body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield all hits of a search in arbitrary order. A scroll ignores later changes of the index.

    The body's ``size`` is the number of hits per request, not of all hits.
    """
    body = {**body, "sort": ["_doc"]}
    engine = client.engine
    if engine.is_embedded:  # the embedded engine has no scroll
        page = client.search(body=body, index=index)["hits"]["hits"]
        while page:
            yield from page
            page = client.search(body={**body, "search_after": page[-1]["sort"]}, index=index)["hits"]["hits"]
        return
    params = {"scroll": SCROLL_KEEP_ALIVE, **engine.no_pipeline}  # an index can have a default pipeline
    response = client.search(body=body, index=index, params=params)
    try:
        while page := response["hits"]["hits"]:
            yield from page
            response = client.scroll(body={"scroll_id": response["_scroll_id"], "scroll": SCROLL_KEEP_ALIVE})
    finally:
        client.clear_scroll(body={"scroll_id": [response["_scroll_id"]]})


class IndexStore:
    """A side index as a `VectorStore`, for commands that build, count and delete vectors.

    Args:
        client: a client of the engine. The caller closes it.
        indices: the application's indices whose vectors are stored: one index, or all indices of a data stream.
        model: the label of the model whose vectors are written, for reports to users.

    Attributes:
        index: the name of the side index.
    """

    name = "index"  # the store's name in metrics

    def __init__(self, client: Client, indices: Sequence[str], *, model: str = "") -> None:
        self.indices = indices
        self.index = side_index(indices[0])
        self.model = model
        self._client = client
        self._requests = RecordRequests(client.engine)
        self._guard = Guard(self.name, self.index)  # after an error, reads or writes pause
        self._recent: LRUCache[bytes, bytes] = LRUCache(MAX_RECENT_RECORDS)
        self._lock = threading.Lock()

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        with self._lock:
            recent_records = {key: self._recent[key] for key in keys if key in self._recent}
        missing_keys = [key for key in keys if key not in recent_records]
        if not missing_keys:
            return recent_records
        stored_records: dict[bytes, bytes] = self._guard.read_pause.attempt(lambda: self._read(missing_keys), {})
        return recent_records | stored_records

    def write(self, records: Mapping[bytes, bytes]) -> int:
        return self._guard.write_pause.attempt(lambda: self._write(records), 0) if records else 0

    def close(self) -> None:
        pass

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        records: dict[bytes, bytes] = {}
        for start in range(0, len(keys), READ_BATCH_SIZE):
            path, params, body = self._requests.request_records([self.index], keys[start : start + READ_BATCH_SIZE])
            records |= self._requests.parse_records(
                self._client.transport.perform_request("POST", path, params=params, body=body)
            )
        return records

    def _write(self, records: Mapping[bytes, bytes]) -> int:
        self.create()
        for lines in build_record_bodies(self.index, records, self.model):
            reason = describe_bulk_failure(self._client.bulk(body=lines))
            if reason:
                raise OSError(reason)
        with self._lock:
            self._recent.update(records)
        return len(records)

    def create(self) -> None:
        """Create the side index if it does not exist."""
        if self._client.indices.exists(index=self.index):
            return
        try:
            self._client.indices.create(index=self.index, body=self._requests.build_creation_body())
        except RequestError as error:  # another process created it first
            if error.error != ALREADY_EXISTS:
                raise

    def refresh(self) -> None:
        """Refresh the side index, so that searches find new records."""
        self._client.indices.refresh(index=self.index, ignore_unavailable=True)

    def read_build_state(self, key: bytes) -> tuple[bytes, Any]:
        """Return what a build stored under a key, and its version for `write_build_state`.

        The version is the document's sequence number and primary term, such as (12, 1). If nothing is stored under the
        key, the content is empty and the version None.
        """
        self.refresh()
        path, params, body = self._requests.request_build_states([self.index], [key])
        response = self._client.transport.perform_request("POST", path, params=params, body=body)
        content, hit = self._requests.parse_build_state(response)
        version = (hit["_seq_no"], hit["_primary_term"]) if "_seq_no" in hit else None
        return content, version

    def write_build_state(self, key: bytes, content: bytes, version: Any) -> Any:
        """Store a build's content under a key, unless another builder has changed it since it was read.

        The embedded engine does not compare versions: there, the last builder overwrites the others' content.

        Args:
            key: the key.
            content: the content.
            version: the version that `read_build_state` returned.

        Returns:
            The new version, or None if another builder was first.
        """
        self.create()
        params: dict[str, Any] = {}
        if not self._requests.engine.is_embedded:
            params = {"if_seq_no": version[0], "if_primary_term": version[1]} if version else {"op_type": "create"}
        body = {RECORD_FIELD: base64.b64encode(content).decode()}
        try:
            response = self._client.index(index=self.index, id=f"{BUILD_PREFIX}{key.hex()}", body=body, params=params)
        except ConflictError:
            return None
        return response["_seq_no"], response["_primary_term"]

    def take_reports(self) -> MissingVectorCounts:
        """Read and delete the searches' reports of documents without vectors, and return the sum of their counts.

        Of several builders, only one gets each report. If the reports cannot be read, the build continues without them.
        """
        path, params, body = self._requests.request_reports(self.index)
        counts = MissingVectorCounts()
        try:
            response = self._client.transport.perform_request("POST", path, params=params, body=body)
            reports = self._requests.parse_reports(response)
            if reports:
                deletions = [{"delete": {"_index": self.index, "_id": report_id}} for report_id in reports]
                entries = [item["delete"] for item in self._client.bulk(body=deletions)["items"]]
                for entry in entries:
                    if entry["status"] == HTTPStatus.OK:  # this builder deleted it, and no other
                        counts.update(reports[entry["_id"]])
        except OpenSearchException as error:
            logger.warning(
                "[vectors-away] cannot read the searches' reports of documents without vectors from %s, so the build "
                "does not begin with these documents: %s",
                self.index,
                error,
            )
        return counts

    def models(self) -> dict[str, int]:
        """Return the number of vectors of each model, such as ``{"osrerank/e5-small 1a2b3c4d": 500}``."""
        if not self._client.indices.exists(index=self.index):
            return {}
        body = {"size": 0, "aggs": {"models": {"terms": {"field": MODEL_FIELD, "size": MAX_MODELS}}}}
        response = self._client.search(index=self.index, body=body)
        buckets = response["aggregations"]["models"]["buckets"]
        return {bucket["key"]: int(bucket["doc_count"]) for bucket in buckets}

    def size(self) -> Size:
        if not self._client.indices.exists(index=self.index):
            return Size(records=0, stored_bytes=0, max_bytes=0)
        self._client.indices.refresh(index=self.index)
        count = int(self._client.count(index=self.index, body={"query": {"exists": {"field": MODEL_FIELD}}})["count"])
        if self._requests.engine.is_embedded:
            return Size(records=count, stored_bytes=0, max_bytes=0)
        stored = self._client.indices.stats(index=self.index)["_all"]["primaries"]["store"]
        return Size(records=count, stored_bytes=int(stored["size_in_bytes"]), max_bytes=0)

    def prune(self, keys_to_keep: Iterable[Sequence[bytes]], build_state_keys: Iterable[bytes] = ()) -> int:
        """Delete all vectors and build states except those with these keys. Return how many vectors remain.

        Args:
            keys_to_keep: the keys of vectors, in batches.
            build_state_keys: the keys of `write_build_state`.
        """
        ids_to_keep = {key.hex() for batch in keys_to_keep for key in batch}
        ids_to_keep |= {f"{BUILD_PREFIX}{key.hex()}" for key in build_state_keys}
        if not self._client.indices.exists(index=self.index):
            return 0
        self._client.indices.refresh(index=self.index)
        body = {"size": READ_BATCH_SIZE, "query": {"match_all": {}}, "_source": False}
        hits = scroll_hits(self._client, self.index, body)
        ids_to_delete = (hit["_id"] for hit in hits if hit["_id"] not in ids_to_keep)
        while ids := list(islice(ids_to_delete, READ_BATCH_SIZE)):
            response = self._client.bulk(body=[{"delete": {"_index": self.index, "_id": doc_id}} for doc_id in ids])
            reason = describe_bulk_failure(response, "delete")
            if reason:
                raise OsrerankError(f"only some of the old vectors in {self.index} were deleted: {reason}")
        return self.size().records

    def drop(self) -> int:
        count = self.size().records
        with suppress(NotFoundError):
            self._client.indices.delete(index=self.index)
        return count


def find_side_indices(client: Client, names: Sequence[str], model: str = "") -> list[IndexStore]:
    """Return the side indices of the indices that these names stand for, as stores that the caller can write.

    All indices of a data stream share one side index.

    Raises:
        NotFoundError: an index does not exist.
    """
    indices = {index for name in names for index in client.indices.get_mapping(index=name)}
    streams = {find_data_stream(index) for index in indices} - indices
    for stream in streams:
        # a restored backing index might have no stream, which is ignored
        indices |= {*client.indices.get_mapping(index=stream, ignore_unavailable=True)}
    indices_by_side_index: defaultdict[str, list[str]] = defaultdict(list)
    for index in sorted(indices):
        if not index.startswith(PREFIX):
            indices_by_side_index[side_index(index)].append(index)
    return [IndexStore(client, group, model=model) for _name, group in sorted(indices_by_side_index.items())]


def find_orphans(client: Client) -> list[str]:
    """Return the side indices whose index was deleted, and those whose name is from an older version of osrerank.

    Return an empty list if the user may not list indices.
    """
    try:
        candidates = client.indices.get(
            index=f"{PREFIX}*,*{OLD_SUFFIX}", expand_wildcards="all", ignore_unavailable=True
        )
    except AuthorizationException:
        return []
    side_indices = {name for name in candidates if name.startswith(PREFIX)}
    orphaned = [name for name in side_indices if not _has_index_or_stream(client, name.removeprefix(PREFIX))]
    outdated = []
    for name in candidates.keys() - side_indices:
        fields = set(candidates[name]["mappings"].get("properties", ()))
        # an application's index with such a name has other fields
        if fields in ({MODEL_FIELD}, {MODEL_FIELD, RECORD_FIELD}):
            outdated.append(name)
    return sorted([*orphaned, *outdated])


def _has_index_or_stream(client: Client, name: str) -> bool:
    """Return whether there is an index or data stream of this name, or a backing index of such a stream."""
    if client.indices.exists(index=name):
        return True
    backing_indices = client.indices.get(index=f"*.ds-{name}-*", expand_wildcards="all")
    return any(find_data_stream(index) == name for index in backing_indices)
