"""Read document vectors from side indices before reranking, and write new vectors after the response.

A side index is an index of the same cluster that stores the document vectors of one index. It stores a document's
vectors as a record under a key, which is a digest of the document's text.
"""

import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar

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
from osrerank.vectors.store import Guard

READ_TIMEOUT_S = 2.0
"""The maximum time that a search waits for stored vectors, in seconds."""
WRITE_TIMEOUT_S = 10.0
"""The timeout of a request that writes vectors after the response, in seconds."""
DEADLINE_NEAR_S = 0.05
"""If a read times out when less time than this is left, the cause is the deadline, not the cluster. In seconds."""
UNAVAILABLE_S = 60.0
"""How long a missing or forbidden side index is not read again, in seconds."""
MAX_SIDE_INDICES = 1000
"""The maximum number of side indices whose state is cached."""
MAX_REPORTED = 500
"""The maximum number of documents in a report of missing vectors."""
REPORT_INTERVALS_S = (5.0, 10.0, 20.0, 60.0)
"""The pauses before the next report, in seconds. They get longer as long as no builder fetches the last report."""
REPORT_EXISTS = 409
"""The status with which the engine refuses a report because no builder has fetched the last report."""
FORBIDDEN = "security_exception"
"""The type of the engine's error if the user does not have a permission."""

Value = TypeVar("Value")
ReadSteps = Generator[SideRequest, Any, Any]
"""Steps that yield requests, are sent the responses, and return the records that were found."""
BulkSteps = Generator[SideRequest, Any, Value | None]
"""Steps that send a bulk request, and return what was read from the response. None if the request failed."""
logger = logging.getLogger(__name__)


class SideIndex:
    """The state of a side index: whether it exists, and whether it can be read and written now.

    Args:
        clock: returns the time in seconds.
        name: the name of the side index.

    Attributes:
        exists: whether the last request found the index.
        unavailable: the pause in reading after the index was missing, or after the user was forbidden to read it.
        failures: the pauses in reading and in writing after other failures.
        reports: the pauses between reports of documents without vectors.
        may_write: whether no write has been forbidden yet.
    """

    def __init__(self, clock: Callable[[], float], name: str) -> None:
        self.name = name
        self.exists = False
        self.may_write = True
        self.unavailable = Pause(UNAVAILABLE_S, clock=clock)
        self.failures = Guard("index", name)
        self.reports = Pause(REPORT_INTERVALS_S, clock=clock)
        self._forbidden: set[str] = set()
        self._missing_counts: MissingVectorCounts = Counter()
        self._lock = fork_safe_lock()

    @property
    def is_readable(self) -> bool:
        """Whether no pause in reading is on."""
        return not (self.unavailable.is_on or self.failures.read_pause.is_on)

    @property
    def is_writable(self) -> bool:
        """Whether the index exists, the user may write to it, and no pause in writing is on."""
        return self.exists and self.may_write and not self.failures.write_pause.is_on

    def count_missing(self, documents: Iterable[tuple[str, str]]) -> None:
        """Count documents that a search found without vectors. If there are too many, rarely found ones are dropped.

        Args:
            documents: the index and id of each document, such as ``("notes", "7")``.
        """
        with self._lock:
            self._missing_counts.update(documents)
            if len(self._missing_counts) > 2 * MAX_REPORTED:
                self._missing_counts = Counter(dict(self._missing_counts.most_common(MAX_REPORTED)))

    def most_frequently_missing(self) -> list[tuple[tuple[str, str], int]]:
        """Return the documents whose vectors were missing most often: [(("notes", "7"), 3), (("notes", "2"), 1)]."""
        with self._lock:
            return self._missing_counts.most_common(MAX_REPORTED)

    def subtract_reported(self, counts: Iterable[tuple[tuple[str, str], int]]) -> None:
        """Subtract the counts of a report that was sent."""
        with self._lock:
            self._missing_counts = self._missing_counts - Counter(dict(counts))

    def mark_missing(self, error: Exception) -> None:
        """Stop reading the index for a minute, because it does not exist."""
        self.exists = False
        self.unavailable.begin(error)

    def record_write_failure(self, error: Exception, *, is_forbidden: bool = False) -> None:
        """Stop writing to the index: for a short time, or forever if the user is forbidden to write."""
        if is_forbidden or FORBIDDEN in str(error):  # a bulk response has the error in its entries
            self.forbid("write", error)
        else:
            self.failures.write_pause.begin(error)

    def forbid(self, action: Literal["read", "write"], error: Exception) -> None:
        """Stop reading for a minute, or stop writing forever, because the user may not do it. Log this once."""
        if action == "read":
            self.unavailable.begin(error)
        else:
            self.may_write = False
        if action not in self._forbidden:
            self._forbidden.add(action)
            logger.warning(
                "[vectors-forbidden] this user may not %s the document vectors in %s: grant the permission",
                action,
                self.name,
            )


class SideIndices:
    """Reads and writes document vectors in side indices. If vectors cannot be read, this machine encodes the documents.

    Vectors that are not stored on this machine are requested from the side indices of the hits, whether these indices
    exist or not. After the response, new vectors are written to the side indices that exist. No side index is created.

    Args:
        engine: identifies the search engine.
        clock: returns the time in seconds.
    """

    def __init__(self, engine: EngineFinder, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._get_state = lru_cache(MAX_SIDE_INDICES)(partial(SideIndex, clock))  # one object for each name
        # A side index has room for `MAX_REPORTS` reports. A random choice lets few processes write to the same one.
        self._report_number = secrets.randbelow(MAX_REPORTS)

    def fetch(self, index_by_key: Mapping[bytes, str], remaining_s: Callable[[], float]) -> ReadSteps:
        """Read vector records from side indices, and return the found records by key.

        Args:
            index_by_key: the index of each record's document, by the key of the record to read.
            remaining_s: a function that returns the seconds until the deadline.
        """
        name_by_key = {key: side_index(index) for key, index in index_by_key.items()}
        names = [name for name in sorted(set(name_by_key.values())) if self._get_state(name).is_readable]
        if not names:
            return {}
        keys = [key for key, name in name_by_key.items() if name in names]
        return (yield from self._read(names, keys, remaining_s))

    def write_steps(
        self, records: Mapping[bytes, bytes], index_by_key: Mapping[bytes, str], model: str
    ) -> Generator[SideRequest, Any, None] | None:
        """Return the steps that write new records to side indices, or None if there is nothing to write.

        Args:
            records: the records by key.
            index_by_key: the index of each record's document, by the record's key.
            model: the label of the model.
        """
        records_by_name: defaultdict[str, dict[bytes, bytes]] = defaultdict(dict)
        for key, record in records.items():
            if key in index_by_key:
                name = side_index(index_by_key[key])
                if self._get_state(name).is_writable:
                    records_by_name[name][key] = record
        return self._write(records_by_name, model) if records_by_name else None

    def report_steps(self, documents: Iterable[tuple[str, str]]) -> Generator[SideRequest, Any, None] | None:
        """Return the steps that report documents without vectors to builders, or None if no report is due.

        Builders are the processes that run ``osrerank vectors build --follow``. If no report is due, the documents are
        kept for the next one.

        Args:
            documents: the index and the id of each document that a search found without a vector.
        """
        missing_by_name: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        for searched_index, doc_id in documents:
            missing_by_name[side_index(searched_index)].append((searched_index, doc_id))
        for name, missing in missing_by_name.items():
            self._get_state(name).count_missing(missing)
        side_indices = [self._get_state(name) for name in missing_by_name]
        due_indices = [index for index in side_indices if index.is_writable and not index.reports.is_on]
        for index in due_indices:
            index.reports.begin()
        return self._report(due_indices) if due_indices else None

    def _report(self, indices: Sequence[SideIndex]) -> Generator[SideRequest, Any, None]:
        """Write a report to each side index: which documents have no vectors, and how often searches found them.

        If no builder has fetched the last report, the counts are kept, and the pause before the next report is longer.
        """
        for index in indices:
            counts = index.most_frequently_missing()
            body = build_report_body(index.name, self._report_number, counts)
            outcome = yield from self._send_bulk(index, body, _report_outcome)
            if outcome is None:
                continue
            status, reason = outcome
            if not reason:  # the report was written
                index.subtract_reported(counts)
                index.reports.end()  # the next pause is the shortest one
                index.reports.begin()
            elif status != REPORT_EXISTS:
                index.record_write_failure(OSError(reason))

    def _read(self, names: Sequence[str], keys: Sequence[bytes], remaining_s: Callable[[], float]) -> ReadSteps:
        """Read records from side indices, and return the found records. After a failure, return none."""
        indices = [self._get_state(name) for name in names]
        try:
            found = yield from self._read_records(indices, keys, remaining_s)
        except EngineError as error:
            return (yield from self._handle_read_failure(error, names, keys, remaining_s))
        except (LookupError, TypeError) as error:  # a malformed response
            for index in indices:
                index.failures.read_pause.begin(error)
            return {}
        return found

    def _handle_read_failure(
        self, error: EngineError, names: Sequence[str], keys: Sequence[bytes], remaining_s: Callable[[], float]
    ) -> ReadSteps:
        """Begin a pause in reading side indices. If reading one of them is forbidden, read them one by one."""
        indices = [self._get_state(name) for name in names]
        if error.is_forbidden:
            if len(indices) == 1:
                indices[0].forbid("read", error)
                return {}
            found: dict[bytes, bytes] = {}
            for name in names:  # a forbidden index must not hide the records of the others
                found |= yield from self._read([name], keys, remaining_s)
            return found
        if error.is_absent:
            for index in indices:
                index.mark_missing(error)
        elif not error.timed_out or remaining_s() > DEADLINE_NEAR_S:  # the deadline is not the cause
            for index in indices:
                index.failures.read_pause.begin(error.cause)
        return {}

    def _read_records(
        self, indices: Sequence[SideIndex], keys: Sequence[bytes], remaining_s: Callable[[], float]
    ) -> ReadSteps:
        """Read records in batches until the deadline, and return the found records by key."""
        found: dict[bytes, bytes] = {}
        requests = RecordRequests((yield from self._engine.find()))
        names = [index.name for index in indices]
        for start in range(0, len(keys), READ_BATCH_SIZE):
            timeout_s = min(remaining_s(), READ_TIMEOUT_S)
            if timeout_s <= 0:
                break
            path, params, body = requests.request_records(names, keys[start : start + READ_BATCH_SIZE])
            response = yield SideRequest("POST", path, body, {**params, "request_timeout": timeout_s})
            any_exists = requests.has_side_index(response)
            for index in indices:
                if any_exists:
                    index.exists = True
                else:
                    index.mark_missing(LookupError("there is no side index"))
            if not any_exists:
                break
            found |= requests.parse_records(response)
        return found

    def _write(self, records: Mapping[str, Mapping[bytes, bytes]], model: str) -> Generator[SideRequest, Any, None]:
        """Write the records of each side index. After a failure, write no more of them to that side index."""
        for name, index_records in records.items():
            index = self._get_state(name)
            for lines in build_record_bodies(name, index_records, model):
                reason = yield from self._send_bulk(index, lines, describe_bulk_failure)
                if reason:
                    index.record_write_failure(OSError(reason))
                if reason != "":  # the reason is None if the whole request failed
                    break

    def _send_bulk(self, index: SideIndex, lines: str, read_response: Callable[[Any], Value]) -> BulkSteps[Value]:
        """Send a bulk request. Return what ``read_response`` returns for its response, or None if it failed."""
        try:
            response = yield SideRequest("POST", "/_bulk", lines, {"request_timeout": WRITE_TIMEOUT_S})
            return read_response(response)
        except EngineError as error:
            index.record_write_failure(error.cause, is_forbidden=error.is_forbidden)
        except (LookupError, TypeError) as error:  # a malformed response
            index.record_write_failure(error)
        return None


def _report_outcome(response: Mapping[str, Any]) -> tuple[int, str]:
    """Return the status of a report in a bulk response, such as 201, and why it was refused (empty if it was not)."""
    return int(response["items"][0]["create"]["status"]), describe_bulk_failure(response, "create")
