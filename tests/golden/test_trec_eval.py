"""Every measure of trec_eval's own self-test that ir-measures has, to the four decimals that trec_eval prints."""

import gzip
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from osrerank.evaluation.measures import MSMARCO, Averaging, Evaluation, evaluate
from osrerank.formats.trec import read_qrels, read_run

FOLDER = Path(__file__).parent / "trec_eval"
NAMES = {
    "num_q": "NumQ",
    "num_ret": "NumRet",
    "num_rel": "NumRel",
    "num_rel_ret": "NumRelRet",
    "map": "AP",
    "Rprec": "Rprec",
    "bpref": "Bpref",
    "recip_rank": "RR",
    "infAP": "infAP",
    "ndcg": "nDCG",
    "set_P": "SetP",
    "set_relative_P": "SetP(relative=True)",
    "set_recall": "SetR",
    "set_map": "SetAP",
    "set_F": "SetF",
}
PATTERNS = {
    r"P_(\d+)": "P@{}",
    r"recall_(\d+)": "R@{}",
    r"ndcg_cut_(\d+)": "nDCG@{}",
    r"map_cut_(\d+)": "AP@{}",
    r"success_(\d+)": "Success@{}",
    r"iprec_at_recall_([\d.]+)": "IPrec@{}",
}
# (judgments, run, what trec_eval printed, our settings): the commands of the self-test, flag for flag.
COMMANDS = {
    "per query": ("qrels.test", "results.test", "out.test.aq", Averaging()),
    "complete": ("qrels.test", "results.trunc", "out.test.aqc", Averaging(complete=True)),
    "depth": ("qrels.test", "results.trunc", "out.test.aqcM", Averaging(complete=True, depth=100)),
    "level": ("qrels.rel_level", "results.test", "out.test.aql", Averaging(relevance_level=2)),
    "parameters": ("qrels.test", "results.test", "out.test.meas_params", Averaging()),
}
SHARED_COMMANDS = {
    "plain": ("qrels.test", "results.test", "out.test", Averaging()),
    "all measures": ("qrels.test", "results.test", "out.test.a", Averaging()),
    "comments in judgments": ("qrels.test.with-comments", "results.test", "out.test.a", Averaging()),
    "tied scores": ("qrels.comment.test", "results.comment.test", "out.comment.test", Averaging()),
}


def expected(path: Path) -> Iterator[tuple[str, str, float]]:
    """Yield (measure in our words, query or "all", value) for the printed lines whose measure ir-measures has."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    for line in text.splitlines():
        printed, query_id, value = line.split("\t", 2)
        if name := our_name(printed.strip()):
            yield name, query_id, float(value)


def our_name(printed: str) -> str | None:
    for pattern, template in PATTERNS.items():
        if match := re.fullmatch(pattern, printed):
            return template.format(float(match[1]) if "." in match[1] else match[1])
    return NAMES.get(printed)


def disagreements(evaluation: Evaluation, lines: list[tuple[str, str, float]]) -> list[str]:
    found = []
    for name, query_id, value in lines:
        values = evaluation.overall if query_id == "all" else {name: evaluation.per_query[name][query_id]}
        if f"{values[name]:.4f}" != f"{value:.4f}":
            found.append(f"{name} of {query_id}: {values[name]:.6f}, trec_eval {value:.4f}")
    return found


def evaluated(folder: Path, qrels: str, run: str, lines: list[tuple[str, str, float]], how: Averaging) -> Evaluation:
    names = list(dict.fromkeys(name for name, _query_id, _value in lines))
    evaluation = evaluate(read_qrels(folder / qrels), read_run(folder / run), names, how)
    if how.relevance_level != 1:  # levels are shown in the names: put the plain ones back
        shown = dict(zip(evaluation.overall, names, strict=True))
        return Evaluation(
            evaluation.run,
            {shown[name]: values for name, values in evaluation.per_query.items()},
            {shown[name]: value for name, value in evaluation.overall.items()},
        )
    return evaluation


@pytest.mark.parametrize("case", COMMANDS)
@pytest.mark.parametrize("single_precision", [True, False])
def test_self_test_agrees_to_four_decimals(case: str, single_precision: bool) -> None:
    qrels, run, printed, how = COMMANDS[case]
    lines = list(expected(FOLDER / f"{printed}.gz"))
    assert len(lines) >= 60
    how = replace(how, single_precision=single_precision)
    assert disagreements(evaluated(FOLDER, f"{qrels}.gz", f"{run}.gz", lines, how), lines) == []


@pytest.mark.parametrize("case", SHARED_COMMANDS)
def test_larger_self_test_agrees_to_four_decimals(shared: Path, case: str) -> None:
    qrels, run, printed, how = SHARED_COMMANDS[case]
    folder = shared / "trec_eval-tests"
    lines = list(expected(folder / printed))
    assert len(lines) >= 28
    assert disagreements(evaluated(folder, qrels, run, lines, how), lines) == []


@pytest.mark.parametrize(
    ("run", "expected"),
    [("run.bm25.tsv", 0.159067), ("run.monobert-large.tsv", 0.402680), ("run.monot5-base.tsv", 0.390442)],
)
def test_ms_marco_runs_have_their_published_mrr(shared: Path, run: str, expected: float) -> None:
    folder = shared / "msmarco-ans-small-runs"
    evaluation = evaluate(read_qrels(folder / "qrels.dev.small.tsv"), read_run(folder / run), [MSMARCO])
    assert round(evaluation.overall[MSMARCO], 6) == expected


@pytest.mark.parametrize(
    ("run", "expected"), [("BM25", 0.5058), ("BM25_RM3", 0.5216), ("SPLADE_P_P_ENSEMBLE_DISTIL", 0.7308)]
)
def test_deep_learning_runs_have_their_published_ndcg(shared: Path, run: str, expected: float) -> None:
    folder = shared / "msmarco-dl19"
    evaluation = evaluate(read_qrels(folder / "qrels.full.txt"), read_run(folder / "runs" / f"{run}.txt"), ["nDCG@10"])
    assert round(evaluation.overall["nDCG@10"], 4) == expected


def test_core18_run_has_its_published_values(shared: Path) -> None:
    qrels = read_qrels(shared / "qrels" / "qrels.core18.txt")
    run = read_run(shared / "core18-bm25-rm3-run" / "core18_title_rm3.run")
    evaluation = evaluate(qrels, run, ["AP", "P@20", "nDCG@20"])
    assert {name: round(value, 4) for name, value in evaluation.overall.items()} == {
        "AP": 0.3075,
        "P@20": 0.4590,
        "nDCG@20": 0.4434,
    }
