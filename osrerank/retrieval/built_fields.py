"""Look up which fields the last build of each index's vectors read: searches that name no fields read the same.

The fields are kept beside the vectors, by the index's name alone, so that a search finds them before its model is
loaded. One machine's file may serve several search engines, so the file also keeps the index's uuid, which tells apart
indices that have the same name.
"""

import hashlib
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from osrerank.retrieval.found_engine import FoundEngine
from osrerank.retrieval.requests import SideRequest, path_of
from osrerank.settings import Settings
from osrerank.types.failed import Failed
from osrerank.vectors.configured import VectorStorage
from osrerank.vectors.file import POSITION, FileStore
from osrerank.vectors.index import RecordRequests, side_index

AT_ONCE = 30
"""Side indices per request."""
REQUEST_S = 2.0
"""The longest timeout of a request, in seconds."""
MOST_ALIKE = 100
"""The most indices of one name whose fields a file keeps."""

Found = Mapping[str, tuple[str, ...]]
"""Index -> the fields that its last build read."""


def fields_key(index: str) -> bytes:
    """Return the key under which a build keeps the fields that it read of an index; it is kept like a position."""
    return hashlib.blake2b(f"fields\0{index}".encode(), digest_size=16).digest()


def fields_content(before: bytes, identity: str, read: Sequence[str]) -> bytes:
    """Return the content to keep under `fields_key`.

    Args:
        before: the content that is kept now; empty for none.
        identity: the index's uuid; "" in a side index.
        read: the fields that the build read.
    """
    others = [(name, names) for name, names in _parsed(before).items() if name != identity]
    return json.dumps(dict([*others[1 - MOST_ALIKE :], (identity, read)]), separators=(",", ":")).encode()


def _parsed(content: bytes) -> Found:
    """Return index uuid -> the fields that its build read; the uuid is "" in a side index."""
    try:
        return {str(name): tuple(map(str, names)) for name, names in json.loads(content).items()} if content else {}
    except (ValueError, TypeError, AttributeError):  # written by another program
        return {}


class BuiltFields:
    """Reads the fields of builds, from the place where a client's searches find vectors that builds stored.

    Args:
        engine: finds the engine.
        settings: say where vectors are stored.
        has_sides: whether they are stored in side indices.
    """

    def __init__(self, engine: FoundEngine, settings: Settings, *, has_sides: bool) -> None:
        self._engine, self._settings, self._has_sides = engine, settings, has_sides

    @cached_property
    def _file(self) -> FileStore | None:
        """This machine's file; None if vectors are stored elsewhere."""
        store = VectorStorage.of(self._settings).store if self._settings.vectors in (None, "file") else None
        return store if isinstance(store, FileStore) else None

    def of(self, index: Any, names: Iterable[str], options: Mapping[str, Any]) -> Generator[SideRequest, Any, Found]:
        """Yield the requests for the fields that the indices' last builds read, and return them.

        Side indices are asked in batches of `AT_ONCE`. The file itself needs no request; if it has an entry for any of
        these names, one request asks the engine for the indices' uuids.

        Args:
            index: what the search names: a name, several, a pattern, or None for all.
            names: the names of these indices.
            options: the search's `osrerank.retrieval.requests.index_options`.

        Raises:
            Failed: the fields cannot be read now. A batch with a missing or forbidden side index counts as empty.
        """
        keys = {name: fields_key(name) for name in names}
        if self._has_sides:
            contents = yield from self._in_sides(keys)
            return {name: read for name, fields in contents.items() if (read := fields.get(""))}
        found = {} if self._file is None else self._file.read([POSITION + key for key in keys.values()])
        if not found:
            return {}
        entries = yield SideRequest("GET", path_of(index or "*", "").rstrip("/"), params=options)
        uuids = {name: entry["settings"]["index"]["uuid"] for name, entry in entries.items()}
        contents = {name: _parsed(found.get(POSITION + key, b"")) for name, key in keys.items()}
        return {name: read for name, fields in contents.items() if (read := fields.get(uuids.get(name, "")))}

    def _in_sides(self, keys: Mapping[str, bytes]) -> Generator[SideRequest, Any, dict[str, Found]]:
        """Yield the requests for what the side indices of these indices keep, and return it by index."""
        form = RecordRequests((yield from self._engine.of()))
        found: dict[bytes, bytes] = {}
        sides = sorted({side_index(name) for name in keys})
        for start in range(0, len(sides), AT_ONCE):
            path, params, body = form.reading_positions(sides[start : start + AT_ONCE], [*keys.values()])
            try:
                answer = yield SideRequest("POST", path, body, {**params, "request_timeout": REQUEST_S})
            except Failed as failed:
                if not failed.is_absent and not failed.is_forbidden:
                    raise
            else:
                found |= form.positions(answer)
        return {name: _parsed(found.get(key, b"")) for name, key in keys.items()}
