"""Find which names and patterns of a settings file apply to the indices of a search."""

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

ALL = "*"


def holding(index: Any, named: Collection[str]) -> set[str | None]:
    """Return which of a file's names and patterns apply to a search's indices, with None for indices without any.

    Each index is taken as the caller writes it, even an alias or a pattern. An exact name wins, else the longest
    pattern. A caller's pattern has those of all indices that could match it.

    Args:
        index: the caller's: a name, several separated by commas, a list, or None for all.
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
        if fnmatchcase(name, pattern):  # it applies to all that no earlier one matches
            yield pattern
            return
        if ALL in name and pattern in left and _overlap(name, pattern):
            yield pattern
    yield None


@lru_cache(maxsize=1000)
def _overlap(one: str, other: str) -> bool:
    """Return whether one name can match both patterns."""
    if not one or not other:
        return not (one + other).strip(ALL)
    if one[0] == ALL:
        return _overlap(one[1:], other) or _overlap(one, other[1:])
    if other[0] == ALL:
        return _overlap(other, one)
    return one[0] == other[0] and _overlap(one[1:], other[1:])
