"""Which names and patterns of a settings file hold for what a caller writes."""

import pytest

from osrerank.options.index_names import holding

NAMES = ("shop-*", "shop-de*", "shop-de-old", "news")


@pytest.mark.parametrize(
    ("index", "found"),
    [
        ("shop-de-old", {"shop-de-old"}),  # its own name
        ("shop-de-1", {"shop-de*"}),  # else the longest pattern
        ("shop-fr", {"shop-*"}),
        ("papers", {None}),
        ("news,papers", {"news", None}),
        (["news", "shop-fr"], {"news", "shop-*"}),
        (["shop-fr,shop-it"], {"shop-*"}),
        ("shop-*", {"shop-*", "shop-de*", "shop-de-old"}),
        ("shop-fr*", {"shop-*"}),
        ("shop-d*", {"shop-*", "shop-de*", "shop-de-old"}),
        ("shop-de*", {"shop-de*", "shop-de-old"}),
        ("*-fr", {"shop-*", "shop-de*", None}),  # shop-de-fr
        ("*", {*NAMES, None}),
        ("_all", {*NAMES, None}),
        (None, {*NAMES, None}),
        ("", {*NAMES, None}),
        ("shop-*,-shop-de*", {"shop-*"}),
        (["n*", "-news"], {None}),
        ("new*s", {"news", None}),
        ("newspaper*", {None}),
    ],
)
def test_what_holds(index, found):
    assert holding(index, NAMES) == found
    assert holding(index, ()) == {None}
