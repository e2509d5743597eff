"""Orders and curves that are derived from stored scores, by hand."""

import dataclasses
from pathlib import Path

import pytest

from osrerank.errors import ConfigError, EvaluationError
from osrerank.evaluation.plots import plot_tradeoff
from osrerank.evaluation.records import QueryRecord
from osrerank.evaluation.tradeoff import (
    BATCH_QUERIES,
    QueryDepths,
    QueryScores,
    RerankSetting,
    compute_curve,
    derive_ranking,
    find_max_k0,
    find_max_k1,
)
from osrerank.types import Qrels

# p_ij of four documents; asymmetric, as a model's are: p_ab + p_ba is not 1.
PROBABILITIES = {
    "a": {"b": 0.9, "c": 0.2, "d": 0.4},
    "b": {"a": 0.6, "c": 0.7, "d": 0.3},
    "c": {"a": 0.5, "b": 0.1, "d": 0.55},
    "d": {"a": 0.95, "b": 0.6, "c": 0.6},
}
PAIRS = {(first, second): value for first, row in PROBABILITIES.items() for second, value in row.items()}
# First pass e a b c d f; monoBERT read the top five and puts them a > b > c > d > e.
SCORED = QueryScores("q", tuple("eabcdf"), {"a": 5.0, "b": 4.0, "c": 3.0, "d": 2.0, "e": 1.0}, 5, PAIRS)


@pytest.mark.parametrize(
    ("k0", "expected"), [(0, "eabcdf"), (1, "eabcdf"), (2, "aebcdf"), (3, "abecdf"), (5, "abcdef")]
)
def test_a_mono_stage_reorders_candidates_within_the_depth_and_leaves_the_tail(k0: int, expected: str) -> None:
    assert derive_ranking(SCORED, RerankSetting(k0)) == (tuple(expected), k0)


def test_binary_ties_keep_the_mono_order_and_unscored_documents_stay_below() -> None:
    tied = QueryScores("q", ("a", "b"), {"a": 0.0, "b": 1.0}, 2, {("a", "b"): 0.9, ("b", "a"): 0.8})
    assert derive_ranking(tied, RerankSetting(2, 2, "binary"))[0] == ("b", "a")
    failed = QueryScores("q", ("a", "b", "c"), {"b": 1.0, "c": 2.0}, 3, {})
    assert derive_ranking(failed, RerankSetting(3))[0] == ("c", "b", "a")


def test_k1_cuts_to_the_top_of_mono() -> None:
    # Of a and b alone: p_ab 0.9, p_ba 0.6.
    assert derive_ranking(SCORED, RerankSetting(5, 2, "sum")) == (tuple("abcdef"), 5 + 2)
    # Of a, b, c: a 1.1, b 1.3, c 0.6.
    assert derive_ranking(SCORED, RerankSetting(5, 3, "sum")) == (tuple("bacdef"), 5 + 6)


def test_a_sample_of_no_pairs_keeps_the_mono_order_and_of_all_pairs_is_the_sum() -> None:
    assert (
        derive_ranking(SCORED, RerankSetting(5, 0))
        == derive_ranking(SCORED, RerankSetting(5, 1))
        == derive_ranking(SCORED, RerankSetting(5))
    )
    full_ranking = derive_ranking(SCORED, RerankSetting(5, 4, "sum"))
    assert (
        full_ranking
        == derive_ranking(SCORED, RerankSetting(5, 4, "sample", sample_size=3))
        == (full_ranking[0], 5 + 4 * 3)
    )
    assert derive_ranking(SCORED, RerankSetting(5, 4, "sample", sample_size=9))[1] == 5 + 4 * 3
    assert derive_ranking(SCORED, RerankSetting(5, 4, "sample", sample_size=2))[1] == 5 + 4 * 2


def test_a_curve_of_pairs_that_were_not_stored_is_refused() -> None:
    # At k0 = 2 monoBERT ranks e and a alone; no pair of theirs was kept.
    with pytest.raises(EvaluationError, match=r"the run does not contain duoBERT's probabilities .* for query q"):
        derive_ranking(SCORED, RerankSetting(2, 4))


def test_a_depth_beyond_the_kept_scores_is_refused() -> None:
    with pytest.raises(EvaluationError, match="scores below rank 5 for query q; run it again"):
        derive_ranking(SCORED, RerankSetting(6))
    assert find_max_k0([QueryDepths(n_hits=6, mono_depth=5, n_compared=4)]) == 5
    assert find_max_k0([QueryDepths(n_hits=2, mono_depth=2, n_compared=0)]) == 2
    assert (
        find_max_k1(
            [QueryDepths(n_hits=6, mono_depth=5, n_compared=4), QueryDepths(n_hits=0, mono_depth=0, n_compared=0)]
        )
        == 4
    )
    sparse = [QueryDepths(n_hits=hits, mono_depth=hits, n_compared=hits if hits > 1 else 0) for hits in (1, 3)]
    assert find_max_k1([QueryDepths(n_hits=20, mono_depth=12, n_compared=8), *sparse]) == 8
    assert find_max_k1(sparse) == 3
    assert QueryDepths.from_record(record()) == QueryDepths(n_hits=2, mono_depth=2, n_compared=2)


def record() -> QueryRecord:
    def candidate(doc_id: str, rank: int, mono: float) -> dict[str, object]:
        own = {"first_pass": {"score": 10.0 - rank, "rank": rank}, "stages": {"mono": {"score": mono, "rank": 1}}}
        return {"doc_id": doc_id, "score": mono, **own}

    pairs = {"doc_ids": ["b", "a"], "probabilities": [[None, 0.3], [0.8, None]]}
    stages = [{"name": "mono", "candidates": 2, "inferences": 2, "pairs": pairs}]
    return QueryRecord.from_parts("q", [candidate("b", 2, 0.9), candidate("a", 1, 0.2)], stages, True, None, 0.0)


def test_side_file_line_is_read_in_first_pass_order() -> None:
    scored, first = QueryScores.from_record(record()), {"a": 9.0, "b": 8.0}
    assert scored == QueryScores("q", ("a", "b"), {"a": 0.2, "b": 0.9}, 2, {("b", "a"): 0.3, ("a", "b"): 0.8}, first)


def test_curve_has_cost_and_quality() -> None:
    qrels = Qrels({"q": {"b": 1}})
    points = compute_curve(
        [QueryScores.from_record(record())],
        [RerankSetting(0), RerankSetting(2), RerankSetting(2, 2, "sample", 1)],
        qrels,
        "RR",
    )
    assert [(point.inferences, point.quality) for point in points] == [(0, 0.5), (2, 1.0), (4, 0.5)]


def test_queries_are_averaged_over_all_parts_that_are_in_memory() -> None:
    count = 2 * BATCH_QUERIES + 3
    scored = (dataclasses.replace(QueryScores.from_record(record()), query_id=f"q{number}") for number in range(count))
    qrels = Qrels({f"q{number}": {"a" if number % 3 else "b": 1} for number in range(count)})
    (point,) = compute_curve(scored, [RerankSetting(2)], qrels, "RR")
    relevant_first = len(range(0, count, 3))
    assert point.quality == pytest.approx((relevant_first + (count - relevant_first) / 2) / count, abs=1e-12)
    assert point.inferences == 2


@pytest.mark.long
def test_a_tradeoff_plot_is_the_same_file_every_time(tmp_path: Path) -> None:
    points = compute_curve(
        [QueryScores.from_record(record())], [RerankSetting(0), RerankSetting(2)], Qrels({"q": {"b": 1}}), "RR"
    )
    for name in ("one.svg", "two.svg", "one.png", "one.pdf"):
        plot_tradeoff(tmp_path / name, {"monoBERT": points, "other": points}, "RR")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert b"CreationDate" not in (tmp_path / "one.pdf").read_bytes()
    drawn = (tmp_path / "one.svg").read_text()
    assert "Inferences per query" in drawn
    assert ">RR<" in drawn
    with pytest.raises(ConfigError, match=r"end its name in \.svg"):
        plot_tradeoff(tmp_path / "plot.txt", {"monoBERT": points}, "RR")


def test_a_blended_curve_is_the_blend_stages_order() -> None:
    # linear, weight 2, best s 4: a 1.0 + 2.0, b 1.5 + 1.0, c 2.2 + 0.5; monoBERT alone has c b a.
    first = {"a": 4.0, "b": 2.0, "c": 1.0}
    blended = QueryScores("q", ("a", "b", "c"), {"a": 1.0, "b": 1.5, "c": 2.2}, 3, {}, first, ("linear", 2.0))
    assert derive_ranking(blended, RerankSetting(3))[0] == ("c", "b", "a")
    assert derive_ranking(blended, RerankSetting(3, uses_blend=True)) == (("a", "c", "b"), 3)
    assert derive_ranking(blended, RerankSetting(2, uses_blend=True))[0] == ("a", "b", "c")
    with pytest.raises(EvaluationError, match="does not contain a blend with the first pass"):
        derive_ranking(SCORED, RerankSetting(3, uses_blend=True))


def test_a_run_with_fewer_hits_than_its_depth_is_refused() -> None:
    candidates = [
        {"doc_id": doc_id, "score": 1.0, "first_pass": {"score": 1.0, "rank": rank}, "stages": {}}
        for doc_id, rank in (("a", 7), ("b", 1))
    ]
    with pytest.raises(EvaluationError, match=r"ranks up to 7\); create it again by osrerank run with --hits"):
        QueryScores.from_record(QueryRecord.from_parts("q", candidates, [], True, None, 0.0))
