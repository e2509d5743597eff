"""The command `osrerank evaluate`: tables, JSON and CSV of measures, comparisons, and refused input."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from osrerank.cli import cli, main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "qrels").write_text("".join(f"q{n} 0 a 2\nq{n} 0 b 1\n" for n in range(6)))
    (tmp_path / "weak.run").write_text(
        "".join(f"q{n} Q0 {d} 1 {s} t\n" for n in range(5) for d, s in (("x", 2), ("b", 1)))
    )
    (tmp_path / "good.run").write_text(
        "".join(f"q{n} Q0 {d} 1 {s} t\n" for n in range(5) for d, s in (("a", 2), ("b", 1)))
    )
    return tmp_path


def evaluated(folder: Path, *arguments: str) -> Result:
    runs = [str(folder / "weak.run"), str(folder / "good.run")]
    outcome = CliRunner().invoke(cli, ["evaluate", str(folder / "qrels"), *runs, *arguments])
    assert outcome.exit_code == 0, outcome.output
    return outcome


def test_evaluate_says_how_many_queries_it_averaged_and_warns_of_different_queries(folder: Path) -> None:
    shown = evaluated(folder, "-m", "RR", "--complete").output
    assert "averaged over all judged queries" in shown
    assert ["good", "6", "0.8333"] in [line.split() for line in shown.splitlines()]
    assert "averaged over the judged queries of each run" in " ".join(evaluated(folder).output.split())
    assert evaluated(folder).stderr == ""
    good = folder / "good.run"
    good.write_text("".join(line for line in good.read_text().splitlines(keepends=True) if not line.startswith("q4")))
    assert evaluated(folder).stderr.startswith(
        "Warning: the runs cover different judged queries (weak 5, good 4); set --complete to count all"
    )
    assert evaluated(folder, "--complete").stderr == ""


def test_evaluate_leaves_out_queries_without_a_value_and_names_the_measure(folder: Path) -> None:
    (folder / "qrels").write_text("q0 0 a 2\nq0 0 b 1\nq1 0 b 1\n")
    files = ["evaluate", str(folder / "qrels"), str(folder / "good.run")]
    result = CliRunner().invoke(cli, [*files, "-m", "Accuracy(rel=2)", "--json"])
    assert [run["n_queries"] for run in json.loads(result.stdout)["runs"]] == [1]
    warning = "Warning: Accuracy(rel=2) is undefined for 1 of 2 queries of good, which are left out of its mean\n"
    assert result.stderr == warning
    refused = CliRunner().invoke(cli, [*files, "-m", "Accuracy(rel=3)"])
    assert str(refused.exception) == "Accuracy(rel=3) has no value for any query of run good; leave out Accuracy(rel=3)"


def test_a_measure_of_a_missing_package_names_the_package(folder: Path) -> None:
    refused = CliRunner().invoke(
        cli, ["evaluate", str(folder / "qrels"), str(folder / "good.run"), "-m", "alpha_nDCG@10"]
    )
    expected = "measure alpha_nDCG@10 needs the Python package pyndeval: pip install 'ir-measures[pyndeval]'"
    assert str(refused.exception) == expected


def test_json_of_evaluate_has_every_query_and_comparison(folder: Path) -> None:
    shown = json.loads(evaluated(folder, "-m", "RR", "--per-query", "--compare", "--json").output)
    assert [run["measures"] for run in shown["runs"]] == [{"RR": 0.5}, {"RR": 1.0}]
    assert shown["runs"][1]["per_query"]["RR"]["q4"] == 1.0
    assert shown["runs"][1]["better_than"] == {"RR": "a"}
    assert shown["comparisons"][0]["effect_size"] is None  # infinite: every query differs equally
    assert shown["averaging"]["complete"] is False


def test_comparison_shows_letters_and_counts(folder: Path) -> None:
    shown = evaluated(folder, "-m", "RR", "--compare", "--test", "randomisation", "--alpha", "0.1").output
    assert "1.0000ᵃ" in shown
    assert "5/0/0" in shown


def test_uncorrected_significance_is_marked_at_both_runs(folder: Path) -> None:
    (folder / "qrels").write_text("".join(f"q{n} 0 a 1\n" for n in range(12)))
    for name, firsts in (("weak", "xxxxxxxxxxxx"), ("good", "aaaaaxxxxxxx"), ("third", "axxxxxxxxxxx")):
        lines = "".join(f"q{n} Q0 {first} 1 1 t\n" for n, first in enumerate(firsts))
        (folder / f"{name}.run").write_text(lines)
    run_arguments = [str(folder / "third.run"), "-m", "P@1", "--all-pairs"]  # p = .017 and, good against third, .039
    corrected = json.loads(evaluated(folder, *run_arguments, "--json").output)["runs"]
    assert [run["better_than"] for run in corrected] == [{}, {}, {}]
    by_run = json.loads(evaluated(folder, *run_arguments, "--marks", "raw", "--json").output)["runs"]
    assert [run["differs_from"] for run in by_run] == [{"P@1": "b"}, {"P@1": "ac"}, {"P@1": "b"}]
    shown = evaluated(folder, *run_arguments, "--marks", "raw").output
    assert "0.0000ᵇ" in shown
    assert "significantly better or worse than that run (paired t-test, two-tailed, raw p < 0.05)" in shown
    refused = CliRunner().invoke(cli, ["evaluate", *[str(folder / "qrels")] * 2, "--marks", "raw"])
    assert "--marks raw needs --compare or --all-pairs" in refused.output


def test_runs_with_equal_file_names_are_distinguished_in_the_table(folder: Path) -> None:
    shown = json.loads(evaluated(folder, "--msmarco", "--json").output)
    assert shown["runs"][1]["measures"] == {"MRR@10 (MS MARCO)": pytest.approx(5 / 6)}
    (folder / "other").mkdir()
    path = folder / "other" / "good.run"
    path.write_bytes((folder / "weak.run").read_bytes())
    shown = json.loads(evaluated(folder, str(path), "--json").output)
    assert [run["run"] for run in shown["runs"]] == ["weak", str(folder / "good.run"), str(path)]


@pytest.mark.parametrize(
    ("run", "arguments", "message"),
    [
        ("other Q0 a 1 1 t\n", [], "share no query"),
        ("q1 Q0 a 1 nan t\n", [], "line 1: the score is nan"),
        ("", [], "is empty; expected lines"),
        ("q1 Q0 a 1 1 t\nq1 Q0 a 2 0 t\n", [], "line 2: query 'q1' has document 'a' twice"),
        ("q1 Q0 a 1 1 t\n", ["-m", "nDGC@10"], "there is no measure 'nDGC@10'"),
    ],
)
def test_evaluate_refuses_bad_input_in_one_sentence(folder, capsys, run, arguments, message):
    (folder / "bad.run").write_text(run)
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", str(folder / "qrels"), str(folder / "bad.run"), *arguments])
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_csv_of_a_comparison_keeps_the_measures(folder: Path) -> None:
    rows = evaluated(folder, "-m", "RR", "--compare", "--per-query", "--csv").output
    values, comparisons = rows.split("\n\n")
    assert values.splitlines()[0] == "run,query_id,measure,value"
    assert {"weak,q0,RR,0.5", "good,all,RR,1.0"} <= set(values.splitlines())
    assert len(comparisons.splitlines()) == 2
