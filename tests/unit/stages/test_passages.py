"""Texts cut into windows of whole words, and documents judged by these passages."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank.errors import DeadlineExceeded, InferenceError
from osrerank.options.passages import Passages, Windows
from osrerank.response import make_candidates, parse_hits
from osrerank.stages.mono import MonoStage
from osrerank.stages.passages import (
    PassageStage,
    k_max_avg_p,
    max_p,
    score_by_passages,
    split_into_passages,
    sum_p,
)
from osrerank.stages.sentences import SentenceStage
from osrerank.stages.splitting import find_passages, normalize_spaces, split_into_windows
from osrerank.testing import FunctionScorer, ManualClock
from osrerank.types import Candidate, Deadline, Query, Ranking, Section
from tests.letters import Letters
from tests.rankings import client_for, ranking_of, response_of

COUNT = FunctionScorer(lambda query, text: float(text.split().count(query)) - 3.0)
SMALL = {"words": 4, "stride": 2}


def long_document(position, length=40, word="hit"):
    words = ["x"] * length
    words[position] = word
    return " ".join(words)


def test_passage_aggregations_by_hand():
    logits = np.array([0.0, 2.0, -1.0])
    probabilities = 1 / (1 + np.exp(-logits))  # .5, .8808, .2689
    assert max_p(logits, probabilities, 2).score == 2.0
    assert max_p(logits, probabilities, 2).probability == pytest.approx(0.880797)
    best_two = k_max_avg_p(logits, probabilities, 2)
    assert best_two.probability == pytest.approx((0.5 + 0.880797) / 2)
    assert best_two.score == pytest.approx(math.log(0.6903985 / 0.3096015), abs=1e-5)
    assert k_max_avg_p(logits[:1], probabilities[:1], 2).probability == pytest.approx(0.5)  # divides by what there is
    total = sum_p(logits, probabilities, 2)
    assert math.exp(total.score) == pytest.approx(0.5 + 0.880797 + 0.268941, abs=1e-5)
    assert total.unit == pytest.approx(1.649738 / 2.649738)
    assert total.probability == pytest.approx(0.880797)


def test_passage_aggregations_of_extreme_probabilities_stay_finite():
    for probabilities in (np.array([1.0, 1.0]), np.array([0.0, 0.0])):
        for put_together in (k_max_avg_p, sum_p):
            document = put_together(np.zeros(2), probabilities, 2)
            assert math.isfinite(document.score)
            assert 0 <= document.unit <= 1


def test_the_best_passage_wins_and_its_span_is_kept():
    texts = [long_document(20, word="miss"), long_document(0) + " hit hit", long_document(5)]
    ranking = PassageStage(COUNT, Passages(**SMALL)).rerank(ranking_of(texts, query="hit"))
    assert [candidate.doc_id for candidate in ranking.candidates] == ["d1", "d2", "d0"]
    winner = ranking.candidates[0].trace[-1]
    assert texts[1][winner.passage.start : winner.passage.end].split().count("hit") == 2
    report = ranking.reports[0]
    assert (report.applied, report.candidates, report.inferences) == (True, 3, 20 + 21 + 20)


def test_aggregation_first_scores_the_first_passage_only():
    stage = PassageStage(COUNT, Passages(aggregation="firstp", **SMALL))
    ranking = stage.rerank(ranking_of([long_document(20), long_document(0)], query="hit"))
    assert [candidate.doc_id for candidate in ranking.candidates] == ["d1", "d0"]
    assert ranking.reports[0].inferences == 2


@pytest.mark.parametrize(("scorer", "stage"), [(COUNT, "mono"), (Letters(), "vectors")])
def test_a_document_with_words_behind_the_last_passage_is_marked(scorer, stage):
    options = {"passages": {**SMALL, "limit": 3}, "deadline_ms": None}  # 3 passages have 8 words
    response = client_for([long_document(0, 8), long_document(0, 9)], scorer).search("hit", index="i", rerank=options)
    marks = {hit["_id"]: hit["_rerank"][stage].get("truncated") for hit in response["hits"]["hits"]}
    assert marks == {"d0": None, "d1": True}
    assert response["rerank"]["stages"][0]["truncated"] == 1


def test_texts_outside_a_search_with_words_behind_their_last_passage_are_counted():
    texts = [long_document(0, 8), long_document(0, 9)]
    assert score_by_passages(COUNT, "hit", texts, Passages(**SMALL, limit=3)).truncated == 1


@pytest.mark.parametrize("aggregation", ["sump", "kmaxavgp"])
def test_two_good_passages_beat_a_single_good_passage(aggregation):
    single, two = long_document(1), " ".join([*["x"] * 10, "hit", *["x"] * 28, "hit"])
    options = {"aggregation": aggregation, "words": 4, "stride": 4}
    ranking = PassageStage(COUNT, Passages(**options)).rerank(ranking_of([single, two], query="hit"))
    assert [candidate.doc_id for candidate in ranking.candidates] == ["d1", "d0"]
    scores = [candidate.trace[-1] for candidate in ranking.candidates]
    assert scores[0].score > scores[1].score
    assert 0 <= scores[1].unit <= scores[0].unit < 1


def test_the_title_is_prepended_to_every_passage():
    texts_read = []
    scorer = FunctionScorer(lambda _query, text: texts_read.append(text) or 0.0)
    sections = (Section("title", "A title"), Section("text", "a b c d e -----"))
    candidate = Candidate("d0", "A title a b c d e", 1.0, 1, (), sections=sections)
    PassageStage(scorer, Passages(words=4, stride=4)).rerank(Ranking(Query("q", "x"), (candidate,)))
    assert texts_read == ["A title a b c d", "A title e ---"]


def test_documents_without_a_body_are_one_passage():
    response = response_of(["body", "", "  "])
    response["hits"]["hits"][0]["_source"] = {"title": "only title"}
    ranking = Ranking(Query("q", "title"), make_candidates(parse_hits(response), ("title", "text")))
    stage = PassageStage(FunctionScorer(), Passages())
    texts = [split_into_passages(candidate, stage.options) for candidate in ranking.candidates]
    assert [[text for text, _span in passages] for passages in texts] == [["only title"], [""], [""]]
    report = stage.rerank(ranking).reports[0]
    assert (report.inferences, report.failed) == (1, 2)


def test_short_documents_are_scored_as_without_passages():
    texts = ["low pressure", "blood pressure low", "salt", None]
    by_passage = PassageStage(FunctionScorer()).rerank(ranking_of(texts))
    by_text = MonoStage(FunctionScorer()).rerank(ranking_of(texts))
    actual, expected = (
        [(c.doc_id, c.score, c.failure) for c in ranking.candidates] for ranking in (by_passage, by_text)
    )
    assert actual == expected


def test_a_deadline_leaves_out_later_passages_first():
    texts = [long_document(39), long_document(38), long_document(0)]
    clock = ManualClock()
    slow = FunctionScorer(COUNT.function, seconds_per_pair=1, sleep=clock.sleep)
    ranking = ranking_of(texts, query="hit")
    ranking = PassageStage(slow, Passages(**SMALL)).rerank(ranking, deadline=Deadline.after_ms(7_000, clock))
    assert ranking.candidates[0].doc_id == "d2"
    assert all(len(candidate.trace) == 2 for candidate in ranking.candidates)
    assert ranking.reports[0].applied == "partial"
    assert "of 60 passages" in ranking.reports[0].reason
    short = PassageStage(slow).rerank(
        ranking_of(["a", "b", "hit", "d"], "hit"), deadline=Deadline.after_ms(3_000, clock)
    )
    assert [len(candidate.trace) for candidate in short.candidates] == [2, 2, 2, 1]  # no passage of it was scored
    assert [candidate.doc_id for candidate in short.candidates] == ["d2", "d0", "d1", "d3"]


def test_a_failed_passage_does_not_fail_its_document():
    scorer = FunctionScorer(COUNT.function, unscorable=frozenset({"x x x x", "bad"}))
    ranking = PassageStage(scorer, Passages(**SMALL)).rerank(ranking_of(["bad", long_document(4)], query="hit"))
    assert [candidate.doc_id for candidate in ranking.candidates] == ["d1", "d0"]
    assert ranking.candidates[1].failure == "unscorable on purpose"
    assert ranking.reports[0].applied == "partial"
    assert "18 of 21 passages" in ranking.reports[0].reason


def test_a_document_without_a_passage_score_has_the_reason():
    with pytest.raises(InferenceError, match="not a number"):
        PassageStage(FunctionScorer(lambda _query, _text: math.nan)).rerank(ranking_of(["a"]))
    with pytest.raises(InferenceError, match="no candidate"):
        PassageStage(FunctionScorer(unscorable=frozenset({"a"}))).rerank(ranking_of(["a"]))
    with pytest.raises(DeadlineExceeded):
        PassageStage(FunctionScorer()).rerank(ranking_of(["a"]), deadline=Deadline(0.0))
    assert PassageStage(FunctionScorer()).rerank(ranking_of([None])).reports[0].applied is False
    assert PassageStage(FunctionScorer()).rerank(ranking_of([])).reports[0].reason == "no candidates"


def test_the_score_of_each_passage_is_cached(redis_url):
    from osrerank.scoring.cache.local import LocalStore
    from osrerank.scoring.cache.scorer import CachedScorer
    from osrerank.scoring.cache.store import RedisStore

    cached = CachedScorer(COUNT, RedisStore(redis_url, ttl_s=60, max_bytes=1e6), LocalStore(0))
    stage = PassageStage(cached, Passages(**SMALL))
    text = " ".join(f"x{number}" for number in range(39)) + " hit"
    first_ranking = stage.rerank(ranking_of([text], query="hit"))
    again = stage.rerank(ranking_of([text + " and more at its end", "x x x x"], query="hit"))
    assert (first_ranking.reports[0].inferences, first_ranking.reports[0].cached) == (20, 0)
    assert again.reports[0].cached >= 19
    assert again.candidates[0].score == first_ranking.candidates[0].score


@given(
    st.lists(st.one_of(st.none(), st.text(st.sampled_from("hit x.\n"), max_size=60)), max_size=8),
    st.integers(1, 9),
    st.sampled_from(["maxp", "firstp", "sump", "kmaxavgp"]),
)
def test_ranking_by_passages_keeps_every_candidate_in_score_order(texts, depth, aggregation):
    before = ranking_of(texts)
    for stage in (PassageStage(COUNT, Passages(aggregation, **SMALL), depth), SentenceStage(COUNT, depth=depth)):
        after = stage.rerank(before)
        assert sorted(candidate.doc_id for candidate in after.candidates) == sorted(
            candidate.doc_id for candidate in before.candidates
        )
        scored = [candidate.trace[-1] for candidate in after.candidates if len(candidate.trace) == 2]
        assert [candidate.score for candidate in scored] == sorted(
            (candidate.score for candidate in scored), reverse=True
        )
        assert [candidate.unit for candidate in scored] == sorted(
            (candidate.unit for candidate in scored), reverse=True
        )
        assert all(0 <= candidate.unit < 1 for candidate in scored)


def test_documents_of_few_words_are_scored_whole():
    texts = [long_document(20), "hit hit hit"]
    stage = PassageStage(COUNT, Passages(**SMALL, least_words=4))
    ranking = stage.rerank(ranking_of(texts, query="hit"))
    assert [candidate.doc_id for candidate in ranking.candidates] == ["d1", "d0"]
    assert ranking.candidates[0].trace[-1].passage is None
    assert ranking.candidates[1].trace[-1].passage is not None
    assert ranking.reports[0].inferences == 20 + 1
    assert split_into_passages(ranking.candidates[0], Passages(least_words=4)) == [(texts[1], None)]


def numbered(count):
    return " ".join(f"w{number}" for number in range(count))


@pytest.mark.parametrize(
    ("count", "windows"), [(0, 0), (1, 1), (149, 2), (150, 2), (151, 3), (225, 3), (226, 4), (10_000, 134)]
)
def test_windows_equal_those_of_the_reference_splitter(count, windows):
    text = numbered(count)
    passages = [text[start:end].split() for start, end in split_into_windows(text, 150, 75)]
    assert len(passages) == windows == math.ceil(count / 75)
    words = text.split()
    assert passages == [words[start : start + 150] for start in range(0, count, 75)]


TEXTS = st.text(st.sampled_from("ab-é \t\n\u00a0"), max_size=200)


@given(TEXTS, st.integers(1, 12), st.data())
def test_every_word_is_in_some_passage(text, words, data):
    stride = data.draw(st.integers(1, words))
    spans = split_into_windows(text, words, stride)
    covered = {offset for start, end in spans for offset in range(start, end)}
    assert all(character.isspace() or offset in covered for offset, character in enumerate(text))
    for start, end in spans:
        assert len(text[start:end].split()) <= words
        assert text[start:end] == text[start:end].strip()


@given(TEXTS, st.integers(1, 6))
def test_cutting_fewer_windows_gives_the_same_first_windows(text, at_most):
    assert split_into_windows(text, 3, 2, at_most) == split_into_windows(text, 3, 2)[:at_most]


def spans_of(sections, **windows):
    return [span for _section, span in find_passages(sections, Windows(**windows), "d1")]


def test_sampled_passages_have_the_ends_and_a_repeatable_draw():
    section = [Section("text", numbered(10_000))]
    all_spans = spans_of(section, limit=200)
    assert spans_of(section, limit=30) == all_spans[:30]
    spans = spans_of(section, limit=30, policy="sampled")
    assert len(set(spans)) == 30
    assert (spans[0], spans[-1]) == (all_spans[0], all_spans[-1])
    assert spans == sorted(spans, key=lambda span: span.start)
    assert spans == spans_of(section, limit=30, policy="sampled")
    assert spans != spans_of(section, limit=30, policy="sampled", seed=1)
    assert spans != [span for _, span in find_passages(section, Windows(limit=30, policy="sampled"), "d2")]
    assert spans_of(section, limit=1, policy="sampled") == all_spans[:1]
    assert spans_of(section, limit=2, policy="sampled") == [all_spans[0], all_spans[-1]]


def test_values_of_a_list_are_passages_and_long_ones_are_cut():
    sections = [Section("text", "one two three", 0), Section("text", " ", 1), Section("text", "a b c d e f", 2)]
    spans = spans_of(sections, words=4, stride=2)
    assert [(span.value, span.start, span.end) for span in spans] == [(0, 0, 13), (2, 0, 7), (2, 4, 11), (2, 8, 11)]
    sections = [Section("a", numbered(5)), Section("b", numbered(5))]
    assert [span.field for span in spans_of(sections, words=2, stride=2, limit=4)] == ["a", "a", "a", "b"]
    assert normalize_spaces("a  b\n-----\tc--d") == "a b --- c--d"
