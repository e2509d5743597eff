"""Find which names and patterns of a settings file apply to the indices of a search."""

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

ALL = "*"


def holding(index: Any, named: Collection[str]) -> set[str | None]:
    """Return the names and patterns of a settings file that apply to a search's indices.

    None is among them if no name or pattern applies to one of the indices. Each index is compared as the caller writes
    it, even an alias or a pattern. An exact name wins, else the longest pattern. A caller's pattern gets the names and
    patterns of every index that it could match.

    Args:
        index: the caller's indices: a name, several separated by commas, a list, or None for all.
        named: names and patterns (``logs-*``) of the file.
    """
    written = [part for each in _each(index) for part in each.split(",") if part] or [ALL]
    excluded = [name[1:] for name in written if name.startswith("-")]
    ordered = sorted(named, key=lambda name: (ALL in name, -len(name), name))
    left = [name for name in ordered if not any(fnmatchcase(name, pattern) for pattern in excluded)]
    return {found for name in written if not name.startswith("-") for found in _holding(name, ordered, left)}


def _each(index: Any) -> list[str]:
    return [index] if isinstance(index, str) else [str(name) for name in index or ()]


def _holding(name: str, ordered: Sequence[str], left: Collection[str]) -> Iterator[str | None]:
    name = ALL if name == "_all" else name
    for pattern in ordered:
        if fnmatchcase(name, pattern):  # it applies to every index that no earlier pattern matches
            yield pattern
            return
        if ALL in name and pattern in left and _overlap(name, pattern):
            yield pattern
    yield None


@lru_cache(maxsize=1000)
def _overlap(first: str, second: str) -> bool:
    """Return whether a name exists that both patterns match."""
    if not first or not second:
        return not (first + second).strip(ALL)
    if first[0] == ALL:
        return _overlap(first[1:], second) or _overlap(first, second[1:])
    if second[0] == ALL:
        return _overlap(second, first)
    return first[0] == second[0] and _overlap(first[1:], second[1:])
