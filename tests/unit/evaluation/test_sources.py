"""Recall of sources of candidates."""

import pytest

from osrerank.errors import EvaluationError
from osrerank.evaluation.sources import recall_of_sources
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
