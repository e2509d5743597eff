"""Compile the queries that search fields for text, values or ranges, such as ``match``, ``term`` and ``range``."""

import contextlib
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import tantivy
from tantivy import Occur
from tantivy import Query as TQuery

from osrerank.embedded.analysis.tokens import GAP
from osrerank.embedded.errors import (
    ApiError,
    Json,
    parse_number,
    parsing_error,
    reject_unknown_keys,
    require_string,
    unsupported_error,
)
from osrerank.embedded.mapping import values
from osrerank.embedded.mapping.fields import METADATA, Field
from osrerank.embedded.query.clauses import (
    K1,
    SINGLE_OCCURRENCE_FACTOR,
    as_list,
    build_best_of,
    idf,
    is_in_range,
    length_norm,
    read_boost,
    read_single_field,
)
from osrerank.embedded.storage.index import Snapshot
from osrerank.embedded.storage.shard import ALL_DOCUMENTS, FIELD_NAMES, ID, SEQ, FieldTotals

INDEX = "_index"


class LeafQueries:
    """Compiles query clauses that contain no other clauses, for one snapshot of an index.

    The subclass `osrerank.embedded.query.compile.Compiler` calls the method of each clause, such as `_match`.

    Attributes:
        terms: the terms to highlight in each field, such as ``{"title": {"tea"}}``. They are added during compilation.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._schema: tantivy.Schema = snapshot.shard.schema
        self._columns = snapshot.shard.columns  # path of an indexed field -> its column in the search index
        self.terms: dict[str, set[str]] = {}

    # Full text

    def _match(self, body: Json) -> TQuery:
        path, options = read_single_field("match", body, "query", frozenset({"query", "lenient"}))
        return self._match_field(path, options["query"], boost=1.0, lenient=_read_flag(options, "lenient"))

    def _match_field(self, path: str, query: Any, boost: float, *, lenient: bool) -> TQuery:
        field = self._snapshot.fields.by_path.get(path)
        if field is None or path not in self._columns:
            return self._match_nothing(path, field)
        if field.column != "text":
            return self._match_value(field, query, boost, lenient=lenient)
        terms = [term for _, term in self._analyse(field, query)]
        self._add_highlight_terms(path, terms)
        # As in Lucene, a term that the query contains twice counts twice.
        return _any_of([self._text_term(path, term, boost * count) for term, count in Counter(terms).items()])

    def _analyse(self, field: Field, query: Any) -> list[tuple[int, str]]:
        """Return each term of a query with its position, such as ``[(0, "hot"), (1, "tea")]``."""
        terms = self._snapshot.analyzers.get(field.analyzer_name).terms(values.as_text(query))
        return [(position, term) for position, term in enumerate(terms) if term != GAP]

    def _text_term(self, path: str, term: str, boost: float) -> TQuery:
        """Return the query for a term of a text field, scored by Lucene's BM25.

        If all documents have the field, Lucene's score is tantivy's score without the factor k1 + 1. If a document does
        not have it, tantivy's average field length is lower than Lucene's. The query then has a clause for each pair of
        term frequency and field length, such as "2 times in 10 terms", with Lucene's score as a constant.
        """
        totals = self._snapshot.searcher.totals(path)
        if totals.n_documents == self._snapshot.count_documents(ALL_DOCUMENTS):
            query = TQuery.term_query(self._schema, self._columns[path], term)
            return TQuery.boost_query(query, boost / (K1 + 1))
        weight = boost * idf(totals.n_documents, self._snapshot.document_frequency(path, term))
        column = self._snapshot.shard.frequency_columns[path]
        clauses = []
        for entry in self._snapshot.term_frequencies(path, term):
            score = weight * entry.frequency / (entry.frequency + length_norm(entry.length, totals))
            query = TQuery.term_query(self._schema, column, entry.token, index_option="basic")
            clauses.append(TQuery.const_score_query(query, score))
        return _any_of(clauses)

    def _match_phrase(self, body: Json) -> TQuery:
        path, options = read_single_field("match_phrase", body, "query", frozenset({"query"}))
        field = self._snapshot.fields.by_path.get(path)
        if field is None or field.column != "text" or path not in self._columns:
            return self._match_field(path, options["query"], boost=1.0, lenient=False)
        positioned_terms = self._analyse(field, options["query"])
        if len(positioned_terms) < 2:
            return self._match_field(path, options["query"], boost=1.0, lenient=False)
        terms = [term for _, term in positioned_terms]
        self._add_highlight_terms(path, terms)
        first_position, _ = positioned_terms[0]
        terms_with_offsets: list[str | tuple[int, str]] = [
            (position - first_position, term) for position, term in positioned_terms
        ]
        phrase = TQuery.phrase_query(self._schema, self._columns[path], terms_with_offsets)
        totals = self._snapshot.searcher.totals(path)
        if totals.n_documents == self._snapshot.count_documents(ALL_DOCUMENTS):
            return TQuery.boost_query(phrase, 1 / (K1 + 1))
        return self._score_phrase(path, phrase, terms, totals)

    def _score_phrase(self, path: str, phrase: TQuery, terms: list[str], totals: FieldTotals) -> TQuery:
        """Return the query for a phrase, scored by Lucene's BM25, if not all documents have the field.

        The phrase is searched now. For each hit, tantivy's score and the field's length give the phrase's frequency,
        and the frequency gives Lucene's score. The returned query lists each score with the sequence numbers of its
        documents.
        """
        searcher, shard = self._snapshot.searcher, self._snapshot.shard
        # tantivy also counts the documents without the field
        tantivy_totals = totals._replace(n_documents=self._snapshot.count_documents(ALL_DOCUMENTS))
        document_frequencies = [self._snapshot.document_frequency(path, term) for term in terms]
        tantivy_idf = sum(idf(tantivy_totals.n_documents, frequency) for frequency in document_frequencies)
        lucene_idf = sum(idf(totals.n_documents, frequency) for frequency in document_frequencies)
        hits = searcher.search(phrase, max(1, searcher.num_docs), count=False).hits
        addresses = [address for _, address in hits]
        lengths = searcher.fast_field_values(shard.length_columns[path], addresses) if hits else []
        sequence_numbers = shard.sequence_numbers(searcher, addresses)
        numbers_by_score: dict[float, list[int]] = {}
        for (score, _), length, number in zip(hits, lengths, sequence_numbers, strict=True):
            saturation = score / (tantivy_idf * (K1 + 1))  # frequency / (frequency + norm), solved for frequency below
            frequency = max(1, round(saturation * length_norm(length, tantivy_totals) / (1 - saturation)))
            lucene_score = lucene_idf * frequency / (frequency + length_norm(length, totals))
            numbers_by_score.setdefault(lucene_score, []).append(number)
        return _any_of(
            [
                TQuery.const_score_query(TQuery.term_set_query(self._schema, SEQ, numbers), score)
                for score, numbers in numbers_by_score.items()
            ]
        )

    def _multi_match(self, body: Json) -> TQuery:
        reject_unknown_keys("multi_match", body, frozenset({"query", "fields", "type", "tie_breaker", "lenient"}))
        if body.get("query") is None or isinstance(body["query"], dict | list):
            raise parsing_error("No text specified for multi_match query")
        if body.get("type", "best_fields") != "best_fields":
            raise unsupported_error(f"[multi_match] of type [{body['type']}]", "use best_fields")
        names = [require_string(name, "multi_match.fields") for name in as_list(body.get("fields")) or ["*"]]
        searches_all = any(name.partition("^")[0] == "*" for name in names)
        lenient = _read_flag(body, "lenient", default=searches_all)  # not every field's type fits the text
        queries = [
            self._match_field(path, body["query"], boost, lenient=lenient)
            for path, boost in self._find_weighted_fields(names).items()
        ]
        return build_best_of(queries, parse_number(body.get("tie_breaker", 0.0), "tie_breaker"))

    def _find_weighted_fields(self, names: list[str]) -> dict[str, float]:
        """Return the boost of each field that a multi_match names, or matches by a pattern.

        ``["title^2", "meta.*"]`` becomes for example ``{"title": 2.0, "meta.author": 1.0, "meta.year": 1.0}``.
        """
        boosts: dict[str, float] = {}
        for name in names:
            pattern, _, factor = name.partition("^")
            boosts[pattern] = read_boost({"boost": factor or 1})
        weighted: dict[str, float] = {}
        for pattern, boost in boosts.items():
            if "*" in pattern:
                paths = [field.path for field in self._snapshot.fields.find(pattern) if field.is_indexed]
            else:
                paths = [pattern]
            for path in paths:  # if several patterns match a field, their boosts are multiplied
                weighted[path] = weighted.get(path, 1.0) * boost
        return weighted

    # Exact values

    def _term(self, body: Json) -> TQuery:
        path, options = read_single_field("term", body, "value", frozenset({"value", "boost"}))
        boost = read_boost(options)
        if path == ID:
            return self._match_ids([options["value"]], boost)
        if path == INDEX:
            return self._match_index([options["value"]], boost)
        field = self._snapshot.fields.by_path.get(path)
        if field is None or path not in self._columns:
            return self._match_nothing(path, field)
        if field.column == "text":
            term = values.as_text(options["value"])
            self._add_highlight_terms(path, [term])
            return self._text_term(path, term, boost)
        return self._match_value(field, options["value"], boost)

    def _match_value(self, field: Field, value: Any, boost: float, *, lenient: bool = False) -> TQuery:
        """Return the query for an exact value. If ``lenient`` is set, an invalid value matches nothing."""
        try:
            return self._match_exactly(field, value, boost)
        except ApiError:
            if lenient:
                return TQuery.empty_query()
            raise

    def _match_exactly(self, field: Field, value: Any, boost: float) -> TQuery:
        """Return the query for an exact value, whose score is the boost. A boolean is scored by BM25, as in Lucene."""
        if field.kind == "date":
            return self._range_query(field, {"gte": value, "lte": value}, boost)
        term = self._convert(field, value)
        if term is None:
            return TQuery.empty_query()
        query = TQuery.term_query(self._schema, self._columns[field.path], term)
        if field.kind == "keyword":
            self._add_highlight_terms(field.path, [term])
        if field.kind == "boolean":
            frequency = self._snapshot.document_frequency(field.path, term)
            boost *= SINGLE_OCCURRENCE_FACTOR * idf(self._snapshot.count_documents(field.path), frequency)
        return TQuery.const_score_query(query, boost)

    def _convert(self, field: Field, value: Any) -> Any:
        """Convert a query's value to the type of the field's column.

        Returns None if no document can have the value, such as 7.5 in a field of whole numbers.
        """
        if field.kind == "keyword":
            return values.as_text(value)
        try:
            if field.kind in values.INTEGER_BITS and values.has_fraction(value):
                return None
            is_empty = field.kind == "boolean" and value == ""  # false in a document, but invalid in a query
            return values.CONVERTERS[field.kind](None if is_empty else value)  # raises an error for None
        except (ValueError, TypeError, OverflowError):
            location = f"on field [{field.path}] of type [{field.kind}]"
            reason = f"failed to create query: For input string: {str(value)!r:.100} {location}"
            raise ApiError(400, "query_shard_exception", reason, {"index": self._snapshot.name}) from None

    def _terms(self, body: Json) -> TQuery:
        if len(body) != 1:
            raise parsing_error(f"[terms] query takes one field with its list of terms, found {sorted(body)}")
        ((path, requested),) = body.items()
        if not isinstance(requested, list):
            raise unsupported_error(f"[terms] of [{path}] without a list", "pass the list of terms")
        if any(value is None or isinstance(value, dict | list) for value in requested):
            raise parsing_error(f"No value specified for terms query on [{path}]")
        if path == ID:
            return self._match_ids(requested, boost=1.0)
        if path == INDEX:
            return self._match_index(requested, boost=1.0)
        field = self._snapshot.fields.by_path.get(path)
        if field is None or path not in self._columns:
            return self._match_nothing(path, field)
        if field.column in ("text", "keyword"):
            terms = [values.as_text(value) for value in requested]
            self._add_highlight_terms(path, terms)
            return TQuery.const_score_query(TQuery.term_set_query(self._schema, self._columns[path], terms), 1.0)
        clauses = [self._match_value(field, value, boost=1.0) for value in requested]
        if len(clauses) == 1:  # a boolean keeps its BM25 score
            return clauses[0]
        return TQuery.const_score_query(_any_of(clauses), 1.0)

    def _ids(self, body: Json) -> TQuery:
        reject_unknown_keys("ids", body, frozenset({"values"}))
        return self._match_ids(as_list(body.get("values")), boost=1.0)

    def _match_ids(self, requested: list[Any], boost: float) -> TQuery:
        doc_ids = [values.as_text(value) for value in requested]
        return TQuery.const_score_query(TQuery.term_set_query(self._schema, ID, doc_ids), boost)

    def _match_index(self, requested: list[Any], boost: float) -> TQuery:
        """Return a query that matches all documents if this index is requested, and no document otherwise."""
        is_requested = self._snapshot.name in requested
        return TQuery.const_score_query(TQuery.all_query() if is_requested else TQuery.empty_query(), boost)

    def _exists(self, body: Json) -> TQuery:
        reject_unknown_keys("exists", body, frozenset({"field"}))
        if "field" not in body:
            raise parsing_error("[exists] must be provided with a [field]")
        path = require_string(body["field"], "exists.field")
        matches = values.compile_wildcard(path).fullmatch
        if any(map(matches, METADATA)):
            raise unsupported_error(f"[{path}] in [exists]", "use fields of the mapping")
        names = [name for name in self._snapshot.fields.by_path if matches(name) or name.startswith(f"{path}.")]
        return TQuery.const_score_query(TQuery.term_set_query(self._schema, FIELD_NAMES, names), 1.0)

    def _range(self, body: Json) -> TQuery:
        path, options = read_single_field("range", body, None, frozenset({"gte", "gt", "lte", "lt"}))
        for name, bound in options.items():
            if isinstance(bound, dict | list):
                raise parsing_error(f"[{name}] in [range] on [{path}] is not one value")
        for inclusive, exclusive in (("gte", "gt"), ("lte", "lt")):
            if inclusive in options and exclusive in options:
                raise unsupported_error(f"[{inclusive}] together with [{exclusive}] in [range]", "pass one of them")
        if path == "_seq_no":
            return self._sequence_range(options)
        field = self._snapshot.fields.by_path.get(path)
        if field is None or path not in self._columns:
            return self._match_nothing(path, field)
        return self._range_query(field, options, boost=1.0)

    def _sequence_range(self, options: Json) -> TQuery:
        """Return the query for a range of sequence numbers. Requests count them from 0, and the store from 1."""
        if options.keys() != {"gte", "lte"}:
            raise unsupported_error(f"[range] on [_seq_no] with {sorted(options)}", "pass [gte] and [lte]")
        low, high = (math.floor(parse_number(options[name], name)) for name in ("gte", "lte"))
        if high < 0 or low > high:
            return TQuery.empty_query()
        query = TQuery.range_query(self._schema, SEQ, tantivy.FieldType.Unsigned, max(0, low) + 1, high + 1)
        return TQuery.const_score_query(query, 1.0)

    def _range_query(self, field: Field, options: Json, boost: float) -> TQuery:
        if field.kind in ("text", "boolean"):
            raise unsupported_error(
                f"[range] on the {field.kind} field [{field.path}]", "map a keyword or number field for it"
            )
        if field.column == "keyword":
            return TQuery.const_score_query(self._keyword_range(field, options), boost)
        low, high = self._bounds(field, options)
        if low is None and high is None:  # all documents with the field
            return TQuery.const_score_query(TQuery.term_query(self._schema, FIELD_NAMES, field.path), boost)
        kind = tantivy.FieldType.Float if field.column == "double" else tantivy.FieldType.Integer
        includes_low = low is None or "gt" not in options
        includes_high = high is None or "lt" not in options
        column = self._columns[field.path]
        query = TQuery.range_query(self._schema, column, kind, low, high, includes_low, includes_high)
        return TQuery.const_score_query(query, boost)

    def _bounds(self, field: Field, options: Json) -> tuple[Any, Any]:
        """Return the lower and the upper bound of a range, in the type of the column. A missing bound is None."""
        bounds: list[Any] = []
        for names in (("gte", "gt"), ("lte", "lt")):
            name = next((key for key in names if options.get(key) is not None), None)
            if name is None:
                bounds.append(None)
            elif field.kind == "date":
                bounds.append(self._date_bound(field, options[name], takes_last=name in ("gt", "lte")))
            else:
                bounds.append(self._number_bound(field, options[name], rounds_up=name in ("gte", "lt")))
        low, high = bounds
        return low, high

    def _number_bound(self, field: Field, value: Any, *, rounds_up: bool) -> Any:
        """Convert a bound to the type of the column. In a column of whole numbers, 7.5 is rounded up or down."""
        if field.kind in values.INTEGER_BITS:
            with contextlib.suppress(ValueError, OverflowError):  # `_convert` below raises them with the reason
                if values.has_fraction(value):
                    value = math.ceil(float(value)) if rounds_up else math.floor(float(value))
        return self._convert(field, value)

    def _date_bound(self, field: Field, value: Any, *, takes_last: bool) -> int:
        """Convert a date to the first or last millisecond of the period that it stands for, such as a day.

        ``gt`` and ``lte`` take the last one, so that "greater than 2024-05-01" excludes this whole day.
        """
        if isinstance(value, str) and ("now" in value or "||" in value):
            raise unsupported_error(f"date math ([{value}]) in [range]", "pass the date itself")
        try:
            first, last = values.parse_date_range(value)
        except (ValueError, TypeError, OverflowError):
            reason = f"failed to parse date field [{value}] of [{field.path}]: pass an ISO date or milliseconds"
            raise parsing_error(reason) from None
        return last if takes_last else first

    def _keyword_range(self, field: Field, options: Json) -> TQuery:
        """Return the query for all values of a keyword field that are within the bounds."""
        column = self._columns[field.path]
        terms = (term for term, _ in self._snapshot.searcher.terms_with_prefix(column, ""))
        matching = [term for term in terms if is_in_range(term, options)]
        self._add_highlight_terms(field.path, matching)
        return TQuery.term_set_query(self._schema, column, matching)

    # Shared

    def _match_nothing(self, path: str, field: Field | None) -> TQuery:
        """Return a query without matches, for a field that has no column in the search index.

        Raises:
            ApiError: 400 if the field is metadata, or is mapped with ``"index": false``.
        """
        if path in METADATA:
            raise unsupported_error(
                f"[{path}] in this clause", "use [term], [terms] or [ids] for _id, and [term] or [terms] for _index"
            )
        if field is not None and not field.is_indexed:
            reason = f"failed to create query: Cannot search on field [{field.path}] since it is not indexed."
            raise ApiError(400, "query_shard_exception", reason, {"index": self._snapshot.name})
        return TQuery.empty_query()

    def _add_highlight_terms(self, path: str, terms: Iterable[str]) -> None:
        self.terms.setdefault(path, set()).update(terms)


def _any_of(clauses: list[TQuery]) -> TQuery:
    return TQuery.boolean_query([(Occur.Should, clause) for clause in clauses]) if clauses else TQuery.empty_query()


def _read_flag(options: Json, name: str, *, default: bool = False) -> bool:
    flag = options.get(name, default)
    if not isinstance(flag, bool):
        raise parsing_error(f"[{name}] must be true or false, found {flag!r:.50}")
    return flag
