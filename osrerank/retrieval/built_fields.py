"""Store and look up the fields from which document vectors were built.

A search that names no fields reads the fields of the last build, so that the stored vectors fit its texts. The names
are stored beside the vectors, under the index's name, so that a search can look them up before its model is loaded: in
a side index (a hidden index with the vectors of another one), or in the vector file of this machine. A file may serve
several search engines that have indices of the same name. It therefore has an entry for each index uuid.
"""

import hashlib
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from osrerank.retrieval.engine_finder import EngineFinder
from osrerank.retrieval.requests import SideRequest, build_path
from osrerank.settings import Settings
from osrerank.types.engine_errors import EngineError
from osrerank.vectors.file import BUILD_PREFIX, FileStore
from osrerank.vectors.index import RecordRequests, side_index
from osrerank.vectors.storage import VectorStorage

BATCH_SIZE = 30
"""The number of side indices in one request."""
TIMEOUT_S = 2.0
"""The timeout of a request, in seconds."""
MAX_INDICES = 100
"""The maximum number of indices of the same name whose fields are stored."""

FieldsByIndex = Mapping[str, tuple[str, ...]]
"""Index -> the fields that its last build read."""


def fields_key(index: str) -> bytes:
    """Return the key under which a build stores the fields that it read."""
    return hashlib.blake2b(f"fields\0{index}".encode(), digest_size=16).digest()


def fields_content(stored: bytes, identity: str, fields: Sequence[str]) -> bytes:
    """Return the content to store under `fields_key`, as JSON.

    Args:
        stored: the content that is stored now. Empty if there is none.
        identity: the index's uuid; "" in a side index.
        fields: the fields that the build read.
    """
    entries = [(name, names) for name, names in _parse_content(stored).items() if name != identity]
    return json.dumps(dict([*entries[1 - MAX_INDICES :], (identity, fields)]), separators=(",", ":")).encode()


def _parse_content(content: bytes) -> FieldsByIndex:
    """Return index uuid -> the fields that its build read; the uuid is "" in a side index."""
    try:
        return {str(name): tuple(map(str, names)) for name, names in json.loads(content).items()} if content else {}
    except (ValueError, TypeError, AttributeError):  # written by another program
        return {}


class BuiltFields:
    """Looks up the fields of the last build, in the file or the side indices with a client's vectors.

    Args:
        has_sides: whether the vectors are stored in side indices.
    """

    def __init__(self, engine: EngineFinder, settings: Settings, *, has_sides: bool) -> None:
        self._engine, self._settings, self._has_sides = engine, settings, has_sides

    @cached_property
    def _file(self) -> FileStore | None:
        """This machine's vector file. None if vectors are stored elsewhere."""
        store = VectorStorage.from_settings(self._settings).store if self._settings.vectors in (None, "file") else None
        return store if isinstance(store, FileStore) else None

    def find(
        self, index: Any, names: Iterable[str], options: Mapping[str, Any]
    ) -> Generator[SideRequest, Any, FieldsByIndex]:
        """Yield the requests for the fields of the last build of each index, and return those that are stored.

        One request reads up to `BATCH_SIZE` side indices. The file is read without a request. If it has fields for one
        of the names, one request reads the uuids of the indices.

        Args:
            index: the indices as the search names them: a name, a list of names, a pattern, or None for all.
            names: the name of each of these indices.
            options: the search's `osrerank.retrieval.requests.index_options`.

        Raises:
            EngineError: the fields cannot be read now. A batch with a missing or forbidden side index counts as empty.
        """
        keys = {name: fields_key(name) for name in names}
        if self._has_sides:
            contents = yield from self._read_side_indices(keys)
            uuids = dict.fromkeys(keys, "")
        else:
            stored = {} if self._file is None else self._file.read([BUILD_PREFIX + key for key in keys.values()])
            if not stored:
                return {}
            contents = {name: _parse_content(stored.get(BUILD_PREFIX + key, b"")) for name, key in keys.items()}
            entries = yield SideRequest("GET", build_path(index or "*", "").rstrip("/"), params=options)
            uuids = {name: entry["settings"]["index"]["uuid"] for name, entry in entries.items()}
        built = {name: fields_by_uuid.get(uuids.get(name, "")) for name, fields_by_uuid in contents.items()}
        return {name: fields for name, fields in built.items() if fields}

    def _read_side_indices(self, keys: Mapping[str, bytes]) -> Generator[SideRequest, Any, dict[str, FieldsByIndex]]:
        """Read the side indices. Return index -> the parsed content under its key."""
        requests = RecordRequests((yield from self._engine.find()))
        stored: dict[bytes, bytes] = {}
        sides = sorted({side_index(name) for name in keys})
        for start in range(0, len(sides), BATCH_SIZE):
            path, params, body = requests.request_build_states(sides[start : start + BATCH_SIZE], [*keys.values()])
            try:
                response = yield SideRequest("POST", path, body, {**params, "request_timeout": TIMEOUT_S})
            except EngineError as failed:
                if not failed.is_absent and not failed.is_forbidden:
                    raise
            else:
                stored |= requests.parse_build_states(response)
        return {name: _parse_content(stored.get(key, b"")) for name, key in keys.items()}
