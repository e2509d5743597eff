"""Write and read the side file of a run, ``NAME.run.jsonl``, with the scores and timings of each query.

The first line contains the options that determine the run: ``{"osrerank_run": 1, "options": {...}}``. Every other line
is a `records.QueryRecord`, appended when its query ends. A run that was killed resumes from this file.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Self

from osrerank._platform import try_lock
from osrerank.errors import EvaluationError
from osrerank.evaluation.records import QueryRecord
from osrerank.formats.files import add_path_to_disk_errors, write_atomically

FORMAT = 1
"""The version of the file format, ``osrerank_run`` in the first line."""
NOT_A_SIDE_FILE_FIX = (
    "pass the .jsonl file that `osrerank run` wrote beside a run; if this is that file, it is damaged: delete it and "
    "start the run again"
)


class SideFile:
    """A context manager that holds a side file open for appending.

    Args:
        path: the side file, which is created if it does not exist.
        options: the options that determine the run, as JSON values.

    Raises:
        EvaluationError: the file is from a run with other options, a line other than the last is damaged, or another
            process is writing the file.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self.path = path
        self._header = _encode_line({"osrerank_run": FORMAT, "options": dict(options)})
        self._offsets: dict[str, int] = {}  # query id -> where the line of its record begins, in bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("a+b")
        try:
            self._lock()
            self._resume()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        with add_path_to_disk_errors(self.path):
            self._file.close()

    def __contains__(self, query_id: str) -> bool:
        return query_id in self._offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def append(self, record: QueryRecord) -> None:
        """Append a query's record and flush it, so that it is not lost if the process is killed."""
        self._offsets[record.query_id] = self._file.seek(0, os.SEEK_END)
        with add_path_to_disk_errors(self.path):
            self._file.write(_encode_line(record.as_json()))
            self._file.flush()

    def read_records(self, query_ids: Iterable[str]) -> Iterator[QueryRecord]:
        """Yield the records of queries in the given order. Queries without a record are skipped."""
        for query_id in query_ids:
            if query_id in self._offsets:
                self._file.seek(self._offsets[query_id])
                yield QueryRecord.from_json(json.loads(self._file.readline()))

    def finish(self, query_ids: Iterable[str]) -> None:
        """Rewrite the file with the records in the order of the queries, and close it.

        The files of two equal runs then differ only in the timings.
        """
        write_atomically(self.path, self._format_sorted(query_ids))
        self._file.close()

    def _format_sorted(self, query_ids: Iterable[str]) -> Iterator[str]:
        yield self._header.decode()
        for record in self.read_records(query_ids):
            yield _encode_line(record.as_json()).decode()
        if os.name == "nt":  # Windows cannot replace a file that is open
            self._file.close()

    def _lock(self) -> None:
        """Lock the file until it is closed.

        Raises:
            EvaluationError: another process holds the lock, or has replaced the file in `finish` since it was opened.
        """
        descriptor = self._file.fileno()
        with contextlib.suppress(FileNotFoundError):
            if try_lock(descriptor) and os.path.samestat(os.fstat(descriptor), self.path.stat()):
                return
        raise EvaluationError(f"another process is writing {self.path}; wait until it ends, or choose another output")

    def _resume(self) -> None:
        """Find the records in an existing file and remove an incomplete last line, or start a new file."""
        options = json.loads(self._header)["options"]  # in the form that the file has, such as lists for tuples
        self._file.seek(0)
        offset = 0
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                break
            value = _decode_line(self.path, number, line)
            if number == 1:
                _check_same_options(self.path, value, options)
            else:
                self._offsets[_parse_record(self.path, number, value).query_id] = offset
            offset += len(line)
        self._file.truncate(offset)
        if offset == 0:
            with add_path_to_disk_errors(self.path):
                self._file.write(self._header)
                self._file.flush()


def read_records(path: Path) -> Iterator[QueryRecord]:
    """Yield the records of a side file. The errors are those of `read_records_with_offsets`."""
    return (record for _offset, record in read_records_with_offsets(path))


def read_records_with_offsets(path: Path) -> Iterator[tuple[int, QueryRecord]]:
    """Yield pairs (byte offset of a record's line, record). `read_record_at` reads a record again from its offset.

    Raises:
        EvaluationError: the file is not a side file, is damaged, or contains no records.
    """
    n_lines = 0
    offset = 0
    with path.open("rb") as lines:
        for line in lines:
            n_lines += 1
            value = _decode_line(path, n_lines, line)
            if n_lines == 1:
                _parse_header(path, value)
            else:
                yield offset, _parse_record(path, n_lines, value)
            offset += len(line)
    if n_lines < 2:
        raise EvaluationError(f"{path} has no records: no query of this run has ended yet")


def read_record_at(path: Path, offset: int, query_id: str) -> QueryRecord:
    """Return a query's record from the line that begins at a byte offset of a side file.

    Raises:
        EvaluationError: the file was changed, so the line at this offset is not the query's record.
    """
    with path.open("rb") as lines:
        lines.seek(offset)
        line = lines.readline()
    try:
        record = QueryRecord.from_json(json.loads(line))
    except (ValueError, EvaluationError):
        record = None
    if record is None or record.query_id != query_id:
        raise EvaluationError(f"{path} was changed while this command was reading it; run the command again")
    return record


def read_options(path: Path) -> Mapping[str, Any]:
    """Return the options that determined a run, from its side file's first line.

    Raises:
        EvaluationError: the file is not a side file.
    """
    with path.open("rb") as lines:
        return _parse_header(path, _decode_line(path, 1, lines.readline()))


def _parse_header(path: Path, header: Any, fix: str = "pass a file that ends in .jsonl") -> Mapping[str, Any]:
    """Return the options in a side file's first line. If the line is not a header, the error ends with ``fix``."""
    if not isinstance(header, dict) or header.get("osrerank_run") != FORMAT:
        raise EvaluationError(f"{path} was not written by this version of `osrerank run`; {fix}")
    options: Mapping[str, Any] = header.get("options", {})
    return options


def _check_same_options(path: Path, header: Any, options: Mapping[str, Any]) -> None:
    """Raise an error if the run in the file has other options than the run that wants to resume it."""
    stored = _parse_header(path, header, "move it away or choose another output")
    changes = [
        f"{name} was {stored.get(name)!r}, is {options.get(name)!r}"
        for name in sorted(stored.keys() | options.keys())
        if stored.get(name) != options.get(name)
    ]
    if changes:
        reason = f"{path} is from a run with other options ({'; '.join(changes)})"
        raise EvaluationError(f"{reason}; delete it or choose another output")


def _parse_record(path: Path, number: int, value: Any) -> QueryRecord:
    try:
        return QueryRecord.from_json(value)
    except EvaluationError as error:
        raise EvaluationError(f"{path}, line {number}: {error}; {NOT_A_SIDE_FILE_FIX}") from None


def _decode_line(path: Path, number: int, line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise EvaluationError(f"{path}, line {number} is not JSON ({error}); {NOT_A_SIDE_FILE_FIX}") from None


def _encode_line(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n").encode()
