"""Handle requests that write and read documents: index, create, delete, get, ``_mget`` and ``_bulk``."""

import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

from osrerank.embedded.errors import (
    ApiError,
    Json,
    argument_error,
    parse_json,
    reject_unknown_keys,
    require_list,
    require_object,
)
from osrerank.embedded.storage.engine import Engine
from osrerank.embedded.storage.index import LiveIndex
from osrerank.embedded.storage.store import StoredDocument

ACTIONS = ("index", "create", "delete")
MAX_ID_BYTES = 512
MAX_DEPTH = 100
"""The maximum depth of nested objects and arrays in a document. OpenSearch maps 20 levels and parses 1,000."""
STORAGE_ERROR_STATUSES = (403, 429, 500, 503)
"""The statuses of errors of the storage. Unlike an error in a document, they end the whole bulk request."""


class WriteBatch:
    """Collects writes, and stores them in one transaction. The caller must hold the engine's write lock.

    `index` and `delete` check a write, add it to the batch and return its response. `commit` stores the batch.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rows: dict[LiveIndex, list[StoredDocument]] = {}
        self._latest: dict[tuple[LiveIndex, str], StoredDocument] = {}  # each id's last row in this batch

    @property
    def changed_indices(self) -> list[LiveIndex]:
        """The indices that the writes change."""
        return list(self._rows)

    def index(self, name: str, doc_id: str | None, text: str, *, create: bool = False) -> Json:
        """Write a document given as JSON text.

        Raises:
            ApiError: 400 if the document does not fit the mappings; 409 if ``create`` is set and the document exists.
        """
        source = _parse_document(text)
        doc_id = _new_id() if doc_id is None else _check_id(doc_id)
        live_index = self._engine.find_write_index(name)
        old_row = self._latest_row(live_index, doc_id)
        fields = live_index.fields
        new_mappings = fields.guess_mappings(source)
        if new_mappings:
            fields = self._engine.merge_fields(live_index, new_mappings)
        fields.extract(source)  # raises an error for values that do not fit their fields
        if new_mappings:
            self._engine.change(live_index, mappings=new_mappings)
        if old_row is None or old_row.source is None:
            row = self._add_row(live_index, doc_id, text, old_row)
            return _write_response(live_index, row, "created", status=201)
        if create:
            raise _conflict_error(live_index, doc_id, old_row.version)
        row = self._add_row(live_index, doc_id, text, old_row)
        return _write_response(live_index, row, "updated", status=200)

    def delete(self, name: str, doc_id: str) -> Json:
        """Delete a document. The response has the status 404 if the document does not exist."""
        if name not in self._engine.store.indices() and name not in self._engine.store.aliases():
            self._engine.resolve_names(name)  # raises a 404
        live_index = self._engine.find_write_index(name)
        old_row = self._latest_row(live_index, doc_id)
        if old_row is None or old_row.source is None:
            missing = StoredDocument(live_index.last_seq, doc_id, version=1, source=None)
            return _write_response(live_index, missing, "not_found", status=404)
        row = self._add_row(live_index, doc_id, text=None, old_row=old_row)
        return _write_response(live_index, row, "deleted", status=200)

    def commit(self) -> None:
        if self._rows:
            self._engine.write(self._rows)

    def _latest_row(self, live_index: LiveIndex, doc_id: str) -> StoredDocument | None:
        return self._latest.get((live_index, doc_id)) or self._engine.store.get(live_index.row, doc_id)

    def _add_row(
        self, live_index: LiveIndex, doc_id: str, text: str | None, old_row: StoredDocument | None
    ) -> StoredDocument:
        """Add a document, or a deletion if ``text`` is None, with the next sequence number and version."""
        rows = self._rows.setdefault(live_index, [])
        last_seq = rows[-1].seq if rows else live_index.last_seq
        version = 1 if old_row is None else old_row.version + 1
        row = StoredDocument(last_seq + 1, doc_id, version, text)
        rows.append(row)
        self._latest[(live_index, doc_id)] = row
        return row


def write_one(engine: Engine, write: Callable[[WriteBatch], Json], refresh: str) -> Json:
    """Store one write, and make it visible to searches unless ``refresh`` is ``false``. Return its response."""
    with engine.hold_write_lock():
        batch = WriteBatch(engine)
        response = write(batch)
        batch.commit()
        _refresh_batch(engine, batch, refresh)
    return {**response, "forced_refresh": True} if refresh == "true" else response


def _refresh_batch(engine: Engine, batch: WriteBatch, refresh: str) -> None:
    if refresh != "false":
        for live_index in batch.changed_indices:
            engine.refresh(live_index)


def bulk(engine: Engine, default_index: str | None, body: str, refresh: str) -> Json:
    """Run the actions of a ``_bulk`` request, and store the successful ones together. Return the response."""
    began_at_s = time.perf_counter()
    items: list[Json] = []
    actions = list(_parse_actions(body, default_index))  # a malformed line raises an error before anything is written
    with engine.hold_write_lock():
        batch = WriteBatch(engine)
        for action, meta, text in actions:
            items.append({action: _run_action(batch, action, meta, text)})
        batch.commit()
        _refresh_batch(engine, batch, refresh)
    has_errors = any("error" in result for item in items for result in item.values())
    return {"took": round((time.perf_counter() - began_at_s) * 1000), "errors": has_errors, "items": items}


def _run_action(batch: WriteBatch, action: str, meta: Json, text: str) -> Json:
    name, doc_id = meta["_index"], meta.get("_id")
    try:
        if action == "delete":
            return batch.delete(name, meta["_id"])
        return batch.index(name, doc_id, text, create=action == "create")
    except ApiError as error:
        if error.status in STORAGE_ERROR_STATUSES:
            raise
        return {"_index": name, "_id": doc_id, "status": error.status, "error": error.error_object()}


def _parse_actions(body: str, default_index: str | None) -> Iterator[tuple[str, Json, str]]:
    """Yield each action, such as ``("index", {"_index": "news", "_id": "1"}, '{"title": "Tea"}')``.

    The third element is the document's line, which is "" for a deletion.
    """
    if not body.endswith("\n") or not body.strip():
        raise argument_error("a bulk body must have at least one action, and end with a newline [\\n]")
    lines = iter(enumerate(body.split("\n"), start=1))
    for number, line in lines:
        if not line.strip():
            continue
        action, meta = _parse_action(number, line)
        text = ""
        if action != "delete":
            _, text = next(lines, (0, ""))
            if not text.strip():
                raise argument_error(
                    f"Malformed bulk body: the action on line [{number}] has no document on the next line"
                )
        meta = {"_index": default_index, **meta}
        required_keys = ("_index", "_id") if action == "delete" else ("_index",)
        for key in required_keys:
            if meta.get(key) is None:
                reason = f"Validation Failed: {key.removeprefix('_')} is missing on line [{number}];"
                raise ApiError(400, "action_request_validation_exception", reason)
        yield action, meta, text


def _parse_action(number: int, line: str) -> tuple[str, Json]:
    """Return the action on a line of a bulk body, such as ``("index", {"_index": "news", "_id": "1"})``."""
    try:
        parsed = json.loads(line)
        ((action, meta),) = parsed.items()
    except (ValueError, AttributeError):
        raise argument_error(
            f"Malformed action/metadata line [{number}], expected an object with one of {list(ACTIONS)}"
        ) from None
    if action not in ACTIONS or not isinstance(meta, dict):
        raise argument_error(
            f"Malformed action/metadata line [{number}], expected one of {list(ACTIONS)} but found [{action}]"
        )
    for key in meta:
        if key not in ("_index", "_id"):
            raise argument_error(
                f"Action/metadata line [{number}] contains an unknown parameter [{key}] for the embedded engine"
            )
    return action, {key: _format_scalar(value, key, number) for key, value in meta.items() if value is not None}


def _format_scalar(value: Any, key: str, number: int) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise argument_error(f"Malformed action/metadata line [{number}], expected a simple value for field [{key}]")
    return str(value)


def get(engine: Engine, name: str, doc_id: str) -> Json:
    """Return the response to a get request. It shows the latest write, even before a refresh."""
    live_index = engine.open_index(engine.resolve_single(name))
    row = engine.store.get(live_index.row, doc_id)
    if row is None or row.source is None:
        return {"_index": live_index.row.name, "_id": doc_id, "found": False}
    return {
        "_index": live_index.row.name,
        "_id": doc_id,
        "_version": row.version,
        "_seq_no": row.seq_no,
        "_primary_term": 1,
        "found": True,
        "_source": json.loads(row.source),
    }


def mget(engine: Engine, default_index: str | None, body: Json) -> Json:
    """Return the response to ``_mget``: for each document, the response of `get` or an error."""
    reject_unknown_keys("mget", body, frozenset({"docs", "ids"}))
    requested = [require_object(entry, "docs") for entry in require_list(body.get("docs", []), "docs")]
    requested += [{"_id": doc_id} for doc_id in require_list(body.get("ids", []), "ids")]
    problems = [] if requested else ["no documents to get"]
    for number, entry in enumerate(requested):
        reject_unknown_keys("mget docs", entry, frozenset({"_index", "_id"}))
        if isinstance(entry.get("_id"), dict | list):
            raise argument_error(f"[_id] of doc {number} is not a simple value")
        if entry.get("_index", default_index) is None:
            problems.append(f"index is missing for doc {number}")
        if entry.get("_id") is None:
            problems.append(f"id is missing for doc {number}")
    if problems:
        reason = "".join(f" {number}: {problem};" for number, problem in enumerate(problems, start=1))
        raise ApiError(400, "action_request_validation_exception", f"Validation Failed:{reason}")
    ids = [(str(entry.get("_index", default_index)), str(entry["_id"])) for entry in requested]
    return {"docs": [_get_or_error(engine, index, doc_id) for index, doc_id in ids]}


def _get_or_error(engine: Engine, name: str, doc_id: str) -> Json:
    try:
        return get(engine, name, doc_id)
    except ApiError as error:
        return {"_index": name, "_id": doc_id, "error": error.response_body()["error"]}


def _parse_document(text: str) -> Json:
    """Parse a document. Raise a 400 for JSON that could be stored but not indexed."""
    try:
        source = parse_json(text)
    except ValueError as error:
        raise _document_error(f"the document is not JSON ({error})") from None
    if not isinstance(source, dict):
        raise _document_error("the document is not a JSON object")
    if _is_deeper_than(MAX_DEPTH, source):
        raise _document_error(f"the document has objects and arrays nested more than {MAX_DEPTH} deep: flatten it")
    try:
        json.dumps(source, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        surrogate = error.object[error.start]
        raise _document_error(f"the document contains a lone surrogate, {surrogate!r}: remove it") from None
    return source


def _document_error(reason: str) -> ApiError:
    return ApiError(400, "mapper_parsing_exception", f"failed to parse: {reason}")


def _is_deeper_than(levels: int, value: Any) -> bool:
    if not isinstance(value, dict | list):
        return False
    elements = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper_than(levels - 1, element) for element in elements)


def _write_response(live_index: LiveIndex, row: StoredDocument, result: str, status: int) -> Json:
    """Return the response to a write, whose ``result`` is for example "created" and its ``status`` 201."""
    return {
        "_index": live_index.row.name,
        "_id": row.doc_id,
        "_version": row.version,
        "result": result,
        "_shards": {"total": 1, "successful": 1, "failed": 0},
        "_seq_no": row.seq_no,
        "_primary_term": 1,
        "status": status,
    }


def _new_id() -> str:
    """Return a random id, such as ``h3VmxR0jQ6yVw1n0zQ8k2A``."""
    return base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")


def _check_id(doc_id: str) -> str:
    try:
        size = len(doc_id.encode())
    except UnicodeEncodeError:
        raise argument_error(f"id must not contain a lone surrogate, found {doc_id!r:.100}") from None
    if not 0 < size <= MAX_ID_BYTES:
        raise argument_error(f"id must have 1 to {MAX_ID_BYTES} bytes but was: {size}")
    return doc_id


def _conflict_error(live_index: LiveIndex, doc_id: str, version: int) -> ApiError:
    reason = f"[{doc_id}]: version conflict, document already exists (current version [{version}])"
    shard = {"index": live_index.row.name, "shard": "0", "index_uuid": live_index.row.uuid}
    return ApiError(409, "version_conflict_engine_exception", reason, shard)
