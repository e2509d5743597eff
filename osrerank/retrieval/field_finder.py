"""Find out which fields a search uses: read the mapping, choose the fields, and cache both for a minute.

The methods yield their requests instead of sending them, so that both the synchronous and the asynchronous client can
call them.
"""

import logging
import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from typing import Any

from osrerank._log_throttle import LogThrottle
from osrerank.errors import ResponseFormatError
from osrerank.retrieval.build_fields import BuildFieldFinder, FieldsByIndex
from osrerank.retrieval.expiring import ExpiringCache
from osrerank.retrieval.fields import (
    FieldChoice,
    IndexGroup,
    MappedTraits,
    SearchFields,
    add_body_fields,
    choose_default_groups,
    resolve_fields,
    with_build_fields,
)
from osrerank.retrieval.mapping import Leaves, list_field_names, read_leaves_by_index, without_boost
from osrerank.retrieval.requests import NO_OPTIONS, SideRequest, build_path
from osrerank.types.engine_errors import EngineError
from osrerank.types.reasons import SearchWarning, WarningCode

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 86_400.0
"""The time after which the fields of an index are logged again: a day, in seconds."""
MIN_AGE_S = 0.1
"""A cached mapping younger than this, in seconds, is not read again to look for a missing field."""
MAX_CACHED_CHOICES = 1_000
"""The maximum number of field choices for which the fields are cached, per index."""
MAX_LISTED_NAMES = 20
"""The maximum number of field names that a message lists."""


class _CacheEntry:
    """The cached mapping of the indices that a search names, and the fields chosen from this mapping.

    Attributes:
        leaves_by_index: the fields in each index's mapping.
        loaded_at_s: the time of the clock when the mapping was read, in seconds.
        top_level_names: all top-level field names seen so far, in mappings and in hits.
        indices: the names of all indices seen so far, in mappings and in hits.
        groups: groups of indices whose mappings suggest the same fields to a search that names none.
        build_fields: the fields that each index's last vector build read. None until they are looked up.
        fields_by_choice: the fields that a search uses, by the caller's choice of fields.
    """

    def __init__(self, leaves_by_index: dict[str, Leaves], loaded_at_s: float) -> None:
        self.top_level_names: set[str] = set()
        self.indices: set[str] = set()
        self.replace_mapping(leaves_by_index, loaded_at_s)

    def replace_mapping(self, leaves_by_index: dict[str, Leaves], loaded_at_s: float) -> None:
        """Replace the mapping, and forget the fields that were chosen from the old one."""
        self.leaves_by_index = leaves_by_index
        self.loaded_at_s = loaded_at_s
        self.groups = choose_default_groups(leaves_by_index)
        self.top_level_names |= {name.partition(".")[0] for leaves in leaves_by_index.values() for name in leaves}
        self.indices |= leaves_by_index.keys()
        self.build_fields: FieldsByIndex | None = None
        self.fields_by_choice: dict[FieldChoice, SearchFields] = {}


class FieldFinder:
    """Finds the fields of searches, and caches them for a minute. Safe to use from many threads.

    ``build_fields`` looks up the fields of vector builds. It is None if no search reads stored vectors.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, build_fields: BuildFieldFinder | None = None
    ) -> None:
        self._clock, self._build_fields = clock, build_fields
        self._entries: ExpiringCache[str, _CacheEntry] = ExpiringCache(clock)
        self._mapping_warnings: ExpiringCache[str, SearchWarning] = ExpiringCache(clock)
        self._log_throttle, self._daily_throttle = LogThrottle(clock=clock), LogThrottle(LOG_INTERVAL_S, clock)

    def find(
        self, index: Any, choice: FieldChoice, options: Mapping[str, Any] = NO_OPTIONS, *, refresh: bool = False
    ) -> Generator[SideRequest, Any, SearchFields]:
        """Return the fields that a search uses. Yield the requests to look them up, unless they are cached.

        If the mapping cannot be read, the result has a warning. The query then searches the index's default fields, and
        the model scores the text fields of the hits.

        Args:
            index: the indices as the search names them.
            choice: the caller's choice of fields.
            options: the search's `osrerank.retrieval.requests.select_index_options`.
            refresh: whether to read the mapping again if it is cached and older than `MIN_AGE_S`.
        """
        key = _cache_key(index, options)
        warning = self._mapping_warnings.get(key)
        if warning is not None:
            return _fields_without_mapping(choice, warning)
        entry = self._entries.get(key)
        fields = None if entry is None else entry.fields_by_choice.get(choice)
        if entry is not None and fields is not None:
            is_fresh = self._clock() - entry.loaded_at_s < MIN_AGE_S
            # a missing field that the caller named might have been added to the mapping since
            wants_new_mapping = refresh or bool(fields.option_names.missing)
            if is_fresh or not wants_new_mapping:
                return fields
        try:
            return (yield from self._look_up(index, choice, options, entry, must_read_mapping=fields is not None))
        except (EngineError, ResponseFormatError) as error:
            if isinstance(error, EngineError) and error.is_absent:  # the search itself will raise this error
                return _fields_without_mapping(choice)
            sentence = f"the mapping of {index or 'all indices'} cannot be read: the search uses the default fields"
            warning = SearchWarning(sentence, WarningCode.MAPPING_UNREAD)
            if self._log_throttle.should_log(str(index)):
                logger.warning("[mapping-unread] %s: %s", warning, error)
            # If another attempt would fail, too, none is made until the cached warning expires.
            if not isinstance(error, EngineError) or error.is_forbidden:
                self._mapping_warnings.put(key, warning)
            timed_out = isinstance(error, EngineError) and error.timed_out
            return replace(_fields_without_mapping(choice, warning), timed_out=timed_out)

    def _look_up(
        self,
        index: Any,
        choice: FieldChoice,
        options: Mapping[str, Any],
        entry: _CacheEntry | None,
        *,
        must_read_mapping: bool,
    ) -> Generator[SideRequest, Any, SearchFields]:
        """Choose and cache a search's fields. Read the mapping and the last build's fields unless they are cached.

        ``must_read_mapping`` says whether to read the mapping even if it is cached in ``entry``.
        """
        if entry is None or must_read_mapping:
            response = yield SideRequest("GET", build_path(index, "_mapping"), params=options)
            leaves_by_index = read_leaves_by_index(response)
            if entry is None:
                entry = _CacheEntry(leaves_by_index, self._clock())
                self._entries.put(_cache_key(index, options), entry)
            else:
                entry.replace_mapping(leaves_by_index, self._clock())
        if not entry.leaves_by_index:  # no mapping, as for a pattern for indices of another cluster
            return _fields_without_mapping(choice)
        needs_defaults = choice.needs_mapping_fields(add_body_fields(entry.leaves_by_index, choice))
        warnings: tuple[SearchWarning, ...] = ()
        groups = entry.groups if needs_defaults else ()
        options_name_fields = bool(choice.model_fields or choice.query_fields)
        may_use_build_fields = choice.uses_build_fields and self._build_fields is not None
        if needs_defaults and may_use_build_fields and not options_name_fields:
            if entry.build_fields is None:
                entry.build_fields, warnings = yield from self._read_build_fields(index, entry.leaves_by_index, options)
            groups = with_build_fields(entry.groups, entry.build_fields, entry.leaves_by_index)
            self._log_build_fields(entry.groups, groups)
        fields = replace(resolve_fields(entry.leaves_by_index, groups, choice), warnings=warnings)
        mapped_names = list_field_names(entry.leaves_by_index.values())
        if needs_defaults and mapped_names and not fields.query_fields and not fields.model_fields:
            listed_names = ", ".join(mapped_names[:MAX_LISTED_NAMES])
            sentence = f"the mapping has no text field, only {listed_names}: the search uses the default fields"
            warning = SearchWarning(sentence, WarningCode.NO_TEXT_FIELD)
            self.warn(index, [warning])
            fields = SearchFields(warnings=(*warnings, warning))
        elif needs_defaults:
            self._log_fields(index, fields)
        if len(entry.fields_by_choice) < MAX_CACHED_CHOICES:
            entry.fields_by_choice[choice] = fields
        return fields

    def _read_build_fields(
        self, index: Any, indices: Iterable[str], options: Mapping[str, Any]
    ) -> Generator[SideRequest, Any, tuple[FieldsByIndex, tuple[SearchWarning, ...]]]:
        """Return the fields that each index's last vector build read, or a warning if they cannot be looked up."""
        assert self._build_fields is not None
        try:
            fields_by_index = yield from self._build_fields.find(index, indices, options)
        except (EngineError, LookupError, TypeError, AttributeError) as error:
            sentence = (
                f"cannot look up which fields the vectors of {index or 'all indices'} were built from; "
                "using the fields in the mapping instead"
            )
            warning = SearchWarning(sentence, WarningCode.BUILT_FIELDS_UNREAD)
            if self._log_throttle.should_log((str(index), warning)):
                logger.warning("[%s] %s: %s", warning.code, warning, error)
            return {}, (warning,)
        return fields_by_index, ()

    def _log_build_fields(self, mapping_groups: Iterable[IndexGroup], used_groups: Iterable[IndexGroup]) -> None:
        """Log once a day for each index whose vectors were built from other fields than the mapping now suggests.

        ``mapping_groups`` have the fields that the mapping suggests. ``used_groups`` have those of the last build, if
        there was one.
        """
        mapping_fields = {name: group.model_fields for group in mapping_groups for name in group.indices}
        for group in used_groups:
            for name in group.indices:
                built, current = group.model_fields, mapping_fields[name]
                if built != current and self._daily_throttle.should_log((name, built, current)):
                    logger.warning(
                        "[fields-as-built] the vectors of %s were built from %s; searches that name no fields use "
                        "these fields, although the mapping now has %s: to use the latter, run osrerank vectors build "
                        "--index %s",
                        name, ", ".join(built), ", ".join(current) or "no field", name,
                    )  # fmt: skip

    def _log_fields(self, index: Any, fields: SearchFields) -> None:
        """Log once a day, for each index, which text fields are searched and which are not."""
        if self._daily_throttle.should_log((str(index), fields.query_fields, fields.left_out)):
            indices = index or "all indices"
            searched_names = ", ".join(fields.query_fields) or "default fields"
            if fields.left_out:
                left_out = ", ".join(fields.left_out[:MAX_LISTED_NAMES])
                fix = "to search other fields, name them as query_fields"
                logger.warning(
                    "[fields-left-out] searches of %s read %s, but not %s; %s", indices, searched_names, left_out, fix
                )
            else:
                logger.info("searches of %s read %s", indices, searched_names)

    def note_new_names(self, index: Any, options: Mapping[str, Any], response: Mapping[str, Any]) -> bool:
        """Note the indices and top-level fields of a search's hits. Return whether the cached mapping lacks one.

        Each new name counts once: the next response with the same names has no new ones.
        """
        entry = self._entries.get(_cache_key(index, options))
        if entry is None:
            return False
        hits = response.get("hits", {}).get("hits", ())
        names_in_hits = {name.partition(".")[0] for hit in hits for name in hit.get("_source") or ()}
        new_names = names_in_hits - entry.top_level_names
        new_indices = {hit["_index"] for hit in hits if "_index" in hit} - entry.indices
        entry.top_level_names |= new_names
        entry.indices |= new_indices
        if new_indices:
            entry.loaded_at_s = -math.inf  # so that the next lookup reads the mapping again
        return bool(new_names or new_indices)

    def forget(self) -> None:
        """Empty the cache, so that the next search reads its mapping again."""
        self._entries.clear()
        self._mapping_warnings.clear()

    def warn(self, index: Any, warnings: Iterable[SearchWarning]) -> None:
        """Log the warnings of a search, each at most once a minute."""
        for warning in warnings:
            if self._log_throttle.should_log((str(index), warning)):
                logger.warning("[%s] search of %s: %s", warning.code, index or "all indices", warning)


def _cache_key(index: Any, options: Mapping[str, Any]) -> str:
    return f"{index}{options}"


def _fields_without_mapping(choice: FieldChoice, *warnings: SearchWarning) -> SearchFields:
    """Return the fields that the caller chose, without resolving their names.

    The search requests them as ``fields``, too, because ``_source`` might not have their text.
    """
    fields = SearchFields.from_names(choice.query_fields, choice.model_fields)
    names_in_query = dict.fromkeys(without_boost(name) for name in choice.searched_by_body or () if "*" not in name)
    return replace(
        fields,
        model_fields=fields.model_fields or tuple(names_in_query),
        traits=MappedTraits(absent_from_source=frozenset(fields.model_fields)),
        warnings=warnings,
    )
