"""Store and look up the fields that the last vector build of an index read.

A search that names no fields reads the same fields, so that the stored vectors fit its texts. The names of the fields
are stored with the vectors: in a side index (the hidden index with another index's vectors), or in this machine's
vector file. Their key is the index's name, so that a search can look them up before its model is loaded. Several search
engines can use the same file and have indices of the same name. The file therefore has an entry for each index uuid.
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
"""The maximum number of side indices that one request reads."""
TIMEOUT_S = 2.0
"""The timeout of such a request, in seconds."""
MAX_INDICES = 100
"""The fields of at most this many indices of the same name are stored. Beyond it, the oldest entry is dropped."""

FieldsByIndex = Mapping[str, tuple[str, ...]]
"""The fields that each index's last build read."""
FieldsByUuid = Mapping[str, tuple[str, ...]]
"""The fields that each index's last build read, by the index's uuid, which is empty in a side index."""


def build_fields_key(index: str) -> bytes:
    """Return the key under which a build stores the fields that it read."""
    return hashlib.blake2b(f"fields\0{index}".encode(), digest_size=16).digest()


def update_build_fields(stored: bytes, uuid: str, fields: Sequence[str]) -> bytes:
    """Return the content to store under `build_fields_key`, as JSON.

    ``stored`` is the content that is stored now, or empty. In a side index, ``uuid`` is empty.
    """
    entries = [(other, names) for other, names in _parse_content(stored).items() if other != uuid]
    return json.dumps(dict([*entries[1 - MAX_INDICES :], (uuid, fields)]), separators=(",", ":")).encode()


def _parse_content(content: bytes) -> FieldsByUuid:
    try:
        return {str(uuid): tuple(map(str, names)) for uuid, names in json.loads(content).items()} if content else {}
    except (ValueError, TypeError, AttributeError):  # written by another program
        return {}


class BuildFieldFinder:
    """Looks up the fields of the last vector build, in side indices or in the vector file."""

    def __init__(self, engine: EngineFinder, settings: Settings, *, uses_side_indices: bool) -> None:
        self._engine, self._settings, self._uses_side_indices = engine, settings, uses_side_indices

    @cached_property
    def _file(self) -> FileStore | None:
        """This machine's vector file. None if the settings name another store."""
        store = VectorStorage.from_settings(self._settings).store if self._settings.vectors in (None, "file") else None
        return store if isinstance(store, FileStore) else None

    def find(
        self, index: Any, names: Iterable[str], options: Mapping[str, Any]
    ) -> Generator[SideRequest, Any, FieldsByIndex]:
        """Look up the fields of each index's last build. Indices without stored fields are left out.

        The vector file is read without a request. If it has fields for one of the names, a request reads the uuids of
        the indices.

        Args:
            index: the indices as the search names them: a name, a list of names, a pattern, or None for all.
            names: the name of each of these indices.
            options: the search's `osrerank.retrieval.requests.select_index_options`.

        Raises:
            EngineError: a request failed. A missing or forbidden side index is not an error.
        """
        keys = {name: build_fields_key(name) for name in names}
        if self._uses_side_indices:
            contents = yield from self._read_side_indices(keys)
            uuids = dict.fromkeys(keys, "")
        else:
            stored = {} if self._file is None else self._file.read([BUILD_PREFIX + key for key in keys.values()])
            if not stored:
                return {}
            contents = {name: _parse_content(stored.get(BUILD_PREFIX + key, b"")) for name, key in keys.items()}
            entries = yield SideRequest("GET", build_path(index or "*", "").rstrip("/"), params=options)
            uuids = {name: entry["settings"]["index"]["uuid"] for name, entry in entries.items()}
        fields_by_index = {name: fields_by_uuid.get(uuids.get(name, "")) for name, fields_by_uuid in contents.items()}
        return {name: fields for name, fields in fields_by_index.items() if fields}

    def _read_side_indices(self, keys: Mapping[str, bytes]) -> Generator[SideRequest, Any, dict[str, FieldsByUuid]]:
        """Read the content under each index's key from the side indices."""
        requests = RecordRequests((yield from self._engine.find()))
        stored: dict[bytes, bytes] = {}
        side_indices = sorted({side_index(name) for name in keys})
        for start in range(0, len(side_indices), BATCH_SIZE):
            batch = side_indices[start : start + BATCH_SIZE]
            path, params, body = requests.request_build_states(batch, [*keys.values()])
            try:
                response = yield SideRequest("POST", path, body, {**params, "request_timeout": TIMEOUT_S})
            except EngineError as error:
                if not error.is_absent and not error.is_forbidden:
                    raise
            else:
                stored |= requests.parse_build_states(response)
        return {name: _parse_content(stored.get(key, b"")) for name, key in keys.items()}
