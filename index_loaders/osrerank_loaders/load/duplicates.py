"""Find the ids that a collection has more than once, by reading it again when the index has too few."""

from collections.abc import Iterator

from osrerank.errors import FormatError
from osrerank.formats.id_table import IdRow, IdTable
from osrerank_loaders.collections.base import Record


def name_duplicates(records: Iterator[Record], *, shown: int) -> tuple[str, ...]:
    """Return the first ids that occur twice, each with both record numbers, such as ``'D7' (records 3 and 90)``.

    Reads the collection once. The ids are sorted in temporary files: for each record three times the id and some 16
    bytes. Memory does not grow with them.

    Raises:
        LoaderError: there is no room for the file.
    """
    ids = IdTable.temporary(
        IdRow(record.doc_id, number) for number, record in enumerate(records, 1) if not isinstance(record, FormatError)
    )
    return tuple(f"{one.id!r} (records {one.first} and {one.number})" for one in ids.repeated(shown))
