import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from osrerank.bench.contenders import Ours, Values
from osrerank.bench.measure import lengths_of, rows, take_turns
from osrerank.bench.peak import operations
from osrerank.bench.workload import BenchQuery, from_candidates, pairs, synthetic
from osrerank.cli import cli
from osrerank.scoring.registry import load_scorer
from osrerank.types import Qrels
from tests.late_interaction import exported

DATA = Path(__file__).parents[2] / "data"
TINY = DATA / "tiny-bert-one-label"
TASKS = [BenchQuery("1", "low pressure", {"a": "blood pressure is low", "b": "wing flow", "c": "heat"})]


def line(query_id: str, documents: int) -> str:
    candidates = [{"doc_id": str(n), "title": "low", "text": f"blood {n}"} for n in range(documents)]
    return json.dumps({"query_id": query_id, "query": "pressure", "candidates": candidates})


def test_texts_are_drawn_alike_or_cut_to_queries_and_depth(tmp_path: Path) -> None:
    tasks = synthetic(40, queries=3, depth=30)
    assert tasks == synthetic(40, queries=3, depth=30)
    sizes = [len(text.split()) for task in tasks for text in task.documents.values()]
    assert (len(sizes), pairs(tasks)) == (90, 90)
    assert 20 <= min(sizes) < 30
    assert 50 < max(sizes) <= 60
    (tmp_path / "c.jsonl").write_text("\n".join(line(str(n), 4) for n in range(3)))
    assert [len(task.documents) for task in from_candidates(tmp_path / "c.jsonl", queries=2, depth=3)] == [3, 3]
    whole = from_candidates(tmp_path / "c.jsonl", queries=0, depth=9)
    assert (len(whole), whole[0].documents["1"]) == (3, "low blood 1")


def test_our_scores_are_the_scorers_and_the_work_is_counted() -> None:
    one = Ours(str(TINY), backend="onnx", threads=2)
    texts = list(TASKS[0].documents.values())
    expected = load_scorer(str(TINY), backend="onnx").score(TASKS[0].query, texts, [(0,), (1,), (2,)]).values
    assert one.score(TASKS[0].query, texts).tolist() == expected.tolist()
    lengths = lengths_of(one.builder, TASKS)
    assert one.spent.tokens == one.spent.slots == sum(lengths)
    assert one.spent.tokenise_s > 0
    assert one.spent.compute_s > 0
    one.close()


def test_whole_pairs_of_encoders_have_the_scores_of_texts_read_alone(tmp_path: Path) -> None:
    directory = exported("unexpanded", tmp_path)
    for model in (directory, TINY.with_name("tiny-bert-bi-encoder")):
        one = Ours(str(model), backend="onnx", threads=2)
        texts = list(TASKS[0].documents.values())
        with closing(load_scorer(str(model), backend="onnx")) as scorer:
            expected = scorer.score(TASKS[0].query, texts, [(0,), (1,), (2,)]).values
        np.testing.assert_allclose(one.score(TASKS[0].query, texts), expected, atol=1e-3)
        one.close()


def test_rows_compare_orders_and_judge_them() -> None:
    calls: list[str] = []

    def by_length(name: str, sign: int) -> Any:
        """A contender that takes two seconds a call."""

        def score(_query: str, documents: Sequence[str]) -> Values:
            calls.append(name)
            return np.array([sign * float(len(document)) for document in documents])

        return SimpleNamespace(name=name, version="1", score=score, cpu_s=lambda: 2.0 * calls.count(name), close=str)

    both = [by_length("up", 1), by_length("down", -1)]
    tasks = [BenchQuery("1", "q", {str(n): "x" * (n + 1) for n in range(20)})]
    timings = take_turns(both, tasks, rounds=3)
    assert calls == ["up", "down"] * 4
    up, down = rows(both, tasks, timings, lengths=[5] * 20, reference="up", qrels=Qrels({"1": {"19": 1}}))
    assert (up["top10_shared"], down["top10_shared"]) == (1.0, 0.0)
    assert (up["ndcg@10"], down["ndcg@10"]) == (1.0, 0.0)
    assert len(up["seconds"]) == 3
    assert up["pairs_per_cpu_s"] == 20 / 2.0
    assert up["tokens_per_s"] == pytest.approx(5 * up["pairs_per_s"])


def test_operations_are_those_of_the_formula() -> None:
    config = {"hidden_size": 2, "intermediate_size": 3, "num_hidden_layers": 2}
    # a layer: projections 4 * 2 * 2 * 2, feed-forward 2 * 2 * 2 * 3, attention 4 * 2 * tokens, for each token
    assert operations(config, [1, 10]) == 2 * (32 + 24 + 8) + 2 * 10 * (32 + 24 + 80)


@pytest.mark.long
def test_the_command_reports_rows_and_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text(line("1", 4))
    (tmp_path / "qrels").write_text("1 0 2 1\n")
    files = ["--candidates", str(tmp_path / "c.jsonl"), "--qrels", str(tmp_path / "qrels")]
    arguments = ["--model", str(TINY), "--backend", "onnx", "bench", *files, "--rounds", "1"]
    outcome = CliRunner().invoke(cli, ["--json", *arguments])
    assert outcome.exit_code == 0, outcome.output
    report = json.loads(outcome.stdout)
    (row,) = report["rows"]
    assert row["name"].startswith("osrerank onnx fp32")
    assert row["padding_waste"] == 0
    assert 0 <= row["ndcg@10"] <= 1
    assert "--checkpoint" in report["missing"]["peers"]
    assert "pairs/s" in CliRunner().invoke(cli, arguments).output


@pytest.mark.long
def test_other_models_and_a_checkpoint_in_both_precisions_are_measured_beside_the_first() -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("torch")
    other = str(DATA / "tiny-bert-two-labels")
    given = f"--beside {other} --checkpoint {TINY} --words 5 --queries 1 --depth 3 --rounds 1".split()
    outcome = CliRunner().invoke(cli, ["--json", "--model", str(TINY), "--backend", "onnx", "bench", *given])
    assert outcome.exit_code == 0, outcome.output
    rows = json.loads(outcome.stdout)["rows"]
    assert sorted(row["precision"] for row in rows) == ["fp32", "fp32", "fp32", "int8"]
    assert f"osrerank onnx fp32 {other}" in [row["name"] for row in rows]


def test_judgments_without_candidates_are_refused(tmp_path: Path) -> None:
    (tmp_path / "qrels").write_text("1 0 2 1\n")
    outcome = CliRunner().invoke(cli, ["--model", str(TINY), "bench", "--qrels", str(tmp_path / "qrels")])
    assert "--qrels needs --candidates" in str(outcome.exception)
