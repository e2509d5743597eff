"""The option passages in its forms."""

import pytest

from osrerank import Rerank
from osrerank.errors import ConfigError
from osrerank.options.passages import Passages


def test_option_forms():
    assert Rerank(passages="kmaxavgp").passages == Passages(aggregation="kmaxavgp")
    assert Rerank(passages={"limit": 5, "title_fields": ["headline"]}).passages == Passages(
        limit=5, title_fields=("headline",)
    )
    assert Rerank(passages=True).passages == Passages()
    assert Rerank(passages=False).passages is None
    assert Rerank().passages == Rerank(passages="auto").passages == Rerank(passages={"aggregation": "auto"}).passages
    assert Rerank().passages == "auto"
    assert Rerank(passages="off").passages is None
    assert hash(Rerank(passages="maxp"))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("best", "passages.aggregation"),
        ({"limit": 0}, "passages.limit"),
        ({"stride": 151}, "passages.stride"),
        ({"k": True}, "passages.k"),
        ({"policy": "last"}, "passages.policy"),
        ({"seed": 0.5}, "passages.seed"),
        ({"least_words": -1}, "passages.least_words"),
        ({"aggregation": "auto", "limit": 3}, "passages.aggregation"),
        ({"title_fields": [1]}, "passages.title_fields"),
        ({"size": 3}, "passages.size"),
        (3, "passages"),
    ],
)
def test_malformed_option_is_named(value, named):
    with pytest.raises(ConfigError, match=named.replace(".", r"\.") if "size" not in named else "size") as caught:
        Rerank(passages=value)
    assert caught.value.setting == f"rerank.{named}"
