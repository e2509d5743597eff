import contextlib
import math
from pathlib import Path

import ir_measures
import pytest

from osrerank.errors import EvaluationError
from osrerank.evaluation.measures import MSMARCO, Averaging, Tally, evaluate, msmarco_mrr, parse_measures
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
def test_a_run_in_parts_is_measured_as_the_whole(complete: bool) -> None:
    measures, averaging = ["RR", "nDCG@10", "NumRet", "AP", MSMARCO], Averaging(complete=complete)
    tally = Tally(QRELS, measures, averaging)
    for part in (run_of(q2="zx"), run_of(q9="a"), run_of(q1="cab")):
        tally.add(part)
    found, whole = tally.evaluation("part"), evaluate(QRELS, run_of(q1="cab", q2="zx", q9="a"), measures, averaging)
    assert (found.per_query, found.overall) == (whole.per_query, whole.overall)
    assert list(found.per_query["RR"]) == ["1", "2", "3"][: 2 + complete]
    assert list(found.per_query[MSMARCO]) == ["1", "2", "3"]


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


def test_a_tie_falls_to_the_greater_document_id_for_every_measure() -> None:
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
def test_a_measure_that_cannot_be_used_is_one_sentence(name: str) -> None:
    with pytest.raises(EvaluationError, match=f"measure.*{name[:3] if name in LACKING else ''}") as refusal:
        evaluate(QRELS, run_of(q1="a"), [name])
    assert "\n" not in str(refusal.value)
    assert "object" not in str(refusal.value)


def test_grades_beyond_gdevals_are_refused() -> None:
    with pytest.raises(EvaluationError, match="cannot measure ERR@10: it takes grades up to 4, the judgments have 5"):
        evaluate(Qrels({"1": {"a": 5}}), run_of(q1="a"), ["ERR@10", "AP"])


def test_run_and_judgments_that_share_no_query_are_refused() -> None:
    with pytest.raises(EvaluationError, match="share no query: the run has 8, 9, the judgments 1, 2, 3"):
        evaluate(QRELS, run_of(q8="a", q9="a"), ["AP"])


def test_ms_marco_divides_by_the_reference_and_looks_at_ten(tmp_path: Path) -> None:
    run = run_of(q1="ghijklmnopa", q2="yzx", q9="a")
    assert msmarco_mrr(QRELS, run) == {"1": 0.0, "2": pytest.approx(1 / 3), "3": 0.0}
    assert evaluate(QRELS, run, [MSMARCO]).overall == {MSMARCO: pytest.approx(1 / 9)}
    (tmp_path / "run.tsv").write_text("q\td\t5\nr\te\t11\n")  # a document has the rank that three columns give it
    assert msmarco_mrr(Qrels({"q": {"d": 1}, "r": {"e": 1}}), read_run(tmp_path / "run.tsv")) == {"q": 0.2, "r": 0.0}


SPELLINGS = ("2", "PLAIN-2", "301-4", "q2", "2b", "002")


def measurable() -> list[str]:
    """Return every measure of ir-measures that the installed providers compute, under a name that can be parsed."""
    names = set(ir_measures.measures.registry)
    forms = [form.format(name) for name in sorted(names) for form in ("{}", "{}@10", "{}(rel=1)", "{}(recall=0.5)")]
    found = []
    for form in [*forms, "nDCG(dcg='exp-log2')@10", "nDCG(judged_only=True)@10"]:
        with contextlib.suppress(EvaluationError, ValueError):
            ir_measures.evaluator(list(parse_measures([form]).values()), {"1": {"a": 1}})
            found.append(form)
    return found


@pytest.mark.long
def test_no_measure_depends_on_how_query_ids_are_spelt() -> None:
    names, values = measurable(), set()
    assert {"ERR@10", "nDCG(dcg='exp-log2')@10", "Compat", "infAP"} <= set(names)
    documents = tuple(ScoredDocument(doc_id, -rank) for rank, doc_id in enumerate("bzac"))
    for query_id in SPELLINGS:
        judged = Qrels({query_id: {"a": 2, "b": 1, "c": 0}, f"{query_id}-1": {"a": 1}})
        run = Run({query_id: documents, f"{query_id}-1": documents[:2]}, name="r")
        per_query = evaluate(judged, run, names).per_query
        values.add(repr([[of[query_id], of[f"{query_id}-1"]] for of in per_query.values()]))
    assert len(values) == 1
    assert evaluate(QRELS, run_of(q1="cba"), ["ERR@10"]).overall["ERR@10"] == pytest.approx(
        1 / 16 / 2 + 15 / 16 * 3 / 16 / 3, abs=1e-5
    )
