"""Find the duplicate ids of a collection, to explain why an index has fewer documents than expected."""

from collections.abc import Iterator

from osrerank.errors import FormatError
from osrerank.formats.id_table import IdRow, IdTable
from osrerank_loaders.collections.base import Record


def describe_duplicates(records: Iterator[Record], *, limit: int) -> tuple[str, ...]:
    """Return the first ids that occur twice, each with both record numbers, such as ``'D7' (records 3 and 90)``.

    The ids are sorted in temporary files, which take three times the size of each id, plus 16 bytes.

    Raises:
        LoaderError: the disk is full.
    """
    ids = IdTable.create_temporary(
        IdRow(record.doc_id, number) for number, record in enumerate(records, 1) if not isinstance(record, FormatError)
    )
    return tuple(f"{row.id!r} (records {row.first_number} and {row.number})" for row in ids.find_repeats(limit))
