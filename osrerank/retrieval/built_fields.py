"""Look up which fields the last build of each index's vectors read; searches that name no fields read the same ones.

The fields are stored beside the vectors under the index's name, so that a search can look them up before its model is
loaded. One file may serve several search engines. Therefore it also stores the uuid of each index, because two engines
may have indices of the same name.
"""

import hashlib
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from osrerank.retrieval.engine_finder import EngineFinder
from osrerank.retrieval.requests import SideRequest, path_of
from osrerank.settings import Settings
from osrerank.types.failed import Failed
from osrerank.vectors.configured import VectorStorage
from osrerank.vectors.file import POSITION, FileStore
from osrerank.vectors.index import RecordRequests, side_index

BATCH_SIZE = 30
"""The number of side indices in one request."""
REQUEST_S = 2.0
"""The timeout of a request, in seconds."""
MAX_INDICES = 100
"""The maximum number of indices of the same name whose fields are stored."""

FieldsByIndex = Mapping[str, tuple[str, ...]]
"""Index -> the fields that its last build read."""


def fields_key(index: str) -> bytes:
    """Return the key under which a build stores the fields that it read of an index, as it stores a position."""
    return hashlib.blake2b(f"fields\0{index}".encode(), digest_size=16).digest()


def fields_content(before: bytes, identity: str, read: Sequence[str]) -> bytes:
    """Return the content to store under `fields_key`.

    Args:
        before: the content that is stored now; empty for none.
        identity: the index's uuid; "" in a side index.
        read: the fields that the build read.
    """
    entries = [(name, names) for name, names in _parsed(before).items() if name != identity]
    return json.dumps(dict([*entries[1 - MAX_INDICES :], (identity, read)]), separators=(",", ":")).encode()


def _parsed(content: bytes) -> FieldsByIndex:
    """Return index uuid -> the fields that its build read; the uuid is "" in a side index."""
    try:
        return {str(name): tuple(map(str, names)) for name, names in json.loads(content).items()} if content else {}
    except (ValueError, TypeError, AttributeError):  # written by another program
        return {}


class BuiltFields:
    """Reads which fields builds read, from the file or the side indices that store a client's vectors.

    Args:
        engine: finds out the engine.
        settings: the settings; they name the file.
        has_sides: whether the vectors are stored in side indices.
    """

    def __init__(self, engine: EngineFinder, settings: Settings, *, has_sides: bool) -> None:
        self._engine, self._settings, self._has_sides = engine, settings, has_sides

    @cached_property
    def _file(self) -> FileStore | None:
        """This machine's file; None if vectors are stored elsewhere."""
        store = VectorStorage.of(self._settings).store if self._settings.vectors in (None, "file") else None
        return store if isinstance(store, FileStore) else None

    def find(
        self, index: Any, names: Iterable[str], options: Mapping[str, Any]
    ) -> Generator[SideRequest, Any, FieldsByIndex]:
        """Yield the requests for the fields that the indices' last builds read, and return them.

        One request reads up to `BATCH_SIZE` side indices. The file needs no request, unless it has an entry for one of
        the names: then one request reads the uuids of the indices.

        Args:
            index: what the search names: a name, several, a pattern, or None for all.
            names: the names of these indices.
            options: the search's `osrerank.retrieval.requests.index_options`.

        Raises:
            Failed: the fields cannot be read now; but a batch with a missing or forbidden side index counts as empty.
        """
        keys = {name: fields_key(name) for name in names}
        if self._has_sides:
            contents = yield from self._in_sides(keys)
            return {name: read for name, fields in contents.items() if (read := fields.get(""))}
        stored = {} if self._file is None else self._file.read([POSITION + key for key in keys.values()])
        if not stored:
            return {}
        entries = yield SideRequest("GET", path_of(index or "*", "").rstrip("/"), params=options)
        uuids = {name: entry["settings"]["index"]["uuid"] for name, entry in entries.items()}
        contents = {name: _parsed(stored.get(POSITION + key, b"")) for name, key in keys.items()}
        return {name: read for name, fields in contents.items() if (read := fields.get(uuids.get(name, "")))}

    def _in_sides(self, keys: Mapping[str, bytes]) -> Generator[SideRequest, Any, dict[str, FieldsByIndex]]:
        """Yield the requests that read the side indices of these indices; return index -> its stored fields by uuid."""
        form = RecordRequests((yield from self._engine.find()))
        stored: dict[bytes, bytes] = {}
        sides = sorted({side_index(name) for name in keys})
        for start in range(0, len(sides), BATCH_SIZE):
            path, params, body = form.request_positions(sides[start : start + BATCH_SIZE], [*keys.values()])
            try:
                answer = yield SideRequest("POST", path, body, {**params, "request_timeout": REQUEST_S})
            except Failed as failed:
                if not failed.is_absent and not failed.is_forbidden:
                    raise
            else:
                stored |= form.read_positions(answer)
        return {name: _parsed(stored.get(key, b"")) for name, key in keys.items()}
