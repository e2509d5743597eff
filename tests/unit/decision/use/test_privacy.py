"""Reports of recorded searches contain no personal data."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from osrerank import connect
from osrerank.cli import cli
from osrerank.search.ubi import index_body

SECRET = "clinic for jane.roe@example.org"
PERSONAL = ("jane.roe", "browser-", "session-", "203.0.113", "digest-")


def search(number: int) -> dict[str, Any]:
    """Return UBI's record of an interleaved page."""
    teams = {"osrerank_teams": "AB", "osrerank_session": f"digest-{number}", "osrerank_experiment": "depth"}
    record = {"query_id": f"q-{number}", "user_query": SECRET, "timestamp": "2026-01-02T03:04:05Z"}
    shown = {"query_response_hit_ids": ["d1", "d2"], "client_id": f"browser-{number}"}
    return {**record, **shown, "query_attributes": {"osrerank_first_rank": "1", "ip": "203.0.113.7", **teams}}


def event(of: dict[str, Any], number: int) -> dict[str, Any]:
    click = {"action_name": "click", "query_id": of["query_id"], "timestamp": of["timestamp"]}
    who = {"session_id": f"session-{number}", "client_id": f"browser-{number}", "user_id": SECRET}
    return {**click, **who, "event_attributes": {"object": {"object_id": "d1"}}, "message": SECRET}


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_reports_of_recorded_searches_contain_no_personal_data(tmp_path: Path, as_json: tuple[str, ...]) -> None:
    searches = [search(number) for number in range(20)]
    clicked = [event(one, number) for number, one in enumerate(searches)]
    lines: list[Any] = []
    for name, documents in (("ubi_queries", searches), ("ubi_events", clicked)):
        lines += [line for document in documents for line in ({"index": {"_index": name}}, document)]
    url = f"embedded:{tmp_path / 'engine'}"
    with connect(url) as client:
        client.indices.create(index="ubi_queries", body=index_body(is_embedded=True))
        assert not client.bulk(body=lines, refresh=True)["errors"]
    outcome = CliRunner().invoke(cli, [*as_json, "--url", url, "interleave", "report"], catch_exceptions=False)
    assert outcome.exit_code == 0
    assert ('"wins_a": 20' if as_json else "20 sessions: A 20, B 0") in outcome.output
    assert not [name for name in PERSONAL if name in outcome.output]
