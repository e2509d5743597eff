"""What the first pass sends: its query from a text, and the text from a query."""

import copy
import random

import pytest

from osrerank import Rerank
from osrerank.errors import ConfigError
from osrerank.retrieval.fields import SearchFields
from osrerank.retrieval.first_pass import OTHER_SORT_REASON, FirstPass, plan_first_pass
from osrerank.retrieval.query_text import build_query, find_query_text
from osrerank.retrieval.search_pipelines import NO_PIPELINE, SearchPipeline, parse_pipeline
from osrerank.types.reasons import ReasonCode
from tests.rankings import asked, client_for

MATCH = {"query": {"match": {"text": "x"}}}


def planned(body=None, params=None, depth=100, pipeline=NO_PIPELINE):
    fields = SearchFields.from_names((), ("title", "text"))
    return plan_first_pass({**MATCH, **(body or {})}, params or {}, Rerank(), depth, fields, pipeline)


@pytest.mark.parametrize(
    ("body", "params", "window", "page"),
    [
        ({}, {}, 100, (0, 10)),
        ({"from": 20, "size": 5}, {}, 100, (20, 5)),
        ({"from": 95, "size": 10}, {}, 105, (95, 10)),
        ({"size": 500}, {}, 500, (0, 500)),
        ({"size": 5}, {"size": 7, "from_": 3}, 100, (3, 7)),
        ({"size": 5}, {"size": "7", "from": "3"}, 100, (3, 7)),
    ],
)
def test_the_first_pass_requests_enough_hits_for_depth_and_page(body, params, window, page):
    first_pass = planned(body, params)
    assert (first_pass.body["from"], first_pass.body["size"]) == (0, window)
    assert (first_pass.page.offset, first_pass.page.size) == page
    assert not {"from", "from_", "size"} & set(first_pass.params)


@pytest.mark.parametrize(
    ("body", "params", "code", "reason"),
    [
        ({}, {"scroll": "1m"}, ReasonCode.PAGING, "scroll"),
        ({"search_after": [1]}, {}, ReasonCode.PAGING, "search_after"),
        ({"pit": {"id": "x"}}, {}, ReasonCode.PAGING, "point in time"),
        ({}, {"filter_path": "hits"}, ReasonCode.REQUEST, "filter_path"),
        ({"size": 0}, {}, ReasonCode.REQUEST, "size is 0"),
        ({"from": 9_995, "size": 10}, {}, ReasonCode.REQUEST, "result window"),
        ({"size": -1}, {}, ReasonCode.REQUEST, "not a count"),
        ({"from": "many"}, {}, ReasonCode.REQUEST, "not a count"),
        ({"sort": ["date"]}, {}, ReasonCode.SORTED, OTHER_SORT_REASON),
        ({"sort": [{"_score": "asc"}]}, {}, ReasonCode.SORTED, OTHER_SORT_REASON),
        ({"sort": {"date": "desc"}}, {}, ReasonCode.SORTED, OTHER_SORT_REASON),
        ({}, {"sort": "date:asc,_score"}, ReasonCode.SORTED, OTHER_SORT_REASON),
    ],
)
def test_requests_that_are_not_reranked_are_sent_unchanged(body, params, code, reason):
    first_pass = planned(body, params)
    assert first_pass.code is code
    assert reason in str(first_pass)
    client = client_for([])
    client.search(index="i", body={**MATCH, **body}, params=params, rerank=True)
    request = asked(client)
    assert (request["body"], {**request["params"]}.items() >= params.items()) == ({**MATCH, **body}, True)


@pytest.mark.parametrize(
    "sort", ["_score", ["_score", "date"], [{"_score": "desc"}], [{"_score": {"order": "desc"}}], "_score:desc"]
)
def test_a_sort_by_score_first_is_reranked(sort):
    assert isinstance(planned({"sort": sort}), FirstPass)


def test_a_search_runs_under_the_pipeline_that_the_index_or_the_caller_names():
    assert "search_pipeline" not in planned().params
    assert planned(params={"search_pipeline": "mine"}).params["search_pipeline"] == "mine"
    assert "search_pipeline" not in planned({"search_pipeline": {"response_processors": []}}).params


def test_a_search_under_a_ranking_pipeline_is_not_reranked():
    reason = planned(pipeline=parse_pipeline("wise", {"response_processors": [{"ml_inference": {}}]}))
    assert reason.code is ReasonCode.SEARCH_PIPELINE
    assert str(reason) == "the search pipeline wise ranks the hits itself, or may do so (ml_inference)"


def test_the_replacement_of_osreranks_default_pipeline_is_sent():
    assert planned(pipeline=SearchPipeline("own", replacement="_none")).params["search_pipeline"] == "_none"
    definition = {"request_processors": [{"filter_query": {}}]}
    assert planned(pipeline=SearchPipeline("own", replacement=definition)).body["search_pipeline"] == definition


def test_hidden_text_is_requested_through_fields():
    hidden = planned({"_source": False}), planned({"_source": {"excludes": ["text"]}})
    for first_pass in (*hidden, planned(params={"_source_includes": "url"})):
        assert (first_pass.body["fields"], first_pass.page.added_fields) == (["title", "text"], ("title", "text"))
    partly = planned({"_source": ["url"], "fields": ["te*", "date"]})
    assert (partly.body["fields"], partly.page.added_fields) == (["te*", "date", "title"], ("title",))


OWN_VALUES = [
    {"docvalue_fields": [{"field": "te*"}]},
    {"script_fields": {"text": {"script": "1"}}, "_source": True},
    {"derived": {"text": {"type": "text", "script": "1"}}},
    {"collapse": {"field": "text"}},
    {"fields": [{"field": "te*", "format": "yyyy"}]},
    {"suggest": {"next": {"prefix": "x", "completion": {"field": "names"}}}},
    {"verbose_pipeline": True},
]
"""Parts of a request that may put something else than a document's text into `fields`."""


@pytest.mark.parametrize("body", [*({**body, "_source": False} for body in OWN_VALUES), {"stored_fields": ["text"]}])
def test_text_is_fetched_separately_if_the_caller_requests_specific_fields(body):
    first_pass = planned(body)
    assert (first_pass.fields_to_fetch, first_pass.reads_only_source, first_pass.page.added_fields) == (
        ("title", "text"),
        False,
        (),
    )
    assert first_pass.body.get("fields") == body.get("fields")


@pytest.mark.parametrize("body", OWN_VALUES)
def test_whole_sources_are_read_without_the_callers_values(body):
    first_pass = planned(body)
    assert (first_pass.fields_to_fetch, first_pass.reads_only_source, first_pass.page.added_fields) == ((), True, ())


def test_text_is_fetched_later_if_the_pipeline_changes_fields():
    first_pass = planned(pipeline=parse_pipeline("renaming", {"response_processors": [{"rename_field": {}}]}))
    assert (first_pass.fields_to_fetch, first_pass.reads_only_source, "fields" in first_pass.body) == (
        ("title", "text"),
        False,
        False,
    )


def test_visible_text_is_not_requested_twice():
    for body in ({}, {"_source": True}, {"_source": ["title", "text", "url"]}):
        assert "fields" not in planned(body).body
        assert planned(body).page.added_fields == ()


def test_the_rerank_extension_is_not_sent_to_the_engine():
    context = {"rerank": {"query_context": {"query_text": "x"}}}
    assert "ext" not in planned({"ext": context}).body
    assert planned({"ext": {**context, "other": 1}}).body["ext"] == {"other": 1}


def test_callers_body_is_not_changed():
    body = {**MATCH, "ext": {"rerank": {}}, "_source": False, "fields": ["date"], "size": 3}
    before = copy.deepcopy(body)
    plan_first_pass(body, {}, Rerank(), 100, SearchFields())
    assert body == before


def test_a_query_of_one_field_is_a_match_and_of_several_fields_a_multi_match():
    assert build_query("x", SearchFields(("text",))) == {"match": {"text": {"query": "x"}}}
    assert build_query("x", SearchFields(("title^2",)))["multi_match"]["fields"] == ["title^2"]
    assert build_query("x", SearchFields(("title", "text")))["multi_match"]["type"] == "best_fields"


@pytest.mark.parametrize(
    "query",
    [
        {"match": {"text": "low blood"}},
        {"match": {"text": {"query": "low blood", "operator": "and"}}},
        {"match_phrase": {"text": "low blood"}},
        {"multi_match": {"query": "low blood", "fields": ["title", "text"]}},
        {"query_string": {"query": "low blood"}},
        {"simple_query_string": {"query": "low blood"}},
        {"neural": {"embedding": {"query_text": "low blood", "model_id": "m", "k": 5}}},
        {"bool": {"must": {"match": {"text": "low blood"}}, "filter": [{"match": {"kind": "other"}}]}},
        {"bool": {"should": [{"match": {"title": "low blood"}}, {"match": {"text": "low blood"}}]}},
        {"bool": {"must": [{"match": {"text": "low blood"}}], "must_not": {"match": {"text": "other"}}}},
        {"function_score": {"query": {"match": {"text": "low blood"}}, "boost": 5}},
        {"hybrid": {"queries": [{"match": {"t": "low blood"}}, {"neural": {"v": {"query_text": "low blood"}}}]}},
        {"dis_max": {"queries": [{"match": {"t": "low blood"}}, {"term": {"t": "x"}}]}},
    ],
)
def test_the_query_text_is_the_text_that_all_scoring_clauses_share(query):
    assert find_query_text({"query": query}) == "low blood"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"query": {"match_all": {}}},
        {"query": {"term": {"tag": "x"}}},
        {"query": {"bool": {"filter": {"match": {"t": "x"}}}}},
        {"query": {"bool": {"should": [{"match": {"t": "x"}}, {"match": {"t": "y"}}]}}},
        {"query": "nonsense"},
        {"query": {"match": {"t": 5}}},
    ],
)
def test_a_query_without_one_text_names_three_ways_to_give_the_text(body):
    with pytest.raises(ConfigError, match=r"ext\.rerank\.query_context\.query_text.*match, multi_match"):
        find_query_text(body)


EXACT = ("section", "year", "tags.raw")


def drawn_boost(draw):
    """Return a clause that another text than the query's is in."""
    field = draw.choice(EXACT)
    return draw.choice(
        [
            {"match": {field: "net"}},
            {"match": {field: {"query": "net", "boost": 3}}},
            {"multi_match": {"query": "net", "fields": [f"{field}^2", draw.choice(EXACT)]}},
            {"query_string": {"query": "net", "default_field": field}},
            {"constant_score": {"filter": {"match": {"text": "other"}}}},
            {"term": {field: "net"}},
        ]
    )


def drawn_query(draw, depth):
    """Return a query whose deciding clauses have the text `low blood`, beside clauses that only boost or filter."""
    if depth == 0:
        return draw.choice([{"match": {"text": "low blood"}}, {"match_phrase": {"title": {"query": "low blood"}}}])
    inside, leaf = drawn_query(draw, depth - 1), {"match": {"text": draw.choice(["other", "words"])}}
    alike = [inside, *(drawn_boost(draw) for _ in range(draw.randint(0, 2)))]
    draw.shuffle(alike)
    forms = [
        {"bool": {"must": alike, "should": [leaf, drawn_boost(draw)]}},
        {"bool": {"must": inside, "should": leaf, "minimum_should_match": 0}},
        {"bool": {"must": drawn_boost(draw), "should": alike, "minimum_should_match": 1}},
        {"bool": {"should": alike, "filter": leaf, "must_not": [leaf]}},
        {"dis_max": {"queries": alike}},
        {"function_score": {"query": inside, "functions": [{"filter": leaf, "weight": 2}]}},
        {"boosting": {"positive": inside, "negative": leaf, "negative_boost": 0.5}},
    ]
    return draw.choice(forms)


@pytest.mark.parametrize("seed", range(50))
def test_clauses_that_only_boost_do_not_have_the_query_text(seed):
    draw = random.Random(seed)
    query = drawn_query(draw, draw.randint(1, 4))
    assert find_query_text({"query": query}, EXACT) == "low blood"
    with pytest.raises(ConfigError, match="several texts"):
        find_query_text({"query": {"bool": {"must": [query, {"match": {"body": "another text"}}]}}}, EXACT)


def test_boosts_that_must_match_count_and_exact_values_count_without_other_texts():
    must, should = {"match": {"t": "x"}}, {"match": {"t": "y"}}
    with pytest.raises(ConfigError, match="several texts"):
        find_query_text({"query": {"bool": {"must": must, "should": should, "minimum_should_match": 1}}})
    assert find_query_text({"query": {"match": {"section": "net"}}}, EXACT) == "net"


def test_the_query_context_extension_overrides_the_text_of_the_query():
    def found(**context):
        return find_query_text(
            {"query": {"match": {"t": {"query": "a"}}}, "ext": {"rerank": {"query_context": context}}}
        )

    assert found(query_text="b") == "b"
    assert found(query_text_path="query.match.t.query") == "a"
    with pytest.raises(ConfigError, match="has no text at that path"):
        found(query_text_path="query.nothing")
