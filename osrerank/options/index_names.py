"""Find the index names and patterns in a settings file that apply to the indices of a search."""

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

WILDCARD = "*"


def match_names(index: Any, names: Collection[str]) -> set[str | None]:
    """Return the names and patterns in a settings file that apply to a search's indices.

    An exact name takes precedence over patterns, and a longer pattern over a shorter one. With ``logs-a`` and
    ``logs-*`` in the file, the result is ``{"logs-a"}`` for the index ``logs-a``, ``{"logs-*"}`` for ``logs-b``, and
    ``{None}`` for ``shop``, because nothing in the file applies to it. If the caller searches the pattern ``logs-*``,
    which can match both, the result is ``{"logs-a", "logs-*"}``. Aliases are not resolved.

    Args:
        index: the indices of the search: a name, several names separated by commas, a list, or None for all indices. A
            ``-`` before a name excludes it.
        names: the names and patterns in the file.
    """
    name_lists = [index] if isinstance(index, str) else [str(name) for name in index or ()]
    searched_names = [name for name_list in name_lists for name in name_list.split(",") if name] or [WILDCARD]
    included = [name for name in searched_names if not name.startswith("-")]
    excluded = [name[1:] for name in searched_names if name.startswith("-")]
    # exact names, then patterns, the longest first
    entries = sorted(names, key=lambda entry: (WILDCARD in entry, -len(entry), entry))
    not_excluded = [entry for entry in entries if not any(fnmatchcase(entry, pattern) for pattern in excluded)]
    return {matching for name in included for matching in _match_name(name, entries, not_excluded)}


def _match_name(searched: str, entries: Sequence[str], not_excluded: Collection[str]) -> Iterator[str | None]:
    """Yield the entries of the file that apply to a searched name or pattern.

    Also yield None if it might match an index to which no entry applies.

    Args:
        searched: the name or pattern.
        entries: the names and patterns in the file, in order of precedence.
        not_excluded: the entries that the search does not exclude.
    """
    searched = WILDCARD if searched == "_all" else searched
    for entry in entries:
        if fnmatchcase(searched, entry):  # this entry applies to all remaining indices
            yield entry
            return
        if WILDCARD in searched and entry in not_excluded and _overlap(searched, entry):
            yield entry
    yield None


@lru_cache(maxsize=1000)
def _overlap(pattern: str, other: str) -> bool:
    """Return whether some name matches both patterns: ``ab`` matches ``a*`` and ``*b``."""
    if not pattern or not other:  # one is empty, so the other one must consist of wildcards
        return not (pattern + other).strip(WILDCARD)
    if pattern[0] == WILDCARD:
        return _overlap(pattern[1:], other) or _overlap(pattern, other[1:])
    if other[0] == WILDCARD:
        return _overlap(other, pattern)
    return pattern[0] == other[0] and _overlap(pattern[1:], other[1:])
