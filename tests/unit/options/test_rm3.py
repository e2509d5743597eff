"""The option rm3 in its forms."""

import pytest

from osrerank import Rerank
from osrerank.errors import ConfigError
from osrerank.options.rm3 import Rm3


def test_option_forms():
    assert Rerank(rm3=True).rm3 == Rm3()
    assert Rerank(rm3={"terms": 20}).rm3 == Rm3(terms=20)
    assert Rerank(rm3=False).rm3 is None


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"terms": 0}, "rm3.terms"),
        ({"weight": 1.5}, "rm3.weight"),
        ({"field": ""}, "rm3.field"),
        ({"docs": 3}, "rm3.docs"),
        ("yes", "rm3"),
    ],
)
def test_malformed_option_is_named(value, named):
    with pytest.raises(ConfigError) as caught:
        Rerank(rm3=value)
    assert caught.value.setting == f"rerank.{named}"
