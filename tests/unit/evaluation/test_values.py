"""Runs and judgments as people have them, and the public functions over them."""

from pathlib import Path
from typing import Any

import pytest

from osrerank import Reranker
from osrerank.errors import ConfigError, EvaluationError
from osrerank.evaluation import compare, evaluate, read_candidates, read_qrels, read_queries, read_run, write_run
from osrerank.testing import FunctionScorer

QRELS = {"q1": {"a": 1, "b": 0}, "q2": {"c": 2}}


@pytest.mark.parametrize(
    "run",
    [
        {"q1": {"b": 2.0, "a": 1.5}, "q2": {"c": 1}},
        {"q1": ["b", "a"], "q2": ["c"]},
    ],
)
def test_dictionaries_are_runs_and_judgments(run: Any) -> None:
    assert evaluate(QRELS, run, ["RR@10"]).per_query == {"RR@10": {"q1": 0.5, "q2": 1.0}}


def test_ranked_texts_are_a_run() -> None:
    with Reranker(scorer=FunctionScorer()) as reranker:
        ranked = reranker.rank("red fox", [{"id": "b", "text": "a dog"}, {"id": "a", "text": "red fox"}])
    assert evaluate(QRELS, {"q1": ranked}, ["RR@10"]).overall == {"RR@10": 1.0}


def test_paths_of_runs_and_judgments_are_read(tmp_path: Path) -> None:
    (tmp_path / "qrels.txt").write_text("q1 0 a 1\nq2 0 c 2\n")
    (tmp_path / "x.run").write_text("q1 Q0 b 1 2 x\nq1 Q0 a 2 1 x\nq2 Q0 c 1 1 x\n")
    assert evaluate(tmp_path / "qrels.txt", str(tmp_path / "x.run"), ["RR@10"]).overall == {"RR@10": 0.75}
    write_run(tmp_path / "again.run", read_run(tmp_path / "x.run"))
    assert read_run(tmp_path / "again.run").rankings.keys() == read_qrels(tmp_path / "qrels.txt").judgments.keys()
    (tmp_path / "queries.tsv").write_text("q1\tred fox\n")
    assert [query.text for query in read_queries(tmp_path / "queries.tsv")] == ["red fox"]
    line = '{"query_id": "q1", "query": "red fox", "candidates": [{"doc_id": "a", "text": "t"}]}\n'
    (tmp_path / "c.jsonl").write_text(line)
    assert [candidate.query.text for candidate in read_candidates(tmp_path / "c.jsonl")] == ["red fox"]


def test_runs_are_compared_with_the_first() -> None:
    runs: dict[str, Any] = {"first": {"q1": ["b", "a"], "q2": ["x", "c"]}, "second": {"q1": ["a"], "q2": ["c"]}}
    (only,) = compare(QRELS, runs, ["RR@10"])
    assert (only.baseline, only.run, only.difference, only.wins, only.losses) == ("first", "second", 0.5, 2, 0)


def test_frames_are_runs_and_judgments() -> None:
    pd = pytest.importorskip("pandas")
    run = pd.DataFrame({"qid": ["q1", "q1", "q2"], "docno": ["a", "b", "c"], "score": [1.0, 2.0, 3.0]})
    qrels = pd.DataFrame({"qid": ["q1", "q2"], "docno": ["a", "c"], "label": [1, 2]})
    assert evaluate(qrels, run, ["RR@10"]).per_query == {"RR@10": {"q1": 0.5, "q2": 1.0}}
    with pytest.raises(ConfigError, match="has no column 'label'"):
        evaluate(run, run)


@pytest.mark.parametrize(
    ("qrels", "run", "message"),
    [
        (QRELS, [("q1", "a")], "the run must be .*, not list"),
        (QRELS, {"q1": "a"}, "the run of query q1 must be .*, not str"),
        (QRELS, {"q1": ["a", "a"]}, "the run of query 'q1' has document 'a' twice"),
        (QRELS, {"q1": {"a": None}}, "the run of query q1 must be {doc_id: score}"),
        ({"q1": ["a"]}, {"q1": ["a"]}, "the judgments of query q1 must be"),
        ({"q1": {"a": 0.5}}, {"q1": ["a"]}, "the judgments of query q1 must be"),
    ],
)
def test_values_that_are_no_run_are_refused(qrels: Any, run: Any, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        evaluate(qrels, run)
