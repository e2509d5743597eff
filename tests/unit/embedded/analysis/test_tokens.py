"""Tokenizers and token filters of the embedded engine."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank.embedded.analysis.analyzers import BUILT_IN_FILTERS, Analyzers, get_built_in
from osrerank.embedded.analysis.tokens import GAP, MAX_TOKEN_CHARS, split_standard, stem_porter
from osrerank.embedded.errors import ApiError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("can't stop U.S.A. a.b.c.", ["can't", "stop", "U.S.A", "a.b.c"]),
        ("1.2.3 1,000 3,4;5 a,b a:b 1:2 x.org", ["1.2.3", "1,000", "3,4;5", "a", "b", "a:b", "1", "2", "x.org"]),
        ("foo_bar __ _a_ '90s C++ #tag", ["foo_bar", "_a_", "90s", "C", "tag"]),
        ("\u65e5\u672c \u30ab\u30ca \u3072\u3089", ["\u65e5", "\u672c", "\u30ab\u30ca", "\u3072", "\u3089"]),
        ("\U0001f44d\U0001f3fd \u00a92020", ["\U0001f44d\U0001f3fd", "\u00a9", "2020"]),
        ("x" * 300, ["x" * 255, "x" * 45]),
    ],
)
def test_the_standard_tokenizer_gives_lucenes_tokens(text: str, words: list[str]) -> None:
    assert split_standard(text) == words


def test_porters_stems_and_the_positions_of_stop_words() -> None:
    words = "possibly psychology biology technologies ably generalizations oscillators is doubly skies happy"
    stems = "possibl psycholog biologi technolog abli gener oscil is doubli ski happi"
    assert [stem_porter(word) for word in words.split()] == stems.split()
    assert get_built_in("english").terms("The fox's of Dogs") == [GAP, "fox", GAP, "dog"]


@given(st.text(max_size=300))
def test_tokens_are_substrings_of_the_text_in_order(text: str) -> None:
    for name in BUILT_IN_FILTERS:
        tokens = get_built_in(name).tokens(text)
        assert all(0 < token.end - token.start <= max(MAX_TOKEN_CHARS, len(text)) for token in tokens)
        assert [token.term for token in tokens] == [term for term in get_built_in(name).terms(text) if term != GAP]
        assert [token.position for token in tokens] == sorted({token.position for token in tokens})
        assert all(first_token.end <= second_token.start for first_token, second_token in pairwise(tokens))


@given(st.text(alphabet=st.characters(max_codepoint=127), max_size=200))
def test_ascii_and_unicode_tokenizers_agree(text: str) -> None:
    assert split_standard(text) == [word for word in split_standard(text + " \u00e9") if word != "\u00e9"]


def test_unknown_tokenizers_and_filters_are_named() -> None:
    for settings, name in (
        ({"analyzer": {"mine": {"type": "nonsense"}}}, "nonsense"),
        ({"analyzer": {"mine": {"tokenizer": "standard", "filter": ["synonym"]}}}, "synonym"),
        ({"analyzer": {"mine": {"tokenizer": "letter"}}}, "letter"),
        ({"analyzer": {"default": {"tokenizer": "standard"}}}, "default"),
        ({"filter": {"mine": {"type": "stop"}}}, "stop"),
        ({"filter": {"mine": {"type": "snowball", "language": "Klingon"}}}, "Klingon"),
        ({"char_filter": {"mine": {"type": "html_strip"}}}, "char_filter"),
    ):
        with pytest.raises(ApiError, match=name):
            Analyzers(settings)
