"""Read document vectors from side indices before reranking, and write new ones after the response.

A side index is an index next to a searched index that stores the vectors of its documents.
"""

import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

from osrerank._pause import Pause
from osrerank._platform import fork_safe_lock
from osrerank.retrieval.engine_finder import EngineFinder
from osrerank.retrieval.requests import SideRequest
from osrerank.types.engine_errors import EngineError
from osrerank.vectors.index import (
    MAX_REPORTS,
    READ_BATCH_SIZE,
    MissingVectorCounts,
    RecordRequests,
    build_record_bodies,
    build_report_body,
    describe_bulk_failure,
    side_index,
)
from osrerank.vectors.store import PAUSE_S, Guard

READ_TIMEOUT_S, WRITE_TIMEOUT_S = 2.0, 10.0
"""The maximum timeouts, in seconds, of reading vectors and of writing them after the response."""
SHORT_S = 0.05
"""The remaining time, in seconds, below which a timeout is due to a short deadline and not to the cluster."""
ABSENT_S = 60.0
"""The pause before a missing or forbidden side index is read again, in seconds."""
MAX_SIDE_INDICES = 1000
"""The maximum number of side indices whose state is cached."""
MAX_REPORTED = 500
"""The maximum number of documents in a report of missing vectors."""
REPORTS_S = (5.0, 10.0, 20.0, 60.0)
"""The pauses before the next report, in seconds; they grow while no builder fetches the last report."""
REPORT_EXISTS = 409
"""The status of a report that the engine refuses because no builder has fetched the last one."""
FORBIDDEN = "security_exception"

Value = TypeVar("Value")
ReadSteps = Generator[SideRequest, Any, Any]
BulkSteps = Generator[SideRequest, Any, Value | None]
logger = logging.getLogger(__name__)


class SideIndex:
    """The state of a side index: whether it exists, and whether it may be read and written now.

    Args:
        clock: returns seconds.
        name: the name of the side index.

    Attributes:
        is_there: whether the last request found the index.
        absent: the pause after the index was missing, or reading it was forbidden.
        failures: the pauses after other failures of reading and of writing.
        reports: the pauses between reports of documents without vectors.
        may_write: whether no write was forbidden so far.
    """

    def __init__(self, clock: Callable[[], float], name: str) -> None:
        self.name = name
        self.is_there, self.may_write = False, True
        self.absent = Pause(ABSENT_S, clock=clock)
        self.failures = Guard("index", name, PAUSE_S)
        self.reports = Pause(REPORTS_S, clock=clock)
        self._forbidden: set[str] = set()
        self._missing_counts: MissingVectorCounts = Counter()
        self._lock = fork_safe_lock()

    @property
    def is_readable(self) -> bool:
        """Whether searches may read the index now."""
        return not (self.absent.is_on or self.failures.read.is_on)

    @property
    def is_writable(self) -> bool:
        """Whether searches may write to the index now."""
        return self.is_there and self.may_write and not self.failures.write.is_on

    def count_missing(self, documents: Iterable[tuple[str, str]]) -> None:
        """Count documents, by index and id, that a search found without vectors; only the most frequent are kept."""
        with self._lock:
            self._missing_counts.update(documents)
            if len(self._missing_counts) > 2 * MAX_REPORTED:
                self._missing_counts = Counter(dict(self._missing_counts.most_common(MAX_REPORTED)))

    def most_frequently_missing(self) -> list[tuple[tuple[str, str], int]]:
        """Return the documents whose vectors were missing most often, with their counts."""
        with self._lock:
            return self._missing_counts.most_common(MAX_REPORTED)

    def subtract_reported(self, counts: Iterable[tuple[tuple[str, str], int]]) -> None:
        """Subtract counts that were reported."""
        with self._lock:
            self._missing_counts = self._missing_counts - Counter(dict(counts))

    def mark_missing(self, error: Exception) -> None:
        """Remember for a minute that the index does not exist."""
        self.is_there = False
        self.absent.begin(error)

    def record_write_failure(self, error: Exception, *, is_forbidden: bool = False) -> None:
        """Suspend writes: for good if they are forbidden, otherwise for a while."""
        if is_forbidden or FORBIDDEN in str(error):  # a bulk response has the error in its entries
            self.forbid("write", error)
        else:
            self.failures.write.begin(error)

    def forbid(self, right: str, error: Exception) -> None:
        """Remember a missing right, and log it once: no reading for a minute, or no writing for good."""
        if right == "read":
            self.absent.begin(error)
        else:
            self.may_write = False
        if right not in self._forbidden:
            self._forbidden.add(right)
            logger.warning(
                "[vectors-forbidden] this user may not %s the document vectors in %s: grant the right", right, self.name
            )


class SideVectors:
    """Reads and writes side indices. If that fails, documents are encoded by this machine.

    A search does not look up which side indices exist. It requests the vectors that this machine lacks from the side
    indices of its hits. After the response, it writes new vectors to the side indices that exist, and creates none.

    Args:
        engine: identifies the engine.
        clock: returns seconds.
    """

    def __init__(self, engine: EngineFinder, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._side = lru_cache(MAX_SIDE_INDICES)(partial(SideIndex, clock))
        self._report_number = secrets.randbelow(MAX_REPORTS)

    def fetch(self, index_by_key: Mapping[bytes, str], remaining_s: Callable[[], float]) -> ReadSteps:
        """Yield the requests that read records from side indices, and return the records found, by key.

        Args:
            index_by_key: key of each record that this machine lacks -> the index of its document.
            remaining_s: a function that returns the seconds until the deadline.
        """
        side_by_key = {key: side_index(index) for key, index in index_by_key.items()}
        names = [name for name in sorted(set(side_by_key.values())) if self._side(name).is_readable]
        if not names:
            return {}
        return (yield from self._read(names, [key for key, name in side_by_key.items() if name in names], remaining_s))

    def write_steps(
        self, records: Mapping[bytes, bytes], index_by_key: Mapping[bytes, str], model: str
    ) -> Generator[SideRequest, Any, None] | None:
        """Return the steps that write new records to the side indices that exist; None if there is nothing to write.

        Args:
            records: the records, by key.
            index_by_key: key of a record -> the index of its document.
            model: the label of the model.
        """
        by_name: defaultdict[str, dict[bytes, bytes]] = defaultdict(dict)
        for key, record in records.items():
            if key in index_by_key and self._side(name := side_index(index_by_key[key])).is_writable:
                by_name[name][key] = record
        return self._write(by_name, model) if by_name else None

    def report_steps(self, lacking: Iterable[tuple[str, str]]) -> Generator[SideRequest, Any, None] | None:
        """Count documents without vectors; return the requests that report them to builders, None if no report is due.

        Args:
            lacking: the index and the id of each document that a search found without a vector.
        """
        by_name: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        for index, doc_id in lacking:
            by_name[side_index(index)].append((index, doc_id))
        for name, documents in by_name.items():
            self._side(name).count_missing(documents)
        due = [side for side in map(self._side, by_name) if side.is_writable and not side.reports.is_on]
        for side in due:
            side.reports.begin()
        return self._report(due) if due else None

    def _report(self, sides: Sequence[SideIndex]) -> Generator[SideRequest, Any, None]:
        """Yield the requests that report to builders which documents lack vectors."""
        for side in sides:
            counts = side.most_frequently_missing()
            body = build_report_body(side.name, self._report_number, counts)
            outcome = yield from self._send_bulk(side, body, _report_outcome)
            if outcome is None:
                continue
            status, reason = outcome
            if status < REPORT_EXISTS:
                side.subtract_reported(counts)
                side.reports.end()
                side.reports.begin()
            elif status != REPORT_EXISTS:
                side.record_write_failure(OSError(reason))

    def _read(self, names: Sequence[str], keys: Sequence[bytes], remaining_s: Callable[[], float]) -> ReadSteps:
        """Yield the requests for records of side indices, and return the records found; none after a failure."""
        sides = [self._side(name) for name in names]
        try:
            found = yield from self._read_records(sides, keys, remaining_s)
        except EngineError as failed:
            return (yield from self._handle_read_failure(failed, names, keys, remaining_s))
        except (LookupError, TypeError) as error:  # a malformed response
            for side in sides:
                side.failures.read.begin(error)
            return {}
        return found

    def _handle_read_failure(
        self, failed: EngineError, names: Sequence[str], keys: Sequence[bytes], remaining_s: Callable[[], float]
    ) -> ReadSteps:
        """Remember why side indices could not be read; yield the requests for those that may be read nevertheless."""
        sides = [self._side(name) for name in names]
        if failed.is_forbidden:
            if len(sides) == 1:
                sides[0].forbid("read", failed)
                return {}
            found: dict[bytes, bytes] = {}
            for name in names:  # a forbidden index must not hide the records of the others
                found |= yield from self._read([name], keys, remaining_s)
            return found
        if failed.is_absent:
            _each(sides, SideIndex.mark_missing, failed)
        elif remaining_s() > SHORT_S or not failed.timed_out:
            for side in sides:
                side.failures.read.begin(failed.cause)
        return {}

    def _read_records(
        self, sides: Sequence[SideIndex], keys: Sequence[bytes], remaining_s: Callable[[], float]
    ) -> ReadSteps:
        found: dict[bytes, bytes] = {}
        form = RecordRequests((yield from self._engine.find()))
        for start in range(0, len(keys), READ_BATCH_SIZE):
            if (timeout_s := min(remaining_s(), READ_TIMEOUT_S)) <= 0:
                break
            names = [side.name for side in sides]
            path, params, body = form.request_records(names, keys[start : start + READ_BATCH_SIZE])
            answer = yield SideRequest("POST", path, body, {**params, "request_timeout": timeout_s})
            if not form.has_side_index(answer):
                _each(sides, SideIndex.mark_missing, LookupError("there is no side index"))
                break
            for side in sides:
                side.is_there = True
            found |= form.parse_records(answer)
        return found

    def _write(self, records: Mapping[str, Mapping[bytes, bytes]], model: str) -> Generator[SideRequest, Any, None]:
        """Yield the requests that write records to side indices; the first failure of a side index ends its writes."""
        for name, own_records in records.items():
            side = self._side(name)
            for lines in build_record_bodies(name, own_records, model):
                reason = yield from self._send_bulk(side, lines, describe_bulk_failure)
                if reason:
                    side.record_write_failure(OSError(reason))
                if reason != "":  # the request failed (None) or was refused
                    break

    def _send_bulk(self, side: SideIndex, lines: str, read: Callable[[Any], Value]) -> BulkSteps[Value]:
        """Yield a bulk request to a side index; return what ``read`` finds in its response, None after a failure."""
        try:
            return read((yield SideRequest("POST", "/_bulk", lines, {"request_timeout": WRITE_TIMEOUT_S})))
        except EngineError as failed:
            side.record_write_failure(failed.cause, is_forbidden=failed.is_forbidden)
        except (LookupError, TypeError) as error:  # a malformed response
            side.record_write_failure(error)
        return None


def _report_outcome(response: Mapping[str, Any]) -> tuple[int, str]:
    """Return the status of a report in a bulk response, and the reason if it was refused."""
    return int(response["items"][0]["create"]["status"]), describe_bulk_failure(response, "create")


def _each(sides: Iterable[SideIndex], do: Callable[[SideIndex, Exception], None], error: Exception) -> None:
    for side in sides:
        do(side, error)
