"""Store and look up the build fields of indices: the fields whose texts the last build of an index's vectors encoded.

A search that names no fields reads the build fields too, because the stored vectors are those of their texts.

Build fields are stored beside the vectors, under a key that is a digest of the index's name:

- in a side index, which is a hidden index with the vectors of another index. It is in the same engine, where the name
  identifies the index.
- or in the vector file of this machine. Several engines can have an index of this name and use the same file, so the
  content has an entry for the uuid of each such index: ``{"uuid of the index": ["title", "body"]}``.
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
"""The timeout of a request to side indices, in seconds."""
MAX_INDICES = 100
"""The maximum number of indices of the same name in a vector file. The oldest entry makes room for a new one."""

FieldsByIndex = Mapping[str, tuple[str, ...]]
"""The build fields of each index by its name: ``{"papers": ("title", "body")}``."""
FieldsByUuid = Mapping[str, tuple[str, ...]]
"""The build fields of indices of the same name by uuid. In a side index, the uuid is an empty string."""


def build_fields_key(index: str) -> bytes:
    """Return the key under which the build fields of an index are stored."""
    return hashlib.blake2b(f"fields\0{index}".encode(), digest_size=16).digest()


def update_build_fields(stored: bytes, uuid: str, fields: Sequence[str]) -> bytes:
    """Add the build fields of an index to the stored content, and return the new content.

    The content is JSON: ``{"uuid of the index":["title","body"]}``.

    Args:
        stored: the content that is stored now under `build_fields_key`. Empty if there is none.
        uuid: the uuid of the index. Empty in a side index.
        fields: the build fields.
    """
    entries: dict[str, Sequence[str]] = dict(_parse_content(stored))
    entries.pop(uuid, None)
    newest_others = list(entries.items())[-(MAX_INDICES - 1) :]
    return json.dumps(dict([*newest_others, (uuid, fields)]), separators=(",", ":")).encode()


def _parse_content(content: bytes) -> FieldsByUuid:
    if not content:
        return {}
    try:
        return {str(uuid): tuple(map(str, fields)) for uuid, fields in json.loads(content).items()}
    except (ValueError, TypeError, AttributeError):  # written by another program
        return {}


class BuildFieldFinder:
    """Looks up the build fields of indices, in side indices or in the vector file."""

    def __init__(self, engine: EngineFinder, settings: Settings, *, uses_side_indices: bool) -> None:
        self._engine, self._settings, self._uses_side_indices = engine, settings, uses_side_indices

    @cached_property
    def _vector_file(self) -> FileStore | None:
        """The vector file of this machine. None if the settings name another store, such as Redis."""
        if self._settings.vectors not in (None, "file"):
            return None
        store = VectorStorage.from_settings(self._settings).store
        return store if isinstance(store, FileStore) else None

    def find(
        self, index: Any, names: Iterable[str], options: Mapping[str, Any]
    ) -> Generator[SideRequest, Any, FieldsByIndex]:
        """Look up the build fields of indices. Indices without stored fields are left out.

        If the vector file has build fields for one of the names, a request reads the uuids of the indices.

        Args:
            index: the indices as the search names them: a name, a list of names, a pattern, or None for all.
            names: the names of all indices that ``index`` stands for.
            options: the URL parameters that decide which indices a name matches.

        Raises:
            EngineError: a request failed. A missing or forbidden side index is not an error.
        """
        keys = {name: build_fields_key(name) for name in names}
        if self._uses_side_indices:
            contents = yield from self._read_side_indices(keys)
            uuids = dict.fromkeys(keys, "")
        else:
            vector_file = self._vector_file
            stored = {} if vector_file is None else vector_file.read([BUILD_PREFIX + key for key in keys.values()])
            if not stored:
                return {}
            contents = {name: _parse_content(stored.get(BUILD_PREFIX + key, b"")) for name, key in keys.items()}
            path = build_path(index or "*", action="").rstrip("/")  # GET /papers,news describes the indices
            entries = yield SideRequest("GET", path, params=options)
            uuids = {name: entry["settings"]["index"]["uuid"] for name, entry in entries.items()}
        fields_by_index = {}
        for name, fields_by_uuid in contents.items():
            uuid = uuids.get(name)  # None if the index has been deleted
            fields = None if uuid is None else fields_by_uuid.get(uuid)
            if fields:
                fields_by_index[name] = fields
        return fields_by_index

    def _read_side_indices(self, keys: Mapping[str, bytes]) -> Generator[SideRequest, Any, dict[str, FieldsByUuid]]:
        """Read the stored build fields from the side indices. ``keys`` has the key of each index by its name."""
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
