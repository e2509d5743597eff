"""Text fields of a mapping, and those that are chosen."""

import pytest

from osrerank.errors import ResponseFormatError
from osrerank.retrieval.text_fields import choose_fields, fields_in, fields_of, text_fields

LONG = "the pressure of the blood is low when the heart is slow"


def test_text_fields_of_objects_have_dots() -> None:
    properties = {"a": {"properties": {"b": {"type": "text"}, "c": {"type": "keyword"}}}, "d": {"type": "text"}}
    assert list(text_fields(properties)) == ["a.b", "d"]


def test_nested_fields_and_multi_fields_are_left_out() -> None:
    properties = {
        "parts": {"type": "nested", "properties": {"words": {"type": "text"}}},
        "body": {"type": "text", "fields": {"plain": {"type": "text"}, "raw": {"type": "keyword"}}},
    }
    assert list(text_fields(properties)) == ["body"]


def test_fields_of_several_indices_are_those_of_all_but_system_ones() -> None:
    properties = {"a": ["x", "y"], ".hidden": ["secret"], "b": ["y", "z"]}
    mappings = {
        name: {"mappings": {"properties": {field: {"type": "text"} for field in fields}}}
        for name, fields in properties.items()
    }
    assert fields_in({**mappings, "empty": {"mappings": {}}}) == ("x", "y", "z")


@pytest.mark.parametrize("answer", [{"took": 1}, {"a": {}}, {"a": {"mappings": {"properties": {"x": "text"}}}}, []])
def test_an_answer_without_mappings_is_an_error(answer: object) -> None:
    with pytest.raises(ResponseFormatError, match="not one of mappings"):
        fields_in(answer)  # type: ignore[arg-type]


def test_title_like_names_come_first_then_the_shorter_ones() -> None:
    source = {"body": f"{LONG} {LONG}", "abstract": LONG, "headline": "low blood pressure again"}
    assert choose_fields(list(source), [source] * 3) == ("headline", "abstract", "body")


def test_ids_urls_and_tags_are_left_out() -> None:
    sources = [
        {
            "isbn": "978",
            "link": "http://a.b/c",
            "tag": "two words",
            "meta": {"note": [LONG, "short one"]},
            "body": LONG,
        },
        {"isbn": "979", "link": "http://a.b/d", "tag": "one", "meta.note": LONG, "body": LONG},
    ]
    fields = ["isbn", "link", "tag", "meta.note", "body", "never"]
    assert choose_fields(fields, sources) == ("meta.note", "body")


def test_a_title_may_have_two_words() -> None:
    sources = [{"headline": "Roses, roses", "name": "someone", "body": LONG}] * 3
    assert choose_fields(["headline", "name", "body"], sources) == ("headline", "body")


def test_at_most_five_fields() -> None:
    names = [f"f{number}" for number in range(8)]
    assert choose_fields(names, [dict.fromkeys(names, LONG)]) == tuple(names[:5])


def test_where_all_values_are_short_the_longest_stay() -> None:
    assert choose_fields(["code", "label"], [{"code": "x", "label": "two words"}]) == ("label",)
    assert choose_fields(["a", "b"], []) == ("a", "b")  # no documents to look at


def test_fields_of_documents_without_a_mapping() -> None:
    assert fields_of([{"title": "", "body": LONG}]) == ("title", "text")
    assert fields_of([{"meta": {"note": LONG}, "year": 3, "tags": ["a", "b"]}]) == ("meta.note",)
    assert fields_of([{"year": 3}]) == ("title", "text")
