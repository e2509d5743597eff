"""Punkt in sentencex's place, with NLTK's own model and no download; and sentences split by what the model takes."""

import threading
from pathlib import Path

import nltk.data
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osrerank.errors import ConfigError, DeadlineExceeded
from osrerank.options.sentences import PUNKT_LANGUAGES, Sentences
from osrerank.scoring.cache.local import LocalStore, NoStore
from osrerank.scoring.cache.scorer import CachedScorer
from osrerank.scoring.registry import load_scorer
from osrerank.stages import sentence_splitting
from osrerank.stages.sentence_splitting import cleaned, sentence_blocks, sentence_spans
from osrerank.stages.sentences import SentenceStage
from osrerank.testing import FunctionScorer
from osrerank.types import NEVER, Deadline
from tests.rankings import ranking_of

DIRECTORY = Path(__file__).parents[2] / "data" / "tiny-bert-one-label"
PIECES = 'Blood pressure "salt diet." (artery vein. Yes) Dr. e.g. 3.5 J. end! why?'.split()  # noqa: SIM905 - as a text has them


def by_punkt(text, **options):
    return [text[start:end] for start, end in sentence_spans(cleaned(text), Sentences(splitter="punkt", **options))]


@pytest.fixture
def without_downloads(monkeypatch):
    """Neither NLTK's data nor its downloader can be reached."""

    def refuse(*_args, **_named):
        raise AssertionError("NLTK's data was asked for")

    monkeypatch.setattr(nltk.data, "find", refuse)
    monkeypatch.setattr(nltk, "download", refuse)
    sentence_splitting._punkt.cache_clear()


@pytest.mark.usefixtures("without_downloads")
def test_punkt_knows_its_abbreviations_and_needs_no_download():
    text = "Shares of Acme Corp. fell in Jan. 1990. Messrs. Gray and J. Smith\n<b>agree</b>.  Why? He left... and came."
    assert by_punkt(text) == [
        "Shares of Acme Corp. fell in Jan. 1990.",
        "Messrs. Gray and J. Smith\n<b>agree</b>.",
        "Why?",
        "He left... and came.",
    ]
    found = by_punkt("It is (so he said.) true. J. Smith et al. agree.")
    assert found == ["It is (so he said.)", "true.", "J. Smith et al.", "agree."]
    german = "Er kam am 5. Mai, z.B. mit Freunden. Dann ging er."
    assert by_punkt(german, language="de") == ["Er kam am 5. Mai, z.B. mit Freunden.", "Dann ging er."]
    assert by_punkt("") == by_punkt(" \n ") == []


def test_every_language_has_a_model():
    import punkt

    assert set(PUNKT_LANGUAGES.values()) <= set(punkt.available_languages())


@pytest.fixture(scope="module")
def scorer():
    scorer = load_scorer(str(DIRECTORY), backend="onnx", threads=1)
    yield scorer
    scorer.close()


LONG = " ".join(f"word{place}," for place in range(400)) + " end. A short one."


def test_by_tokens_nothing_is_cut(scorer):
    stage = SentenceStage(scorer, Sentences(chunks="tokens", splitter="punkt"))
    by_words, by_tokens = (one.rerank(ranking_of([LONG])).reports[0] for one in (SentenceStage(scorer), stage))
    assert (by_words.truncated, by_words.inferences) == (1, 2)
    assert by_tokens.truncated == 0
    assert by_tokens.inferences > 3
    parts = list(stage.sentences_of(ranking_of([LONG]).candidates[0], "a query"))
    assert "".join(text for text, _span in parts).replace(" ", "") == LONG.replace(" ", "")
    assert [LONG[span.start : span.end] for _text, span in parts] == [text for text, _span in parts]
    assert parts[-1][0] == "A short one."


def test_a_cache_passes_it_on_and_a_scorer_without_a_tokenizer_is_refused(scorer):
    cached = CachedScorer(scorer, NoStore(), LocalStore(1000))
    assert cached.chunks("a query", [LONG]) == scorer.chunks("a query", [LONG])
    for lacking in (FunctionScorer(), CachedScorer(FunctionScorer(), NoStore())):
        with pytest.raises(ConfigError, match="the tokenizer of testing/function is not in this process") as caught:
            SentenceStage(lacking, Sentences(chunks="tokens")).rerank(ranking_of([LONG]))
        assert caught.value.setting == "rerank.sentences.chunks"


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=200).map(" ".join), st.integers(200, 1000))
@settings(max_examples=30, deadline=None)
def test_punkt_gives_the_same_sentences_whatever_the_blocks(text, size):
    options = Sentences(splitter="punkt")
    blocks = list(sentence_blocks(text, options, size))
    assert [span for block in blocks for span in block] == sentence_spans(text, options)
    assert len(blocks) > 1 or len(text) <= 4 * size


def test_no_more_sentences_are_split_than_are_asked_for():
    text = "A sentence of some words. " * 4_000
    for splitter in ("sentencex", "punkt"):
        first = next(sentence_blocks(text, Sentences(splitter=splitter)))
        assert 100 < len(first) < 1_000


def test_a_splitter_is_waited_for_until_the_deadline(monkeypatch):
    go_on, punkt = threading.Event(), Sentences(splitter="punkt", language="et")
    sentence_splitting._loading.cache_clear()
    monkeypatch.setattr(sentence_splitting, "_punkt", lambda _language: go_on.wait(60))  # loads slowly
    with pytest.raises(DeadlineExceeded, match="sentence splitter is still being loaded"):
        SentenceStage(FunctionScorer(), punkt).rerank(ranking_of(["Üks lause."]), deadline=Deadline.after_ms(-1))
    go_on.set()
    assert sentence_splitting.is_ready(punkt, Deadline.after_ms(60_000))
    assert sentence_splitting.is_ready(punkt, NEVER)
    assert sentence_splitting.is_ready(Sentences(), Deadline.after_ms(-1))
