"""Leaf queries search for values in fields: full text, exact values, ranges. Scores are Lucene's."""

import contextlib
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import tantivy
from tantivy import Occur
from tantivy import Query as TQuery

from osrerank.embedded.analysis.tokens import GAP
from osrerank.embedded.errors import Fault, Json, as_list, as_name, as_number, only, parsing, unsupported
from osrerank.embedded.mapping import values
from osrerank.embedded.mapping.fields import Field
from osrerank.embedded.query.clauses import (
    best_of,
    boost_of,
    boosted,
    idf,
    minimum_should_match,
    single_field,
    within,
)
from osrerank.embedded.storage.index import Snapshot
from osrerank.embedded.storage.shard import EVERY, ID, PRESENT

K1, B = 1.2, 0.75
INDEX = "_index"
TF_OF_ONE = 1 / (1 + K1)
"""BM25's frequency factor of a term that occurs once in a field of average length."""

_MATCH = frozenset(
    {"query", "operator", "minimum_should_match", "boost", "analyzer", "zero_terms_query", "lenient",
     "auto_generate_synonyms_phrase_query", "fuzzy_transpositions", "prefix_length", "max_expansions"}
)  # fmt: skip
_MULTI_MATCH = _MATCH | {"fields", "type", "tie_breaker"}


class LeafQueries:
    """Compiles leaf queries for one snapshot; ``terms`` collects what a highlighter marks, by field path."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._schema: tantivy.Schema = snapshot.shard.schema
        self._names = snapshot.shard.names
        self.terms: dict[str, set[str]] = {}

    # Full text

    def _match(self, body: Json) -> TQuery:
        path, options = single_field("match", body, "query", _MATCH)
        return self._match_field(path, options, "match")

    def _match_field(self, path: str, options: Json, clause: str) -> TQuery:
        boost = boost_of(options)
        field = self._snapshot.fields.by_path.get(path)
        if path == ID:
            return boosted(self._ids({"values": [options["query"]]}), boost)
        if field is None or path not in self._names:
            return self._unknown(field)
        if field.column != "text":
            return self._exact_or_none(field, options["query"], boost, lenient=bool(options.get("lenient")))
        terms = self._analysed(field, options)
        if not terms:
            return (
                boosted(TQuery.all_query(), boost) if options.get("zero_terms_query") == "all" else TQuery.empty_query()
            )
        self._note(path, terms)
        counts = Counter(terms)
        clauses = [self._text_term(path, term, boost * count) for term, count in counts.items()]
        if str(options.get("operator", "or")).lower() == "and":
            return TQuery.boolean_query([(Occur.Must, one) for one in clauses])
        least = minimum_should_match(options.get("minimum_should_match"), len(terms), clause)
        return self._at_least(least, list(zip(clauses, counts.values(), strict=True)))

    def _at_least(self, least: int, weighted: list[tuple[TQuery, int]]) -> TQuery:
        """Return a disjunction of which this many must match; a term counts as often as the query repeats it."""
        shoulds = [(Occur.Should, clause) for clause, _ in weighted]
        if least <= 1:
            return TQuery.boolean_query(shoulds)
        if least > sum(count for _, count in weighted):
            return TQuery.empty_query()
        # A clause without a score represents each further occurrence of a repeated term.
        repeats = [
            (Occur.Should, TQuery.const_score_query(clause, 0.0))
            for clause, count in weighted
            for _ in range(count - 1)
        ]
        return TQuery.boolean_query([*shoulds, *repeats], minimum_number_should_match=least)

    def _analysed(self, field: Field, options: Json) -> list[str]:
        named = options.get("analyzer")
        analyzer = self._snapshot.analyzers.get(named) if named else self._snapshot.analyzer(field)
        return [term for term in analyzer.terms(values.as_text(options["query"])) if term != GAP]

    def _text_term(self, path: str, term: str, boost: float) -> TQuery:
        """Return a text field's term with Lucene's BM25: tantivy's has the factor k1 + 1 and counts all documents."""
        query = TQuery.term_query(self._schema, self._names[path], term)
        every, having = self._snapshot.present(EVERY), self._snapshot.having_terms(path)
        weight = boost / (K1 + 1)
        if having != every:
            frequency = self._snapshot.frequency(path, term)
            weight *= idf(having, frequency) / idf(every, frequency)
        return TQuery.boost_query(query, weight)

    def _match_phrase(self, body: Json) -> TQuery:
        allowed = frozenset({"query", "slop", "boost", "analyzer", "zero_terms_query"})
        path, options = single_field("match_phrase", body, "query", allowed)
        return self._phrase_field(path, options)

    def _phrase_field(self, path: str, options: Json) -> TQuery:
        if options.get("slop", 0) not in (0, "0"):
            raise unsupported("[slop] other than 0 in [match_phrase]")
        field = self._snapshot.fields.by_path.get(path)
        if field is None or field.column != "text" or path not in self._names:
            return self._match_field(path, {key: options[key] for key in options if key != "slop"}, "match_phrase")
        named = options.get("analyzer")
        analyzer = self._snapshot.analyzers.get(named) if named else self._snapshot.analyzer(field)
        found = [
            (position, term)
            for position, term in enumerate(analyzer.terms(values.as_text(options["query"])))
            if term != GAP
        ]
        terms = [term for _, term in found]
        if len(found) < 2:
            return self._match_field(path, {key: options[key] for key in options if key != "slop"}, "match_phrase")
        self._note(path, terms)
        first = found[0][0]
        phrase = TQuery.phrase_query(
            self._schema, self._names[path], [(position - first, term) for position, term in found]
        )
        return TQuery.boost_query(phrase, boost_of(options) * self._phrase_weight(path, terms))

    def _phrase_weight(self, path: str, terms: Iterable[str]) -> float:
        every, having = self._snapshot.present(EVERY), self._snapshot.having_terms(path)
        counts = [self._snapshot.frequency(path, term) for term in terms]
        return sum(idf(having, one) for one in counts) / sum(idf(every, one) for one in counts) / (K1 + 1)

    def _multi_match(self, body: Json) -> TQuery:
        only("multi_match", body, _MULTI_MATCH | {"slop"})
        if body.get("query") is None or isinstance(body["query"], dict | list):
            raise parsing("No text specified for multi_match query")
        kind = body.get("type", "best_fields")
        if kind not in ("best_fields", "most_fields", "phrase"):
            raise unsupported(f"[multi_match] of type [{kind}]", "use best_fields, most_fields or phrase")
        options = {key: value for key, value in body.items() if key not in ("fields", "type", "tie_breaker", "boost")}
        compile_field = self._phrase_field if kind == "phrase" else self._match_best
        queries = [
            compile_field(path, {**options, "boost": boost})
            for path, boost in self._weighted_fields(body.get("fields"))
        ]
        tie = 1.0 if kind == "most_fields" else as_number(body.get("tie_breaker", 0.0), "tie_breaker")
        return boosted(best_of(queries, tie), boost_of(body))

    def _match_best(self, path: str, options: Json) -> TQuery:
        return self._match_field(path, options, "multi_match")

    def _weighted_fields(self, fields: Any) -> list[tuple[str, float]]:
        """Return the fields of a multi_match with their boosts; all text fields if it names none."""
        names = [fields] if isinstance(fields, str) else as_list(fields or ["*"], "multi_match.fields")
        weighted: dict[str, float] = {}
        for name in names:
            pattern, _, factor = as_name(name, "multi_match.fields").partition("^")
            known = self._snapshot.fields.matching(pattern)
            paths = [one.path for one in known if "*" not in pattern or one.column in ("text", "keyword")]
            for path in paths or ([] if "*" in pattern else [pattern]):
                weighted[path] = weighted.get(path, 1.0) * as_number(factor or "1", f"boost of [{name}]")
        return list(weighted.items())

    # Exact values

    def _term(self, body: Json) -> TQuery:
        path, options = single_field("term", body, "value", frozenset({"value", "boost", "case_insensitive"}))
        if options.get("case_insensitive"):
            raise unsupported("[case_insensitive] in [term]")
        if path in (ID, INDEX):
            return self._terms({path: [options["value"]], "boost": boost_of(options)})
        field = self._snapshot.fields.by_path.get(path)
        if field is None or path not in self._names:
            return self._unknown(field)
        if field.column == "text":
            term = values.as_text(options["value"])
            self._note(path, [term])
            return self._text_term(path, term, boost_of(options))
        return self._exact(field, options["value"], boost_of(options))

    def _exact(self, field: Field, value: Any, boost: float) -> TQuery:
        """Return an exact value's clause: booleans score by rarity, as in OpenSearch 3, all others score the boost."""
        if field.kind == "date" and isinstance(value, str):
            return self._range_query(field, {"gte": value, "lte": value}, boost)
        term = self._query_value(field, value)
        query = TQuery.term_query(self._schema, self._names[field.path], term)
        if field.kind == "keyword":
            self._note(field.path, [term])
        if field.kind == "boolean":
            frequency = self._snapshot.frequency(field.path, term)
            boost *= TF_OF_ONE * idf(self._snapshot.present(field.path), frequency)
        return TQuery.const_score_query(query, boost)

    def _exact_or_none(self, field: Field, value: Any, boost: float, *, lenient: bool) -> TQuery:
        try:
            return self._exact(field, value, boost)
        except Fault:
            if lenient:
                return TQuery.empty_query()
            raise

    def _query_value(self, field: Field, value: Any) -> Any:
        """Return a query's value in the type of the field's column."""
        if field.kind == "keyword":
            return values.as_text(value)
        try:
            whole = field.column == "long" and field.kind not in ("date", "boolean")
            return values.as_whole(value) if whole else values.CONVERTERS[field.kind](value)
        except (ValueError, TypeError, OverflowError):
            where = f"on field [{field.path}] of type [{field.kind}]"
            reason = f"failed to create query: For input string: {str(value)!r:.100} {where}"
            raise Fault(400, "query_shard_exception", reason, {"index": self._snapshot.name}) from None

    def _terms(self, body: Json) -> TQuery:
        options = dict(body)
        boost = boost_of(options)
        options.pop("boost", None)
        if len(options) != 1:
            raise parsing("[terms] query requires one field name with its list of terms")
        ((path, wanted),) = options.items()
        if not isinstance(wanted, list):
            raise unsupported("[terms] lookup", "give the list of terms")
        if path == ID:
            return boosted(self._ids({"values": wanted}), boost)
        if path == INDEX:
            is_named = self._snapshot.name in wanted
            return TQuery.const_score_query(TQuery.all_query() if is_named else TQuery.empty_query(), boost)
        field = self._snapshot.fields.by_path.get(path)
        if field is None or path not in self._names:
            return self._unknown(field)
        found = [self._query_value(field, one) if field.column != "text" else values.as_text(one) for one in wanted]
        if field.column in ("text", "keyword"):
            self._note(path, found)
        return TQuery.const_score_query(TQuery.term_set_query(self._schema, self._names[path], found), boost)

    def _ids(self, body: Json) -> TQuery:
        only("ids", body, frozenset({"values", "boost"}))
        wanted = body.get("values", [])
        found = [str(one) for one in (wanted if isinstance(wanted, list) else [wanted])]
        return TQuery.const_score_query(TQuery.term_set_query(self._schema, ID, found), boost_of(body))

    def _exists(self, body: Json) -> TQuery:
        only("exists", body, frozenset({"field", "boost"}))
        if "field" not in body:
            raise parsing("[exists] must be provided with a [field]")
        path = as_name(body["field"], "exists.field")
        inside = [
            one.path
            for one in self._snapshot.fields.by_path.values()
            if one.path == path or one.path.startswith(f"{path}.")
        ]
        query = TQuery.term_set_query(self._schema, PRESENT, inside or [path])
        return TQuery.const_score_query(query, boost_of(body))

    def _prefix(self, body: Json) -> TQuery:
        path, options = single_field("prefix", body, "value", frozenset({"value", "boost"}))
        field = self._snapshot.fields.by_path.get(path)
        if field is None or path not in self._names:
            return self._unknown(field)
        if field.column not in ("text", "keyword"):
            where = f"not on [{path}] which is of type [{field.kind}]"
            reason = f"Can only use prefix queries on keyword, text and wildcard fields - {where}"
            raise Fault(400, "query_shard_exception", reason, {"index": self._snapshot.name})
        prefix = as_name(options["value"], "prefix.value")
        found = [term for term, _ in self._snapshot.searcher.terms_with_prefix(self._names[path], prefix)]
        self._note(path, found)
        return TQuery.const_score_query(
            TQuery.term_set_query(self._schema, self._names[path], found), boost_of(options)
        )

    def _range(self, body: Json) -> TQuery:
        allowed = frozenset({"gte", "gt", "lte", "lt", "boost", "format"})
        path, options = single_field("range", body, None, allowed)
        field = self._snapshot.fields.by_path.get(path)
        if field is None or path not in self._names:
            return self._unknown(field)
        if not values.known_format(options.get("format", "strict_date_optional_time")):
            raise unsupported(
                f"the date format [{options['format']}] in [range]", f"use one of {sorted(values.FORMATS)}"
            )
        return self._range_query(field, options, boost_of(options))

    def _range_query(self, field: Field, options: Json, boost: float) -> TQuery:
        if field.column == "text":
            raise unsupported(f"[range] on the text field [{field.path}]", "map a keyword or number field for it")
        if field.column == "keyword":
            return TQuery.const_score_query(self._keyword_range(field, options), boost)
        low, high = self._bounds(field, options)
        if low is None and high is None:
            return TQuery.const_score_query(TQuery.term_query(self._schema, PRESENT, field.path), boost)
        kind = tantivy.FieldType.Float if field.column == "double" else tantivy.FieldType.Integer
        includes = (low is None or "gt" not in options, high is None or "lt" not in options)
        query = TQuery.range_query(self._schema, self._names[field.path], kind, low, high, *includes)
        return TQuery.const_score_query(query, boost)

    def _bounds(self, field: Field, options: Json) -> tuple[Any, Any]:
        """Return the bounds in the type of the column; a date without a time is a whole day."""
        found: list[Any] = []
        for names, rounding in ((("gte", "gt"), {"gt"}), (("lte", "lt"), {"lte"})):
            name = next((one for one in names if options.get(one) is not None), None)
            value = None if name is None else options[name]
            if value is not None and field.kind == "date":
                value = self._date_bound(field, value, last=name in rounding)
            elif value is not None:
                value = self._number_bound(field, value, up=name in ("gte", "lt"))
            found.append(value)
        return found[0], found[1]

    def _number_bound(self, field: Field, value: Any, *, up: bool) -> Any:
        if field.column == "long" and field.kind != "boolean":
            with contextlib.suppress(ValueError, TypeError, OverflowError):  # the last line has the reason
                if not isinstance(value, int) and not float(value).is_integer():
                    value = math.ceil(float(value)) if up else math.floor(float(value))
        return self._query_value(field, value)

    def _date_bound(self, field: Field, value: Any, *, last: bool) -> int:
        if isinstance(value, str) and ("now" in value or "||" in value):
            raise unsupported(f"date mathematics ([{value}]) in [range]", "give the date itself")
        try:
            return values.date_range(value)[last] if isinstance(value, str) else values.as_millis(value)
        except (ValueError, TypeError):
            reason = f"failed to parse date field [{value}] of [{field.path}]: give an ISO date or milliseconds"
            raise parsing(reason) from None

    def _keyword_range(self, field: Field, options: Json) -> TQuery:
        name = self._names[field.path]
        terms = (term for term, _ in self._snapshot.searcher.terms_with_prefix(name, ""))
        kept = [term for term in terms if within(term, options)]
        return TQuery.term_set_query(self._schema, name, kept)

    # Shared

    def _unknown(self, field: Field | None) -> TQuery:
        """Return a query without matches for a field without a column; raise if the field must not be searched."""
        if field is not None and not field.indexed:
            reason = f"failed to create query: Cannot search on field [{field.path}] since it is not indexed."
            raise Fault(400, "query_shard_exception", reason, {"index": self._snapshot.name})
        return TQuery.empty_query()

    def _note(self, path: str, terms: Iterable[str]) -> None:
        self.terms.setdefault(path, set()).update(terms)
