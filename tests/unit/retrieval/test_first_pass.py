"""What the first pass sends."""

import pytest

from osrerank import Rerank
from osrerank.retrieval.fields import SearchFields
from osrerank.retrieval.first_pass import FirstPass, plan
from osrerank.search.call import Refused, Reranking
from osrerank.search.call import planned as planned_call
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer
from osrerank.types import NEVER

MATCH = {"query": {"match": {"text": "x"}}}


def planned(body=None, params=None, depth=100, **options):
    fields = SearchFields.of_names((), ("title", "text"))
    return plan({**MATCH, **(body or {})}, params or {}, Rerank(**options), depth, fields)


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
def test_window_holds_depth_and_page(body, params, window, page):
    first_pass = planned(body, params)
    assert (first_pass.body["from"], first_pass.body["size"]) == (0, window)
    assert (first_pass.page.offset, first_pass.page.size) == page
    assert not {"from", "from_", "size"} & set(first_pass.params)


@pytest.mark.parametrize(
    ("body", "params", "reason"),
    [
        ({}, {"scroll": "1m"}, "scroll"),
        ({"search_after": [1]}, {}, "search_after"),
        ({"pit": {"id": "x"}}, {}, "point in time"),
        ({}, {"filter_path": "hits"}, "filter_path"),
        ({"size": 0}, {}, "size is 0"),
        ({"from": 9_995, "size": 10}, {}, "result window"),
        ({"size": -1}, {}, "not a count"),
        ({"from": "many"}, {}, "not a count"),
        ({"sort": ["date"]}, {}, "sorted by something other than score"),
        ({"sort": [{"_score": "asc"}]}, {}, "sorted by something other than score"),
        ({"sort": {"date": "desc"}}, {}, "sorted by something other than score"),
        ({}, {"sort": "date:asc,_score"}, "sorted by something other than score"),
    ],
)
def test_refused_requests_are_sent_as_they_came(body, params, reason):
    assert reason in planned(body, params)
    by = Reranking(RerankService(Settings.load(), FunctionScorer()), Rerank(), "x", NEVER)
    call = planned_call(by, {**MATCH, **body}, params)
    assert isinstance(call, Refused)
    assert (call.body, call.params) == ({**MATCH, **body}, params)


@pytest.mark.parametrize(
    "sort", ["_score", ["_score", "date"], [{"_score": "desc"}], [{"_score": {"order": "desc"}}], "_score:desc"]
)
def test_sorts_led_by_score_are_reranked(sort):
    assert isinstance(planned({"sort": sort}), FirstPass)


def test_index_pipeline_is_kept_out_unless_asked_for():
    assert planned().params["search_pipeline"] == "_none"
    assert planned(params={"search_pipeline": "mine"}).params["search_pipeline"] == "mine"
    assert "search_pipeline" not in planned({"search_pipeline": {"response_processors": []}}).params


def test_hidden_text_is_requested_through_fields():
    assert planned({"_source": False}).body["fields"] == ["title", "text"]
    assert planned({"_source": False}).page.borrowed == ("title", "text")
    assert planned({"_source": {"excludes": ["text"]}}).page.borrowed == ("title", "text")
    assert planned(params={"_source_includes": "url"}).page.borrowed == ("title", "text")
    assert planned({"_source": ["url"], "fields": ["te*", "date"]}).body["fields"] == ["te*", "date", "title"]
    assert planned({"_source": ["url"], "fields": ["te*", "date"]}).page.borrowed == ("title",)


@pytest.mark.parametrize(
    "body",
    [
        {"stored_fields": ["text"]},
        {"_source": False, "docvalue_fields": ["text"]},
        {"_source": False, "docvalue_fields": [{"field": "te*"}]},
        {"_source": False, "script_fields": {"text": {"script": "1"}}},
        {"_source": False, "collapse": {"field": "text"}},
    ],
)
def test_what_another_option_returns_is_not_taken_out(body):
    assert planned(body).body["fields"] == ["title", "text"]
    assert planned(body).page.borrowed == ("title",)


def test_visible_text_is_not_requested_twice():
    for body in ({}, {"_source": True}, {"_source": ["title", "text", "url"]}):
        assert "fields" not in planned(body).body
        assert planned(body).page.borrowed == ()


def test_our_extension_is_not_sent_on():
    context = {"rerank": {"query_context": {"query_text": "x"}}}
    assert "ext" not in planned({"ext": context}).body
    assert planned({"ext": {**context, "other": 1}}).body["ext"] == {"other": 1}


def test_callers_body_is_not_changed():
    body = {"query": {"match": {"text": "x"}}, "ext": {"rerank": {}}, "_source": False, "fields": ["date"], "size": 3}
    before = {**body, "fields": ["date"], "ext": {"rerank": {}}}
    plan(body, {}, Rerank(), 100, SearchFields())
    assert body == before
