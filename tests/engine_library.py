"""Six documents, and queries: the small index of the engine's tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opensearchpy import OpenSearch

from tests.articles import fill

MAPPINGS = {
    "properties": {
        "title": {"type": "text", "analyzer": "english"},
        "body": {"type": "text", "analyzer": "english"},
        "genre": {"type": "keyword"},
        "year": {"type": "integer"},
        "price": {"type": "float"},
        "seen": {"type": "date"},
        "open": {"type": "boolean"},
    }
}
SETTINGS = {"number_of_shards": 1, "number_of_replicas": 0}
FIELDS = ("title", "body", "genre", "year", "price", "seen", "open")
ROWS = [
    ("Foxes and dogs", "The quick brown fox jumps over the lazy dog", "animal", 1999, 1.5, "2020-01-01", True),
    ("A dog's life", "Dogs sleep, dogs eat and dogs play all day", "animal", 2005, 2.5, "2020-06-15T12:00:00Z", False),
    ("Cooking foxtail", "Grains of foxtail millet are boiled in water", "food", 2005, 10.0, "2021-02-03", True),
    ("Water", "Water is a liquid that most animals drink", "science", 2011, 0.5, "2022-12-31", True),
    (
        "Lazy evaluation",
        "A lazy language evaluates an expression when asked",
        "science",
        1985,
        99.0,
        "1985-10-26",
        False,
    ),
    ("Undated", "A page without a year"),
]
DOCUMENTS = {str(at): dict(zip(FIELDS, row, strict=False)) for at, row in enumerate(ROWS, start=1)}


@contextmanager
def books_in(engines: tuple[OpenSearch, OpenSearch], name: str, *others: str) -> Iterator[str]:
    """Make the index in both engines; at the end delete it, and others that the tests may have made."""
    for engine in engines:
        engine.indices.create(index=name, body={"settings": SETTINGS, "mappings": MAPPINGS})
        fill(engine, name, DOCUMENTS)
    yield name
    for engine in engines:
        engine.indices.delete(index=",".join([name, *others]), ignore_unavailable=bool(others))


QUERIES: dict[str, dict[str, Any]] = {
    "match": {"match": {"body": "lazy dogs"}},
    "match of a repeated word": {"match": {"body": {"query": "dog lazy dog"}}},
    "match on a number": {"match": {"year": "2005"}},
    "match on a keyword": {"match": {"genre": "animal"}},
    "match on nothing": {"match": {"nowhere": "x"}},
    "match stop words only": {"match": {"body": "the of"}},
    "multi_match": {"multi_match": {"query": "dog water", "fields": ["title^2", "body"], "tie_breaker": 0.3}},
    "multi_match of one field twice": {"multi_match": {"query": "dog", "fields": ["body^2", "body^3"]}},
    "multi_match of patterns": {"multi_match": {"query": "water", "fields": ["t*", "b*^2"]}},
    "multi_match of all fields": {"multi_match": {"query": "2005 dog", "fields": ["*"]}},
    "multi_match of a number": {"multi_match": {"query": "2005", "fields": ["*"]}},
    "lenient multi_match": {"multi_match": {"query": "dog", "fields": ["body", "year"], "lenient": True}},
    "phrase": {"match_phrase": {"body": "lazy dog"}},
    "phrase over a stop word": {"match_phrase": {"body": "jumps over the lazy"}},
    "phrase wrong": {"match_phrase": {"body": "dog lazy"}},
    "term": {"term": {"genre": "food"}},
    "term boosted": {"term": {"genre": {"value": "food", "boost": 3}}},
    "term on text": {"term": {"body": "dog"}},
    "term on a boolean": {"term": {"open": True}},
    "term on a date": {"term": {"seen": "2020-01-01"}},
    "term with a fraction": {"term": {"year": 2005.5}},
    "terms": {"terms": {"genre": ["food", "science"]}},
    "terms of numbers": {"terms": {"year": [1985, 2011]}},
    "terms of dates": {"terms": {"seen": ["2020-06-15", "2022-12-31"]}},
    "terms of one boolean": {"terms": {"open": [True]}},
    "ids": {"ids": {"values": ["5", "1", "nope"]}},
    "range": {"range": {"year": {"gte": 2005, "lt": 2011}}},
    "range of floats": {"range": {"price": {"gt": 1.5, "lte": 10}}},
    "range of dates": {"range": {"seen": {"gte": "2020-06-15", "lte": "2021-02-03"}}},
    "range of years": {"range": {"seen": {"gt": 2020, "lt": "2022"}}},
    "range of keywords": {"range": {"genre": {"gte": "b", "lt": "g"}}},
    "exists": {"exists": {"field": "title"}},
    "exists nowhere": {"exists": {"field": "nowhere"}},
    "match_all": {"match_all": {}},
    "bool": {
        "bool": {
            "must": {"match": {"body": "dog water"}},
            "should": [{"term": {"genre": "science"}}],
            "must_not": [{"term": {"year": 2005}}],
            "filter": [{"range": {"year": {"gte": 1990}}}],
        }
    },
    "bool filter only": {"bool": {"filter": [{"term": {"genre": "animal"}}]}},
    "bool must_not only": {"bool": {"must_not": {"term": {"genre": "animal"}}}},
    "bool empty": {"bool": {}},
    "bool should with filter": {
        "bool": {"filter": [{"term": {"open": True}}], "should": [{"match": {"body": "water"}}]}
    },
}
