"""What leaves the index: no user's id, and nothing that one person alone typed."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from osrerank import connect
from osrerank.cli import cli
from osrerank.search.ubi import index_body

SECRET = "clinic for jane.roe@example.org"
PERSONAL = ("jane.roe", "browser-", "session-", "203.0.113", "digest-")


def search(number: int, query: str, client_id: str | None) -> dict[str, Any]:
    """Return UBI's record of an interleaved page."""
    teams = {"osrerank_teams": "AB", "osrerank_session": f"digest-{number}", "osrerank_experiment": "depth"}
    attributes = {"osrerank_first_rank": "1", "ip": "203.0.113.7", **(teams if client_id else {})}
    ids = ["d1", "d2"] if number % 2 else ["d2", "d1"]
    record = {"query_id": f"q-{len(query)}-{number}", "user_query": query, "timestamp": "2026-01-02T03:04:05Z"}
    named = {"client_id": client_id} if client_id else {}
    return {**record, **named, "query_response_hit_ids": ids, "query_attributes": attributes}


def event(of: dict[str, Any], number: int) -> dict[str, Any]:
    click = {"action_name": "click", "query_id": of["query_id"], "timestamp": of["timestamp"]}
    who = {"session_id": f"session-{number}", "client_id": f"browser-{number}", "user_id": SECRET}
    return {**click, **who, "event_attributes": {"object": {"object_id": "d1"}}, "message": SECRET}


@pytest.fixture
def url(tmp_path: Path) -> str:
    """An index of twenty people who asked the same, and one who asked something else as often, known and unknown."""
    searches = [search(number, "low blood pressure", f"browser-{number}") for number in range(20)]
    clicked = [event(one, number) for number, one in enumerate(searches)]
    searches += [search(number, SECRET, "browser-99") for number in range(20)]
    searches += [search(number, f"{SECRET} again", None) for number in range(20)]
    lines: list[Any] = []
    for name, documents in (("ubi_queries", searches), ("ubi_events", clicked)):
        lines += [line for one in documents for line in ({"index": {"_index": name}}, one)]
    engine = f"embedded:{tmp_path / 'engine'}"
    with connect(engine) as client:
        client.indices.create(index="ubi_queries", body=index_body(is_embedded=True))
        assert not client.bulk(body=lines, refresh=True)["errors"]
    return engine


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_what_is_written_and_said_names_nobody(url: str, tmp_path: Path, as_json: tuple[str, ...]) -> None:
    judged, listed = tmp_path / "judged", tmp_path / "list.json"
    commands = [
        ("judgments", "learn", "--output", str(judged), "--least-clicks", "0"),
        ("judgments", "export", str(judged), "--name", "use", "--output", str(listed)),
        ("interleave", "report"),
    ]
    said = [CliRunner().invoke(cli, [*as_json, "--url", url, *one], catch_exceptions=False) for one in commands]
    assert [one.exit_code for one in said] == [0, 0, 0]
    written = [file.read_text("utf-8") for file in (*judged.iterdir(), listed)]
    assert (judged / "queries.tsv").read_text("utf-8") == "use-1\tlow blood pressure\n"
    everything = "\n".join([*(one.output for one in said), *written])
    assert not [name for name in PERSONAL if name in everything]
    if as_json:
        assert json.loads(said[0].stdout)["left_out_queries"] == 2
