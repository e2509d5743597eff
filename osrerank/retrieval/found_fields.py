"""Look up the fields of searches in mappings, and cache them for a minute.

Written as generators of requests, so that the synchronous and the asynchronous client send the same requests.
"""

import logging
import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from typing import Any

from osrerank._seldom import Seldom
from osrerank.errors import ResponseFormatError
from osrerank.retrieval.built_fields import BuiltFields, Found
from osrerank.retrieval.expiring import ExpiringCache
from osrerank.retrieval.fields import (
    IndexGroup,
    SearchFields,
    Wanted,
    as_built,
    parts_of,
    resolved,
    union,
    with_defined,
)
from osrerank.retrieval.mapping import Leaves, leaves_by_index, names_of, plain
from osrerank.retrieval.requests import NO_OPTIONS, SideRequest, path_of
from osrerank.types.failed import Failed
from osrerank.types.reasons import Warned, WarningCode

logger = logging.getLogger(__name__)

DAY_S = 86_400.0
"""How long it is not logged again which fields were found, in seconds."""
FRESH_S = 0.1
"""How long a mapping is not read again, even if it lacks a named field, in seconds."""
MOST_WANTED = 1_000
"""The most sets of named fields that are cached for an index."""
SHOWN = 20
"""The most names that a message lists."""


class _Index:
    """The cached knowledge of the indices that a search names: their mapping, and the fields found in them.

    Attributes:
        every: index -> its fields.
        read_s: when the mapping was read, by the clock, in seconds.
        names: the top-level names in the mapping, and others that hits had.
        indices: the names of the indices, and others that hits came from.
        parts: the fields of searches that name none, as the mapping alone gives them.
        built: index -> the fields that the last build of its vectors read; None if they were not looked up.
        fields: the fields that a search names -> the fields that it uses.
    """

    def __init__(self, every: dict[str, Leaves], read_s: float) -> None:
        self.names: set[str] = set()
        self.indices: set[str] = set()
        self.read(every, read_s)

    def read(self, every: dict[str, Leaves], read_s: float) -> None:
        """Replace the mapping by a newly read one."""
        self.every, self.read_s, self.parts = every, read_s, parts_of(every)
        self.names |= {name.partition(".")[0] for leaves in every.values() for name in leaves}
        self.indices |= every.keys()
        self.built: Found | None = None
        self.fields: dict[Wanted, SearchFields] = {}

    def leaves_open(self, wanted: Wanted) -> bool:
        """Return whether a search leaves fields open, so that they must be found."""
        return wanted.needs_found(with_defined(self.every, wanted))


class FoundFields:
    """Finds the fields of searches, and caches them for a minute. Safe to use from many threads.

    Args:
        clock: returns seconds.
        built: reads which fields builds of vectors read; None if no search reads stored vectors.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, built: BuiltFields | None = None) -> None:
        self._clock, self._built = clock, built
        self._known: ExpiringCache[str, _Index] = ExpiringCache(clock)
        self._refused: ExpiringCache[str, Warned] = ExpiringCache(clock)
        self._seldom, self._told = Seldom(clock=clock), Seldom(DAY_S, clock)

    def of(
        self, index: Any, wanted: Wanted, options: Mapping[str, Any] = NO_OPTIONS, *, anew: bool = False
    ) -> Generator[SideRequest, Any, SearchFields]:
        """Yield the requests that look fields up, usually none, and return the fields that a search uses.

        If a mapping cannot be read, the query searches the index's default fields, the model reads the fields that the
        hits have, and a warning says so.

        Args:
            index: a name, several, a pattern, or None for all.
            wanted: the fields that options and query name.
            options: the search's `osrerank.retrieval.requests.index_options`.
            anew: whether to read the mapping again.
        """
        if warning := self._refused.get(f"{index}{options}"):
            return _unread(wanted, warning)
        known = self._known.get(f"{index}{options}")
        fields = None if known is None else known.fields.get(wanted)
        is_fresh = known is not None and self._clock() - known.read_s < FRESH_S
        if fields is not None and (is_fresh or not (anew or fields.missing)):
            return fields
        try:
            return (yield from self._look(index, wanted, options, known, is_old=fields is not None))
        except (Failed, ResponseFormatError) as error:
            if isinstance(error, Failed) and error.is_absent:  # the search will raise it
                return _unread(wanted)
            sentence = f"the mapping of {index or 'all indices'} cannot be read: the search uses the default fields"
            warning = Warned(sentence, WarningCode.MAPPING_UNREAD)
            if self._seldom.is_due(str(index)):
                logger.warning("[mapping-unread] %s: %s", warning, error)
            if not isinstance(error, Failed) or error.is_forbidden:
                self._refused.put(f"{index}{options}", warning)
            timed_out = isinstance(error, Failed) and error.timed_out
            return replace(_unread(wanted, warning), timed_out=timed_out)

    def _look(
        self, index: Any, wanted: Wanted, options: Mapping[str, Any], known: _Index | None, *, is_old: bool
    ) -> Generator[SideRequest, Any, SearchFields]:
        """Yield the requests that find the fields of a search, cache the fields, and return them.

        Args:
            index: as in `of`.
            wanted: as in `of`.
            options: as in `of`.
            known: the cached knowledge of the indices; None if there is none.
            is_old: whether their mapping must be read again.
        """
        if known is None or is_old:
            every = leaves_by_index((yield SideRequest("GET", path_of(index, "_mapping"), params=options)))
            if known is None:
                known = _Index(every, self._clock())
                self._known.put(f"{index}{options}", known)
            else:
                known.read(every, self._clock())
        needs_found = known.leaves_open(wanted)
        warnings: tuple[Warned, ...] = ()
        parts = known.parts if needs_found else ()
        if needs_found and wanted.as_built and self._built is not None and not (wanted.read or wanted.searched):
            if known.built is None:
                known.built, warnings = yield from self._read_built(index, known.every, options)
            parts = as_built(known.parts, known.built, known.every)
            self._tell_built(known.parts, parts)
        fields = replace(resolved(known.every, parts, wanted), warnings=warnings)
        if needs_found and not fields.searched and not fields.read and (names := names_of(known.every.values())):
            shown = ", ".join(names[:SHOWN])
            sentence = f"the mapping has no text field, only {shown}: the index's default fields are searched"
            warning = Warned(sentence, WarningCode.NO_TEXT_FIELD)
            self.warn(index, [warning])
            fields = SearchFields(warnings=(warning,))
        elif needs_found:
            self._tell(index, fields)
        if len(known.fields) < MOST_WANTED:
            known.fields[wanted] = fields
        return fields

    def _read_built(
        self, index: Any, every: Mapping[str, Leaves], options: Mapping[str, Any]
    ) -> Generator[SideRequest, Any, tuple[Found, tuple[Warned, ...]]]:
        """Yield the requests for the fields that builds read; return them, or a warning if they cannot be read."""
        assert self._built is not None
        try:
            return (yield from self._built.of(index, every, options)), ()
        except (Failed, LookupError, TypeError, AttributeError) as error:
            where = index or "all indices"
            sentence = f"which fields the vectors of {where} were built with cannot be read: the mapping's are read"
            warning = Warned(sentence, WarningCode.BUILT_FIELDS_UNREAD)
            if self._seldom.is_due((str(index), warning)):
                logger.warning("[%s] %s: %s", warning.code, warning, error)
            return {}, (warning,)

    def _tell_built(self, mapped: Iterable[IndexGroup], parts: Iterable[IndexGroup]) -> None:
        """Log, once a day for an index, that its last build read other fields than the mapping gives now."""
        now = {name: part.read for part in mapped for name in part.indices}
        for part in parts:
            for name in part.indices:
                if part.read != now[name] and self._told.is_due((name, part.read, now[name])):
                    logger.warning(
                        "[fields-as-built] the vectors of %s were built with %s, and searches that name no fields read "
                        "these; the mapping gives %s now: to read those, osrerank vectors build --index %s",
                        name, ", ".join(part.read), ", ".join(now[name]) or "no field", name,
                    )  # fmt: skip

    def _tell(self, index: Any, fields: SearchFields) -> None:
        """Log, once a day for an index, which fields were found, and which are left out."""
        if self._told.is_due((str(index), fields.searched, fields.left_out)):
            where, searched = index or "all indices", ", ".join(fields.searched) or "default fields"
            if fields.left_out:
                shown = ", ".join(fields.left_out[:SHOWN])
                fix = "to choose, name them as query_fields"
                logger.warning("[fields-left-out] in %s, %s are searched, not %s; %s", where, searched, shown, fix)
            else:
                logger.info("in %s, %s are searched", where, searched)

    def is_outdated(self, index: Any, options: Mapping[str, Any], answer: Mapping[str, Any]) -> bool:
        """Return whether a search's hits are of indices, or have top-level fields, that the cached mapping lacks.

        Args:
            index: as in `of`.
            options: as in `of`.
            answer: the search's answer.
        """
        known = self._known.get(f"{index}{options}")
        if known is None:
            return False
        hits = answer.get("hits", {}).get("hits", ())
        names = {name.partition(".")[0] for hit in hits for name in hit.get("_source") or ()} - known.names
        indices = {hit["_index"] for hit in hits if "_index" in hit} - known.indices
        known.names |= names
        known.indices |= indices
        if indices:
            known.read_s = -math.inf  # however short ago that was
        return bool(names or indices)

    def forget(self) -> None:
        """Read mappings again that are cached, or could not be read."""
        self._known.clear()
        self._refused.clear()

    def warn(self, index: Any, warnings: Iterable[Warned]) -> None:
        """Log the warnings of a search, each at most once a minute."""
        for warning in warnings:
            if self._seldom.is_due((str(index), warning)):
                logger.warning("[%s] search of %s: %s", warning.code, index or "all indices", warning)


def _unread(wanted: Wanted, *warnings: Warned) -> SearchFields:
    """Return the fields of a search whose mapping cannot be read: those that it names."""
    read = union([map(plain, wanted.read or wanted.searched)])
    own = [plain(name) for name in wanted.own or () if "*" not in name]
    return replace(
        SearchFields.of_names(wanted.searched, read),
        read=read or union([own]),
        fetched=frozenset(read),
        warnings=warnings,
    )
