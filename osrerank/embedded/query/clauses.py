"""Functions that several query clauses share: BM25's formulas, and the parsing of fields, options and boosts."""

import math
import operator
from typing import Any

from tantivy import Query as TQuery

from osrerank.embedded.errors import Json, parse_number, parsing_error, reject_unknown_keys
from osrerank.embedded.mapping.values import as_text
from osrerank.embedded.storage.shard import FieldTotals

K1 = 1.2
B = 0.75
SINGLE_OCCURRENCE_FACTOR = 1 / (1 + K1)
"""BM25's frequency factor for a term that occurs once in a field of average length."""


def idf(n_documents: int, document_frequency: int) -> float:
    """Return BM25's inverse document frequency of a term that ``document_frequency`` of all documents contain."""
    return math.log(1 + (n_documents - document_frequency + 0.5) / (document_frequency + 0.5))


def length_norm(length: int, totals: FieldTotals) -> float:
    """Return BM25's length norm n of a document's field. A term that occurs n times has half of its maximum score.

    ``length`` is the number of terms in the field, rounded as Lucene stores it. ``totals`` gives the average length.
    """
    return K1 * (1 - B + B * length * totals.n_documents / totals.n_terms)


def read_single_field(clause: str, body: Json, value_key: str | None, allowed: frozenset[str]) -> tuple[str, Json]:
    """Return the field and the options of a clause on one field, such as ``("title", {"query": "tea"})``.

    Args:
        clause: the name of the clause, such as ``match``, for error messages.
        body: the content of the clause, such as ``{"title": {"query": "tea"}}``.
        value_key: the option that the clause must have. The short form ``{"title": "tea"}`` contains only its value.
            None if the clause has no such option, as in ``range``.
        allowed: the names of all options that the clause can have.
    """
    if len(body) != 1:
        raise parsing_error(f"[{clause}] query takes one field, found {sorted(body)}")
    ((field, options),) = body.items()
    if not isinstance(options, dict):
        if value_key is None:
            raise parsing_error(
                f"[{clause}] query malformed: [{field}] must have an object with options, found {options!r:.100}"
            )
        options = {value_key: options}
    reject_unknown_keys(clause, options, allowed)
    if value_key is not None:
        value = options.get(value_key)
        if value is None:
            raise parsing_error(f"[{clause}] query on [{field}] has no [{value_key}]")
        if isinstance(value, dict | list):
            raise parsing_error(f"[{clause}] query on [{field}] takes one value as [{value_key}], found {value!r:.100}")
    return field, options


def as_list(value: Any) -> list[Any]:
    """Return a part of a request as a list, because a request can also contain a single element or nothing there."""
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


def read_boost(body: Json) -> float:
    """Return the boost of a clause, which is 1 by default."""
    boost = parse_number(body.get("boost", 1.0), "boost")
    if boost < 0:
        raise parsing_error(f"a negative [boost] is not allowed in the query, found [{boost}]")
    return boost


def build_best_of(queries: list[TQuery], tie_breaker: float) -> TQuery:
    """Return a query that scores the best of the queries, plus ``tie_breaker`` times the scores of the others."""
    if not queries:
        return TQuery.empty_query()
    return queries[0] if len(queries) == 1 else TQuery.disjunction_max_query(queries, tie_breaker=tie_breaker)


def is_in_range(term: str, options: Json) -> bool:
    """Return whether a term is within the bounds ``gte``, ``gt``, ``lte`` and ``lt``, compared as text."""
    comparisons = {"gte": operator.ge, "gt": operator.gt, "lte": operator.le, "lt": operator.lt}
    bounds = {name: as_text(options[name]) for name in comparisons if options.get(name) is not None}
    return all(comparisons[name](term, bound) for name, bound in bounds.items())
