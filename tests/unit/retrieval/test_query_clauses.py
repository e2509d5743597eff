"""A query that is built from a text stays below the search engine's limit of clauses."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank.retrieval.fields import IndexGroup, SearchFields
from osrerank.retrieval.query_text import ASSUMED_FIELD_COUNT, MAX_CLAUSES, shorten_text
from osrerank.search.plan import TRUNCATED_QUERY
from osrerank.testing import FunctionScorer
from tests.rankings import client_for, response_of

WORDS = st.one_of(st.text("abcde", min_size=1, max_size=3), st.sampled_from(["a-b", "x.y.z", "!!", "血圧の薬", "นม"]))


@given(st.lists(WORDS, max_size=60), st.integers(1, 2000), st.integers(1, 500))
def test_a_query_keeps_the_first_words_within_the_clause_limit(words, repeats, count):
    text = " ".join(words * (1 + repeats // 100))
    fields = SearchFields(tuple(f"f{number}" for number in range(count)))
    shortened, limit = shorten_text(text, fields), max(MAX_CLAUSES // count, 1)
    words = shortened.split()
    if shortened != text:
        assert len(set(words[:-1])) == len(words) - 1 < limit
        assert list(dict.fromkeys(text.split()))[: len(words) - 1] == words[:-1]
        assert text.split()[0].startswith(words[0])


@pytest.mark.parametrize("text", ["血" * 3000, "นม" * 1500, "😀" * 3000, "a-b" * 1500, "a" * 255 * 3000])
def test_long_texts_without_spaces_are_cut_to_the_clause_limit(text):
    shortened = shorten_text(text, SearchFields(("a", "b")))
    assert text.startswith(shortened)
    assert 0 < len(shortened) < len(text)


def test_the_index_with_most_fields_decides_the_number_of_words():
    parts = (IndexGroup(("a",), ("x",), ("x",)), IndexGroup(("b",), ("x", "y", "z", "w"), ("x",)))
    text = " ".join(f"w{number}" for number in range(400))
    assert len(shorten_text(text, SearchFields(groups=parts)).split()) == MAX_CLAUSES // 4
    for fields in (SearchFields(), SearchFields(("t*^2",))):
        assert len(shorten_text(text, fields).split()) == MAX_CLAUSES // ASSUMED_FIELD_COUNT


def test_a_long_query_is_cut_for_the_engine_but_not_for_the_model():
    words = [f"w{number}" for number in range(3000)]
    random.Random(1).shuffle(words)
    read = []
    client = client_for(response_of(["a", "b"]), FunctionScorer(lambda query, _text: read.append(query) or 1.0))
    response = client.search(" ".join(words), index="i", rerank={"query_fields": ["title", "text"]})
    assert read[0] == " ".join(words)
    assert response["rerank"]["warnings"][0] == TRUNCATED_QUERY.format(500)
    assert " ".join(words[:500]) in str(client.transport.requests[-1]["body"]["query"])
    assert words[500] not in str(client.transport.requests[-1]["body"]["query"]).split()
