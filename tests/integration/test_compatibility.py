"""Every feature of a search request, with reranking, on three engines; makes docs/compatibility.md.

UPDATE_DOCS=1 .venv/bin/python -m pytest tests/integration/test_compatibility.py
"""

import contextlib
import os
import random

import opensearchpy
import pytest

from osrerank import connect
from osrerank.testing import FunctionScorer
from osrerank.types.engine import Engine
from tests.articles import fill
from tests.rankings import unmarked
from tests.servers import ROOT

pytestmark = pytest.mark.integration

PAGE = ROOT / "docs" / "compatibility.md"
SCORER = FunctionScorer(lambda query, text: len(set(query.split()) & set(text.split())) - len(text) / 100)
WORDS = ("blood", "pressure", "heart", "rate", "salt", "diet", "low", "high", "cause", "effect", "sleep", "stress")
MAPPING = {
    "settings": {"number_of_shards": 1, "number_of_replicas": 0},
    "mappings": {
        "properties": {
            "text": {"type": "text", "analyzer": "english"},
            "kind": {"type": "keyword"},
            "year": {"type": "integer"},
        }
    },
}
NESTED = {"properties": {"parts": {"type": "nested", "properties": {"body": {"type": "text"}}}}}
MATCH = {"query": {"match": {"text": "low blood pressure"}}, "size": 100}
NESTED_QUERY = {"nested": {"path": "parts", "query": {"match": {"parts.body": "low blood"}}, "inner_hits": {}}}


def nested(client):
    """The arguments of a search of nested documents; the index is made at first use."""
    if not client.indices.exists(index="compat-nested"):
        client.indices.create(index="compat-nested", body={"mappings": NESTED})
        for index in range(10):
            parts = [{"body": f"low {WORDS[index]}"}, {"body": "blood"}]
            client.index(index="compat-nested", id=f"n{index}", body={"parts": parts}, refresh=True)
    return {"body": {"query": NESTED_QUERY, "size": 50}, "index": "compat-nested"}


def point_in_time(client):
    """Open a point in time, and return its id."""
    if client.engine is Engine.ELASTICSEARCH:
        return client.transport.perform_request("POST", "/compat/_pit", params={"keep_alive": "1m"})["id"]
    return client.create_pit(index="compat", keep_alive="1m")["pit_id"]


# feature -> arguments of the search; a callable gets the client
CASES = {
    "from, size": {"body": {**MATCH, "from": 0, "size": 40}},
    "size: 0": {"body": {**MATCH, "size": 0}},
    "from + size > 10,000": {"body": {**MATCH, "from": 9_990, "size": 20}},
    "_source: false": {"body": {**MATCH, "_source": False}},
    "_source: list": {"body": {**MATCH, "_source": ["kind"]}},
    "_source: wildcard": {"body": {**MATCH, "_source": "k*"}},
    "_source: includes, excludes": {"body": {**MATCH, "_source": {"includes": ["*"], "excludes": ["text"]}}},
    "_source_includes in the URL": {"body": MATCH, "_source_includes": "year"},
    "fields": {"body": {**MATCH, "_source": False, "fields": ["year", "ki*"]}},
    "stored_fields: _none_": {"body": {**MATCH, "stored_fields": "_none_"}},
    "docvalue_fields": {"body": {**MATCH, "docvalue_fields": ["year"]}},
    "script_fields": {"body": {**MATCH, "script_fields": {"n": {"script": "doc['year'].value + 1"}}, "_source": True}},
    "highlight": {"body": {**MATCH, "highlight": {"fields": {"text": {}}}}},
    "aggregations": {"body": {**MATCH, "aggs": {"kinds": {"terms": {"field": "kind"}}}}},
    "suggest": {"body": {**MATCH, "suggest": {"s": {"text": "blod", "term": {"field": "text"}}}}},
    "collapse": {"body": {**MATCH, "collapse": {"field": "kind"}}},
    "collapse with inner_hits": {"body": {**MATCH, "collapse": {"field": "kind", "inner_hits": {"name": "k"}}}},
    "nested query with inner_hits": nested,
    "post_filter": {"body": {**MATCH, "post_filter": {"term": {"kind": "a"}}}},
    "min_score": {"body": {**MATCH, "min_score": 0.5}},
    "track_total_hits: true": {"body": {**MATCH, "track_total_hits": True}},
    "track_total_hits: false": {"body": {**MATCH, "track_total_hits": False}},
    "track_total_hits: number": {"body": {**MATCH, "track_total_hits": 5}},
    "explain": {"body": {**MATCH, "explain": True}},
    "profile": {"body": {**MATCH, "profile": True}},
    "version, seq_no_primary_term": {"body": {**MATCH, "version": True, "seq_no_primary_term": True}},
    "rescore": {"body": {**MATCH, "rescore": {"window_size": 20, "query": {"rescore_query": {"match_all": {}}}}}},
    "terminate_after": {"body": {**MATCH, "terminate_after": 20}},
    "timeout": {"body": {**MATCH, "timeout": "5s"}},
    "scroll": {"body": MATCH, "scroll": "1m"},
    "point in time": lambda client: {"body": {**MATCH, "pit": {"id": point_in_time(client)}}, "index": None},
    "search_after, below the depth": {
        "body": {**MATCH, "sort": ["_score", {"year": "asc"}], "search_after": [1.0, 1990]}
    },
    "sort by _score first": {"body": {**MATCH, "sort": ["_score", {"year": "desc"}]}},
    "sort by a field": {"body": {**MATCH, "sort": [{"year": "desc"}]}},
    "search_pipeline: _none": {"body": MATCH, "search_pipeline": "_none"},
    "search_pipeline, named": {"body": MATCH, "search_pipeline": "compat"},
    "filter_path": {"body": MATCH, "filter_path": "hits.hits._id"},
    "routing": {"body": MATCH, "routing": "r"},
    "preference": {"body": MATCH, "preference": "_local"},
    "several indexes": {"body": MATCH, "index": "compat,compat-other"},
    "index pattern": {"body": MATCH, "index": "compat*", "ignore_unavailable": True},
    "alias": {"body": MATCH, "index": "compat-alias"},
    "date math in the index name": {"body": MATCH, "index": "<compat-{2024||/y{yyyy}}>"},
    "q in the URL": {"q": "text:low", "size": 50},
}


@pytest.fixture(scope="module")
def client(engine_url):
    client = connect(engine_url, scorer=SCORER)
    rng = random.Random(3)
    clean(client)
    for index in ("compat", "compat-other", "compat-2024"):
        client.indices.create(index=index, body=MAPPING)
        documents = {}
        for number in range(30):
            text = " ".join(rng.choices(WORDS, k=rng.randint(3, 12)))
            documents[f"{index}{number}"] = {"text": text, "kind": rng.choice("abc"), "year": 1990 + number}
        fill(client, index, documents)
    client.indices.put_alias(index="compat", name="compat-alias")
    with contextlib.suppress(opensearchpy.RequestError):
        client.search_pipeline.put(id="compat", body={"response_processors": []})
    yield client
    clean(client)
    client.close()


def clean(client):
    for index in ("compat", "compat-other", "compat-2024", "compat-nested"):
        client.indices.delete(index=index, ignore_unavailable=True)


def marks_off(value):
    """A response without order and marks, ready to compare."""
    hits = [{k: v for k, v in hit.items() if k not in ("_score", "_rerank")} for hit in value["hits"]["hits"]]
    other_entries = {k: v for k, v in value["hits"].items() if k not in ("hits", "max_score")}
    ignored = ("took", "rerank", "hits", "profile", "_scroll_id", "pit_id")
    return {
        "hits": sorted(hits, key=lambda hit: (hit["_index"], hit.get("_id", ""))),
        **other_entries,
        "response": {k: v for k, v in value.items() if k not in ignored},
        "keys": sorted(set(value) - {"rerank"}),
    }


def verdict(client, case):
    """What becomes of a request: a cell of the table."""
    try:
        arguments = {"index": "compat", **(case(client) if callable(case) else case)}
    except opensearchpy.TransportError as error:  # what the case needs is refused already
        return f"refused ({error.status_code})"
    fields = ["inner_hits:parts.body"] if "nested" in str(arguments["index"]) else ["text"]
    try:
        plain = opensearchpy.OpenSearch.search(client, **arguments)
    except opensearchpy.TransportError as error:
        with pytest.raises(type(error)):
            client.search(**arguments, rerank={"query": "low blood", "fields": fields})
        return f"refused ({error.status_code})"
    response = client.search(**arguments, rerank={"query": "low blood", "fields": fields})
    applied, reason = response["rerank"]["applied"], response["rerank"]["reason"]
    if "hits" in plain and "total" in plain["hits"]:
        assert marks_off(response) == marks_off(plain), str(case)
    if applied is True:
        scores = [hit["_score"] for hit in response["hits"]["hits"]]
        assert scores == sorted(scores, reverse=True)
        assert response["hits"]["max_score"] == scores[0]
        return "reranked"
    assert unmarked(response)["hits"] == plain["hits"]["hits"]
    return f"not reranked: {reason}"


def test_each_feature_is_reranked_or_refused_with_a_reason(client, request):
    engine = client.engine
    verdicts = {feature: verdict(client, case) for feature, case in CASES.items()}
    request.config.stash.setdefault(VERDICTS, {})[engine] = verdicts
    assert verdicts["aggregations"] == verdicts["highlight"] == verdicts["from, size"] == "reranked"
    if not engine.is_embedded:
        assert verdicts["nested query with inner_hits"] == verdicts["date math in the index name"] == "reranked"
    assert not [v for v in verdicts.values() if v.startswith("refused (5")]


VERDICTS = pytest.StashKey[dict]()


def rows_of(seen):
    """The table: a row for each combination of verdicts, with the features that have it."""
    features = {}
    for feature in CASES:
        features.setdefault(tuple(seen[engine][feature] for engine in Engine), []).append(f"`{feature}`")
    rows = ["| request feature | OpenSearch 3.6 | Elasticsearch 9.4 | embedded engine |", "|---|---|---|---|"]
    for (first, *other_columns), names in features.items():
        cells = [
            ", ".join(names),
            first,
            *("the same" if other_column == first else other_column for other_column in other_columns),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def test_the_compatibility_page_shows_the_measured_table(request):
    answer = request.config.stash.get(VERDICTS, {})
    if set(answer) != set(Engine):
        pytest.skip("the compatibility page needs the verdicts of all engines")
    table = "\n".join(rows_of(answer))
    before, rest = PAGE.read_text("utf-8").split("<!-- table -->\n")[:2]
    if os.environ.get("UPDATE_DOCS"):
        tail = PAGE.read_text("utf-8").split("<!-- /table -->", 1)[1]
        PAGE.write_text(f"{before}<!-- table -->\n{table}\n<!-- /table -->{tail}", "utf-8")
    else:
        assert rest.split("\n<!-- /table -->")[0] == table
