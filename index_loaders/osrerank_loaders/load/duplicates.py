"""Find the ids that a collection has more than once, after a load whose index has fewer documents than it read."""

from collections.abc import Iterator

from osrerank.errors import FormatError
from osrerank.formats.id_table import IdRow, IdTable
from osrerank_loaders.collections.base import Record


def name_duplicates(records: Iterator[Record], *, shown: int) -> tuple[str, ...]:
    """Return the first ids that occur twice, each with both record numbers, such as ``'D7' (records 3 and 90)``.

    The collection is read once. Its ids are sorted in temporary files, which take three times the id and about 16 bytes
    per record; memory does not grow with the collection.

    Raises:
        LoaderError: the disk has no room for the files.
    """
    ids = IdTable.temporary(
        IdRow(record.doc_id, number) for number, record in enumerate(records, 1) if not isinstance(record, FormatError)
    )
    return tuple(f"{row.id!r} (records {row.first} and {row.number})" for row in ids.repeated(shown))
