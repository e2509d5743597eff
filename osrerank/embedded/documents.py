"""Write and read documents: index, create, delete, get, mget, bulk."""

import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

from osrerank.embedded.errors import Fault, Json, as_list, as_object, illegal, parsed_json, reject_unknown_keys
from osrerank.embedded.storage.engine import Engine
from osrerank.embedded.storage.index import LiveIndex
from osrerank.embedded.storage.store import StoredDocument

ACTIONS = ("index", "create", "delete")
MAX_ID_BYTES = 512
MAX_DEPTH = 100
"""How deep objects and arrays may be nested; OpenSearch maps 20 levels (``index.mapping.depth.limit``) and parses
1,000."""


class WriteBatch:
    """Collects writes that become durable together; use it while holding the engine's write lock.

    Each method checks one write, keeps it and returns its response; ``commit`` makes all of them durable.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rows: dict[LiveIndex, list[StoredDocument]] = {}
        self._latest: dict[tuple[LiveIndex, str], StoredDocument] = {}

    @property
    def touched(self) -> list[LiveIndex]:
        """The indices written to."""
        return list(self._rows)

    def index(self, name: str, doc_id: str | None, text: str, *, create: bool = False) -> Json:
        """Write a document given as JSON text.

        Raises:
            Fault: 400 if the document does not fit the mappings; 409 if ``create`` is set and the document exists.
        """
        source = _object(text)
        doc_id = _new_id() if doc_id is None else _checked_id(doc_id)
        live = self._engine.target(name)
        old = self._current(live, doc_id)
        fields, additions = live.fields, live.fields.additions(source)
        if additions:
            fields = self._engine.merged_fields(live, additions)
        fields.extract(source)  # refuses values that do not fit their fields
        if additions:
            self._engine.change(live, mappings=additions)
        if create and old is not None and old.source is not None:
            raise _exists_already(live, doc_id, old.version)
        row = self._remember(live, doc_id, text, old)
        created = old is None or old.source is None
        return _answer(live, row, "created" if created else "updated", 201 if created else 200)

    def delete(self, name: str, doc_id: str) -> Json:
        """Delete a document; the response has status 404 if it is unknown."""
        if name not in self._engine.store.indices() and name not in self._engine.store.aliases():
            self._engine.names(name)  # raises the 404
        live = self._engine.target(name)
        old = self._current(live, doc_id)
        if old is None or old.source is None:
            missing = StoredDocument(live.last_seq, doc_id, 1, None)
            return _answer(live, missing, "not_found", 404)
        return _answer(live, self._remember(live, doc_id, None, old), "deleted", 200)

    def commit(self) -> None:
        """Make the writes durable."""
        if self._rows:
            self._engine.write(self._rows)

    def _current(self, live: LiveIndex, doc_id: str) -> StoredDocument | None:
        return self._latest.get((live, doc_id)) or self._engine.store.get(live.row, doc_id)

    def _remember(self, live: LiveIndex, doc_id: str, text: str | None, old: StoredDocument | None) -> StoredDocument:
        rows = self._rows.setdefault(live, [])
        seq = (rows[-1].seq if rows else live.last_seq) + 1
        row = StoredDocument(seq, doc_id, 1 if old is None else old.version + 1, text)
        rows.append(row)
        self._latest[(live, doc_id)] = row
        return row


def write_one(engine: Engine, write: Callable[[WriteBatch], Json], refresh: str) -> Json:
    """Make one write durable, and visible if ``refresh`` is set; return its response with ``status``."""
    with engine.writing():
        batch = WriteBatch(engine)
        response = write(batch)
        batch.commit()
        return _refreshed(engine, batch, response, refresh)


def _refreshed(engine: Engine, batch: WriteBatch, response: Json, refresh: str) -> Json:
    if refresh == "false":
        return response
    for live in batch.touched:
        engine.refresh(live)
    return {**response, "forced_refresh": True} if refresh != "wait_for" else response


def bulk(engine: Engine, default_index: str | None, body: str, refresh: str) -> Json:
    """Answer ``_bulk``: each action has its own result, and those that succeed become durable together."""
    began = time.perf_counter()
    responses: list[Json] = []
    actions = list(_actions(body, default_index))  # a malformed line refuses the whole request
    with engine.writing():
        batch = WriteBatch(engine)
        for action, meta, text in actions:
            responses.append({action: _attempt(batch, action, meta, text)})
        batch.commit()
        if refresh != "false":
            for live in batch.touched:
                engine.refresh(live)
    errors = any("error" in action_result for answer in responses for action_result in answer.values())
    return {"took": round((time.perf_counter() - began) * 1000), "errors": errors, "items": responses}


def _attempt(batch: WriteBatch, action: str, meta: Json, text: str) -> Json:
    name, doc_id = meta["_index"], meta.get("_id")
    try:
        if action == "delete":
            return batch.delete(name, meta["_id"])
        return batch.index(name, doc_id, text, create=action == "create")
    except Fault as fault:
        if fault.status in (403, 429, 500, 503):  # the folder is at fault, not the document
            raise
        return {"_index": name, "_id": doc_id, "status": fault.status, "error": fault.cause()}


def _actions(body: str, default_index: str | None) -> Iterator[tuple[str, Json, str]]:
    """Yield each action of a bulk body with its metadata and its document's line."""
    if not body.endswith("\n") or not body.strip():
        raise illegal("a bulk body has at least one action, and ends with a newline [\\n]")
    lines = iter(enumerate(body.split("\n"), start=1))
    for number, line in lines:
        if not line.strip():
            continue
        action, meta = _action(number, line)
        text = ""
        if action != "delete":
            text = next(lines, (0, ""))[1]
            if not text.strip():
                raise illegal(f"Malformed bulk body: the action on line [{number}] has no document on the next line")
        meta = {"_index": default_index, **meta}
        needed = ("_index", "_id") if action == "delete" else ("_index",)
        if missing := [key for key in needed if meta.get(key) is None]:
            reason = f"Validation Failed: {missing[0][1:]} is missing on line [{number}];"
            raise Fault(400, "action_request_validation_exception", reason)
        yield action, meta, text


def _action(number: int, line: str) -> tuple[str, Json]:
    try:
        parsed = json.loads(line)
        ((action, meta),) = parsed.items()
    except (ValueError, AttributeError):
        raise illegal(
            f"Malformed action/metadata line [{number}], expected an object with one of {list(ACTIONS)}"
        ) from None
    if action not in ACTIONS or not isinstance(meta, dict):
        raise illegal(
            f"Malformed action/metadata line [{number}], expected one of {list(ACTIONS)} but found [{action}]"
        )
    for key in meta:
        if key not in ("_index", "_id"):
            raise illegal(
                f"Action/metadata line [{number}] contains an unknown parameter [{key}] for the embedded engine"
            )
    return action, {key: _simple(value, key, number) for key, value in meta.items() if value is not None}


def _simple(value: Any, key: str, number: int) -> str:
    """Return an action's ``_index`` or ``_id`` as text."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise illegal(f"Malformed action/metadata line [{number}], expected a simple value for field [{key}]")
    return str(value)


def get(engine: Engine, name: str, doc_id: str) -> Json:
    """Answer a get with the latest write, refreshed or not; ``found`` is false if the document does not exist."""
    live = engine.live(engine.single(name))
    row = engine.store.get(live.row, doc_id)
    if row is None or row.source is None:
        return {"_index": live.row.name, "_id": doc_id, "found": False}
    return {
        "_index": live.row.name,
        "_id": doc_id,
        "_version": row.version,
        "_seq_no": row.seq - 1,
        "_primary_term": 1,
        "found": True,
        "_source": json.loads(row.source),
    }


def mget(engine: Engine, default_index: str | None, body: Json) -> Json:
    """Answer ``_mget``: each document as `get` returns it, or its error."""
    reject_unknown_keys("mget", body, frozenset({"docs", "ids"}))
    requested = [as_object(entry, "docs") for entry in as_list(body.get("docs", []), "docs")]
    requested += [{"_id": doc_id} for doc_id in as_list(body.get("ids", []), "ids")]
    problems = [] if requested else ["no documents to get"]
    for number, entry in enumerate(requested):
        reject_unknown_keys("mget docs", entry, frozenset({"_index", "_id"}))
        if isinstance(entry.get("_id"), dict | list):
            raise illegal(f"[_id] of doc {number} is not a simple value")
        problems += [
            f"{name} is missing for doc {number}"
            for name, value in (("index", entry.get("_index", default_index)), ("id", entry.get("_id")))
            if value is None
        ]
    if problems:
        reason = "".join(f" {number}: {problem};" for number, problem in enumerate(problems, start=1))
        raise Fault(400, "action_request_validation_exception", f"Validation Failed:{reason}")
    ids = [(str(entry.get("_index", default_index)), str(entry["_id"])) for entry in requested]
    return {"docs": [_get_or_error(engine, index, doc_id) for index, doc_id in ids]}


def _get_or_error(engine: Engine, name: str, doc_id: str) -> Json:
    try:
        return get(engine, name, doc_id)
    except Fault as fault:
        return {"_index": name, "_id": doc_id, "error": fault.body()["error"]}


def _object(text: str) -> Json:
    """Parse a document; refuse documents that could be stored but not indexed."""
    try:
        source = parsed_json(text)
    except ValueError as error:
        raise _unfit(f"the document is not JSON ({error})") from None
    if not isinstance(source, dict):
        raise _unfit("the document is not a JSON object")
    if _deeper(source, MAX_DEPTH):
        raise _unfit(f"the document has objects and arrays nested more than {MAX_DEPTH} deep: flatten it")
    try:
        json.dumps(source, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        surrogate = error.object[error.start]
        raise _unfit(f"the document has half of a surrogate pair, {surrogate!r}, which UTF-8 cannot hold") from None
    return source


def _unfit(reason: str) -> Fault:
    return Fault(400, "mapper_parsing_exception", f"failed to parse: {reason}")


def _deeper(value: Any, levels: int) -> bool:
    """Return whether objects and arrays are nested deeper than this many levels."""
    if not isinstance(value, dict | list):
        return False
    inside = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(element, levels - 1) for element in inside)


def _answer(live: LiveIndex, row: StoredDocument, outcome: str, status: int) -> Json:
    return {
        "_index": live.row.name,
        "_id": row.doc_id,
        "_version": row.version,
        "result": outcome,
        "_shards": {"total": 1, "successful": 1, "failed": 0},
        "_seq_no": row.seq - 1,
        "_primary_term": 1,
        "status": status,
    }


def _new_id() -> str:
    return base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")


def _checked_id(doc_id: str) -> str:
    try:
        size = len(doc_id.encode())
    except UnicodeEncodeError:
        raise illegal(f"id must be text that UTF-8 can hold, found {doc_id!r:.100}") from None
    if not 0 < size <= MAX_ID_BYTES:
        raise illegal(f"id must have 1 to {MAX_ID_BYTES} bytes but was: {size}")
    return doc_id


def _shard(live: LiveIndex) -> Json:
    return {"index": live.row.name, "shard": "0", "index_uuid": live.row.uuid}


def _exists_already(live: LiveIndex, doc_id: str, version: int) -> Fault:
    reason = f"[{doc_id}]: version conflict, document already exists (current version [{version}])"
    return Fault(409, "version_conflict_engine_exception", reason, _shard(live))
