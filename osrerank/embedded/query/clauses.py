"""The parts that clauses share: fields with options, boosts, how many must match."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from tantivy import Query as TQuery

from osrerank.embedded.errors import Json, as_number, only, parsing


def idf(documents: int, frequency: int) -> float:
    """Return BM25's inverse document frequency of a term that this many of the documents have."""
    return math.log(1 + (documents - frequency + 0.5) / (frequency + 0.5))


def minimum_should_match(given: Any, clauses: int, where: str) -> int:
    """Return how many of the optional clauses must match, for a number, a percentage or conditions like ``2<75%``."""
    if given is None:
        return 0
    text = str(given).strip()
    try:
        if "<" not in text:
            return max(0, _share(text, clauses))
        chosen = clauses
        for condition in text.split():
            limit, _, share = condition.partition("<")
            if clauses <= int(limit):
                break
            chosen = _share(share, clauses)
        return max(0, min(chosen, clauses))
    except ValueError:
        raise parsing(f"[{where}] has a [minimum_should_match] that cannot be read: {text!r}") from None


def _share(text: str, clauses: int) -> int:
    if text.endswith("%"):
        percent = int(text[:-1])
        part = int(clauses * abs(percent) / 100)
        return clauses - part if percent < 0 else part
    number = int(text)
    return clauses + number if number < 0 else number


def single_field(clause: str, body: Json, value_key: str | None, allowed: frozenset[str]) -> tuple[str, Json]:
    """Return the field and options of a clause of one field; a bare value stands for ``{value_key: value}``."""
    if len(body) != 1:
        raise parsing(f"[{clause}] query takes one field, found {sorted(body)}")
    ((path, options),) = body.items()
    if not isinstance(options, dict):
        if value_key is None or isinstance(options, list):
            raise parsing(f"[{clause}] query malformed: the options of [{path}] are {options!r:.100}")
        return path, {value_key: options}
    only(clause, options, allowed)
    if value_key is not None and options.get(value_key) is None:
        raise parsing(f"[{clause}] query on [{path}] has no [{value_key}]")
    if value_key is not None and isinstance(options[value_key], dict | list):
        raise parsing(
            f"[{clause}] query on [{path}] takes one value as [{value_key}], found {options[value_key]!r:.100}"
        )
    return path, options


def listed(clauses: Any) -> list[Any]:
    """Return clauses as a list; a single one need not be in a list."""
    return clauses if isinstance(clauses, list) else [] if clauses is None else [clauses]


def boost_of(body: Json) -> float:
    """Return a clause's boost, 1 by default."""
    boost = as_number(body.get("boost", 1.0), "boost")
    if boost < 0:
        raise parsing(f"negative [boost] are not allowed in the query, found [{boost}]")
    return boost


def boosted(query: TQuery, boost: float) -> TQuery:
    """Return a query with its scores multiplied."""
    return query if boost == 1.0 else TQuery.boost_query(query, boost)


def best_of(queries: list[TQuery], tie: float) -> TQuery:
    """Return the disjunction that scores as its best clause, plus ``tie`` times the others."""
    if not queries:
        return TQuery.empty_query()
    return queries[0] if len(queries) == 1 else TQuery.disjunction_max_query(queries, tie_breaker=tie)


def within(term: str, options: Json) -> bool:
    """Return whether a term lies within the bounds of a range."""
    tests: Mapping[str, Callable[[str, str], bool]] = {
        "gte": lambda one, bound: one >= bound,
        "gt": lambda one, bound: one > bound,
        "lte": lambda one, bound: one <= bound,
        "lt": lambda one, bound: one < bound,
    }
    return all(test(term, str(options[name])) for name, test in tests.items() if options.get(name) is not None)
