"""Sort hits by field values, score or insertion order."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any

import tantivy

from osrerank.embedded.errors import Fault, illegal, no_field_data, only, parsing, unsupported
from osrerank.embedded.storage.index import Snapshot


@dataclass(frozen=True, slots=True)
class Key:
    """One level of a sort.

    Attributes:
        field: a field's path, ``_score`` or ``_doc``.
        descending: greatest first.
        missing_last: whether documents without a value come last.
        unmapped_ok: whether an index may lack the field.
    """

    field: str
    descending: bool
    missing_last: bool = True
    unmapped_ok: bool = False


@dataclass(frozen=True, slots=True)
class MatchingDocument:
    """A matching document before its source is read.

    Attributes:
        number: of the index among those searched, from 0.
        seq: its sequence number there.
        keys: its values by level of the sort; empty without a sort.
    """

    number: int
    seq: int
    score: float
    address: tantivy.DocAddress
    keys: tuple[Any, ...] = ()


def sort_keys(given: Any) -> list[Key]:
    """Return the levels of a body's ``sort``.

    Raises:
        Fault: 400 naming the unsupported option.
    """
    levels = given if isinstance(given, list) else [] if given is None else [given]
    return [_key(one) for one in levels]


def _key(level: Any) -> Key:
    if isinstance(level, str):
        name, _, order = level.partition(":")
        return Key(name, descending=(order or ("desc" if name == "_score" else "asc")) == "desc")
    if not isinstance(level, dict) or len(level) != 1:
        raise parsing(f"[sort] has a level that is neither a field nor an object with one field: {level!r:.100}")
    ((name, options),) = level.items()
    if name in ("_geo_distance", "_script"):
        raise unsupported(f"[{name}] in [sort]")
    options = {"order": options} if isinstance(options, str) else options
    only(f"sort of {name}", options, frozenset({"order", "missing", "unmapped_type"}))
    order = options.get("order", "desc" if name == "_score" else "asc")
    if order not in ("asc", "desc"):
        raise illegal(f"Unknown SortOrder [{order}] for [{name}]: give asc or desc")
    missing = options.get("missing", "_last")
    if missing not in ("_last", "_first"):
        raise unsupported(f"[missing: {missing}] in [sort]", "use _last or _first")
    return Key(name, order == "desc", missing == "_last", "unmapped_type" in options)


def read_keys(snapshot: Snapshot, query: tantivy.Query, key: Key) -> dict[int, Any]:
    """Return sequence number -> value of a field for all matching documents that have one."""
    field = snapshot.fields.by_path.get(key.field)
    if field is None:
        if key.unmapped_ok:
            return {}
        reason = f"No mapping found for [{key.field}] in order to sort on"
        raise Fault(400, "query_shard_exception", reason, {"index": snapshot.name})
    if field.column == "text":
        raise no_field_data(key.field)
    if key.field not in snapshot.shard.names:
        return {}
    limit = max(1, snapshot.searcher.num_docs)
    order = tantivy.Order.Desc if key.descending else tantivy.Order.Asc
    column = snapshot.shard.names[key.field]
    hits = snapshot.searcher.search(query, limit, count=False, order_by_field=column, order=order).hits
    numbers = snapshot.shard.numbers(snapshot.searcher, [address for _, address in hits])
    return {seq: value for seq, (value, _) in zip(numbers, hits, strict=True) if value is not None}


def comparison(keys: list[Key]) -> Callable[[MatchingDocument], Any]:
    """Return the sort key that orders documents by the levels, then by index and insertion."""

    def compare(one: MatchingDocument, other: MatchingDocument) -> int:
        for key, left, right in zip(keys, one.keys, other.keys, strict=True):
            if step := compare_values(key, left, right):
                return step
        return (one.number, one.seq) > (other.number, other.seq) or -1

    return cmp_to_key(compare)


def compare_values(key: Key, left: Any, right: Any) -> int:
    """Return -1, 0 or 1: one value of a level comes before, with or after another; None is a missing value."""
    if left is None or right is None:
        order = (left is None) - (right is None)
        return order if key.missing_last else -order
    order = int(left > right) - int(left < right)
    return -order if key.descending else order


def after(keys: list[Key], found: MatchingDocument, values: list[Any]) -> bool:
    """Return whether a document comes after the ``search_after`` values."""
    for key, one, bound in zip(keys, found.keys, values, strict=True):
        if step := compare_values(key, one, bound):
            return step > 0
    return False


def check_after(keys: list[Key], values: Any) -> list[Any] | None:
    """Return the ``search_after`` values, or raise the fault that says what is wrong with them."""
    if values is None:
        return None
    if not keys or not isinstance(values, list) or len(values) != len(keys):
        raise parsing(f"[search_after] needs one value for each level of [sort] ({len(keys)}), found {values!r:.100}")
    return values
