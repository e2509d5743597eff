"""Searches in shadow: answered with the first pass, run again with reranking, and recorded."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from osrerank import Client, connect
from osrerank.aio import connect_async
from osrerank.search.plan import IN_SHADOW
from osrerank.search.shadow import MAX_WAITING, PAUSE_FACTOR, Shadows, make_digest
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer
from tests.articles import fill
from tests.rankings import client_for, ids, response_of, unmarked
from tests.servers import ROOT
from tests.waiting import wait_until

NOTES = [{"text": f"a note on blood pressure {number}"} for number in range(30)]
LAST_FIRST = FunctionScorer(lambda _query, text: float(text.split()[-1]))
SHADOW: Any = {"traffic": {"shadow": True}, "blend": "replace"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "shadow.jsonl"
    monkeypatch.setenv("OSRERANK_SHADOW_FILE", str(path))
    return path


@pytest.fixture
def client(file: Path, tmp_path: Path) -> Iterator[Client]:
    del file  # it is named before the settings are read
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=LAST_FIRST) as client:
        fill(client, "notes", NOTES)
        yield client


def records(file: Path, least: int) -> list[dict[str, Any]]:
    """Return the file's records once it has so many."""
    wait_until(lambda: file.exists() and file.read_text("utf-8").count("\n") >= least)
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def recorded_and_dropped(file: Path) -> int:
    """Return for how many searches the file answers, of which at least one was recorded."""
    lines = records(file, 1)
    assert any("query" in line for line in lines)
    return sum("query" in line for line in lines) + sum(line.get("dropped", 0) for line in lines)


def count(applied: str) -> float:
    return REGISTRY.get_sample_value("osrerank_shadow_searches_total", {"applied": applied}) or 0.0


def test_a_shadow_search_answers_with_the_first_pass_and_records_the_changes(client: Client, file: Path) -> None:
    plain = client.search("blood pressure", index="notes")
    before, searches = count("true"), REGISTRY.get_sample_value("osrerank_searches_total", {"applied": "true"})
    answer = client.search("blood pressure", index="notes", rerank=SHADOW)
    assert unmarked(answer) == plain["hits"]
    assert (answer["rerank"]["applied"], answer["rerank"]["reason_code"]) == (False, "shadow")
    assert answer["rerank"]["reason"] == IN_SHADOW.message
    assert answer["rerank"]["traffic"] == {"share": 1.0, "chosen": True, "queued": True}
    (record,) = records(file, 1)
    assert record["applied"] is True
    assert record["query"] == make_digest("blood pressure")
    expected_names = ("index", "hits", "after", "overlap", "first_changed", "moved", "farthest")
    assert [record[name] for name in expected_names] == ["notes", 10, 10, 0, True, 10, 29]
    assert record["ms"] > 0
    assert count("true") == before + 1
    assert REGISTRY.get_sample_value("osrerank_searches_total", {"applied": "true"}) == searches


def test_a_shadow_search_sends_the_callers_request_and_records_no_second_ubi_event(file: Path) -> None:
    body = {"query": {"match": {"text": "low"}}, "size": 2, "ext": {"ubi": {"query_id": "q1"}}}
    with client_for(["low", "lower"]) as client:
        response = client.search(index="notes", body=body, rerank={"traffic": {"shadow": True}, "fields": "text"})
        assert response["rerank"]["ubi"]["query_id"] == "q1"
        records(file, 1)
        searches = [request["body"] for request in client.transport.requests if request["url"].endswith("_search")]
        assert searches[0] == {"query": body["query"], "size": 2}
        assert searches[1]["size"] == 100
        assert sum("ubi_queries/_doc" in request["url"] for request in client.transport.requests) == 1


def test_shadow_records_have_neither_texts_nor_ids_by_default(
    client: Client, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.search("blood pressure", index="notes", rerank=SHADOW)
    assert "texts" not in records(file, 1)[0]
    assert "pressure" not in file.read_text("utf-8")
    assert "notes/" not in file.read_text("utf-8")
    client.close()
    monkeypatch.setenv("OSRERANK_SHADOW_TEXTS", "true")
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=LAST_FIRST) as telling:
        telling.search("blood pressure", index="notes", rerank=SHADOW, size=2)
        texts = records(file, 2)[1]["texts"]
    assert texts["query"] == "blood pressure"
    assert (len(texts["before"]), texts["after"]) == (2, ["notes/29", "notes/28"])


def test_messages_of_other_programs_are_recorded_only_with_texts(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "cannot read 'blood pressure'"
    for texts, is_told in (("false", False), ("true", True)):
        monkeypatch.setenv("OSRERANK_SHADOW_TEXTS", texts)
        with connect(
            f"embedded:{tmp_path / texts}", scorer=FunctionScorer(lambda _query, _text: fail(message))
        ) as client:
            fill(client, "notes", NOTES)
            client.search("blood pressure", index="notes", rerank=SHADOW)
            record = records(file, 1 + is_told)[-1]
        assert (record["reason_code"], "blood" in str(record)) == ("scoring", is_told)
        assert (message in str(record["reason"])) is is_told


def fail(said: str) -> float:
    raise ValueError(said)


@pytest.mark.parametrize("on_failure", ["first_pass", "raise"])
def test_a_failed_shadow_search_is_recorded_and_the_answer_unchanged(
    file: Path, tmp_path: Path, on_failure: Any
) -> None:
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=FunctionScorer(broken=True)) as client:
        fill(client, "notes", NOTES)
        response = client.search("blood pressure", index="notes", rerank={**SHADOW, "on_failure": on_failure})
        assert len(ids(response)) == 10
        (record,) = records(file, 1)
    assert record["applied"] is False
    assert record["reason_code"] == "scoring"
    assert "overlap" not in record


def test_a_shadow_search_that_cannot_be_reranked_is_recorded_with_the_reason(client: Client, file: Path) -> None:
    response = client.search(index="notes", body={"query": {"match_all": {}}}, rerank={**SHADOW, "on_failure": "raise"})
    assert response["rerank"]["reason"].startswith("the query has no text to rerank by")
    (record,) = records(file, 1)
    assert (record["applied"], record["reason_code"], record["reason"]) == (False, "no_query", None)


def test_no_search_waits_for_a_full_shadow_queue_and_dropped_searches_are_counted(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hold, begun = threading.Event(), threading.Event()

    def held(_query: str, text: str) -> float:
        begun.set()
        hold.wait(60)
        return float(len(text))

    dropped = count("dropped")
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=FunctionScorer(held)) as client:
        fill(client, "notes", NOTES)
        client.search("blood pressure", index="notes", rerank=SHADOW)
        assert begun.wait(60)
        responses = [client.search("blood pressure", index="notes", rerank=SHADOW) for _ in range(MAX_WAITING + 5)]
        queued = [response["rerank"]["traffic"]["queued"] for response in responses]
        assert queued == [True] * MAX_WAITING + [False] * 5
        assert not file.exists()  # they were answered before the first of them was reranked
        assert count("dropped") == dropped + 5
        client.searcher.shadows.close(0.2)
        assert count("dropped") == dropped + 5 + MAX_WAITING + 1
        assert "101 shadow searches that waited longer than 0.2 s were dropped" in caplog.text
        hold.set()
    assert sum(line.get("dropped", 0) for line in records(file, 1)) == 5 + MAX_WAITING + 1


def test_closing_a_client_runs_waiting_shadow_searches(client: Client, file: Path) -> None:
    for _ in range(40):
        client.search("blood pressure", index="notes", rerank=SHADOW)
    client.close()
    assert [line["applied"] for line in records(file, 40)] == [True] * 40


def test_all_searches_of_a_quiet_application_run_in_shadow(file: Path) -> None:
    shadows = Shadows(Settings.load(), pause_factor=1e6)
    assert all(shadows.submit(lambda: {"query": "q", "applied": True}) for _ in range(20))
    assert len(records(file, 20)) == 20  # after a second in which nobody searches
    shadows.close()


def test_each_search_of_a_multi_search_has_a_shadow_record(client: Client, file: Path) -> None:
    match = [{"query": {"match": {"text": text}}, "size": 5} for text in ("blood", "pressure")]
    body = [{"index": "notes"}, match[0], {}, match[1], {}, {"query": {"match": {"nothing": "here"}}}]
    plain = client.msearch(body=body, index="notes")
    responses = client.msearch(body=body, index="notes", rerank=SHADOW)
    assert [ids(response) for response in responses["responses"]] == [ids(response) for response in plain["responses"]]
    assert all(response["rerank"]["traffic"]["queued"] for response in responses["responses"])
    lines = records(file, 3)
    assert [line["query"] for line in lines] == [make_digest(text) for text in ("blood", "pressure", "here")]
    assert [line["applied"] for line in lines] == [True, True, False]
    assert lines[0]["hits"] == 5


def test_the_asynchronous_client_searches_in_shadow_and_drops_leftovers_of_an_event_loop(
    client: Client, file: Path, tmp_path: Path
) -> None:
    plain = ids(client.search("blood pressure", index="notes"))
    client.close()
    asynchronous = connect_async(f"embedded:{tmp_path / 'engine'}", scorer=LAST_FIRST)

    async def search() -> None:
        for _ in range(20):
            response = await asynchronous.search("blood pressure", index="notes", rerank=SHADOW)
            assert (ids(response), response["rerank"]["traffic"]["queued"]) == (plain, True)

    asyncio.run(search())
    asynchronous.searcher.shadows.close()
    assert recorded_and_dropped(file) == 20


def test_only_a_share_of_sessions_is_reranked_and_pages_of_a_session_agree(client: Client) -> None:
    chosen = {}
    for number in range(40):
        key = f"session-{number}"
        rerank: Any = {"traffic": {"share": 0.5, "key": key}, "blend": "replace"}
        pages = [
            client.search("blood pressure", index="notes", rerank=rerank, size=5, from_=start) for start in (0, 5, 10)
        ]
        sides = {page["rerank"]["traffic"]["chosen"] for page in pages}
        assert sides == {page["rerank"]["applied"] for page in pages}
        (chosen[key],) = sides
        if not chosen[key]:
            assert pages[0]["rerank"]["reason_code"] == "share"
            assert pages[0]["rerank"]["traffic"]["share"] == 0.5
    assert 10 <= sum(chosen.values()) <= 30


def test_without_a_session_key_the_query_text_decides_the_share(client: Client) -> None:
    forms: list[dict[str, Any]] = [
        {"query": "blood pressure"},
        {"query": {"match": {"text": "blood pressure"}}},
        {"body": {"query": {"bool": {"must": {"match": {"text": "blood pressure"}}, "filter": {"match_all": {}}}}}},
    ]
    for share, is_chosen in ((0.95, False), (0.96, True)):  # its place is at .952
        rerank: Any = {"traffic": {"share": share}}
        responses = [client.search(**form, index="notes", rerank=rerank) for form in forms]
        responses += client.msearch(body=[{}, forms[2]["body"]], index="notes", rerank=rerank)["responses"]
        assert [response["rerank"]["traffic"] for response in responses] == [{"share": share, "chosen": is_chosen}] * 4


def test_only_the_share_of_searches_runs_in_shadow(client: Client, file: Path) -> None:
    left_out, sampled = (
        client.search("blood pressure", index="notes", rerank={"traffic": {"shadow": True, "share": share}})["rerank"]
        for share in (0, 1)
    )
    assert (left_out["reason_code"], "queued" in left_out["traffic"]) == ("share", False)
    assert sampled["traffic"] == {"share": 1, "chosen": True, "queued": True}
    assert len(records(file, 1)) == 1


def test_a_ubi_record_names_the_side_of_divided_traffic(client: Client) -> None:
    for share in (0, 1):
        body = {"query": {"match": {"text": "blood"}}, "ext": {"ubi": {"query_id": f"q{share}"}}}
        response = client.search(index="notes", body=body, rerank={"traffic": {"share": share}})
        assert response["rerank"]["ubi"]["recorded"] is True
    client.indices.refresh(index="ubi_queries")
    queries = [hit["_source"] for hit in client.search(index="ubi_queries")["hits"]["hits"]]
    sides = {one["query_id"]: one["query_attributes"]["osrerank_chosen"] for one in queries}
    assert sides == {"q0": "false", "q1": "true"}


def test_a_shadow_file_that_cannot_be_written_only_loses_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "folder").mkdir()
    shadows = Shadows(Settings.load(shadow_file=tmp_path / "folder"), pause_factor=0.0)
    assert shadows.submit(lambda: {"query": "q", "applied": True})
    wait_until(lambda: "[shadow-lost]" in caplog.text)
    (tmp_path / "folder").rmdir()
    shadows.close()
    (line,) = records(tmp_path / "folder", 1)
    assert line["dropped"] == 1


def test_the_shadow_thread_works_at_most_a_twentieth_of_the_time(file: Path) -> None:
    shadows, times = Shadows(Settings.load()), list[float]()

    def run() -> dict[str, Any]:
        times.append(time.monotonic())
        sorted(range(10_000), key=str)
        times.append(time.monotonic())
        return {"query": "q", "applied": True}

    assert all(shadows.submit(run) for _ in range(2))
    records(file, 2)
    shadows.close()
    assert (times[1] - times[0]) / (times[2] - times[0]) <= 1 / (1 + PAUSE_FACTOR) == 1 / 20


ENDING = """
import sys, threading, time
from osrerank import connect
from osrerank.testing import FunctionScorer

begun = threading.Event()

def score(_query, _text):
    begun.set()
    time.sleep(30)
    return 0.0

client = connect(sys.argv[1], scorer=FunctionScorer(score))
for number in range(20):
    client.search("blood pressure", index="notes", rerank={"traffic": {"shadow": True}})
begun.wait()
sys.exit(7)
"""


@pytest.mark.long
def test_an_exiting_process_waits_a_second_for_shadow_searches_and_keeps_its_exit_code(
    client: Client, file: Path, tmp_path: Path
) -> None:
    client.close()
    command = [sys.executable, "-c", ENDING, f"embedded:{tmp_path / 'engine'}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert (ended.returncode, ended.stderr.count("Traceback")) == (7, 0), ended.stderr
    assert sum(line.get("dropped", 0) for line in records(file, 1)) == 20


@pytest.mark.long
def test_ten_thousand_shadow_searches_are_all_recorded_or_counted(file: Path) -> None:
    answer, rerank = response_of(["low", "lower", "lowest"]), {"traffic": {"shadow": True}, "fields": "text"}
    with client_for(answer) as client:

        def search(first: int) -> None:
            for number in range(first, 10_000, 4):
                assert unmarked(client.search(f"low {number}", index="notes", rerank=rerank)) == answer["hits"]

        with ThreadPoolExecutor(4) as threads:
            assert len([*threads.map(search, range(4))]) == 4
    assert recorded_and_dropped(file) == 10_000
