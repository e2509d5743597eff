"""Where a list ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank.errors import ConfigError
from osrerank.options.cutoff import Cutoff
from osrerank.options.rerank import Rerank
from osrerank.testing import FunctionScorer
from osrerank.thresholds.calibration import IndexCalibration, mapping_digest
from osrerank.thresholds.cut import Thresholds, filter_by_probability
from osrerank.thresholds.maps import Isotonic, Platt, map_as_json, map_from_json
from osrerank.types import Candidate, StageReport, StageScore
from tests.rankings import client_for, ids

LOGITS = FunctionScorer(lambda _query, text: float(text))


def candidates(*probabilities: float | None) -> list[Candidate]:
    """Candidates with a model's probabilities; of the score ten times as high."""
    hits = []
    for rank, probability in enumerate(probabilities, start=1):
        entries = (
            ()
            if probability is None
            else (StageScore("mono", 10 * probability, rank, probability, {"probability": probability}),)
        )
        trace = (StageScore("first_pass", 1.0, rank, 0.5), *entries)
        hits.append(Candidate(f"d{rank}", "text", 1.0, rank, trace))
    return hits


def calibration(*precisions: tuple[float, float]) -> IndexCalibration:
    return IndexCalibration("mono", Isotonic((0, 10), (0, 1)), "m", "i", precisions)


def test_hits_are_cut_by_probability_or_precision() -> None:
    hits = candidates(0.9, 0.6, 0.3, None)
    thresholds = Thresholds(0.5, Cutoff(precision=0.8), calibration((0.2, 0.5), (0.7, 0.8)))
    remaining, cuts = thresholds.remove_hits(hits)
    assert [hit.doc_id for hit in remaining] == ["d1"]
    assert [(cut.option, cut.n_removed, cut.threshold) for cut in cuts] == [
        ("min_probability", 2, 0.5),
        ("precision", 1, 0.7),
    ]


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=12),
    st.sets(st.integers(0, 11)),
    st.integers(0, 14),
    st.floats(0, 1),
)
def test_a_threshold_keeps_hits_that_were_not_scored_in_time(probabilities, failed, depth, least) -> None:
    hits = candidates(*(hit if rank < depth else None for rank, hit in enumerate(probabilities)))
    hits = [hit._replace(failure="too long") if hit.rank in failed and len(hit.trace) < 2 else hit for hit in hits]
    reports = [StageReport("mono", applied="partial", candidates=depth), StageReport("blend", applied=True)]
    waiting = [hit for hit in hits[:depth] if len(hit.trace) < 2 and not hit.failure]
    calibrated, (cut,) = Thresholds(least, None, calibration()).remove_hits(hits, reports)
    for remaining, count in (filter_by_probability(hits, least, reports), (calibrated, cut.n_removed)):
        if any(len(hit.trace) > 1 for hit in hits):
            assert [hit for hit in remaining if len(hit.trace) < 2] == waiting
            assert all(hit.trace[1].unit >= least for hit in remaining if len(hit.trace) > 1)
            assert count == len(hits[:depth]) - len(remaining)


def test_without_a_calibration_nothing_is_cut() -> None:
    hits = candidates(0.9, 0.1)
    remaining, cuts = Thresholds(0.5, Cutoff(precision=0.8), None, "there is none").remove_hits(hits)
    assert remaining == hits
    assert [cut.as_json()["reason"] for cut in cuts] == ["there is none"] * 2


@pytest.mark.parametrize("one", [Platt(2.0, -1.0), Isotonic((0.0, 1.0, 3.0), (0.1, 0.1, 0.9))])
def test_calibration_maps_round_trip_through_json(one) -> None:
    assert map_from_json(map_as_json(one)) == one


@pytest.mark.parametrize(
    "make",
    [
        lambda: Platt(-1.0, 0.0),
        lambda: Isotonic((1.0, 0.0), (0.1, 0.2)),
        lambda: Isotonic((0.0, 1.0), (0.2, 0.1)),
        lambda: Isotonic((0.0,), (1.2,)),
        lambda: Isotonic((), ()),
    ],
)
def test_calibration_maps_that_reverse_an_order_are_refused(make) -> None:
    with pytest.raises(ValueError, match=r"rising|isotonic"):
        make()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0.9", "a dict"),
        (True, "number above 0"),
        ({"precision": 1.5}, "number above 0"),
        ({"x": 1}, "no 'x'"),
        ({}, "number above 0"),
    ],
)
def test_threshold_options_without_effect_are_refused(value, message) -> None:
    with pytest.raises(ConfigError, match=message):
        Rerank(cutoff=value)
    with pytest.raises(ConfigError, match="min_probability"):
        Rerank(min_probability=1.5)


def test_a_calibration_depends_only_on_the_fields_read() -> None:
    def mappings(**fields: str) -> dict:
        return {"any": {"mappings": {"properties": {name: {"type": kind} for name, kind in fields.items()}}}}

    options = Rerank(fields=("text",), query_fields=("title^2", "text"))
    digest = mapping_digest(mappings(title="text", text="text"), options)
    assert digest == mapping_digest(mappings(title="text", text="text", price="float"), options)
    assert digest != mapping_digest(mappings(title="keyword", text="text"), options)


@pytest.mark.parametrize("cutoff", ["cliff", {"cliff": True}])
def test_the_removed_option_cutoff_cliff_names_its_successor(cutoff) -> None:
    with pytest.raises(ConfigError, match="use min_score, or cutoff="):
        Rerank.of({"cutoff": cutoff}, Rerank())


@pytest.mark.parametrize("blend", ["rrf", "linear"])
def test_a_blend_is_cut_by_the_models_probabilities(blend: str) -> None:
    options = {"blend": blend, "blend_weight": 0.1, "min_score": 0.5}
    answer = client_for(["2", "3", "-3"], LOGITS).search("low", index="i", rerank=options)
    assert set(ids(answer)) == {"d0", "d1"}
