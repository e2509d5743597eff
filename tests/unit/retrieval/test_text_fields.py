"""Text fields of a mapping, and those that are chosen."""

from typing import Any

import pytest

from osrerank.errors import ResponseFormatError
from osrerank.retrieval.mapping import lacking, leaves_by_index, leaves_of, nearest, resolve
from osrerank.retrieval.text_fields import candidates_of, choose, fields_of, is_title
from tests.mappings import judged_mappings

LONG = "the pressure of the blood is low when the heart is slow"
TEXT = {"type": "text"}
JUDGED = {one.of: one for one in judged_mappings()}
OTHERWISE = {
    "papers: arXiv's metadata",  # "37 pages, 15 figures" reads like a sentence
    "wiki: CirrusSearch",  # captions of pictures are read beside the text
    "films: TMDB (relevant search)",  # the title in another language is a title, too
}
"""Where the rules choose something else than the engineer did."""


def chosen(properties: dict[str, Any], *sources: dict[str, Any]) -> list[str]:
    return [leaf.path for leaf in choose(candidates_of(leaves_of({"properties": properties})), sources)]


def all_text(*sources: dict[str, Any]) -> list[str]:
    """What is chosen where every field is mapped as text."""
    return chosen({name: TEXT for source in sources for name in source}, *sources)


@pytest.mark.parametrize("of", JUDGED)
def test_what_a_search_engineer_would_read_is_chosen(of: str) -> None:
    one = JUDGED[of]
    leaves = choose(candidates_of(leaves_of({"properties": one.properties})), one.sources)
    read = {leaf.path if leaf.copied_from else leaf.source for leaf in leaves}
    assert (read == one.read) is (of not in OTHERWISE), read


def test_nested_fields_count_only_where_there_are_no_others() -> None:
    parts = {"type": "nested", "properties": {"words": TEXT}}
    body = {"type": "text", "fields": {"plain": TEXT, "raw": {"type": "keyword"}}}
    assert chosen({"parts": parts, "body": body}, {"parts": [{"words": LONG}], "body": LONG}) == ["body"]
    assert chosen({"parts": parts}, {"parts": [{"words": LONG}]}) == ["parts.words"]


def test_what_cannot_be_searched_is_left_out_and_what_can_below_it_is_not() -> None:
    hidden = {"type": "text", "index": False}
    below = {"type": "keyword", "fields": {"words": TEXT}}
    assert chosen({"hidden": hidden, "below": below}, {"hidden": LONG, "below": LONG}) == ["below.words"]


def test_a_copy_of_what_is_read_anyway_is_left_out() -> None:
    everything = {"title": {**TEXT, "copy_to": "all"}, "all": TEXT, "code": {"type": "keyword", "copy_to": "all"}}
    assert chosen(everything, {"title": LONG, "code": "x"}) == ["title"]
    assert chosen({"a": {"type": "keyword", "copy_to": "all"}, "all": TEXT}, {"a": LONG}) == ["all"]


@pytest.mark.parametrize("answer", [{"took": 1}, {"a": {}}, {"a": {"mappings": {"properties": {"x": "text"}}}}, []])
def test_an_answer_without_mappings_is_an_error(answer: Any) -> None:
    with pytest.raises(ResponseFormatError, match="has no mappings"):
        leaves_by_index(answer)


def test_system_indices_are_left_out_and_data_streams_are_not() -> None:
    every = {name: {"mappings": {"properties": {"x": TEXT}}} for name in ("a", ".hidden", ".ds-logs-000001")}
    assert list(leaves_by_index(every)) == ["a", ".ds-logs-000001"]
    assert list(leaves_by_index({".hidden": every[".hidden"]})) == [".hidden"]


def test_titles_come_first_then_the_shorter_ones() -> None:
    body = "a body of other words, and of many more of them than there are above it"
    texts = {"body": body, "abstract": LONG, "headline": "low blood pressure again"}
    assert all_text(*[texts] * 3) == ["headline", "abstract", "body"]


def test_ids_addresses_tags_and_names_are_left_out() -> None:
    ids = {"isbn": "978", "tag": "two words"}
    own = ({"link": f"http://a.b/{n}", "author": f"Jane {n} Smith", "body": f"{n} {LONG}"} for n in range(6))
    assert all_text(*({**ids, **one} for one in own)) == ["body"]


@pytest.mark.parametrize("name", ["title", "name", "subject", "headline"])
@pytest.mark.parametrize("value", ["Warsaw", "Super_Bowl_50", "A title of several words"])
def test_a_title_may_be_one_word_and_the_same_in_many_documents(name: str, value: str) -> None:
    assert all_text(*[{name: value, "body": f"{number} {LONG}"} for number in range(9)]) == [name, "body"]


@pytest.mark.parametrize("pair", [("title", "text"), ("name", "content"), ("subject", "message")])
def test_short_texts_of_common_names_are_read(pair: tuple[str, str]) -> None:
    title, body = pair
    assert all_text({title: "Minutes", body: "Low"}, {title: "Notes", body: "High"}) == [title, body]


def test_at_most_five_fields_and_the_longest_among_them() -> None:
    values = {f"f{number}": f"f{number} {LONG}" for number in range(8)}
    other = "quite another text of which nobody has seen a word before it was put here, " * 9
    assert all_text({**values, "zz": other}) == ["f0", "f1", "f2", "f3", "zz"]


def test_a_field_in_several_languages_counts_once() -> None:
    names = ("title", "lead", "body", "note")
    assert len(all_text({f"{name}_{code}": f"{code} {LONG}" for name in names for code in ("de", "en")})) == 8
    objects = {"title": {"properties": {"en": TEXT, "de": TEXT}}}
    assert chosen(objects, {"title": {"en": "Sea", "de": "Meer"}}) == ["title.de", "title.en"]


def test_where_all_values_are_short_the_longest_stay() -> None:
    assert all_text({"code": "x", "kind": "two words"}) == ["kind"]
    assert chosen({"a": TEXT, "b": TEXT}) == ["a", "b"]  # no documents to look at
    assert chosen({"a": TEXT, "title": TEXT, "sku": TEXT, "body": TEXT}) == ["title", "body"]


def test_fields_of_documents_without_a_mapping() -> None:
    assert fields_of([{"title": "", "body": LONG}]) == ("body",)
    assert fields_of([{"meta": {"note": LONG}, "year": 3, "tags": ["a", "b"]}]) == ("meta.note",)
    assert fields_of([{"year": 3}]) == ()
    assert all(map(is_title, ("post_title", "author.name", "Subject")))
    assert not is_title("userName")


def test_names_patterns_objects_and_aliases_are_looked_up() -> None:
    leaves = leaves_of(
        {
            "properties": {
                "body": {"type": "text", "fields": {"english": TEXT}},
                "content": {"type": "alias", "path": "body"},
                "author": {"properties": {"name": TEXT, "born": {"type": "date"}}},
                "parts": {"type": "nested", "properties": {"words": TEXT}},
            },
            "derived": {"both": {"type": "text"}},
        }
    )
    paths = {name: [leaf.path for leaf in resolve(leaves, name)] for name in ("bod*", "author", "a*", "content^2", "x")}
    author = ["author.name"]
    assert paths == {"bod*": ["body"], "author": author, "a*": author, "content^2": ["content"], "x": []}
    assert [name for name, leaf in leaves.items() if leaf.is_written] == ["body", "author.name", "parts.words"]
    assert leaves["parts.words"].nested == "parts"
    assert lacking([leaves], ["body^2", "bdy", "highlight:body", "both", "z*"]) == ["bdy", "z*"]
    assert nearest([leaves], "bdy") == "body"
