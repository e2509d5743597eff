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
MEASURES = """num_q=NumQ num_ret=NumRet num_rel=NumRel num_rel_ret=NumRelRet map=AP Rprec=Rprec bpref=Bpref
recip_rank=RR infAP=infAP ndcg=nDCG set_P=SetP set_relative_P=SetP(relative=True) set_recall=SetR set_map=SetAP
set_F=SetF"""
NAMES = dict(pair.split("=", 1) for pair in MEASURES.split())
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
LARGER = {
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
    measured = []
    for name, query_id, value in lines:
        values = evaluation.overall if query_id == "all" else {name: evaluation.per_query[name][query_id]}
        if f"{values[name]:.4f}" != f"{value:.4f}":
            measured.append(f"{name} of {query_id}: {values[name]:.6f}, trec_eval {value:.4f}")
    return measured


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
def test_measures_agree_with_trec_evals_self_test_to_four_decimals(case: str, single_precision: bool) -> None:
    qrels, run, printed, how = COMMANDS[case]
    lines = list(expected(FOLDER / f"{printed}.gz"))
    assert len(lines) >= 60
    how = replace(how, single_precision=single_precision)
    assert disagreements(evaluated(FOLDER, f"{qrels}.gz", f"{run}.gz", lines, how), lines) == []


@pytest.mark.parametrize("case", LARGER)
def test_measures_agree_with_trec_evals_larger_self_test_to_four_decimals(shared: Path, case: str) -> None:
    qrels, run, printed, how = LARGER[case]
    folder = shared / "trec_eval-tests"
    lines = list(expected(folder / printed))
    assert len(lines) >= 28
    assert disagreements(evaluated(folder, qrels, run, lines, how), lines) == []


MS_MARCO, DL19 = "msmarco-ans-small-runs/{}.tsv", "msmarco-dl19/{}.txt"
PUBLISHED = [
    (MS_MARCO, "qrels.dev.small", "run.bm25", {MSMARCO: 0.159067}),
    (MS_MARCO, "qrels.dev.small", "run.monobert-large", {MSMARCO: 0.402680}),
    (MS_MARCO, "qrels.dev.small", "run.monot5-base", {MSMARCO: 0.390442}),
    (DL19, "qrels.full", "runs/BM25", {"nDCG@10": 0.5058}),
    (DL19, "qrels.full", "runs/BM25_RM3", {"nDCG@10": 0.5216}),
    (DL19, "qrels.full", "runs/SPLADE_P_P_ENSEMBLE_DISTIL", {"nDCG@10": 0.7308}),
    (
        "{}",
        "qrels/qrels.core18.txt",
        "core18-bm25-rm3-run/core18_title_rm3.run",
        {"AP": 0.3075, "P@20": 0.4590, "nDCG@20": 0.4434},
    ),
]


@pytest.mark.parametrize(("path", "qrels", "run", "published"), PUBLISHED)
def test_runs_have_their_published_measures(
    shared: Path, path: str, qrels: str, run: str, published: dict[str, float]
) -> None:
    qrels, run = (str(shared / path.format(name)) for name in (qrels, run))
    evaluation = evaluate(read_qrels(Path(qrels)), read_run(Path(run)), list(published))
    digits = 6 if MSMARCO in published else 4
    assert {name: round(value, digits) for name, value in evaluation.overall.items()} == published
