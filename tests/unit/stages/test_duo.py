"""The duo stage: order, counts, tail, failures, deadline, skipping."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank import DuoStage, MonoStage, Pipeline
from osrerank.errors import DeadlineExceeded, InferenceError
from osrerank.options.pairs import PAIR_AGGREGATIONS, Pairs
from osrerank.response import compute_final_score
from osrerank.stages.ordering import NO_TEXT
from osrerank.testing import FunctionScorer
from osrerank.types import Deadline, Scores
from osrerank.types.values import BLANK_TEXT
from tests.rankings import BY_LENGTH, ranking_of

# row i better than column j; asymmetric, as a model's are
MATRIX = {"ab": 0.9, "ac": 0.2, "ba": 0.6, "bc": 0.7, "ca": 0.5, "cb": 0.3}


class Table(FunctionScorer):
    """Scores pairs of one-letter texts from a table of probabilities; reaches so many pairs; some fail."""

    def __init__(self, table=MATRIX, reach=10_000, bad=()):
        for name, value in {"table": table, "reach": reach, "bad": bad}.items():
            object.__setattr__(self, name, value)
        super().__init__()

    def score(self, query, documents, tuples, *, deadline=None):
        values = np.full(len(tuples), np.nan, dtype=np.float32)
        reached = min(self.reach, len(tuples))
        failures = {}
        for number, (first, second) in enumerate(tuples[:reached]):
            pair = documents[first] + documents[second]
            if pair in self.bad:
                failures[number] = f"{pair} failed"
            else:
                values[number] = math.log(self.table[pair] / (1 - self.table[pair]))
        return Scores(values, failures, reached, inferences=reached)


def table_of(letters, seed=0):
    random = np.random.default_rng(seed)
    return {a + b: float(random.uniform(0.01, 0.99)) for a in letters for b in letters if a != b}


def texts(ranking):
    return "".join(candidate.text or "-" for candidate in ranking.candidates)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("sum", "bac"),  # a 1.1, b 1.3, c .8
        ("binary", "bac"),  # a 1, b 2, c 0
        ("min", "bca"),  # a .2, b .6, c .3
        ("max", "abc"),  # a .9, b .7, c .5
        ("sample", "bac"),  # two of two others: the sum
    ],
)
def test_duo_scores_of_three_candidates_by_hand(aggregation, expected):
    stage = DuoStage(Table(), pairs=Pairs(aggregation, sample_size=2))
    ranking = stage.rerank(ranking_of("abc"))
    assert texts(ranking) == expected
    assert ranking.reports[0].inferences == 6
    assert ranking.reports[0].applied is True


def test_the_duo_trace_has_probabilities_and_the_pair_matrix():
    ranking = DuoStage(Table()).rerank(ranking_of("abc"))
    best = ranking.candidates[0].trace[-1]
    assert (best.stage, best.rank) == ("duo", 1)
    assert best.score == ranking.candidates[0].score == pytest.approx(1.3)
    assert best.parts == {"sum": best.score, "rivals": 2}
    assert best.unit == pytest.approx(1.3 / 2)
    matrix = ranking.reports[0].pairs
    assert matrix.doc_ids == ("d0", "d1", "d2")
    assert matrix.probabilities[0] == (None, pytest.approx(0.9), pytest.approx(0.2))
    assert matrix.probabilities[2] == (pytest.approx(0.5), pytest.approx(0.3), None)


@given(st.permutations("abcdef"), st.sampled_from(PAIR_AGGREGATIONS), st.integers(0, 5))
def test_duo_scores_do_not_depend_on_the_order_of_candidates(order, aggregation, seed):
    """Where no two scores are equal; equal ones keep the order that they came in."""
    stage = DuoStage(Table(table_of("abcdef", seed)), pairs=Pairs(aggregation, sample_size=2))
    straight = stage.rerank(ranking_of("abcdef"))
    before = ranking_of(order)
    candidates = tuple(c._replace(doc_id=f"d{'abcdef'.index(c.text)}") for c in before.candidates)  # ids go with texts
    reordered = stage.rerank(replace(before, candidates=candidates))
    assert {c.text: c.score for c in reordered.candidates} == {c.text: c.score for c in straight.candidates}
    rank = {text: position for position, text in enumerate(order)}
    assert texts(reordered) == "".join(sorted(order, key=lambda text: (-_score(straight, text), rank[text])))


def _score(ranking, text):
    return next(c.score for c in ranking.candidates if c.text == text)


def test_candidates_with_equal_duo_scores_keep_their_rank():
    table = dict.fromkeys(table_of("abcd"), 0.7)
    for aggregation in PAIR_AGGREGATIONS:
        assert texts(DuoStage(Table(table), pairs=Pairs(aggregation)).rerank(ranking_of("dbca"))) == "dbca"


@pytest.mark.parametrize("depth", [0, 1])
def test_a_duo_stage_without_pairs_keeps_the_order(depth):
    before = ranking_of("abc")
    after = DuoStage(Table(), depth=depth).rerank(before)
    assert after.candidates == before.candidates
    report = after.reports[0]
    assert (report.applied, report.reason, report.inferences, report.candidates) == (True, "", 0, depth)


def test_candidates_below_the_duo_depth_stay_below():
    assert texts(DuoStage(Table(), depth=2).rerank(ranking_of("bac"))) == "abc"  # p_ab .9, p_ba .6
    assert texts(DuoStage(Table(), depth=50).rerank(ranking_of("abc"))) == "bac"
    assert DuoStage(Table()).rerank(ranking_of("a")).reports[0].inferences == 0
    assert DuoStage(Table()).rerank(ranking_of("")).candidates == ()


def test_blank_documents_and_those_without_text_are_not_compared():
    ranking = DuoStage(BY_LENGTH).rerank(ranking_of(["...", None, "bb", "a"]))
    assert [c.text for c in ranking.candidates] == ["bb", "a", "...", None]
    assert [candidate.failure for candidate in ranking.candidates[2:]] == [BLANK_TEXT, NO_TEXT]
    report = ranking.reports[0]
    assert (report.applied, report.failed, report.inferences) == ("partial", 2, 2)
    nothing = DuoStage(BY_LENGTH).rerank(ranking_of([None, None])).reports[0]
    assert (nothing.applied, nothing.reason) == (False, NO_TEXT)


@pytest.mark.parametrize("aggregation", PAIR_AGGREGATIONS)
def test_a_document_that_fails_is_left_out_and_its_neighbours_are_ranked(aggregation):
    table = table_of("abcdx")
    bad = {pair for pair in table if "x" in pair}
    failing = DuoStage(Table(table, bad=bad), pairs=Pairs(aggregation, sample_size=4)).rerank(ranking_of("axbcd"))
    without = DuoStage(Table(table), pairs=Pairs(aggregation, sample_size=4)).rerank(ranking_of("abcd"))
    assert texts(failing) == texts(without) + "x"
    assert failing.candidates[-1].failure == "ax failed"
    assert [len(c.trace) for c in failing.candidates] == [2, 2, 2, 2, 1]
    report = failing.reports[0]
    assert (report.applied, report.failed, report.inferences) == ("partial", 1, 20)
    assert "1 candidates could not be scored" in report.reason


def test_a_candidate_with_one_failed_rival_stays_comparable():
    table = dict.fromkeys(table_of("abcdefx"), 0.5)
    stage = DuoStage(Table(table, bad={p for p in table if "x" in p}), pairs=Pairs("sample", sample_size=3))
    ranking = stage.rerank(ranking_of("abcdefx"))
    assert {c.score for c in ranking.candidates[:6]} == {1.5}
    assert {c.trace[-1].parts["rivals"] for c in ranking.candidates[:6]} == {2, 3}


def test_a_candidate_without_a_scored_rival_is_marked():
    ids = [f"d{index}" for index in range(5)]
    drawn = Pairs("sample", sample_size=1).choose_rivals(ids)
    bad = {"abcde"[index] + "abcde"[rivals[0]] for index, rivals in enumerate(drawn) if 0 in (index, *rivals)}
    stage = DuoStage(Table(table_of("abcde"), bad=bad), pairs=Pairs("sample", sample_size=1))
    ranking = stage.rerank(ranking_of("abcde"))
    unscored = [c for c in ranking.candidates if len(c.trace) == 1]
    assert all(c.failure for c in unscored)
    assert "a" in [c.text for c in unscored]
    assert ranking.reports[0].failed == len(unscored)


def test_a_duo_stage_without_comparable_documents_is_an_error():
    with pytest.raises(InferenceError, match=r"no two candidates could be compared: .. failed"):
        DuoStage(Table(bad=set(MATRIX))).rerank(ranking_of("abc"))
    with pytest.raises(InferenceError, match="no two candidates"):
        DuoStage(Table(bad={"ab"}), depth=2).rerank(ranking_of("abc"))
    ranking = DuoStage(Table(bad={"cb"})).rerank(ranking_of("abc"))  # leaves out the lower of the two
    assert (texts(ranking), [len(c.trace) for c in ranking.candidates]) == ("abc", [2, 2, 1])  # p_ab .9, p_ba .6


def test_a_nan_pair_score_names_the_model():
    with pytest.raises(InferenceError, match="testing/function") as caught:
        DuoStage(FunctionScorer(lambda *_: math.nan)).rerank(ranking_of("ab"))
    assert (caught.value.stage, caught.value.model) == ("duo", "testing/function")


@pytest.mark.parametrize("reach", range(2, 30))
def test_a_deadline_in_a_duo_stage_equals_a_smaller_depth(reach):
    table = table_of("abcdef")
    cut = DuoStage(Table(table, reach=reach)).rerank(ranking_of("abcdef"))
    depth = max(r for r in range(7) if r * (r - 1) <= reach)
    complete = DuoStage(Table(table), depth=depth).rerank(ranking_of("abcdef"))
    assert texts(cut) == texts(complete)
    assert [c.score for c in cut.candidates] == [c.score for c in complete.candidates]
    assert f"after {reach} of 30 pairs: the first {depth} candidates were compared" in cut.reports[0].reason
    assert (cut.reports[0].applied, cut.reports[0].inferences) == ("partial", reach)


@pytest.mark.parametrize("reach", range(4, 12))
def test_a_deadline_orders_the_candidates_whose_rivals_were_scored(reach):
    table, pairs = table_of("abcdef"), Pairs("sample", sample_size=2)
    complete = DuoStage(Table(table), pairs=pairs).rerank(ranking_of("abcdef"))
    cut = DuoStage(Table(table, reach=reach), pairs=pairs).rerank(ranking_of("abcdef"))
    done = "abcdef"[: reach // 2]
    assert texts(cut) == "".join(text for text in texts(complete) if text in done) + "abcdef"[reach // 2 :]


@pytest.mark.parametrize("reach", [0, 1])
def test_a_deadline_before_the_first_pair_is_an_error(reach):
    with pytest.raises(DeadlineExceeded, match=f"after {reach} of 6 pairs"):
        DuoStage(Table(reach=reach)).rerank(ranking_of("abc"))
    with pytest.raises(DeadlineExceeded, match='before the stage "duo" began') as caught:
        DuoStage(Table()).rerank(ranking_of("abc"), deadline=Deadline(0.0))
    assert caught.value.stage == "duo"


@given(
    st.lists(st.sampled_from(["", "a", "bb", "ccc", "x", None]), min_size=1, max_size=12),
    st.lists(st.tuples(st.booleans(), st.integers(0, 12)), min_size=1, max_size=4),
)
def test_final_scores_never_increase_whatever_the_stages_and_depths(texts, stages):
    scorer = replace(BY_LENGTH, unscorable=frozenset({"x"}))
    pipeline_stages = [
        DuoStage(scorer, depth=depth, name=f"duo{n}") if is_duo else MonoStage(scorer, depth=depth, name=f"mono{n}")
        for n, (is_duo, depth) in enumerate(stages)
    ]
    before = ranking_of(texts)
    after = Pipeline(pipeline_stages).rerank(before)
    tail = max(depth for _, depth in stages)
    assert after.candidates[tail:] == before.candidates[tail:]
    assert sorted(c.doc_id for c in after.candidates) == sorted(c.doc_id for c in before.candidates)
    finals = [compute_final_score(candidate) for candidate in after.candidates]
    assert finals == sorted(finals, reverse=True)
