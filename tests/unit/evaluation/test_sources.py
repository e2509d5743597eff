"""Recall of sources of candidates, and the points of a run with two of them."""

import pytest

from osrerank.errors import EvaluationError
from osrerank.evaluation.records import Record
from osrerank.evaluation.sources import recall_of_sources
from osrerank.evaluation.tradeoff import Reach, Scored, Setting, derive
from osrerank.types import Qrels

QRELS = Qrels({"q": {"a": 1, "b": 2, "c": 0}, "p": {"d": 1}, "none": {"e": 0}})
FOUND = {"bm25": {"q": ["a", "c"], "p": ["x"], "none": ["e"]}, "vectors": {"q": ["c", "b"], "p": ["y", "d"]}}


def test_the_union_has_what_either_source_found():
    found = {(one.source, one.depth): one for one in recall_of_sources(FOUND, QRELS, (1, 2))}
    assert {key: one.recall for key, one in found.items()} == {
        ("bm25", 1): 0.25, ("bm25", 2): 0.25, ("vectors", 1): 0.0, ("vectors", 2): 0.75, ("union", 1): 0.25,
        ("union", 2): 1.0,
    }  # fmt: skip
    assert found["union", 2].candidates == (3 + 3) / 2


def test_the_level_of_relevance_counts():
    (one, *_) = recall_of_sources({"bm25": {"q": ["a"]}}, QRELS, (1,), relevance_level=2)
    assert one.recall == 0.0


def test_runs_without_judged_queries_are_refused():
    with pytest.raises(EvaluationError, match="no query of the runs"):
        recall_of_sources({"bm25": {"other": ["a"]}}, QRELS, (1,))


def candidate(doc_id, first, vectors, score):
    found = {"first_pass": first and {"score": 10.0 - first, "rank": first}}
    if vectors:
        found["vectors"] = {"score": 1 - vectors / 10, "rank": vectors}
    return {"doc_id": doc_id, "score": score, **found, "stages": {"mono": {"score": score, "rank": 1}}}


UNITED = Record.from_json(
    {
        "query_id": "q", "applied": True, "reason": None, "took_ms": 1.0,
        "candidates": [candidate("x", None, 1, 4.0), candidate("b", 2, 3, 3.0), candidate("y", None, 2, 2.0),
                       candidate("a", 1, None, 1.0)],
        "stages": [{"name": "mono", "candidates": 4}],
    }
)  # fmt: skip


def test_a_run_of_two_sources_has_the_points_of_one_and_of_both():
    scored = Scored.of(UNITED)
    assert (scored.first_pass, scored.vectors, scored.mono_depth) == (("a", "b"), ("x", "y", "b"), 2)
    assert derive(scored, Setting(2)) == (("b", "a"), 2)
    assert derive(scored, Setting(1, vectors=True)) == (("x", "a", "b"), 2)
    assert derive(scored, Setting(2, vectors=True)) == (("x", "b", "y", "a"), 4)
    assert Reach.of(UNITED) == Reach(2, 2, 0, 3)


def test_in_a_blended_point_the_first_pass_counts_at_most_as_its_last_one():
    scored = Scored.of(UNITED, ("linear", 9.0))
    # first-pass scores 9 and 8; a: 1 + 9, b: 3 + 8, x: 4 + 8, y: 2 + 8 (after a, as monoBERT has them)
    assert derive(scored, Setting(2, blended=True, vectors=True)) == (("x", "b", "y", "a"), 4)
    # of one candidate each: x: 4 + 9 before a: 1 + 9; were there fewer hits than k0, x would have 4 + 0
    assert derive(scored, Setting(1, blended=True, vectors=True))[0] == ("x", "a", "b")
    assert derive(scored, Setting(3, blended=True, vectors=True))[0] == ("b", "a", "x", "y")


def test_a_candidate_that_no_search_found_is_no_record():
    with pytest.raises(EvaluationError, match="found by no search"):
        Record.from_json({**UNITED.as_json(), "candidates": [candidate("z", None, None, 1.0)]})
