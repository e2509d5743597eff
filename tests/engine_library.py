"""Five documents, and queries with what they find: the small index of the engine's tests."""

from typing import Any

from opensearchpy import OpenSearch

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
DOCUMENTS = {
    "1": {
        "title": "Foxes and dogs",
        "body": "The quick brown fox jumps over the lazy dog",
        "genre": "animal",
        "year": 1999,
        "price": 1.5,
        "seen": "2020-01-01",
        "open": True,
    },
    "2": {
        "title": "A dog's life",
        "body": "Dogs sleep, dogs eat and dogs play all day",
        "genre": "animal",
        "year": 2005,
        "price": 2.5,
        "seen": "2020-06-15T12:00:00Z",
        "open": False,
    },
    "3": {
        "title": "Cooking foxtail",
        "body": "Grains of foxtail millet are boiled in water",
        "genre": "food",
        "year": 2005,
        "price": 10.0,
        "seen": "2021-02-03",
        "open": True,
    },
    "4": {
        "title": "Water",
        "body": "Water is a liquid that most animals drink",
        "genre": "science",
        "year": 2011,
        "price": 0.5,
        "seen": "2022-12-31",
        "open": True,
    },
    "5": {
        "title": "Lazy evaluation",
        "body": "A lazy language evaluates an expression when it is needed",
        "genre": "science",
        "year": 1985,
        "price": 99.0,
        "seen": "1985-10-26",
        "open": False,
    },
}


def fill(engine: OpenSearch, name: str) -> None:
    """Make an index of the five documents."""
    engine.indices.create(index=name, body={"settings": SETTINGS, "mappings": MAPPINGS})
    lines = [line for key, source in DOCUMENTS.items() for line in ({"index": {"_id": key}}, source)]
    assert not engine.bulk(index=name, body=lines, refresh=True)["errors"]


def ids(response: dict[str, Any]) -> list[str]:
    return [hit["_id"] for hit in response["hits"]["hits"]]


QUERIES = {
    "match": ({"match": {"body": "lazy dogs"}}, ["1", "2", "5"]),
    "match and": ({"match": {"body": {"query": "lazy dogs", "operator": "and"}}}, ["1"]),
    "match least": ({"match": {"body": {"query": "quick lazy language", "minimum_should_match": "2"}}}, None),
    "match least percent": ({"match": {"body": {"query": "quick lazy dog dog", "minimum_should_match": "75%"}}}, None),
    "match on a number": ({"match": {"year": "2005"}}, ["2", "3"]),
    "match on a keyword": ({"match": {"genre": "animal"}}, ["1", "2"]),
    "match on nothing": ({"match": {"nowhere": "x"}}, []),
    "match stop words only": ({"match": {"body": "the of"}}, []),
    "best_fields": ({"multi_match": {"query": "dog water", "fields": ["title^2", "body"], "tie_breaker": 0.3}}, None),
    "most_fields": ({"multi_match": {"query": "dog water", "fields": ["title", "body"], "type": "most_fields"}}, None),
    "multi_match wildcard": ({"multi_match": {"query": "water", "fields": ["t*", "b*"]}}, None),
    "phrase": ({"match_phrase": {"body": "lazy dog"}}, ["1"]),
    "phrase over a stop word": ({"match_phrase": {"body": "jumps over the lazy"}}, ["1"]),
    "phrase wrong": ({"match_phrase": {"body": "dog lazy"}}, []),
    "term": ({"term": {"genre": "food"}}, ["3"]),
    "term boosted": ({"term": {"genre": {"value": "food", "boost": 3}}}, ["3"]),
    "term on text": ({"term": {"body": "dog"}}, ["2", "1"]),
    "term on a boolean": ({"term": {"open": True}}, ["1", "3", "4"]),
    "term on a date": ({"term": {"seen": "2020-01-01"}}, ["1"]),
    "terms": ({"terms": {"genre": ["food", "science"]}}, ["3", "4", "5"]),
    "terms of numbers": ({"terms": {"year": [1985, 2011]}}, ["4", "5"]),
    "ids": ({"ids": {"values": ["5", "1", "nope"]}}, ["1", "5"]),
    "range": ({"range": {"year": {"gte": 2005, "lt": 2011}}}, ["2", "3"]),
    "range of floats": ({"range": {"price": {"gt": 1.5, "lte": 10}}}, ["2", "3"]),
    "range of dates": ({"range": {"seen": {"gte": "2020-06-15", "lte": "2021-02-03"}}}, ["2", "3"]),
    "range of keywords": ({"range": {"genre": {"gte": "b", "lt": "g"}}}, ["3"]),
    "exists": ({"exists": {"field": "title"}}, ["1", "2", "3", "4", "5"]),
    "exists nowhere": ({"exists": {"field": "nowhere"}}, []),
    "prefix": ({"prefix": {"genre": "sci"}}, ["4", "5"]),
    "match_all": ({"match_all": {}}, ["1", "2", "3", "4", "5"]),
    "match_all boosted": ({"match_all": {"boost": 2.5}}, ["1", "2", "3", "4", "5"]),
    "match_none": ({"match_none": {}}, []),
    "constant_score": ({"constant_score": {"filter": {"match": {"body": "dog"}}, "boost": 4}}, ["1", "2"]),
    "dis_max": (
        {"dis_max": {"queries": [{"match": {"body": "water"}}, {"match": {"title": "water"}}], "tie_breaker": 0.7}},
        None,
    ),
    "bool": (
        {
            "bool": {
                "must": {"match": {"body": "dog water"}},
                "should": [{"term": {"genre": "science"}}],
                "must_not": [{"term": {"year": 2005}}],
                "filter": [{"range": {"year": {"gte": 1990}}}],
            }
        },
        None,
    ),
    "bool filter only": ({"bool": {"filter": [{"term": {"genre": "animal"}}]}}, ["1", "2"]),
    "bool must_not only": ({"bool": {"must_not": {"term": {"genre": "animal"}}}}, ["3", "4", "5"]),
    "bool empty": ({"bool": {}}, ["1", "2", "3", "4", "5"]),
    "bool should with filter": (
        {"bool": {"filter": [{"term": {"open": True}}], "should": [{"match": {"body": "water"}}]}},
        None,
    ),
    "bool at least two": (
        {
            "bool": {
                "should": [{"match": {"body": "dog"}}, {"match": {"body": "lazy"}}, {"match": {"title": "fox"}}],
                "minimum_should_match": 2,
                "boost": 2,
            }
        },
        ["1"],
    ),
}
