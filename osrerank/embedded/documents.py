"""Writing and reading documents: index, create, update, delete, get, mget, bulk."""

import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

from osrerank.embedded.errors import Fault, Json, as_object, illegal, only, parsed_json
from osrerank.embedded.mapping.source import SourceFilter, kept_source, source_filter, source_text
from osrerank.embedded.storage.engine import Engine
from osrerank.embedded.storage.index import LiveIndex
from osrerank.embedded.storage.store import StoredDocument

ACTIONS = ("index", "create", "update", "delete")
MAX_ID_BYTES = 512
MAX_DEPTH = 100
"""Deepest nesting of objects and arrays; OpenSearch maps 20 objects (``index.mapping.depth.limit``) and parses
1,000."""


class WriteBatch:
    """Writes that become durable together; use it while holding the engine's right to write.

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
            Fault: 400 if the document does not fit the mappings; 409, where it does, if it exists and must not.
        """
        source = _object(text)
        live = self._engine.target(name)
        doc_id = _new_id() if doc_id is None else _checked_id(doc_id)
        old = self._current(live, doc_id)
        if additions := live.fields.additions(source):
            self._engine.change(live, mappings=additions)
        live.fields.extract(source)  # refuses values that do not fit their fields
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

    def update(self, name: str, doc_id: str, body: Json) -> Json:
        """Merge a partial document into an existing one, or write ``upsert``."""
        only("update", body, frozenset({"doc", "upsert", "doc_as_upsert", "detect_noop", "_source"}))
        live = self._engine.target(name)
        old = self._current(live, doc_id)
        if old is None or old.source is None:
            fresh = body.get("doc") if body.get("doc_as_upsert") else body.get("upsert")
            if fresh is None:
                reason = f"[{doc_id}]: document missing"
                raise Fault(404, "document_missing_exception", reason, _shard(live))
            return self.index(name, doc_id, source_text(as_object(fresh, "upsert")))
        before = _source(live, old)
        after = _merged(before, as_object(body.get("doc") or {}, "doc"))
        if after == before and body.get("detect_noop", True):
            return _answer(live, old, "noop", 200)
        return self.index(name, doc_id, source_text(after))

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
    """Make one write durable, and visible if asked to; return its response with its ``status``."""
    with engine.writing():
        batch = WriteBatch(engine)
        answer = write(batch)
        batch.commit()
        return _refreshed(engine, batch, answer, refresh)


def _refreshed(engine: Engine, batch: WriteBatch, answer: Json, refresh: str) -> Json:
    if refresh == "false":
        return answer
    for live in batch.touched:
        engine.refresh(live)
    return {**answer, "forced_refresh": True} if refresh != "wait_for" else answer


def bulk(engine: Engine, default_index: str | None, body: str, refresh: str) -> Json:
    """Answer ``_bulk``: every action gets its own result, and those that succeed are durable together."""
    began = time.perf_counter()
    items: list[Json] = []
    with engine.writing():
        batch = WriteBatch(engine)
        for action, meta, text in _actions(body, default_index):
            items.append({action: _attempt(batch, action, meta, text)})
        batch.commit()
        if refresh != "false":
            for live in batch.touched:
                engine.refresh(live)
    errors = any("error" in item for answer in items for item in answer.values())
    return {"took": round((time.perf_counter() - began) * 1000), "errors": errors, "items": items}


def _attempt(batch: WriteBatch, action: str, meta: Json, text: str) -> Json:
    name, doc_id = meta.get("_index"), meta.get("_id")
    doc_id = None if doc_id is None else str(doc_id)
    try:
        if not name:
            raise illegal("index is missing")
        if action in ("delete", "update") and doc_id is None:
            raise illegal("an id must be provided if version type or value are set")
        if action == "delete":
            return batch.delete(name, str(doc_id))
        if action == "update":
            return batch.update(name, str(doc_id), _object(text))
        return batch.index(name, doc_id, text, create=action == "create" or meta.get("op_type") == "create")
    except Fault as fault:
        if fault.status in (403, 429, 500, 503):  # the folder's error, not the document's
            raise
        return {"_index": name, "_id": doc_id, "status": fault.status, "error": fault.cause()}


def _actions(body: str, default_index: str | None) -> Iterator[tuple[str, Json, str]]:
    """Yield each action of a bulk body with its metadata and its document's line."""
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
        yield action, {"_index": default_index, **meta}, text


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
        if key not in ("_index", "_id", "op_type", "retry_on_conflict", "require_alias"):
            raise illegal(
                f"Action/metadata line [{number}] contains an unknown parameter [{key}] for the embedded engine"
            )
    return action, meta


def get(engine: Engine, name: str, doc_id: str, wanted: SourceFilter) -> Json:
    """Answer a get with the latest write, refreshed or not; ``found`` is false if there is none."""
    names = engine.names(name)
    if len(names) != 1:
        raise illegal(
            f"alias [{name}] has more than one index associated with it {names}, can't execute a single index op"
        )
    live = engine.live(names[0])
    row = engine.store.get(live.row, doc_id)
    if row is None or row.source is None:
        return {"_index": live.row.name, "_id": doc_id, "found": False}
    source = {"_source": wanted.apply(_source(live, row))} if wanted.wanted else {}
    return {
        "_index": live.row.name,
        "_id": doc_id,
        "_version": row.version,
        "_seq_no": row.seq - 1,
        "_primary_term": 1,
        "found": True,
        **source,
    }


def _source(live: LiveIndex, row: StoredDocument) -> Json:
    """Return a document's source as OpenSearch keeps it: without what the mappings leave out."""
    return kept_source(live.fields.mappings).apply(json.loads(row.source or ""))


def mget(engine: Engine, default_index: str | None, body: Json, params: dict[str, str]) -> Json:
    """Answer ``_mget``."""
    only("mget", body, frozenset({"docs", "ids"}))
    wanted: list[Json] = body.get("docs") or [{"_id": one} for one in body.get("ids", [])]
    if not wanted:
        raise Fault(400, "action_request_validation_exception", "Validation Failed: 1: no documents to get;")
    return {"docs": [_got(engine, default_index, one, params) for one in wanted]}


def _got(engine: Engine, default_index: str | None, one: Json, params: dict[str, str]) -> Json:
    only("mget docs", one, frozenset({"_index", "_id", "_source"}))
    name, doc_id = one.get("_index", default_index), str(one.get("_id"))
    if name is None:
        raise Fault(400, "action_request_validation_exception", "Validation Failed: 1: index is missing for doc 0;")
    try:
        return get(engine, name, doc_id, source_filter(one.get("_source"), {} if "_source" in one else params))
    except Fault as fault:
        return {"_index": name, "_id": doc_id, "error": fault.body()["error"]}


def _object(text: str) -> Json:
    """Parse a document; refuse one that could be stored but not indexed."""
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
        found = error.object[error.start]
        raise _unfit(f"the document has half of a surrogate pair, {found!r}, which UTF-8 cannot hold") from None
    return source


def _unfit(reason: str) -> Fault:
    return Fault(400, "mapper_parsing_exception", f"failed to parse: {reason}")


def _deeper(value: Any, levels: int) -> bool:
    """Return whether objects and arrays are nested deeper than this many levels."""
    if not isinstance(value, dict | list):
        return False
    inside = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(one, levels - 1) for one in inside)


def _merged(old: Json, new: Json) -> Json:
    """Return a document with another merged into it, object by object."""
    both = dict(old)
    for key, value in new.items():
        inside = both.get(key)
        both[key] = _merged(inside, value) if isinstance(inside, dict) and isinstance(value, dict) else value
    return both


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
