"""Read PyTerrier's tables from CSV files, as ``frame.to_csv`` writes them.

All tables contain the column ``qid``. Runs also contain ``docno`` and ``score``, candidates ``query``, ``docno`` and
``text``, query sets ``query``, and judgments ``docno`` and ``label``. Other columns are ignored.
"""

import csv
import io
from collections.abc import Iterator, Sequence

from osrerank.formats.sources import HEAD_BYTES, SourceFile, record_error

QID, QUERY, DOCNO, TEXT, SCORE, LABEL = "qid", "query", "docno", "text", "score", "label"


def is_table(source: SourceFile) -> bool:
    """Return whether the first line of a file is a table's header, without consuming it."""
    head_lines = source.stream.peek(HEAD_BYTES)[:HEAD_BYTES].splitlines()
    if not head_lines:
        return False
    names = [name.strip(b'" ') for name in head_lines[0].split(b",")]
    return QID.encode() in names and len(names) > 1


def read_table_rows(source: SourceFile, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line number of each row's end, and the row as a dict of its columns, such as ``{"qid": "7", ...}``.

    `is_table` must be true for the file. ``columns`` are the required columns.

    Raises:
        FormatError: a column is missing, a row has too few or too many fields, or the text is not UTF-8.
    """
    reader = csv.DictReader(io.TextIOWrapper(source.stream, "utf-8", newline=""), strict=True)
    try:
        header = reader.fieldnames or ()
        missing = [name for name in columns if name not in header]
        if missing:
            names = ", ".join(filter(None, header))
            raise record_error(source, f"the table has no column {missing[0]!r}; its columns are {names}", line=1)
        for row in reader:
            if None in row or None in row.values():  # `DictReader` marks too many and too few fields in this way
                expected = f"expected {len(header)} columns, as in the header line"
                raise record_error(source, expected, line=reader.line_num)
            yield reader.line_num, row
    except csv.Error as error:
        raise record_error(source, f"the file is not CSV: {error}", line=reader.line_num) from None
    except UnicodeDecodeError:
        raise record_error(source, "the file is not UTF-8; convert it first", line=reader.line_num + 1) from None
