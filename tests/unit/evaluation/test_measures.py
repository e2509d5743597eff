"""Measures of runs, and whether two runs differ."""

import ast
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from osrerank.errors import EvaluationError
from osrerank.evaluation.measures import (
    MSMARCO,
    Averaging,
    Evaluation,
    Evaluator,
    evaluate,
    msmarco_mrr,
    parse_measures,
)
from osrerank.evaluation.significance import (
    compare_runs,
    compute_effect_size,
    correct_by_holm,
    get_run_letter,
    letter_significant_runs,
    paired_t_test,
    randomisation_test,
)
from osrerank.formats.trec import read_run
from osrerank.types import Qrels, Run, ScoredDocument

QRELS = Qrels({"1": {"a": 2, "b": 1, "c": 0, "d": -2}, "2": {"x": 1}, "3": {"y": 1}})


def run_of(**rankings: str) -> Run:
    """Make a run from letters in rank order, one query each: ``q1="ab"``."""
    by_query = {query_id.removeprefix("q"): enumerate(doc_ids) for query_id, doc_ids in rankings.items()}
    return Run({name: tuple(ScoredDocument(doc_id, -rank) for rank, doc_id in ids) for name, ids in by_query.items()})


def test_averages_over_the_queries_of_both_or_over_all_judged() -> None:
    run = run_of(q1="a", q2="zx", q9="a")
    assert evaluate(QRELS, run, ["RR"]).overall["RR"] == pytest.approx((1 + 1 / 2) / 2)
    complete = evaluate(QRELS, run, ["RR"], Averaging(complete=True))
    assert complete.overall["RR"] == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert complete.per_query["RR"] == {"1": 1.0, "2": 0.5, "3": 0.0}


@pytest.mark.parametrize("complete", [False, True])
def test_a_run_measured_in_parts_equals_a_run_measured_whole(complete: bool) -> None:
    measures, averaging = ["RR", "nDCG@10", "NumRet", "AP", MSMARCO], Averaging(complete=complete)
    evaluator = Evaluator(QRELS, measures, averaging)
    for part in (run_of(q2="zx"), run_of(q9="a"), run_of(q1="cab")):
        evaluator.add(part)
    part_evaluation, whole_evaluation = (
        evaluator.summarise("part"),
        evaluate(QRELS, run_of(q1="cab", q2="zx", q9="a"), measures, averaging),
    )
    assert (part_evaluation.per_query, part_evaluation.overall) == (
        whole_evaluation.per_query,
        whole_evaluation.overall,
    )
    assert list(part_evaluation.per_query["RR"]) == ["1", "2", "3"][: 2 + complete]
    assert list(part_evaluation.per_query[MSMARCO]) == ["1", "2", "3"]


def test_depth_cuts_every_measure() -> None:
    values = evaluate(QRELS, run_of(q2="zyx"), ["RR", "NumRet"], Averaging(depth=2)).overall
    assert values == {"RR": 0.0, "NumRet": 2.0}


def test_relevance_level_leaves_graded_measures_and_explicit_levels_alone() -> None:
    names = ["P@1", "P(rel=1)@1", "NumRel", "NumRelRet", "NumRet", "nDCG@5"]
    values = evaluate(QRELS, run_of(q1="ba"), names, Averaging(relevance_level=2)).overall
    assert values == {
        "P(rel=2)@1": 0.0,
        "P(rel=1)@1": 1.0,
        "NumRel(rel=2)": 1.0,
        "NumRet(rel=2)": 1.0,
        "NumRet": 2.0,
        "nDCG@5": pytest.approx((1 + 2 / math.log2(3)) / (2 + 1 / math.log2(3))),
    }


def test_every_measure_ranks_the_greater_document_id_first_in_a_tie() -> None:
    tied = Run({"2": (ScoredDocument("a", 1.0), ScoredDocument("x", 1.0))})
    values = evaluate(QRELS, tied, ["RR", "RR@10", "nDCG@10", "P@1", "Judged@1"]).overall
    assert set(values.values()) == {1.0}


def test_measures_are_named_as_by_trec_eval_and_once() -> None:
    assert list(parse_measures(["map", "ndcg_cut_10", "success", "RR@10", "MRR@10"])) == [
        *("map", "ndcg_cut_10", "Success@1", "Success@5", "Success@10", "RR@10"),
    ]


UNKNOWN = ["nDGC@10", "P", "P@ten", "P(rel=@5", "all_trec", "P@5+1", "RBP(q=1)", "nDCG@0", "P@-1", ""]
LACKING = ["BPM", "BPM@10", "BPM(max_rel=2)", "BPM(max_rel=2)@10", "ERR"]


@pytest.mark.parametrize("name", [*UNKNOWN, *LACKING])
def test_an_unusable_measure_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(EvaluationError, match=f"measure.*{name[:3] if name in LACKING else ''}") as refusal:
        evaluate(QRELS, run_of(q1="a"), [name])
    assert "\n" not in str(refusal.value)
    assert "object" not in str(refusal.value)


@pytest.mark.long
@pytest.mark.parametrize("complete", [False, True])
def test_queries_with_negative_grades_only_or_without_documents_do_not_end_the_process(complete: bool) -> None:
    qrels = {"1": {"a": -2, "b": -1}, "2": {"x": 1, "z": 0}, "3": {"y": 1}, "4": {}}
    measures = ["Bpref", "AP", "SetF", "Rprec", "nDCG@10", "NumRel", "Judged@10"]
    code = f"""
from osrerank.evaluation import evaluate
from osrerank.evaluation.measures import Averaging
for _ in range(20):
    evaluate({qrels}, {{"1": ["a", "c"], "2": []}}, {measures}, Averaging(complete={complete}))
values = evaluate({qrels}, {{"1": ["a", "c"], "2": ["zz", "x"]}}, {measures}, Averaging(complete={complete})).per_query
print({{name: list(of.values())[:2] for name, of in values.items()}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    values = ast.literal_eval(done.stdout)
    assert values.pop("nDCG@10") == [0.0, pytest.approx(1 / math.log2(3))]
    assert values.pop("SetF") == [0.0, pytest.approx(2 / 3)]
    assert values == {
        "Bpref": [0.0, 1.0], "AP": [0.0, 0.5], "Rprec": [0.0, 0.0], "NumRel": [0.0, 1.0], "Judged@10": [0.5, 0.5]
    }  # fmt: skip


@pytest.mark.parametrize("grade", [2**31 - 1, 2**80, -(2**31) - 1])
def test_grades_and_levels_that_trec_eval_cannot_take_are_refused(grade: int) -> None:
    with pytest.raises(EvaluationError, match=f"the judgments have the grade {grade}; grades can be up to 1,000,000"):
        evaluate({"1": {"a": grade}}, {"1": ["a"]}, ["AP"])
    with pytest.raises(EvaluationError, match="the relevance level of AP is 0; it must be 1 to 1,000,000"):
        parse_measures(["AP"], relevance_level=0)
    with pytest.raises(EvaluationError, match=r"the relevance level of P\(rel=0\)@5 is 0"):
        parse_measures(["P(rel=0)@5"])
    with pytest.raises(EvaluationError, match="Accuracy needs rankings with documents that are not relevant"):
        evaluate({"1": {"a": 1}}, {"1": ["a"]}, ["Accuracy"])


def test_grades_beyond_gdevals_and_no_common_query_are_refused() -> None:
    with pytest.raises(EvaluationError, match="ERR@10: it takes grades up to 4, but the judgments have the grade 5"):
        evaluate(Qrels({"1": {"a": 5}}), run_of(q1="a"), ["ERR@10", "AP"])
    with pytest.raises(EvaluationError, match="share no query: the run has 8, 9, the judgments have 1, 2, 3"):
        evaluate(QRELS, run_of(q8="a", q9="a"), ["AP"])


def test_mrr_of_ms_marco_divides_by_judged_queries_and_reads_ten_hits(tmp_path: Path) -> None:
    run = run_of(q1="ghijklmnopa", q2="yzx", q9="a")
    assert msmarco_mrr(QRELS, run) == {"1": 0.0, "2": pytest.approx(1 / 3), "3": 0.0}
    assert evaluate(QRELS, run, [MSMARCO]).overall == {MSMARCO: pytest.approx(1 / 9)}
    (tmp_path / "run.tsv").write_text("q\td\t5\nr\te\t11\n")  # a document has the rank that three columns give it
    assert msmarco_mrr(Qrels({"q": {"d": 1}, "r": {"e": 1}}), read_run(tmp_path / "run.tsv")) == {"q": 0.2, "r": 0.0}


BY_PROVIDERS = """ERR@10 nDCG@10 nDCG(dcg='exp-log2')@10 nDCG(judged_only=True)@10 Compat infAP AP RR P@10 R@10 Bpref
Rprec IPrec@0.5 Judged@10 SetF Success@1 NumRet"""
"""Measures of each of ir-measures' providers."""
SPELLINGS = ("2", "PLAIN-2", "301-4", "q2", "2b", "002")


@pytest.mark.long
def test_no_measure_depends_on_how_query_ids_are_spelt() -> None:
    names, values = BY_PROVIDERS.split(), set()
    documents = tuple(ScoredDocument(doc_id, -rank) for rank, doc_id in enumerate("bzac"))
    for query_id in SPELLINGS:
        judged = Qrels({query_id: {"a": 2, "b": 1, "c": 0}, f"{query_id}-1": {"a": 1}})
        run = Run({query_id: documents, f"{query_id}-1": documents[:2]}, name="r")
        per_query = evaluate(judged, run, names).per_query
        values.add(repr([[value[query_id], value[f"{query_id}-1"]] for value in per_query.values()]))
    assert len(values) == 1
    assert evaluate(QRELS, run_of(q1="cba"), ["ERR@10"]).overall["ERR@10"] == pytest.approx(
        1 / 16 / 2 + 15 / 16 * 3 / 16 / 3, abs=1e-5
    )


def evaluation(run: str, *values: float, measure: str = "AP") -> Evaluation:
    per_query = {str(number): value for number, value in enumerate(values)}
    return Evaluation(run, {measure: per_query}, {measure: sum(values) / len(values)})


def test_t_test_equals_scipys() -> None:
    generator = np.random.default_rng(1)
    first, second = generator.random(50), generator.random(50)
    assert paired_t_test(first - second) == pytest.approx(stats.ttest_rel(first, second).pvalue)


def test_effect_size_and_differences_without_spread() -> None:
    assert paired_t_test(np.zeros(5)) == 1.0
    assert paired_t_test(np.full(5, 0.1)) == 0.0
    assert compute_effect_size(np.array([1.0, 2.0, 3.0])) == pytest.approx(2.0)
    assert compute_effect_size(np.zeros(5)) == 0.0
    assert compute_effect_size(np.full(5, -0.1)) == -math.inf


def test_exact_randomisation_by_hand() -> None:
    # Of the eight sign patterns of 1, 2, 3 only +++ and --- reach |sum| = 6.
    assert randomisation_test(np.array([1.0, 2.0, 3.0])) == 2 / 8
    # |sum| = 4 is reached by +++, -++ (4), and their opposites.
    assert randomisation_test(np.array([-1.0, 2.0, 3.0])) == 4 / 8
    assert randomisation_test(np.zeros(4)) == 1.0


@pytest.mark.long
def test_sampled_randomisation_equals_scipys_permutation_test() -> None:
    differences = np.random.default_rng(4).normal(0.05, 0.1, size=17)
    exact = stats.permutation_test((differences,), np.sum, permutation_type="samples", n_resamples=np.inf).pvalue
    p_value = randomisation_test(differences, seed=0)
    assert p_value == pytest.approx(exact, abs=0.01)
    assert p_value == randomisation_test(differences, seed=0)


def test_holm_by_hand() -> None:
    assert correct_by_holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert correct_by_holm([0.5, 0.9]) == [1.0, 1.0]
    assert correct_by_holm([]) == []


def test_comparison_counts_wins_ties_and_losses() -> None:
    (comparison,) = compare_runs([evaluation("base", 0.1, 0.5, 0.4), evaluation("other", 0.3, 0.5, 0.3)])
    assert (comparison.wins, comparison.ties, comparison.losses) == (1, 1, 1)
    assert comparison.difference == pytest.approx(0.1 / 3)
    assert comparison.p_t_holm == comparison.p_t


def test_holm_corrects_all_pairs_of_runs_together() -> None:
    runs = [evaluation("a", 0.1, 0.2, 0.3), evaluation("b", 0.2, 0.3, 0.5), evaluation("c", 0.0, 0.3, 0.3)]
    comparisons = compare_runs(runs, all_pairs=True)
    assert [(comparison.baseline, comparison.run) for comparison in comparisons] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [comparison.p_t_holm for comparison in comparisons] == correct_by_holm(
        [comparison.p_t for comparison in comparisons]
    )


def test_letters_name_the_runs_that_a_run_beats() -> None:
    weak, strong = [0.1 + n / 1000 for n in range(20)], [0.5 + n / 900 for n in range(20)]
    comparisons = compare_runs([evaluation("weak", *weak), evaluation("strong", *strong)])
    assert letter_significant_runs(comparisons, ["weak", "strong"]) == {("strong", "AP"): "a"}
    comparisons = compare_runs([evaluation("strong", *strong), evaluation("weak", *weak)])
    assert letter_significant_runs(comparisons, ["strong", "weak"], test="randomisation") == {("strong", "AP"): "b"}
    assert get_run_letter(26) == "(27)"


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([evaluation("a", 0.1, 0.2)], "at least two runs"),
        ([evaluation("a", 0.1, 0.2), evaluation("a", 0.1, 0.2)], "two runs have the name 'a'"),
        ([evaluation("a", 0.1), evaluation("b", 0.1)], "at least two queries"),
        ([evaluation("a", 0.1, 0.2), evaluation("b", 0.1, 0.2, 0.3)], "different judged queries .* set --complete"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(runs: list[Evaluation], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        compare_runs(runs)


def test_runs_are_not_compared_by_a_measure_that_lacks_a_value() -> None:
    two_grades = {"1": 1.0, "2": 0.5}
    first = Evaluation("first", {"RR": two_grades, "Accuracy": {"1": 1.0}}, {"RR": 0.75, "Accuracy": 1.0})
    second = Evaluation("second", {"RR": two_grades, "Accuracy": two_grades}, {"RR": 0.75, "Accuracy": 0.75})
    with pytest.raises(EvaluationError, match="first and second cannot be compared by Accuracy"):
        compare_runs([first, second])
