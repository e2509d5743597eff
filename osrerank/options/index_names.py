"""Find which names and patterns of a settings file apply to the indices of a search."""

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

ALL = "*"


def holding(index: Any, named: Collection[str]) -> set[str | None]:
    """Return the names and patterns of a settings file that apply to a search's indices.

    None is among them if no name or pattern applies to one of the indices. Each index is compared as the caller writes
    it, even an alias or a pattern. An exact name wins, else the longest pattern. To a caller's pattern apply the names
    and patterns of all indices that it may match.

    Args:
        index: the indices of the caller: a name, several separated by commas, a list, or None for all.
        named: the names and patterns (``logs-*``) in the file.
    """
    written = [part for names in _listed(index) for part in names.split(",") if part] or [ALL]
    excluded = [name[1:] for name in written if name.startswith("-")]
    ordered = sorted(named, key=lambda name: (ALL in name, -len(name), name))
    not_excluded = [name for name in ordered if not any(fnmatchcase(name, pattern) for pattern in excluded)]
    included = [name for name in written if not name.startswith("-")]
    return {applying for name in included for applying in _holding(name, ordered, not_excluded)}


def _listed(index: Any) -> list[str]:
    return [index] if isinstance(index, str) else [str(name) for name in index or ()]


def _holding(name: str, ordered: Sequence[str], not_excluded: Collection[str]) -> Iterator[str | None]:
    name = ALL if name == "_all" else name
    for pattern in ordered:
        if fnmatchcase(name, pattern):  # applies to all indices of the name that no earlier pattern matches
            yield pattern
            return
        if ALL in name and pattern in not_excluded and _overlap(name, pattern):
            yield pattern
    yield None


@lru_cache(maxsize=1000)
def _overlap(first: str, second: str) -> bool:
    """Return whether both patterns can match the same name."""
    if not first or not second:
        return not (first + second).strip(ALL)
    if first[0] == ALL:
        return _overlap(first[1:], second) or _overlap(first, second[1:])
    if second[0] == ALL:
        return _overlap(second, first)
    return first[0] == second[0] and _overlap(first[1:], second[1:])
