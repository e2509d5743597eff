"""The report of an interleaving experiment: sessions, intervals, and bad lines."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from osrerank.cli import cli
from osrerank.decision.use.clicks import ShownPage, read_clicks
from osrerank.decision.use.interleaving import binomial_interval, measure_preferences, needed_sessions
from osrerank.errors import EvaluationError, FormatError


def page(session: str, teams: str, clicks: str, experiment: str = "") -> ShownPage:
    """A page of as many documents as teams; `clicks` has their places."""
    doc_ids = tuple(str(index) for index in range(len(teams)))
    return ShownPage("q", doc_ids, frozenset(clicks), session, teams=teams, experiment=experiment)


def as_line(one: ShownPage) -> dict[str, Any]:
    entry = {"query": one.query, "documents": one.doc_ids, "clicks": [*one.clicked]}
    return {**entry, "session": one.session, "teams": one.teams, "experiment": one.experiment}


def test_a_session_prefers_the_team_with_more_of_its_clicks_in_each_experiment() -> None:
    pages = [
        page("one", "ABBA", "0"), page("one", "BAAB", "03"),  # B by 2 to 1 over both pages
        page("two", "ABBA", "0"),
        page("three", "ABBA", "01"),
        page("four", "ABBA", ""),
        page("", "BA", "0"), page("", "BA", "0"),  # nobody knows whose: each a session
    ]  # fmt: skip
    (found,) = measure_preferences(pages)
    assert (found.sessions, found.wins_a, found.wins_b, found.ties, found.silent) == (6, 1, 3, 1, 1)
    assert found.share_b == 0.75
    assert found.winner == ""
    pages = [page("s", "AB", "0", "x"), page("s", "AB", "1", "y"), ShownPage("q", ("0",), frozenset("0"), "s")]
    assert [
        (preference.experiment, preference.wins_a, preference.wins_b) for preference in measure_preferences(pages)
    ] == [
        ("x", 1, 0),
        ("y", 0, 1),
    ]
    with pytest.raises(EvaluationError, match="no page is interleaved"):
        measure_preferences(pages[2:])


def test_the_interval_and_the_number_of_sessions_by_hand() -> None:
    assert binomial_interval(0, 0) == (0.0, 1.0)
    low, high = binomial_interval(10, 10)
    assert (low, high) == (pytest.approx(0.025**0.1), 1.0)
    assert binomial_interval(0, 10) == (0.0, pytest.approx(1 - 0.025**0.1))
    (preference,) = measure_preferences([page(str(n), "B", "0") for n in range(6)])
    assert (preference.winner, preference.p_value) == ("B", pytest.approx(2 / 2**6))
    assert measure_preferences([page(str(n), "B", "0") for n in range(5)])[0].winner == ""
    # ((1.959964 / 2 + 0.841621 * sqrt(.55 * .45)) / .05)^2 = 782.5 sessions with a preference
    assert needed_sessions(0.55, 1.0) == 783
    assert needed_sessions(0.45, 1.0) == 783
    assert needed_sessions(0.55, 0.5) == 1566
    assert needed_sessions(0.5, 1.0) is None
    assert needed_sessions(0.55, 0.0) is None


def test_the_report_of_an_interleaving_experiment(tmp_path: Path) -> None:
    file = tmp_path / "clicks.jsonl"
    pages = [page(str(n), "AB", "1") for n in range(30)] + [page(f"a{n}", "AB", "0") for n in range(6)]
    file.write_text("".join(f"{json.dumps(as_line(page))}\n" for page in pages))
    assert list(read_clicks(file)) == pages
    shown = CliRunner().invoke(cli, ["interleave", "report", str(file)]).output
    assert shown.splitlines()[:2] == [
        "B wins. B has 83.3% of the preferences (95% interval 67.2% to 93.6%, p = 6.96e-05).",
        "36 sessions: A 6, B 30, ties 0, without a click 0.",
    ]
    content = json.loads(CliRunner().invoke(cli, ["--json", "interleave", "report", str(file)]).output)
    assert content["experiments"][0]["winner"] == "B"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"query": " "}, "query is missing"),
        ({"documents": "d1"}, "documents is 'd1'; it must be a list of document ids"),
        ({"clicks": ["d9"]}, "clicks contains 'd9', which is not in documents"),
        ({"teams": "AC"}, "teams is 'AC'"),
        ({"first_rank": "1"}, "first_rank is '1'"),
        ({"first_rank": 0}, "it must be at least 1"),
        ({"session": 7}, "session is 7; it must be a string"),
    ],
)
def test_a_bad_line_of_clicks_is_named(tmp_path: Path, change: Any, reason: str) -> None:
    line = {"query": "q", "documents": ["d1", "d2"], "clicks": ["d1"], **change}
    (tmp_path / "clicks.jsonl").write_text(
        json.dumps({"query": "q", "documents": [], "clicks": []}) + "\n" + json.dumps(line)
    )
    with pytest.raises(FormatError, match=r"clicks.jsonl, line 2: .*" + reason[:20]):
        list(read_clicks(tmp_path / "clicks.jsonl"))
