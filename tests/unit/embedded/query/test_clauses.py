from typing import Any

import pytest

from osrerank.embedded.errors import Fault
from osrerank.embedded.query.clauses import minimum_should_match


@pytest.mark.parametrize(
    ("given", "clauses", "least"),
    [
        (None, 4, 0), (2, 4, 2), ("-1", 4, 3), ("75%", 4, 3), ("-25%", 4, 3), ("30%", 3, 0), ("3<90%", 3, 3),
        ("3<90%", 10, 9), ("2<-25% 9<-3", 2, 2), ("2<-25% 9<-3", 8, 6), ("2<-25% 9<-3", 12, 9), ("7", 4, 7),
    ],
)  # fmt: skip
def test_minimum_should_match(given: Any, clauses: int, least: int) -> None:
    assert minimum_should_match(given, clauses, "match") == least


def test_minimum_should_match_that_cannot_be_read() -> None:
    with pytest.raises(Fault, match="most"):
        minimum_should_match("most", 3, "match")
