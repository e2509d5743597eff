"""The record of a search for User Behavior Insights, and the requests that write it, performed by hand."""

from typing import Any

import pytest

from osrerank.errors import ConfigError
from osrerank.search.report import Report, write_report
from osrerank.search.ubi import INDEX_EXISTS, PAUSE_S, UbiRecords, index_body, make_record
from osrerank.search.ubi_query import UbiQuery, without_ubi
from osrerank.testing import ManualClock
from osrerank.types import NEVER, Deadline
from osrerank.types.engine_errors import EngineError

HITS = [{"_id": "7", "_source": {"sku": "S7"}}, {"_id": "9", "_source": {}, "fields": {"sku": ["S9", "S10"]}}]
REPORT = Report("partial", None, None, HITS)
BODY = {"query": {"match": {"text": "salt"}}, "from": 2, "ext": {"ubi": {"query_id": "q1", "client_id": "me"}}}


def query(**given: Any) -> UbiQuery:
    ubi = UbiQuery.from_body({**BODY, "ext": {"ubi": {"query_id": "q1", "client_id": "me", **given}}}, {})
    assert ubi is not None
    return ubi


def told(records: UbiRecords, report: Report = REPORT, deadline: Deadline = NEVER) -> Any:
    """Begin to record a search."""
    ubi = UbiQuery.from_body(BODY, {})
    assert ubi is not None
    return records.record(ubi, report, text="", session="", deadline=deadline)


def outcome(steps: Any, result: Any) -> dict[str, Any]:
    """Return what the response says of the record after the last request."""
    with pytest.raises(StopIteration) as end:
        steps.throw(result) if isinstance(result, Exception) else steps.send(result)
    marks: dict[str, Any] = end.value.value.entries["ubi"]
    return marks


def test_a_ubi_record_has_the_page_and_the_searchs_report() -> None:
    record = make_record(query(query_attributes={"lang": "en"}), REPORT, text="salt")
    assert record["query_response_hit_ids"] == ["7", "9"]
    assert (record["query_id"], record["user_query"], record["client_id"]) == ("q1", "salt", "me")
    attributes = {"osrerank_applied": "partial", "osrerank_first_rank": "3"}
    assert record["query_attributes"] == {"lang": "en", **attributes}
    assert record["timestamp"].endswith("Z")
    assert not {"application", "object_id_field"} & record.keys()  # nothing was said of them
    named_record = make_record(query(user_query="Salt?", object_id_field="sku"), REPORT, text="salt")
    assert named_record["user_query"] == "Salt?"  # the user's own words
    assert (named_record["query_response_hit_ids"], named_record["object_id_field"]) == (["S7", "S9"], "sku")


def test_a_ubi_record_of_an_interleaved_page_has_teams_session_and_experiment() -> None:
    drawn = {"applied": True, "teams": "AB", "name": "bm25"}
    attributes = make_record(query(), REPORT.with_entries(interleave=drawn), session="digest")["query_attributes"]
    assert [attributes[f"osrerank_{name}"] for name in ("teams", "session", "experiment")] == ["AB", "digest", "bm25"]


def test_the_ubi_index_has_exactly_the_plugins_fields() -> None:
    ours, embedded = (index_body(is_embedded=is_embedded)["mappings"] for is_embedded in (False, True))
    assert ours["dynamic"] is False
    attributes = {"query_id": {"type": "keyword", "ignore_above": 100}, "query_attributes": {"type": "flat_object"}}
    assert ours["properties"].items() >= attributes.items()
    properties = {"query_id": {"type": "keyword"}, "query_attributes": {"type": "object", "enabled": False}}
    assert embedded["properties"].items() >= {"user_query": {"type": "text"}, **properties}.items()
    assert ours["properties"].keys() == embedded["properties"].keys()


def test_the_first_recorded_search_creates_the_ubi_index() -> None:
    records = UbiRecords(is_embedded=False)
    steps = told(records)
    requests = [next(steps), steps.send(False)]
    requests.append(steps.throw(EngineError(OSError(), status=400, kind=INDEX_EXISTS)))  # another search was faster
    paths = [f"{request.method} {request.path}" for request in requests]
    assert paths == ["HEAD /ubi_queries", "PUT /ubi_queries", "POST /ubi_queries/_doc"]
    assert requests[2].params["request_timeout"] == 2.0
    with pytest.raises(StopIteration) as end:
        steps.send({})
    assert end.value.value.entries["ubi"] == {"recorded": True, "reason": None, "query_id": "q1"}
    response = write_report({"hits": {"hits": []}, "ext": {"other": 1}}, end.value.value)
    assert response["ext"] == {"other": 1, "ubi": {"query_id": "q1"}}  # what the engine says of others stays
    assert next(told(records)).path == "/ubi_queries/_doc"


@pytest.mark.parametrize(("left_ms", "timeout_s"), [(60_000, 2.0), (500, 0.5), (0, 0.1)])
def test_writing_a_ubi_record_takes_from_the_remaining_time(left_ms: float, timeout_s: float) -> None:
    steps = told(UbiRecords(is_embedded=False), deadline=Deadline.after_ms(left_ms, ManualClock()))
    assert next(steps).params["request_timeout"] == pytest.approx(timeout_s)


def test_after_a_refused_write_no_ubi_record_is_written_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    records = UbiRecords(is_embedded=False, clock=clock)
    steps = told(records)
    next(steps)
    refused = outcome(steps, EngineError(OSError(), status=403, kind="security_exception"))
    assert (refused["recorded"], refused["reason"]) == (False, "security_exception")
    assert "[ubi-lost] a search was not recorded in ubi_queries" in caplog.text
    assert outcome(told(records), None)["reason"] == "the engine refused an earlier record, and recording pauses"
    clock.sleep(PAUSE_S)
    assert next(told(records)).method == "HEAD"


@pytest.mark.parametrize(
    ("ubi", "named"),
    [
        ("q1", r"ext\.ubi of the search is 'q1'; it must be an object"),
        ({"query_id": "x" * 101}, r"ext\.ubi\.query_id .* at most 100 characters"),
        ({"query_attributes": ["en"]}, r"ext\.ubi\.query_attributes of the search is \['en'\]; it must be an object"),
    ],
)
def test_fields_that_the_ubi_schema_does_not_allow_are_refused_by_name(ubi: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        UbiQuery.from_body({"ext": {"ubi": ubi}}, {})


def test_only_osreranks_extensions_are_removed_from_ext() -> None:
    assert without_ubi({"size": 1, "ext": {"ubi": {}, "other": 1}}) == {"size": 1, "ext": {"other": 1}}
    assert without_ubi({"size": 1, "ext": {"ubi": {}}}) == {"size": 1}
