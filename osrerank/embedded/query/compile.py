"""Compile a query of OpenSearch's query DSL to a tantivy query that scores documents as Lucene does."""

from collections.abc import Callable, Mapping
from typing import Any

from tantivy import Occur
from tantivy import Query as TQuery

from osrerank.embedded.errors import Json, parsing_error, reject_unknown_keys
from osrerank.embedded.query.clauses import as_list
from osrerank.embedded.query.leaf_queries import LeafQueries
from osrerank.embedded.storage.index import Snapshot


class Compiler(LeafQueries):
    """Compiles leaf and compound queries for one snapshot of an index."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self._clauses: Mapping[str, Callable[[Json], TQuery]] = {
            "match": self._match,
            "multi_match": self._multi_match,
            "match_phrase": self._match_phrase,
            "term": self._term,
            "terms": self._terms,
            "ids": self._ids,
            "range": self._range,
            "exists": self._exists,
            "bool": self._bool,
            "match_all": self._match_all,
        }

    def compile(self, query: Any) -> TQuery:
        """Return the tantivy query for a query clause.

        Raises:
            ApiError: 400 for a clause or parameter that is invalid or not supported. The reason names it.
        """
        if not isinstance(query, dict) or len(query) != 1:
            content = sorted(query) if isinstance(query, dict) else query
            raise parsing_error(
                f"a query must be an object with one key, the name of its clause; found {content!r:.200}"
            )
        ((name, body),) = query.items()
        if name not in self._clauses:
            raise parsing_error(
                f"unknown query [{name}] for the embedded engine; it supports {sorted(self._clauses)},"
                " an OpenSearch server supports more"
            )
        if not isinstance(body, dict):
            raise parsing_error(f"[{name}] query malformed, no start_object after query name")
        return self._clauses[name](body)

    def _bool(self, body: Json) -> TQuery:
        reject_unknown_keys("bool", body, frozenset({"must", "should", "must_not", "filter"}))
        must = [(Occur.Must, self.compile(clause)) for clause in as_list(body.get("must"))]
        must += [
            (Occur.Must, TQuery.const_score_query(self.compile(clause), 0.0)) for clause in as_list(body.get("filter"))
        ]
        should = [(Occur.Should, self.compile(clause)) for clause in as_list(body.get("should"))]
        must_not = [(Occur.MustNot, self._compile_unhighlighted(clause)) for clause in as_list(body.get("must_not"))]
        if not (must or should or must_not):
            return self._match_all({})
        if not (must or should):  # all documents match except those of must_not
            must = [(Occur.Must, TQuery.const_score_query(TQuery.all_query(), 0.0))]
        return TQuery.boolean_query([*must, *should, *must_not])

    def _compile_unhighlighted(self, query: Json) -> TQuery:
        """Compile a clause without adding its terms to `terms`, so that they are not highlighted."""
        saved_terms = {path: set(terms) for path, terms in self.terms.items()}
        compiled = self.compile(query)
        self.terms = saved_terms
        return compiled

    def _match_all(self, body: Json) -> TQuery:
        reject_unknown_keys("match_all", body, frozenset())
        # in a boolean query, tantivy drops a bare `all_query` and so loses its score
        return TQuery.const_score_query(TQuery.all_query(), 1.0)
