"""The options of a search: what is refused, by name."""

import pytest

from osrerank import Rerank
from osrerank.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"depht": 10}, "depht"),
        ({"depth": 0}, "depth"),
        ({"depth": True}, "depth"),
        ({"depth": "ten"}, "depth"),
        ({"depth": 10_001}, "depth"),
        ({"depth": "Auto"}, "depth"),
        ({"fields": []}, "fields"),
        ({"fields": [1]}, "fields"),
        ({"pipeline": "quattro"}, "pipeline"),
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"on_failure": "ignore"}, "on_failure"),
        ({"min_score": 1.5}, "min_score"),
        ({"cache": "yes"}, "cache"),
        ({"separator": None}, "separator"),
        ({"query": 7}, "query"),
    ],
)
def test_malformed_option_is_named(options, named):
    with pytest.raises(ConfigError, match=named) as caught:
        Rerank.of(options, Rerank())
    assert caught.value.setting == f"rerank.{named}"


def test_an_open_depth_has_bounds():
    options = Rerank(depth="auto")
    assert (options.least_depth, options.most_depth) == (100, 1000)
    assert (Rerank(depth=7).least_depth, Rerank(depth=7).most_depth) == (7, 7)


def test_rerank_of_something_else_is_an_error():
    with pytest.raises(ConfigError, match="'yes'"):
        Rerank.of("yes", Rerank())


def test_dict_is_read_over_the_defaults():
    defaults = Rerank(depth=7, fields=("body",))
    assert Rerank.of({"depth": 9, "fields": "title"}, defaults) == Rerank(depth=9, fields=("title",))
    assert Rerank.of(True, defaults) is defaults
    assert Rerank.of(False, defaults) is None
