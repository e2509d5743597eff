"""Shared parts of query clauses: BM25, the field and options of a clause, boosts."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from tantivy import Query as TQuery

from osrerank.embedded.errors import Json, as_number, parsing, reject_unknown_keys
from osrerank.embedded.mapping.values import as_text
from osrerank.embedded.storage.shard import FieldTotals

K1, B = 1.2, 0.75
TF_OF_ONE = 1 / (1 + K1)
"""BM25's frequency factor of a term that occurs once in a field of average length."""


def idf(documents: int, frequency: int) -> float:
    """Return BM25's inverse document frequency of a term that ``frequency`` of the documents contain."""
    return math.log(1 + (documents - frequency + 0.5) / (frequency + 0.5))


def saturation(length: int, totals: FieldTotals) -> float:
    """Return the frequency at which a term reaches half its greatest score, for a length as Lucene stores it."""
    return K1 * (1 - B + B * length * totals.documents / totals.tokens)


def single_field(clause: str, body: Json, value_key: str | None, allowed: frozenset[str]) -> tuple[str, Json]:
    """Return the field and options of a clause on one field; a bare value stands for ``{value_key: value}``."""
    if len(body) != 1:
        raise parsing(f"[{clause}] query takes one field, found {sorted(body)}")
    ((path, options),) = body.items()
    if not isinstance(options, dict):
        if value_key is None:
            raise parsing(f"[{clause}] query malformed: the options of [{path}] are {options!r:.100}")
        options = {value_key: options}
    reject_unknown_keys(clause, options, allowed)
    if value_key is not None and options.get(value_key) is None:
        raise parsing(f"[{clause}] query on [{path}] has no [{value_key}]")
    if value_key is not None and isinstance(options[value_key], dict | list):
        raise parsing(
            f"[{clause}] query on [{path}] takes one value as [{value_key}], found {options[value_key]!r:.100}"
        )
    return path, options


def as_clauses(clauses: Any) -> list[Any]:
    """Return clauses as a list; a single clause may be written without one."""
    return clauses if isinstance(clauses, list) else [] if clauses is None else [clauses]


def boost_of(body: Json) -> float:
    """Return a clause's boost, 1 by default."""
    boost = as_number(body.get("boost", 1.0), "boost")
    if boost < 0:
        raise parsing(f"negative [boost] are not allowed in the query, found [{boost}]")
    return boost


def best_of(queries: list[TQuery], tie: float) -> TQuery:
    """Return the disjunction whose score is that of its best clause, plus ``tie`` times the scores of the others."""
    if not queries:
        return TQuery.empty_query()
    return queries[0] if len(queries) == 1 else TQuery.disjunction_max_query(queries, tie_breaker=tie)


def is_within(term: str, options: Json) -> bool:
    """Return whether a term lies within the bounds of a range."""
    tests: Mapping[str, Callable[[str, str], bool]] = {
        "gte": lambda term_, bound: term_ >= bound,
        "gt": lambda term_, bound: term_ > bound,
        "lte": lambda term_, bound: term_ <= bound,
        "lt": lambda term_, bound: term_ < bound,
    }
    return all(test(term, as_text(options[name])) for name, test in tests.items() if options.get(name) is not None)
