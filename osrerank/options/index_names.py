"""Find which names and patterns of a settings file apply to the indices of a search."""

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

ALL = "*"


def applying_names(index: Any, names: Collection[str]) -> set[str | None]:
    """Return the names and patterns of a settings file that apply to a search's indices.

    The set has None if no name or pattern applies to one of the indices. Each index is compared as the caller writes
    it, even an alias or a pattern. An exact name wins, else the longest pattern. If the caller writes a pattern, the
    names and patterns of all indices that it may match apply.

    Args:
        index: the indices of the caller: a name, several separated by commas, a list, or None for all.
        names: the names and patterns (``logs-*``) in the file.
    """
    expressions = [name for listed in _listed(index) for name in listed.split(",") if name] or [ALL]
    excluded = [name[1:] for name in expressions if name.startswith("-")]
    ordered = sorted(names, key=lambda name: (ALL in name, -len(name), name))
    not_excluded = [name for name in ordered if not any(fnmatchcase(name, pattern) for pattern in excluded)]
    included = [name for name in expressions if not name.startswith("-")]
    return {applying for name in included for applying in _applying_to(name, ordered, not_excluded)}


def _listed(index: Any) -> list[str]:
    return [index] if isinstance(index, str) else [str(name) for name in index or ()]


def _applying_to(name: str, ordered: Sequence[str], not_excluded: Collection[str]) -> Iterator[str | None]:
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
