"""Text fields by sampled values: what `osrerank init` writes, and what is read of hits without a mapping."""

from typing import Any

import pytest

from osrerank.retrieval.mapping import read_leaves
from osrerank.retrieval.sampled_fields import choose_field_names, choose_fields
from osrerank.retrieval.text_fields import find_text_fields, prefer_unnested
from tests.mappings import judged_mappings

LONG = "the pressure of the blood is low when the heart is slow"
TEXT = {"type": "text"}
JUDGED = {judged.of: judged for judged in judged_mappings()}
MORE = {
    "shop: OpenSearch Dashboards' sample orders": {"customer_full_name"},
    "shop: WooCommerce through ElasticPress": {"post_name"},
    "shop: reviews (Amazon's layout)": {"reviewerName"},
    "papers: arXiv's metadata": {"comments"},
    "wiki: CirrusSearch": {"auxiliary_text"},
    "wiki: Discourse-like topics and posts": {"category_name"},
    "wiki: Stack Exchange's dump": {"OwnerDisplayName"},
    "films: TMDB (relevant search)": {"original_title"},
    "jobs: postings of a board, all dynamic": {"company_name"},
}
LESS = {
    "shop: reviews (Amazon's layout)": {"summary"},
    "multilingual: one field a language, a document in one of them": {"title_fr"},
}
"""Where a sample shows more, or less, than an engineer would read."""


def chosen(properties: dict[str, Any], *sources: dict[str, Any]) -> list[str]:
    leaves = prefer_unnested(find_text_fields(read_leaves({"properties": properties})))
    return [leaf.path for leaf in choose_fields(leaves, sources)]


def all_text(*sources: dict[str, Any]) -> list[str]:
    """What is chosen where every field is mapped as text."""
    return chosen({name: TEXT for source in sources for name in source}, *sources)


@pytest.mark.parametrize("of", JUDGED)
def test_sampling_finds_the_fields_that_a_search_engineer_would_choose(of: str) -> None:
    judged = JUDGED[of]
    leaves = choose_fields(
        prefer_unnested(find_text_fields(read_leaves({"properties": judged.properties}))), judged.sources
    )
    read = {leaf.path if leaf.copied_from else leaf.source for leaf in leaves}
    assert (read - judged.read, judged.read - read) == (MORE.get(of, set()), LESS.get(of, set()))


def test_sampled_names_that_look_like_codes_are_read() -> None:
    names = ["libgimp2.0-dev", "r-cran-magick", "python3-pil"]
    assert all_text(*({"name": name, "summary": f"{name} {LONG}"} for name in names)) == ["name", "summary"]


def test_sampled_titles_come_first_then_shorter_fields() -> None:
    body = "a body of other words, and of many more of them than there are above it"
    texts = {"body": body, "abstract": LONG, "headline": "low blood pressure again"}
    assert all_text(*[texts] * 3) == ["headline", "abstract", "body"]


def test_sampled_ids_addresses_tags_and_names_are_not_read() -> None:
    ids = {"isbn": "978", "tag": "two words"}
    documents = ({"link": f"http://a.b/{n}", "author": f"Jane {n} Smith", "body": f"{n} {LONG}"} for n in range(6))
    assert all_text(*({**ids, **judged} for judged in documents)) == ["body"]


@pytest.mark.parametrize("name", ["title", "name", "subject", "headline"])
@pytest.mark.parametrize("value", ["Warsaw", "Super_Bowl_50", "A title of several words"])
def test_a_sampled_title_may_be_short_and_repeated(name: str, value: str) -> None:
    assert all_text(*[{name: value, "body": f"{number} {LONG}"} for number in range(9)]) == [name, "body"]


@pytest.mark.parametrize("pair", [("title", "text"), ("name", "content"), ("subject", "message")])
def test_sampled_short_texts_with_common_names_are_read(pair: tuple[str, str]) -> None:
    title, body = pair
    assert all_text({title: "Minutes", body: "Low"}, {title: "Notes", body: "High"}) == [title, body]


def test_at_most_five_sampled_fields_are_read_with_the_longest_among_them() -> None:
    values = {f"f{number}": f"f{number} {LONG}" for number in range(8)}
    other_text = "quite another text of which nobody has seen a word before it was put here, " * 9
    assert all_text({**values, "zz": other_text}) == ["f0", "f1", "f2", "f3", "zz"]


def test_if_all_sampled_values_are_short_the_longest_fields_are_read() -> None:
    assert all_text({"code": "x", "kind": "two words"}) == ["kind"]
    assert chosen({"a": TEXT, "b": TEXT}) == ["a", "b"]  # no documents to look at
    assert chosen({"a": TEXT, "title": TEXT, "sku": TEXT, "body": TEXT}) == ["title", "a", "body", "sku"]


def test_text_fields_of_hits_without_a_mapping() -> None:
    assert choose_field_names([{"title": "", "body": LONG}]) == ("body",)
    assert choose_field_names([{"meta": {"note": LONG}, "year": 3, "tags": ["a", "b"]}]) == ("meta.note",)
    assert choose_field_names([{"year": 3}]) == ()
