"""Functions that the clauses of queries share: BM25, the field and options of a clause, boosts, ranges."""

import math
import operator
from typing import Any

from tantivy import Query as TQuery

from osrerank.embedded.errors import Json, parse_number, parsing_fault, reject_unknown_keys
from osrerank.embedded.mapping.values import as_text
from osrerank.embedded.storage.shard import FieldTotals

K1, B = 1.2, 0.75
SINGLE_OCCURRENCE_TF = 1 / (1 + K1)
"""BM25's frequency factor of a term that occurs once in a field of average length."""


def idf(document_count: int, frequency: int) -> float:
    """Return BM25's inverse document frequency of a term that ``frequency`` documents contain."""
    return math.log(1 + (document_count - frequency + 0.5) / (frequency + 0.5))


def length_norm(length: int, totals: FieldTotals) -> float:
    """Return BM25's length norm: the frequency at which a term has half its maximum score.

    ``length`` is the field length as Lucene stores it.
    """
    return K1 * (1 - B + B * length * totals.documents / totals.tokens)


def single_field(clause: str, body: Json, value_key: str | None, allowed: frozenset[str]) -> tuple[str, Json]:
    """Return the field and options of a clause on one field; a value without options means ``{value_key: value}``."""
    if len(body) != 1:
        raise parsing_fault(f"[{clause}] query takes one field, found {sorted(body)}")
    ((path, options),) = body.items()
    if not isinstance(options, dict):
        if value_key is None:
            raise parsing_fault(f"[{clause}] query malformed: the options of [{path}] are {options!r:.100}")
        options = {value_key: options}
    reject_unknown_keys(clause, options, allowed)
    if value_key is not None and options.get(value_key) is None:
        raise parsing_fault(f"[{clause}] query on [{path}] has no [{value_key}]")
    if value_key is not None and isinstance(options[value_key], dict | list):
        raise parsing_fault(
            f"[{clause}] query on [{path}] takes one value as [{value_key}], found {options[value_key]!r:.100}"
        )
    return path, options


def as_clauses(clauses: Any) -> list[Any]:
    """Return clauses as a list, because a body can contain a single clause or none."""
    if isinstance(clauses, list):
        return clauses
    return [] if clauses is None else [clauses]


def read_boost(body: Json) -> float:
    """Return a clause's boost, 1 by default."""
    boost = parse_number(body.get("boost", 1.0), "boost")
    if boost < 0:
        raise parsing_fault(f"negative [boost] are not allowed in the query, found [{boost}]")
    return boost


def best_clause(queries: list[TQuery], tie_breaker: float) -> TQuery:
    """Return a query whose score is its best clause's score plus ``tie_breaker`` times the other clauses' scores."""
    if not queries:
        return TQuery.empty_query()
    return queries[0] if len(queries) == 1 else TQuery.disjunction_max_query(queries, tie_breaker=tie_breaker)


def is_in_range(term: str, options: Json) -> bool:
    """Return whether a term is within the bounds of a range."""
    comparisons = {"gte": operator.ge, "gt": operator.gt, "lte": operator.le, "lt": operator.lt}
    bounds = {name: as_text(options[name]) for name in comparisons if options.get(name) is not None}
    return all(comparisons[name](term, bound) for name, bound in bounds.items())
