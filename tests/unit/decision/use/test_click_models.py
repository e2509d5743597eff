"""What the click models learn, by numbers worked by hand and from users with a planted model."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from osrerank.decision.use.click_models import Cells, coec, learn, position_based
from osrerank.decision.use.clicks import ShownPage
from osrerank.decision.use.judgments import Evidence, JudgmentList, graded, judge
from osrerank.errors import EvaluationError
from osrerank.types import Query


def page(doc_ids: str, clicks: str = "", session: str = "", query: str = "q", first_rank: int = 1) -> ShownPage:
    return ShownPage(query, tuple(doc_ids), frozenset(clicks), session, first_rank)


def test_clicks_over_expected_clicks_by_hand() -> None:
    pages = [page("ab", "a"), page("ab", "a"), page("ba", "b"), page("ab"), page("ac", "c")]
    # CTR of rank 1: 3 of 5; of rank 2: 1 of 5
    learnt = learn(pages, "coec")
    assert learnt.by_rank == (0.6, 0.2)
    values = {one.doc_id: (one.value, one.clicks, one.impressions) for one in learnt.attractions}
    assert values["a"] == (pytest.approx((2 + 1) / (4 * 0.6 + 0.2 + 1)), 2, 5)
    assert values["b"] == (pytest.approx((1 + 1) / (3 * 0.2 + 0.6 + 1)), 1, 4)
    assert values["c"] == (pytest.approx((1 + 1) / (0.2 + 1)), 1, 1)
    plain, _rates = coec(Cells.of(pages), prior=0.0)
    assert plain[0] == pytest.approx(2 / 2.6)


def test_one_round_of_expectation_maximisation_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osrerank.decision.use.click_models.ROUNDS", 1)
    cells = Cells.of([page("ab", "a"), page("ba")])
    attraction, examined, rounds = position_based(cells)
    # without a click a = e = 1/2 become .5 * .5 / .75 = 1/3; a: clicked once, shown twice
    assert rounds == 1
    first, second = (1 + 1 / 3 + 1) / 4, (1 / 3 + 1 / 3 + 1) / 4
    assert attraction * 1 / first == pytest.approx([(1 + 1 / 3 + 1) / 4, (1 / 3 + 1 / 3 + 1) / 4])
    assert examined == pytest.approx([1.0, second / first])


def clicks_of(doc_ids: Sequence[str], attraction: dict[str, float], rng: random.Random) -> frozenset[str]:
    return frozenset(doc_id for rank, doc_id in enumerate(doc_ids, 1) if rng.random() < attraction[doc_id] * rank**-0.7)


def test_planted_attractions_and_examinations_are_recovered() -> None:
    rng = random.Random(1)
    attraction = {name: 0.1 + 0.08 * place for place, name in enumerate("abcdefghij")}
    pages = []
    for _ in range(20_000):
        doc_ids = rng.sample(list(attraction), 10)
        pages.append(ShownPage("q", tuple(doc_ids), clicks_of(doc_ids, attraction, rng)))
    learnt = learn(pages)
    assert learnt.by_rank == pytest.approx([rank**-0.7 for rank in range(1, 11)], abs=0.03)
    assert {one.doc_id: one.value for one in learnt.attractions} == pytest.approx(attraction, abs=0.03)
    assert learnt.moved == 10


def test_a_good_document_below_is_told_from_a_bad_one_above() -> None:
    """Clicks alone prefer the one that is usually above."""
    rng = random.Random(2)
    attraction = {"a": 0.4, "b": 0.6}
    pages = []
    for number in range(4_000):
        doc_ids = ["a", "b"] if number % 10 else ["b", "a"]
        seen = {
            one: value * (1.0 if place == 0 else 0.3)
            for place, one in enumerate(doc_ids)
            for value in [attraction[one]]
        }
        pages.append(ShownPage("q", tuple(doc_ids), frozenset(one for one in doc_ids if rng.random() < seen[one])))
    learnt = learn(pages)
    by_doc = {one.doc_id: one for one in learnt.attractions}
    assert by_doc["a"].clicks > by_doc["b"].clicks
    assert by_doc["a"].value < by_doc["b"].value


def test_what_cannot_be_learnt_is_said() -> None:
    with pytest.raises(EvaluationError, match="no pages"):
        learn([])
    with pytest.raises(EvaluationError, match="no click on 2 pages"):
        learn([page("ab"), page("ba")])
    with pytest.raises(EvaluationError, match="always shown at one rank"):
        learn([page("ab", "a")])
    assert learn([page("ab", "a")], "coec").moved == 0


def test_a_second_page_begins_at_its_rank() -> None:
    learnt = learn([page("ab", "a"), page("cd", "d", first_rank=3)], "coec")
    assert learnt.by_rank == (1.0, 0.0, 0.0, 1.0)


def test_grades_are_shares_of_the_best() -> None:
    assert graded({"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0, "e": 0.9}) == {"a": 3, "b": 3, "c": 2, "d": 1, "e": 0}
    assert graded({"a": 0.0}) == {"a": 0}


def test_judgments_need_evidence() -> None:
    often = [page("ab" if n % 2 else "ba", "a", f"s{n % 3}") for n in range(12)]
    alone = [page("ab" if n % 2 else "ba", "a", "the same", query="a secret") for n in range(12)]
    rare = [page("ac", "a", "s1")]
    judged = judge([*often, *alone, *rare, page("ab", "a", "s9", query=" Q ")], "pbm", Evidence(10, 3, 1))
    assert judged.queries == (Query("use-1", "q"),)
    assert set(judged.ratings["use-1"]) == {"a", "b"}
    assert judged.left_out == (1, 1)  # the query of one session, and document c
    assert judged.qrels().judgments == {"use-1": {"a": 3, "b": 0}}
    with pytest.raises(EvaluationError, match="no query of 2 has 50 impressions"):
        judge([*often, *alone], "pbm", Evidence(impressions=50))


def test_whole_numbers_stay_grades() -> None:
    whole = JudgmentList((Query("1", "q"),), {"1": {"a": 2.0, "b": 0.0}})
    assert whole.qrels().judgments == {"1": {"a": 2, "b": 0}}
    assert np.isfinite(list(whole.ratings["1"].values())).all()
