"""The report of shadow searches: counts, percentiles, the page, and refused files."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from osrerank.cli import cli, main
from osrerank.decision.use.shadow import MAX_EXAMPLES, count_new_hits, percentiles, read_report
from osrerank.errors import EvaluationError, FormatError


def record(query: str = "a", **given: Any) -> dict[str, Any]:
    compared = {"hits": 10, "after": 10, "overlap": 8, "first_changed": False, "moved": 5, "farthest": 12}
    timed = {"ms": 40.0, "first_pass_ms": 4, "known": 98, "encoded": 2}
    record_fields = {
        "time": "t",
        "index": "notes",
        "query": query,
        "applied": True,
        "reason": None,
        "reason_code": None,
    }
    return {**record_fields, **timed, **compared, **given}


def unapplied(code: str) -> dict[str, Any]:
    return {"time": "t", "index": "notes", "query": "b", "applied": False, "reason": None, "reason_code": code}


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines), "utf-8")
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["shadow", "report", *map(str, arguments)], catch_exceptions=False)


def test_shadow_report_counts_and_percentiles_by_hand(tmp_path: Path) -> None:
    first = written(tmp_path / "1", record(), record(overlap=10, moved=0, farthest=0), unapplied("no_text"))
    other_log = written(
        tmp_path / "2",
        record(first_changed=True, applied="partial", reason_code="deadline", dropped=3),
        {"time": "t", "dropped": 4},
    )
    report = read_report([first, other_log])
    assert (report.searches, report.dropped, report.compared, report.unreadable) == (4, 7, 3, 0)
    assert report.applied == {"true": 2, "partial": 1, "false": 1}
    assert report.reasons == {"no_text": 1, "deadline": 1}
    assert report.new_hits == {2: 2, 0: 1}
    assert count_new_hits(record(after=9, overlap=8)) == 1  # a threshold left nine
    assert (report.first_changed, report.known, report.encoded) == (1, 294, 6)
    assert report.as_json()["ms"] == {"p50": 40.0, "p95": 40.0}
    assert percentiles([float(n) for n in range(1, 101)]) == {"p50": 50.0, "p95": 95.0}
    assert percentiles([7.0]) == {"p50": 7.0, "p95": 7.0}
    assert percentiles([]) == {"p50": 0.0, "p95": 0.0}


def test_the_ten_searches_that_change_most_are_different_searches(tmp_path: Path) -> None:
    lines = [record(f"q{number}", overlap=10 - number % 11) for number in range(30)]
    report = read_report([written(tmp_path / "1", *lines, *lines)])
    names = [change["query"] for change in report.most_changed]
    assert len(names) == len(set(names)) == MAX_EXAMPLES
    assert set(names[:2]) == {"q10", "q21"}


def test_the_shadow_command_prints_a_table_and_writes_a_page(tmp_path: Path) -> None:
    texts = {"query": "<b>salt</b>", "before": ["notes/1", "notes/2"], "after": ["notes/2", "notes/<3>"]}
    lines = [record(texts=texts, overlap=1), record("b"), unapplied("no [text]"), {"time": "t", "dropped": 4}]
    file, html = written(tmp_path / "shadow.jsonl", *lines), tmp_path / "shadow.html"
    outcome = run(file, "--html", html)
    assert outcome.exit_code == 0
    assert (
        "3 searches in shadow mode; reranking brings new hits into the top ten in 100.0% of the reranked ones"
        in outcome.output
    )
    for name, count, share in (("reranked", 2, "28.6%"), ("reason: no [text]", 1, "14.3%"), ("dropped", 4, "57.1%")):
        assert re.search(rf"{re.escape(name)} +{count} +{share}", outcome.output)
    assert "<b>salt</b> in notes: 9 new hits of 10, 5 moved, by up to 12 ranks" in outcome.output
    page = html.read_text("utf-8")
    assert "&lt;b&gt;salt&lt;/b&gt;" in page
    assert "<li><strong>notes/&lt;3&gt;</strong></li>" in page
    assert "<b>" not in page
    assert json.loads(run(file, "--json").output) == read_report([file]).as_json()


def test_the_shadow_report_names_missing_reranked_searches_and_cut_lines(tmp_path: Path) -> None:
    file = written(tmp_path / "shadow.jsonl", unapplied("deadline"))
    outcome = run(file, "--html", tmp_path / "shadow.html")
    assert "1 search in shadow mode; none of them was reranked" in outcome.output
    file = written(tmp_path / "shadow.jsonl", record(), '{"time": "t", "ind', record(ms="long"), "", record())
    outcome = run(file)
    assert "2 lines of the files are not records and are left out." in outcome.output


NO_CODE = json.dumps({"query": "q", "index": "i", "applied": False, "reason": "too late"})


@pytest.mark.parametrize(
    "line", ['{"id": "d1", "text": "t"}', "no JSON", '{"query": "q", "index": "i"}', NO_CODE, "[]"]
)
def test_a_file_without_shadow_records_is_refused_by_name(tmp_path: Path, line: str) -> None:
    with pytest.raises(FormatError, match=r"other.jsonl.* line 1"):
        read_report([written(tmp_path / "other.jsonl", line)])


def test_an_empty_shadow_file_is_refused_with_the_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "empty.jsonl")
    with pytest.raises(EvaluationError, match="the files have no records of shadow mode; set OSRERANK_SHADOW_FILE"):
        read_report([file])
    with pytest.raises(SystemExit):
        main(["shadow", "report", str(file)])
    assert capsys.readouterr().err.startswith("Error: the files have no records")
