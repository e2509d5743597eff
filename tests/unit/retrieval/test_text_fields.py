"""Text fields of a mapping, and those that are searched where nobody names any."""

import random
from typing import Any

import pytest

from osrerank.errors import ResponseFormatError
from osrerank.retrieval.fields import choose_default_groups
from osrerank.retrieval.mapping import (
    find_missing_names,
    find_most_similar_field,
    read_leaves,
    read_leaves_by_index,
    resolve_name,
)
from osrerank.retrieval.text_fields import is_title
from tests.mappings import judged_mappings

TEXT = {"type": "text"}
JUDGED = {judged.of: judged for judged in judged_mappings()}
LEFT_OUT = {
    "shop: WooCommerce through ElasticPress": {"post_excerpt", "post_content"},
    "shop: reviews (Amazon's layout)": {"summary"},
    "tickets: Jira's export, custom fields": {"fields.summary"},
    "papers: library catalogue (MARC-like)": {"subtitle", "summary"},
    "logs: GitHub archive's events": {"payload.issue.body"},
    "wiki: CirrusSearch": {"text"},
    "news: 20 newsgroups and mails": {"body"},
    "films: TMDB (relevant search)": {"overview", "tagline"},
    "multilingual: one field a language, a document in one of them": {"body_fr"},
    "law: court decisions with a catch-all made by the application": {"opinion"},
}
"""Mappings with more than five text fields, and which of those that an engineer would read are left out."""


def chosen(properties: dict[str, Any]) -> list[str]:
    (group,) = choose_default_groups({"index": read_leaves({"properties": properties})}) or ((),)
    return list(group.query_fields)


@pytest.mark.parametrize("of", JUDGED)
def test_the_five_text_fields_read_include_most_that_an_engineer_would_choose(of: str) -> None:
    judged = JUDGED[of]
    (group,) = choose_default_groups({"index": read_leaves({"properties": judged.properties})})
    assert judged.read - set(group.model_fields) == LEFT_OUT.get(of, set())
    assert len(group.query_fields) <= 5
    assert len(group.query_fields) == 5 or of not in LEFT_OUT


def test_every_text_field_and_every_keyword_with_a_text_subfield_is_searched() -> None:
    name = {"type": "keyword", "fields": {"text": TEXT}}
    assert chosen({"name": name, "summary": TEXT, "section": {"type": "keyword"}}) == ["name.text", "summary"]
    (group,) = choose_default_groups({"index": read_leaves({"properties": {"name": name, "summary": TEXT}})})
    assert group.model_fields == ("name", "summary")


def test_titles_come_first_and_other_text_fields_follow_alphabetically() -> None:
    names = ["zeta", "body", "post_title", "alpha", "subject"]
    assert chosen(dict.fromkeys(names, TEXT)) == ["post_title", "subject", "alpha", "body", "zeta"]


def test_at_most_five_text_fields_are_searched() -> None:
    draw = random.Random(0)
    words = ["title", "name", "body", "note", "user", "tag", "lead", "code", "label", "id"]
    for _ in range(300):
        names = dict.fromkeys("_".join(draw.sample(words, draw.randint(1, 2))) for _ in range(draw.randint(1, 12)))
        names_chosen = chosen(dict.fromkeys(names, TEXT))
        assert names_chosen == sorted(names, key=lambda name: (not is_title(name), name))[:5]


def test_nested_fields_are_read_only_in_an_index_without_other_texts() -> None:
    parts = {"type": "nested", "properties": {"words": TEXT}}
    body = {"type": "text", "fields": {"plain": TEXT, "raw": {"type": "keyword"}}}
    assert chosen({"parts": parts, "body": body}) == ["body"]
    assert chosen({"parts": parts}) == ["parts.words"]


def test_fields_that_cannot_be_searched_are_left_out() -> None:
    assert chosen({"hidden": {"type": "text", "index": False}, "shown": TEXT}) == ["shown"]


def test_the_plainest_text_subfield_of_a_keyword_is_searched() -> None:
    below = {"grams": {"type": "text", "analyzer": "edge_ngrams"}, "words": TEXT}
    assert chosen({"name": {"type": "keyword", "fields": below}}) == ["name.words"]


def test_copies_of_other_text_fields_are_left_out() -> None:
    assert chosen(
        {"title": {**TEXT, "copy_to": "all"}, "all": TEXT, "code": {"type": "keyword", "copy_to": "all"}}
    ) == ["title"]
    assert chosen({"a": {"type": "keyword", "copy_to": "all"}, "all": TEXT}) == ["all"]
    below = {"type": "keyword", "fields": {"text": TEXT}, "copy_to": "all"}
    assert chosen({"a": below, "all": TEXT}) == ["a.text"]


def test_a_field_alias_is_not_read() -> None:
    assert chosen({"body": TEXT, "content": {"type": "alias", "path": "body"}}) == ["body"]


@pytest.mark.parametrize("name", ["title", "post_title", "jobTitle", "title_de", "title.de", "Subject", "name.text"])
def test_field_names_like_title_are_recognised(name: str) -> None:
    assert is_title(name)


@pytest.mark.parametrize("name", ["body", "username", "entitlement", "names"])
def test_field_names_unlike_title_are_not_taken_for_titles(name: str) -> None:
    assert not is_title(name)


@pytest.mark.parametrize("answer", [{"took": 1}, {"a": {}}, {"a": {"mappings": {"properties": {"x": "text"}}}}, []])
def test_a_mapping_response_without_mappings_is_an_error(answer: Any) -> None:
    with pytest.raises(ResponseFormatError, match="is not a mapping for each index"):
        read_leaves_by_index(answer)


def test_system_indices_are_left_out_and_data_streams_are_not() -> None:
    mappings = {name: {"mappings": {"properties": {"x": TEXT}}} for name in ("a", ".hidden", ".ds-logs-000001")}
    assert list(read_leaves_by_index(mappings)) == ["a", ".ds-logs-000001"]
    assert list(read_leaves_by_index({".hidden": mappings[".hidden"]})) == [".hidden"]


def test_the_fields_of_a_passthrough_object_have_names_without_it() -> None:
    attributes = {"type": "passthrough", "priority": 1, "properties": {"message": TEXT, "host": TEXT}}
    properties = {"attributes": attributes, "host": {"type": "keyword"}}
    assert chosen(properties) == ["attributes.host", "attributes.message"]
    leaves = read_leaves({"properties": properties})
    assert (leaves["message"].source, leaves["host"].kind) == ("attributes.message", "keyword")


def test_named_fields_patterns_objects_and_aliases_are_looked_up_in_the_mapping() -> None:
    leaves = read_leaves(
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
    paths = {
        name: [leaf.path for leaf in resolve_name(leaves, name)] for name in ("bod*", "author", "a*", "content^2", "x")
    }
    author = ["author.name"]
    assert paths == {"bod*": ["body"], "author": author, "a*": author, "content^2": ["content"], "x": []}
    assert [name for name, leaf in leaves.items() if leaf.is_in_source] == ["body", "author.name", "parts.words"]
    assert leaves["parts.words"].nested == "parts"
    assert find_missing_names([leaves], ["body^2", "bdy", "highlight:body", "both", "z*"]) == ["bdy", "z*"]
    assert find_most_similar_field([leaves], "bdy") == "body"
