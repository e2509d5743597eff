"""Texts split into sentences, and documents judged by the best and the first pass, as Birch does."""

import math
import threading
from pathlib import Path

import nltk.data
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osrerank import Rerank
from osrerank.errors import ConfigError, DeadlineExceeded
from osrerank.options.sentences import PUNKT_LANGUAGES, Sentences
from osrerank.scoring.cache.local import EmptyStore, LocalStore
from osrerank.scoring.cache.scorer import CachedScorer
from osrerank.scoring.registry import load_scorer
from osrerank.stages import sentence_splitting
from osrerank.stages.sentence_splitting import blank_markup, split_into_sentences
from osrerank.stages.sentences import SentenceStage, interpolate
from osrerank.testing import FunctionScorer, ManualClock
from osrerank.types import NEVER, Deadline
from tests.rankings import ranking_of

VALUE = FunctionScorer(lambda _query, text: float(text.split()[0]) if text else 0.0)


def spans(text, options):
    return [span for block in split_into_sentences(blank_markup(text), options) for span in block]


def sentences_of(text, **options):
    return [text[start:end] for start, end in spans(text, Sentences(**options))]


def test_sentences_are_not_split_at_abbreviations_and_numbers():
    text = "Dr. Smith paid 3.5 million U.S. dollars.  Why? Nobody knows!\nThe end"
    assert sentences_of(text) == ["Dr. Smith paid 3.5 million U.S. dollars.", "Why?", "Nobody knows!", "The end"]


def test_markup_is_replaced_by_spaces_so_that_offsets_stay():
    text = "<p>One <b>bold</b> word.</p><script>x < y. z</script><!-- no. --> Is 3&nbsp;< 4 or a<b? Yes."
    assert len(blank_markup(text)) == len(text)
    assert blank_markup(text).split() == ["One", "bold", "word.", "Is", "3", "<", "4", "or", "a<b?", "Yes."]
    spans = sentences_of(text)
    assert spans[0] == "One <b>bold</b> word."
    assert spans[-1] == "Yes."
    scorer = FunctionScorer(lambda _query, text: 9.0 if text == "One bold word." else 0.0)  # the model reads no markup
    entry = SentenceStage(scorer).rerank(ranking_of(["<p>One <b>bold</b>\n word.</p>"])).candidates[0].trace[-1]
    assert (entry.parts["logit"], entry.passage.start, entry.passage.end) == (9.0, 3, 25)


def test_long_sentences_are_chunked_with_or_without_their_tail():
    text = " ".join(f"w{number}" for number in range(25))
    for max_words, drop, lengths in (
        (10, False, [10, 10, 5]),
        (10, True, [10, 10]),
        (25, True, [25]),
        (30, True, [25]),
    ):
        assert [
            len(sentence.split()) for sentence in sentences_of(text, max_words=max_words, drop_tail=drop)
        ] == lengths


@given(st.text(st.sampled_from("ab. ?\n\u00e9\U0001f600<"), max_size=120), st.integers(1, 5))
def test_every_word_is_in_one_sentence(text, max_words):
    words = [word for sentence in sentences_of(text, max_words=max_words) for word in blank_markup(sentence).split()]
    assert "".join(words) == "".join(blank_markup(text).split())


def test_birchs_interpolation_by_hand():
    first_pass = np.array([10.0, 8.0, 6.0])
    best = np.array([[1.0, -2.0, np.nan], [3.0, 2.0, 1.0], [4.0, np.nan, np.nan]])
    mixed = interpolate(first_pass, best, 0.6, (1.0, 0.5, 0.1))
    assert mixed == pytest.approx([6 + 0.4 * (1 - 1), 4.8 + 0.4 * (3 + 1 + 0.1), 3.6 + 0.4 * 4])
    assert interpolate(first_pass, best, 1.0, (1.0,)) == pytest.approx(first_pass)
    assert interpolate(first_pass, best, 0.0, (1.0,)) == pytest.approx([1, 3, 4])


def order(texts, **options):
    ranking = SentenceStage(VALUE, Sentences(**options)).rerank(ranking_of(texts))
    return [candidate.doc_id for candidate in ranking.candidates]


def test_birch_adds_first_pass_and_sentences_by_their_shares():
    texts = ["1 is low. 1 too.", "5 is good.", "4 is fair. 4 too. 4 again."]
    assert order(texts, a=1.0) == ["d0", "d1", "d2"]
    assert order(texts, a=0.0, weights=[1.0]) == ["d1", "d2", "d0"]
    assert order(texts, a=0.0, weights=[1.0, 0.5, 0.5]) == ["d2", "d1", "d0"]


def test_further_sentences_lower_sums_of_logits_but_never_of_probabilities():
    texts = ["-1 alone.", "-1 first. -3 second."]
    assert order(texts, a=0.0, weights=[1.0, 1.0]) == ["d0", "d1"]
    assert order(texts, a=0.0, weights=[1.0, 1.0], scores="probability") == ["d1", "d0"]


def test_best_sentence_is_the_passage_and_the_best_three_are_kept():
    text = "1 is one. 7 is best. 3 is third. 5 is second."
    ranking = SentenceStage(VALUE).rerank(ranking_of([text, "2 else."]))
    entry = ranking.candidates[0].trace[-1]
    assert text[entry.passage.start : entry.passage.end] == "7 is best."
    assert [entry.parts[name] for name in ("logit", "logit_2", "logit_3")] == [7.0, 5.0, 3.0]
    assert entry.parts["probability"] == pytest.approx(1 / (1 + math.exp(-7)))
    assert entry.score == pytest.approx(0.5 * 2 + 0.5 * (7 + 0.2 * 5 + 0.3 * 3))
    assert 0 <= entry.unit < 1
    assert ranking.reports[0].inferences == 5


def test_empty_documents_and_documents_without_sentences_stay_below():
    ranking = SentenceStage(VALUE).rerank(ranking_of(["", None, "3 here."]))
    assert [candidate.doc_id for candidate in ranking.candidates] == ["d2", "d0", "d1"]
    assert ranking.candidates[2].failure
    assert SentenceStage(VALUE).rerank(ranking_of([None])).reports[0].applied is False


def test_sentences_beyond_the_limit_and_the_deadline_are_not_scored():
    text = " ".join(f"{number} is a number." for number in range(40))
    limited = SentenceStage(VALUE, Sentences(limit=3)).rerank(ranking_of([text, text]))
    assert limited.reports[0].inferences == 6
    clock = ManualClock()
    slow = FunctionScorer(VALUE.function, seconds_per_pair=1, sleep=clock.sleep)
    hurried = SentenceStage(slow).rerank(ranking_of([text, text, text]), deadline=Deadline.after_ms(7_000, clock))
    assert hurried.reports[0].applied == "partial"
    assert all(len(candidate.trace) == 2 for candidate in hurried.candidates)


def test_sentences_are_scored_without_their_neighbours():
    for options in ({"passages": "maxp"}, {"blend": "rrf"}):
        with pytest.raises(ConfigError, match="cannot be combined with passages, blend and blend_weight"):
            Rerank(sentences=True, **options)
    assert Rerank(sentences={"weights": [1, 0.5]}).sentences.weights == (1, 0.5)


DIRECTORY = Path(__file__).parents[2] / "data" / "tiny-bert-one-label"
PIECES = 'Blood pressure "salt diet." (artery vein. Yes) Dr. e.g. 3.5 J. end! why?'.split()  # noqa: SIM905 - as a text has them


def by_punkt(text, **options):
    return [text[start:end] for start, end in spans(text, Sentences(splitter="punkt", **options))]


@pytest.fixture
def without_downloads(monkeypatch):
    """Neither NLTK's data nor its downloader can be reached."""

    def refuse(*_args, **_named):
        raise AssertionError("NLTK's data was asked for")

    monkeypatch.setattr(nltk.data, "find", refuse)
    monkeypatch.setattr(nltk, "download", refuse)
    sentence_splitting._load_punkt.cache_clear()


@pytest.mark.usefixtures("without_downloads")
def test_punkt_splits_by_its_abbreviations_without_a_download():
    text = "Shares of Acme Corp. fell in Jan. 1990. Messrs. Gray and J. Smith\n<b>agree</b>.  Why? He left... and came."
    assert by_punkt(text) == [
        "Shares of Acme Corp. fell in Jan. 1990.",
        "Messrs. Gray and J. Smith\n<b>agree</b>.",
        "Why?",
        "He left... and came.",
    ]
    sentences = by_punkt("It is (so he said.) true. J. Smith et al. agree.")
    assert sentences == ["It is (so he said.)", "true.", "J. Smith et al.", "agree."]
    german = "Er kam am 5. Mai, z.B. mit Freunden. Dann ging er."
    assert by_punkt(german, language="de") == ["Er kam am 5. Mai, z.B. mit Freunden.", "Dann ging er."]
    assert by_punkt("") == by_punkt(" \n ") == []


def test_every_language_has_a_punkt_model():
    import punkt

    assert set(PUNKT_LANGUAGES.values()) <= set(punkt.available_languages())


@pytest.fixture(scope="module")
def scorer():
    scorer = load_scorer(str(DIRECTORY), backend="onnx", threads=1)
    yield scorer
    scorer.close()


LONG = " ".join(f"word{place}," for place in range(400)) + " end. A short one."


def test_sentences_chunked_by_tokens_are_not_cut(scorer):
    stage = SentenceStage(scorer, Sentences(chunks="tokens", splitter="punkt"))
    by_words, by_tokens = (
        sentence_stage.rerank(ranking_of([LONG])).reports[0] for sentence_stage in (SentenceStage(scorer), stage)
    )
    assert (by_words.truncated, by_words.inferences) == (1, 2)
    assert by_tokens.truncated == 0
    assert by_tokens.inferences > 3
    sentences = list(stage.split_candidate(ranking_of([LONG]).candidates[0], "a query"))
    assert "".join(text for text, _span in sentences).replace(" ", "") == LONG.replace(" ", "")
    assert [LONG[span.start : span.end] for _text, span in sentences] == [text for text, _span in sentences]
    assert sentences[-1][0] == "A short one."


def test_chunking_by_tokens_works_through_a_cache_and_needs_a_tokenizer(scorer):
    cached = CachedScorer(scorer, EmptyStore(), LocalStore(1000))
    assert cached.chunks("a query", [LONG]) == scorer.chunks("a query", [LONG])
    for lacking in (FunctionScorer(), CachedScorer(FunctionScorer(), EmptyStore(), LocalStore(0))):
        with pytest.raises(ConfigError, match="the tokenizer of testing/function is not in this process") as caught:
            SentenceStage(lacking, Sentences(chunks="tokens")).rerank(ranking_of([LONG]))
        assert caught.value.setting == "rerank.sentences.chunks"


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=200).map(" ".join), st.integers(200, 1000))
@settings(max_examples=30, deadline=None)
def test_punkt_gives_the_same_sentences_for_any_block_size(text, size):
    options = Sentences(splitter="punkt")
    blocks = list(split_into_sentences(text, options, size))
    assert [span for block in blocks for span in block] == spans(text, options)
    assert len(blocks) > 1 or len(text) <= 4 * size


def test_splitting_stops_at_the_requested_number_of_sentences():
    text = "A sentence of some words. " * 4_000
    for splitter in ("sentencex", "punkt"):
        first = next(split_into_sentences(text, Sentences(splitter=splitter)))
        assert 100 < len(first) < 1_000


def test_waiting_for_a_sentence_splitter_ends_at_the_deadline(monkeypatch):
    go_on, punkt = threading.Event(), Sentences(splitter="punkt", language="et")
    sentence_splitting._start_loading.cache_clear()
    monkeypatch.setattr(sentence_splitting, "_load_punkt", lambda _language: go_on.wait(60))  # loads slowly
    with pytest.raises(DeadlineExceeded, match="sentence splitter was still loading"):
        SentenceStage(FunctionScorer(), punkt).rerank(ranking_of(["Üks lause."]), deadline=Deadline.after_ms(-1))
    go_on.set()
    assert sentence_splitting.wait_until_loaded(punkt, Deadline.after_ms(60_000))
    assert sentence_splitting.wait_until_loaded(punkt, NEVER)
    assert sentence_splitting.wait_until_loaded(Sentences(), Deadline.after_ms(-1))
