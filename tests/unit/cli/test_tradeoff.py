"""The command `osrerank tradeoff`: curves of quality over cost, from stored scores."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from osrerank.cli import cli
from osrerank.evaluation.records import QueryRecord
from osrerank.evaluation.side_file import SideFile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of one query, whose relevant document is third in the first pass and first for the pairs."""
    write_run(tmp_path / "run.jsonl", ["a", "b", "c"], ["b", "c", "a"], ["b", "c"])
    (tmp_path / "qrels").write_text("q 0 c 1\n")
    return tmp_path


def shown(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(
        cli, ["tradeoff", str(folder / "qrels"), str(folder / "run.jsonl"), "-m", "RR", *arguments]
    )


def test_tradeoff_points_have_cost_and_quality_and_larger_depths_are_refused(folder: Path) -> None:
    outcome = shown(folder, "--json", "--k1", "0,2", "--pairs", "sum")
    assert json.loads(outcome.output)["points"] == [
        {"curve": "monoBERT", "k0": 0, "k1": 0, "inferences": 0.0, "quality": pytest.approx(1 / 3)},
        {"curve": "monoBERT", "k0": 3, "k1": 0, "inferences": 3.0, "quality": 0.5},
        {"curve": "duoBERT Sum, k0 = 3", "k0": 3, "k1": 0, "inferences": 3.0, "quality": 0.5},
        {"curve": "duoBERT Sum, k0 = 3", "k0": 3, "k1": 2, "inferences": 5.0, "quality": 1.0},
    ]
    assert "is not a list of whole numbers" in shown(folder, "--k0", "0,ten").output
    outcome = shown(folder, "--k0", "3", "--k1", "3")
    assert "does not contain duoBERT's probabilities for the pairs of the top 3" in str(outcome.exception)


def test_a_run_of_vectors_mono_is_a_curve_over_its_mono_depth(folder: Path) -> None:
    """The vectors put b, c, a, d in the order c b a d; the cross-encoder read the best three of these."""
    ranks = {"a": (3, 1, 3, 1), "c": (2, 3, 1, 2), "b": (1, 2, 2, 3), "d": (4,)}  # first pass, vectors, blend, mono
    candidates = []
    for doc_id, (first_pass, *later_ranks) in ranks.items():
        of_stages = zip(("vectors", "blend", "mono"), later_ranks, strict=False)
        stages = {name: {"score": 4.0 - rank, "rank": rank} for name, rank in of_stages}
        record = {"doc_id": doc_id, "score": 1.0, "first_pass": {"score": 5.0, "rank": first_pass}}
        candidates.append({**record, "stages": stages})
    stages = [{"name": name, "candidates": 3, "inferences": 3} for name in ("vectors", "blend", "mono")]
    with SideFile(folder / "both.jsonl", {"blend": ["linear", 2.0]}) as checkpoint:
        checkpoint.append(QueryRecord.from_parts("q", candidates, stages, True, None, 0.0))
    arguments = [str(folder / "qrels"), str(folder / "both.jsonl"), "-m", "RR", "--k0", "0,2,3", "--json"]
    outcome = CliRunner().invoke(cli, ["tradeoff", *arguments], catch_exceptions=False)
    points = json.loads(outcome.output)["points"]
    assert {point["curve"] for point in points} == {"vectors, then monoBERT"}
    triples = [(point["k0"], point["inferences"], point["quality"]) for point in points]
    assert triples == [(0, 0, 1), (2, 2, 1), (3, 3, 0.5)]


@pytest.mark.long
def test_tradeoff_writes_a_table_csv_and_a_plot(folder: Path) -> None:
    outcome = shown(folder, "--csv", "--k0", "0,2", "--plot", str(folder / "plot.svg"))
    assert outcome.output.splitlines()[:3] == [
        "curve,k0,k1,inferences,quality",
        "monoBERT,0,0,0.0,0.3333333333333333",
        "monoBERT,2,0,2.0,0.3333333333333333",
    ]
    assert "Inferences per query" in (folder / "plot.svg").read_text()
    assert ["monoBERT", "3", "0", "3.0", "0.5000"] in [line.split() for line in shown(folder).output.splitlines()]


def test_several_sample_sizes_are_a_curve_each(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    write_run(tmp_path / "run.jsonl", names, names, names)
    (tmp_path / "qrels").write_text("q 0 d 1\n")
    for sizes in (["--sample-size", "1", "--sample-size", "2,3"], ["--sample-size", "1,2,3"]):
        points = json.loads(shown(tmp_path, "--json", "--k1", "0,4", "--pairs", "sample", *sizes).output)["points"]
        assert [(point["curve"], point["inferences"]) for point in points if point["k1"]] == [
            (f"duoBERT Sample of {size}, k0 = 4", 4 + 4 * size) for size in (1, 2, 3)
        ]
    assert points[-1]["quality"] == 1.0  # all three others: Sum
    assert "contains a number below 1" in shown(tmp_path, "--sample-size", "0,5").output


def write_run(path: Path, first: list[str], mono: list[str], pairs: list[str], **options: object) -> None:
    """Write a run's side file: both orders, and the candidates compared; the later in the alphabet is the better."""
    candidates = [
        {
            "doc_id": doc_id,
            "score": -float(rank),
            "first_pass": {"score": 9.0 - first.index(doc_id), "rank": first.index(doc_id) + 1},
            "stages": {"mono": {"score": -float(rank), "rank": rank}} if doc_id in mono else {},
        }
        for rank, doc_id in enumerate([*mono, *(entry for entry in first if entry not in mono)], start=1)
    ]
    table = [[None if pair == two else 0.9 if pair > two else 0.2 for two in pairs] for pair in pairs]
    pair_table = {"doc_ids": pairs, "probabilities": table}
    stages = [{"name": "mono", "candidates": len(mono)}, {"name": "duo", "pairs": pair_table}]
    with SideFile(path, options) as checkpoint:
        checkpoint.append(QueryRecord.from_parts("q", candidates, stages, True, None, 0.0))


def test_a_curve_of_another_mono_depth_reads_pairs_from_its_own_run(tmp_path: Path) -> None:
    first = ["a", "b", "c", "d"]
    write_run(tmp_path / "deep.jsonl", first, ["d", "c", "a", "b"], ["d", "c"], scorer="s")
    write_run(tmp_path / "two.jsonl", first, ["a", "b"], ["a", "b"], scorer="s")
    write_run(tmp_path / "other.jsonl", first, ["a", "b"], ["a", "b"], scorer="t")
    (tmp_path / "qrels").write_text("q 0 b 1\n")
    deep = ["tradeoff", str(tmp_path / "qrels"), str(tmp_path / "deep.jsonl"), "-m", "RR", "--json", "--pairs", "sum"]
    curves = [*deep, "--duo-k0", "2,4", "--k1", "0,2"]
    assert "does not contain duoBERT's probabilities" in str(CliRunner().invoke(cli, curves).exception)
    outcome = CliRunner().invoke(cli, [*curves, "--pairs-from", str(tmp_path / "two.jsonl")])
    qualities = {
        (point["k0"], point["k1"]): point["quality"]
        for point in json.loads(outcome.output)["points"]
        if "duo" in point["curve"]
    }
    assert qualities == {(2, 0): 0.5, (2, 2): 1.0, (4, 0): 0.25, (4, 2): 0.25}
    refused = CliRunner().invoke(cli, [*curves, "--pairs-from", str(tmp_path / "other.jsonl")])
    assert "because scorer is 't' in " in str(refused.exception)


def test_pairs_after_a_blend_are_derived_after_the_blend(tmp_path: Path) -> None:
    # mono alone has c b a; with the first pass worth 20 a b c, of whose top two the run compared the pairs
    write_run(tmp_path / "run.jsonl", ["a", "b", "c"], ["c", "b", "a"], ["a", "b"], blend=["linear", 20.0])
    (tmp_path / "qrels").write_text("q 0 b 1\n")
    arguments = ["tradeoff", str(tmp_path / "qrels"), str(tmp_path / "run.jsonl"), "-m", "RR", "--json"]
    points = json.loads(CliRunner().invoke(cli, [*arguments, "--pairs", "sum"]).output)["points"]
    assert [(point["k1"], point["quality"]) for point in points if "duo" in point["curve"]] == [(0, 0.5), (2, 1.0)]


def test_a_run_with_a_blend_that_is_gone_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run.jsonl", ["a", "b"], ["b", "a"], ["a", "b"], blend=["weighted", 1.0])
    (tmp_path / "qrels").write_text("q 0 a 1\n")
    assert 'was made with the blend "weighted", which was removed; use "linear"' in str(shown(tmp_path).exception)


def test_a_run_without_scores_of_documents_is_refused(tmp_path: Path) -> None:
    first_pass = [{"doc_id": "a", "score": 1.0, "first_pass": {"score": 5.0, "rank": 1}, "stages": {}}]
    (tmp_path / "qrels").write_text("q 0 a 1\n")
    with SideFile(tmp_path / "run.jsonl", {}) as checkpoint:
        checkpoint.append(QueryRecord.from_parts("q", first_pass, [{"name": "sentences"}], True, None, 0.0))
    assert "has no scores of whole documents" in str(shown(tmp_path).exception)
    assert shown(tmp_path, "--k0", "0").exit_code == 0
