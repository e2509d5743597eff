"""Cutting texts into windows of whole words."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank.options.passages import Windows
from osrerank.stages.splitting import passage_spans, readable, window_spans
from osrerank.types import Section


def numbered(count):
    return " ".join(f"w{place}" for place in range(count))


@pytest.mark.parametrize(
    ("count", "windows"), [(0, 0), (1, 1), (149, 2), (150, 2), (151, 3), (225, 3), (226, 4), (10_000, 134)]
)
def test_windows_of_the_reference_splitter(count, windows):
    text = numbered(count)
    passages = [text[start:end].split() for start, end in window_spans(text, 150, 75)]
    assert len(passages) == windows == math.ceil(count / 75)
    words = text.split()
    assert passages == [words[start : start + 150] for start in range(0, count, 75)]


texts = st.text(st.sampled_from("ab-é \t\n\u00a0"), max_size=200)


@given(texts, st.integers(1, 12), st.data())
def test_every_word_is_in_some_passage(text, words, data):
    stride = data.draw(st.integers(1, words))
    spans = window_spans(text, words, stride)
    covered = {place for start, end in spans for place in range(start, end)}
    assert all(character.isspace() or place in covered for place, character in enumerate(text))
    for start, end in spans:
        assert len(text[start:end].split()) <= words
        assert text[start:end] == text[start:end].strip()


@given(texts, st.integers(1, 6))
def test_reading_less_gives_the_same_first_windows(text, at_most):
    assert window_spans(text, 3, 2, at_most) == window_spans(text, 3, 2)[:at_most]


def spans_of(sections, **windows):
    return [span for _section, span in passage_spans(sections, Windows(**windows), "d1")]


def test_first_passages_are_kept():
    spans = spans_of([Section("text", numbered(10_000))], limit=30)
    assert len(spans) == 30
    assert spans == spans_of([Section("text", numbered(10_000))], limit=200)[:30]


def test_sampled_passages_have_the_ends_and_a_repeatable_draw():
    section = [Section("text", numbered(10_000))]
    every = spans_of(section, limit=200)
    spans = spans_of(section, limit=30, policy="sampled")
    assert len(set(spans)) == 30
    assert (spans[0], spans[-1]) == (every[0], every[-1])
    assert spans == sorted(spans, key=lambda span: span.start)
    assert spans == spans_of(section, limit=30, policy="sampled")
    assert spans != spans_of(section, limit=30, policy="sampled", seed=1)
    assert spans != [span for _, span in passage_spans(section, Windows(limit=30, policy="sampled"), "d2")]
    assert spans_of(section, limit=1, policy="sampled") == every[:1]
    assert spans_of(section, limit=2, policy="sampled") == [every[0], every[-1]]


def test_values_of_a_list_are_passages_and_long_ones_are_cut():
    sections = [Section("text", "one two three", 0), Section("text", " ", 1), Section("text", "a b c d e f", 2)]
    spans = spans_of(sections, words=4, stride=2)
    assert [(span.value, span.start, span.end) for span in spans] == [(0, 0, 13), (2, 0, 7), (2, 4, 11), (2, 8, 11)]


def test_limit_counts_over_all_sections():
    sections = [Section("a", numbered(5)), Section("b", numbered(5))]
    assert [span.field for span in spans_of(sections, words=2, stride=2, limit=4)] == ["a", "a", "a", "b"]


def test_hyphens_and_whitespace_as_the_model_reads_them():
    assert readable("a  b\n-----\tc--d") == "a b --- c--d"
