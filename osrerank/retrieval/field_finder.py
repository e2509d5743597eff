"""Look up which fields a search uses: read the mapping, choose the fields, and cache both for a minute.

The generators yield requests instead of sending them, so that the synchronous and the asynchronous client share them.
"""

import logging
import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from typing import Any

from osrerank._log_throttle import LogThrottle
from osrerank.errors import ResponseFormatError
from osrerank.retrieval.built_fields import BuiltFields, FieldsByIndex
from osrerank.retrieval.expiring import ExpiringCache
from osrerank.retrieval.fields import (
    IndexGroup,
    NamedFields,
    SearchFields,
    add_body_fields,
    index_groups,
    resolve_fields,
    union,
    with_built_fields,
)
from osrerank.retrieval.mapping import Leaves, field_names, read_leaves_by_index, without_boost
from osrerank.retrieval.requests import NO_OPTIONS, SideRequest, build_path
from osrerank.types.engine_errors import EngineError
from osrerank.types.reasons import SearchWarning, WarningCode

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 86_400.0
"""The time, in seconds, after which the fields of an index are logged again."""
MIN_AGE_S = 0.1
"""The age, in seconds, below which a cached mapping is not read again, even if it lacks a specified field."""
MAX_FIELD_SETS = 1_000
"""The maximum number of cached `NamedFields` per index."""
MAX_LISTED_NAMES = 20
"""The maximum number of names that a message lists."""


class _CacheEntry:
    """The cached mapping of the indices that a search names, and the fields chosen from this mapping.

    Attributes:
        by_index: index -> its fields.
        loaded_at_s: the time of the clock when the mapping was read, in seconds.
        names: all top-level field names seen so far, in mappings and in hits.
        indices: the names of all indices seen so far, in mappings and in hits.
        groups: the fields of a search that specifies none, chosen by the mapping alone.
        built: index -> the fields used by its last vector build. None before they are looked up.
        fields: the fields that a search specifies -> the fields that it uses.
    """

    def __init__(self, by_index: dict[str, Leaves], loaded_at_s: float) -> None:
        self.names: set[str] = set()
        self.indices: set[str] = set()
        self.replace_mapping(by_index, loaded_at_s)

    def replace_mapping(self, by_index: dict[str, Leaves], loaded_at_s: float) -> None:
        """Replace the mapping, and what was chosen from it."""
        self.by_index = by_index
        self.loaded_at_s = loaded_at_s
        self.groups = index_groups(by_index)
        self.names |= {name.partition(".")[0] for leaves in by_index.values() for name in leaves}
        self.indices |= by_index.keys()
        self.built: FieldsByIndex | None = None
        self.fields: dict[NamedFields, SearchFields] = {}


class FieldFinder:
    """Finds the fields of searches, and caches them for a minute. Safe to use from many threads.

    ``built`` is None if no search reads stored vectors.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, built: BuiltFields | None = None) -> None:
        self._clock, self._built = clock, built
        self._entries: ExpiringCache[str, _CacheEntry] = ExpiringCache(clock)
        self._unreadable: ExpiringCache[str, SearchWarning] = ExpiringCache(clock)
        self._log_throttle, self._daily_throttle = LogThrottle(clock=clock), LogThrottle(LOG_INTERVAL_S, clock)

    def find(
        self, index: Any, named: NamedFields, options: Mapping[str, Any] = NO_OPTIONS, *, refresh: bool = False
    ) -> Generator[SideRequest, Any, SearchFields]:
        """Return the fields that a search uses, from the cache or after looking them up.

        If the mapping cannot be read, the query searches the index's default fields, and the model reads the fields of
        the hits. The returned fields contain a warning. ``options`` are the search's `index_options`. With ``refresh``,
        the mapping is read even if it is cached.
        """
        key = f"{index}{options}"
        if warning := self._unreadable.get(key):
            return _fields_without_mapping(named, warning)
        entry = self._entries.get(key)
        fields = None if entry is None else entry.fields.get(named)
        is_fresh = entry is not None and self._clock() - entry.loaded_at_s < MIN_AGE_S
        if fields is not None and (is_fresh or not (refresh or fields.missing)):
            return fields
        try:
            return (yield from self._look_up(index, named, options, entry, is_old=fields is not None))
        except (EngineError, ResponseFormatError) as error:
            if isinstance(error, EngineError) and error.is_absent:  # the search will raise it
                return _fields_without_mapping(named)
            sentence = f"the mapping of {index or 'all indices'} cannot be read: the search uses the default fields"
            warning = SearchWarning(sentence, WarningCode.MAPPING_UNREAD)
            if self._log_throttle.is_due(str(index)):
                logger.warning("[mapping-unread] %s: %s", warning, error)
            if not isinstance(error, EngineError) or error.is_forbidden:
                self._unreadable.put(key, warning)
            timed_out = isinstance(error, EngineError) and error.timed_out
            return replace(_fields_without_mapping(named, warning), timed_out=timed_out)

    def _look_up(
        self, index: Any, named: NamedFields, options: Mapping[str, Any], entry: _CacheEntry | None, *, is_old: bool
    ) -> Generator[SideRequest, Any, SearchFields]:
        """Read the mapping and the last build's fields, then cache and return the search's fields."""
        if entry is None or is_old:
            by_index = read_leaves_by_index((yield SideRequest("GET", build_path(index, "_mapping"), params=options)))
            if entry is None:
                entry = _CacheEntry(by_index, self._clock())
                self._entries.put(f"{index}{options}", entry)
            else:
                entry.replace_mapping(by_index, self._clock())
        needs_defaults = named.needs_mapping_fields(add_body_fields(entry.by_index, named))
        warnings: tuple[SearchWarning, ...] = ()
        groups = entry.groups if needs_defaults else ()
        has_names = bool(named.text_fields or named.query_fields)
        if needs_defaults and named.uses_build_fields and self._built is not None and not has_names:
            if entry.built is None:
                entry.built, warnings = yield from self._read_built(index, entry.by_index, options)
            groups = with_built_fields(entry.groups, entry.built, entry.by_index)
            self._log_built_fields(entry.groups, groups)
        fields = replace(resolve_fields(entry.by_index, groups, named), warnings=warnings)
        names = field_names(entry.by_index.values())
        if needs_defaults and names and not fields.searched and not fields.read:
            listed_names = ", ".join(names[:MAX_LISTED_NAMES])
            sentence = f"the mapping has no text field, only {listed_names}: the index's default fields are searched"
            warning = SearchWarning(sentence, WarningCode.NO_TEXT_FIELD)
            self.warn(index, [warning])
            fields = SearchFields(warnings=(warning,))
        elif needs_defaults:
            self._log_fields(index, fields)
        if len(entry.fields) < MAX_FIELD_SETS:
            entry.fields[named] = fields
        return fields

    def _read_built(
        self, index: Any, by_index: Mapping[str, Leaves], options: Mapping[str, Any]
    ) -> Generator[SideRequest, Any, tuple[FieldsByIndex, tuple[SearchWarning, ...]]]:
        """Look up the fields used by the last vector build. Return them, or a warning."""
        assert self._built is not None
        try:
            return (yield from self._built.find(index, by_index, options)), ()
        except (EngineError, LookupError, TypeError, AttributeError) as error:
            sentence = (
                f"cannot look up which fields the vectors of {index or 'all indices'} were built from; "
                "using the fields in the mapping instead"
            )
            warning = SearchWarning(sentence, WarningCode.BUILT_FIELDS_UNREAD)
            if self._log_throttle.is_due((str(index), warning)):
                logger.warning("[%s] %s: %s", warning.code, warning, error)
            return {}, (warning,)

    def _log_built_fields(self, mapped: Iterable[IndexGroup], groups: Iterable[IndexGroup]) -> None:
        """Log once a day, for each index, that its vectors were built from fields other than the mapping's."""
        mapping_fields = {name: group.read for group in mapped for name in group.indices}
        for group in groups:
            for name in group.indices:
                current = mapping_fields[name]
                if group.read != current and self._daily_throttle.is_due((name, group.read, current)):
                    logger.warning(
                        "[fields-as-built] the vectors of %s were built from %s; searches that name no fields use "
                        "these fields, although the mapping now has %s: to use the latter, run osrerank vectors build "
                        "--index %s",
                        name, ", ".join(group.read), ", ".join(current) or "no field", name,
                    )  # fmt: skip

    def _log_fields(self, index: Any, fields: SearchFields) -> None:
        """Log once a day, for each index, which text fields are searched and which are not."""
        if self._daily_throttle.is_due((str(index), fields.searched, fields.left_out)):
            indices, searched = index or "all indices", ", ".join(fields.searched) or "default fields"
            if fields.left_out:
                left_out = ", ".join(fields.left_out[:MAX_LISTED_NAMES])
                fix = "to choose, name them as query_fields"
                logger.warning("[fields-left-out] in %s, %s are searched, not %s; %s", indices, searched, left_out, fix)
            else:
                logger.info("in %s, %s are searched", indices, searched)

    def is_outdated(self, index: Any, options: Mapping[str, Any], response: Mapping[str, Any]) -> bool:
        """Return whether a search's hits contain indices or top-level fields that are not in the cached mapping."""
        entry = self._entries.get(f"{index}{options}")
        if entry is None:
            return False
        hits = response.get("hits", {}).get("hits", ())
        new_names = {name.partition(".")[0] for hit in hits for name in hit.get("_source") or ()} - entry.names
        new_indices = {hit["_index"] for hit in hits if "_index" in hit} - entry.indices
        entry.names |= new_names
        entry.indices |= new_indices
        if new_indices:
            entry.loaded_at_s = -math.inf  # so that the next lookup reads the mapping again
        return bool(new_names or new_indices)

    def forget(self) -> None:
        """Empty the cache, so that the next search reads its mapping again."""
        self._entries.clear()
        self._unreadable.clear()

    def warn(self, index: Any, warnings: Iterable[SearchWarning]) -> None:
        """Log the warnings of a search, each at most once a minute."""
        for warning in warnings:
            if self._log_throttle.is_due((str(index), warning)):
                logger.warning("[%s] search of %s: %s", warning.code, index or "all indices", warning)


def _fields_without_mapping(named: NamedFields, *warnings: SearchWarning) -> SearchFields:
    """Return the fields of a search whose mapping cannot be read: those that it specifies."""
    read = union([map(without_boost, named.text_fields or named.query_fields)])
    query_names = [without_boost(name) for name in named.in_query or () if "*" not in name]
    return replace(
        SearchFields.from_names(named.query_fields, read),
        read=read or union([query_names]),
        not_in_source=frozenset(read),
        warnings=warnings,
    )
