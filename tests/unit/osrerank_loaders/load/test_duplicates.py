"""Repeated ids in a collection."""

from osrerank.errors import FormatError
from osrerank.types import Document
from osrerank_loaders.collections.base import Record
from osrerank_loaders.load.duplicates import describe_duplicates

RECORDS: list[Record] = [Document(doc_id, "text") for doc_id in ("b", "a", "c", "a", "b", "a")]


def test_repeated_ids_are_named_in_the_order_of_the_collection() -> None:
    expected = ("'a' (records 2 and 4)", "'b' (records 1 and 5)", "'a' (records 2 and 6)")
    assert describe_duplicates(iter(RECORDS), limit=5) == expected
    assert describe_duplicates(iter(RECORDS), limit=2) == expected[:2]
    assert describe_duplicates(iter(RECORDS[:3]), limit=5) == ()


def test_a_bad_record_counts_as_a_record_and_half_a_surrogate_pair_as_an_id() -> None:
    records = [Document("\ud83d", "text"), FormatError("bad"), Document("\ud83d", "text")]
    assert describe_duplicates(iter(records), limit=5) == ("'\\ud83d' (records 1 and 3)",)
