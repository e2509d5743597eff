"""The side file of a run: a checkpoint while the run lasts, and afterwards a record of its scores and timings.

The first line has the options that the run depends on; every other line is a `records.QueryRecord`. Lines are appended
as queries end, so a killed run resumes where it stopped. Only its last line can be incomplete; that line is dropped.
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
from osrerank.formats.files import write_atomically

FORMAT = 1


class SideFile:
    """The side file, open for appending; use it as a context manager.

    Args:
        path: the side file; created if it does not exist.
        options: the options that the run depends on, as JSON values.

    Raises:
        EvaluationError: the file was written with other options, is damaged before its last line, or another process
            is writing it.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self.path = path
        self._header = _line({"osrerank_run": FORMAT, "options": dict(options)})
        options = json.loads(self._header)["options"]  # as JSON returns them: tuples are lists
        self._offsets: dict[str, int] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("a+b")
        try:
            self._lock()
            self._resume(options)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._file.close()

    def __contains__(self, query_id: str) -> bool:
        return query_id in self._offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def append(self, record: QueryRecord) -> None:
        """Add a query's record; a process that is killed afterwards does not lose it."""
        self._offsets[record.query_id] = self._file.seek(0, os.SEEK_END)
        self._file.write(_line(record.as_json()))
        self._file.flush()

    def records(self, query_ids: Iterable[str]) -> Iterator[QueryRecord]:
        """Yield the records of these queries, in their order; queries without a record are left out."""
        for query_id in query_ids:
            if query_id in self._offsets:
                self._file.seek(self._offsets[query_id])
                yield QueryRecord.from_json(json.loads(self._file.readline()))

    def finish(self, query_ids: Iterable[str]) -> None:
        """Rewrite the file in the order of the queries, so that equal runs have equal side files except for timings."""
        write_atomically(self.path, self._ordered(query_ids))
        self._file.close()

    def _ordered(self, query_ids: Iterable[str]) -> Iterator[str]:
        yield self._header.decode()
        for record in self.records(query_ids):
            yield _line(record.as_json()).decode()
        if os.name == "nt":  # Windows cannot replace a file that is open
            self._file.close()

    def _lock(self) -> None:
        """Become the only writer until the file is closed; a file that was just renamed still has another writer."""
        with contextlib.suppress(FileNotFoundError):
            if try_lock(self._file.fileno()) and os.path.samestat(os.fstat(self._file.fileno()), self.path.stat()):
                return
        raise EvaluationError(
            f"{self.path}: another process is writing this run; wait until it ends, or choose another output"
        )

    def _resume(self, options: Mapping[str, Any]) -> None:
        """Index the lines of an existing file and cut off an incomplete last one, or begin a new file."""
        self._file.seek(0)
        offset = 0
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                break
            value = _decode_line(self.path, number, line)
            if number == 1:
                _check_options(self.path, value, options)
            else:
                self._offsets[QueryRecord.from_json(value).query_id] = offset
            offset += len(line)
        self._file.truncate(offset)
        if offset == 0:
            self._file.write(self._header)
            self._file.flush()


def read_records(path: Path) -> Iterator[QueryRecord]:
    """Yield the records of a side file.

    Raises:
        EvaluationError: the file is not a side file, is damaged, or has no record.
    """
    return (record for _offset, record in records_with_offsets(path))


def records_with_offsets(path: Path) -> Iterator[tuple[int, QueryRecord]]:
    """Yield the records of a side file, each with the offset of its line in bytes, for `record_at`.

    Raises:
        EvaluationError: as `read_records`.
    """
    number = offset = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            value = _decode_line(path, number, line)
            if number > 1:
                yield offset, QueryRecord.from_json(value)
            elif not isinstance(value, dict) or value.get("osrerank_run") != FORMAT:
                raise EvaluationError(f"{path}: not a side file of `osrerank run`; pass the file that ends in .jsonl")
            offset += len(line)
    if number < 2:
        raise EvaluationError(f"{path}: no query has been run yet")


def record_at(path: Path, offset: int, query_id: str) -> QueryRecord:
    """Return a query's record, whose line begins at a byte offset of a side file.

    Raises:
        EvaluationError: the file was changed, and the record is not at this offset.
    """
    with path.open("rb") as lines:
        lines.seek(offset)
        line = lines.readline()
    try:
        record = QueryRecord.from_json(json.loads(line))
    except (ValueError, KeyError, TypeError):
        record = None
    if record is None or record.query_id != query_id:
        raise EvaluationError(f"{path} was changed while it was read; run the command again")
    return record


def read_options(path: Path) -> Mapping[str, Any]:
    """Return the options that a run depended on, from its side file's first line.

    Raises:
        EvaluationError: the file is not a side file.
    """
    with path.open("rb") as lines:
        header = _decode_line(path, 1, lines.readline())
    if not isinstance(header, dict) or header.get("osrerank_run") != FORMAT:
        raise EvaluationError(f"{path}: not a side file of `osrerank run`; pass the file that ends in .jsonl")
    options: Mapping[str, Any] = header.get("options", {})
    return options


def _check_options(path: Path, header: Any, options: Mapping[str, Any]) -> None:
    if not isinstance(header, dict) or header.get("osrerank_run") != FORMAT:
        raise EvaluationError(f"{path}: not a side file of this version; move it away or choose another output")
    before = header.get("options", {})
    names = sorted(name for name in before.keys() | options.keys() if before.get(name) != options.get(name))
    if names:
        changes = "; ".join(f"{name} was {before.get(name)!r}, is {options.get(name)!r}" for name in names)
        raise EvaluationError(
            f"{path} is from a run with other options ({changes}); delete it or choose another output"
        )


def _decode_line(path: Path, number: int, line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        remedy = "pass the side file, which ends in .jsonl; if this file is the side file, delete it and run again"
        raise EvaluationError(f"{path}, line {number}: damaged: {error}; {remedy}") from None


def _line(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n").encode()
