"""Queries that are documents of the corpus, as in BEIR's ArguAna and Quora."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from osrerank import connect
from osrerank.cli import cli
from osrerank.evaluation.records import QueryRecord
from osrerank.evaluation.self_hits import count_self_hits
from osrerank.evaluation.side_file import read_records
from osrerank.formats.trec import read_run

TEXTS = {"a": "zoos keep lions in cages", "b": "lions live in zoos", "c": "zoos protect lions", "d": "parks have trees"}


def test_a_few_shared_ids_may_be_chance() -> None:
    assert count_self_hits({"a": ["b", "a"], "b": ["c"], "c": []}) == 1
    assert count_self_hits({str(number): [str(number) if number == 0 else "x"] for number in range(40)}) == 0
    assert count_self_hits({"a": [*"bcdefghijk", "a"]}) == 0  # below the ten best


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with connect(f"embedded:{tmp_path / 'data'}") as client:
        actions = [
            part
            for doc_id, text in TEXTS.items()
            for part in ({"index": {"_index": "n", "_id": doc_id}}, {"text": text})
        ]
        client.bulk(body=actions, refresh=True)
    (tmp_path / "queries.tsv").write_text(f"a\t{TEXTS['a']}\n")
    (tmp_path / "qrels.txt").write_text("a 0 c 1\n")
    return tmp_path


def command(*arguments: str) -> Result:
    outcome = CliRunner().invoke(cli, ["--url", "embedded:data", *arguments], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome


@pytest.mark.long
def test_a_run_leaves_a_querys_own_document_out(folder: Path) -> None:
    searched = ("run", "--queries", "queries.tsv", "--index", "n", "--no-rerank", "--hits", "2")
    command(*searched, "--output", "with.run")
    command(*searched, "--output", "without.run", "--exclude-query-ids")
    assert [one.doc_id for one in read_run("with.run").rankings["a"]] == ["a", "b"]
    assert [one.doc_id for one in read_run("without.run").rankings["a"]] == ["b", "c"]
    (record,) = read_records(Path("without.run.jsonl"))
    assert [candidate["first_pass"]["rank"] for candidate in record.fields["candidates"]] == [1, 2]
    error_output = command("evaluate", "qrels.txt", "with.run", "without.run", "-m", "RR").stderr
    assert error_output == (
        "Warning: in with, the top document of 1 of 1 queries has the query's id; to leave it out, as BEIR does, use "
        "osrerank run --exclude-query-ids\n"
    )


def test_removing_a_document_from_stored_scores_equals_a_run_without_the_document() -> None:
    candidates = [
        {
            "doc_id": doc_id,
            "score": 3.0 - rank,
            "first_pass": {"score": 1.0, "rank": first},
            "stages": {"mono": {"score": 1.0, "rank": rank}},
        }
        for rank, (doc_id, first) in enumerate((("a", 2), ("q", 1), ("b", 3)), start=1)
    ]
    pairs = {"doc_ids": ["a", "q", "b"], "probabilities": [[None, 0.1, 0.2], [0.3, None, 0.4], [0.5, 0.6, None]]}
    record = QueryRecord("q", {"applied": True, "candidates": candidates, "pairs": pairs}).remove_document("q", 10)
    assert [
        (candidate["doc_id"], candidate["first_pass"]["rank"], candidate["stages"]["mono"]["rank"])
        for candidate in record.fields["candidates"]
    ] == [("a", 1, 1), ("b", 2, 2)]
    assert record.fields["pairs"] == {"doc_ids": ["a", "b"], "probabilities": [[None, 0.2], [0.5, None]]}
    assert json.dumps(record.as_json())
