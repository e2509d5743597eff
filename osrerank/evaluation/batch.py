"""Search all queries of a query set in threads, and save a record after each, so that a killed run can resume."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import islice

from osrerank._threads import DaemonThreads
from osrerank.errors import OsrerankError
from osrerank.evaluation.records import QueryRecord
from osrerank.evaluation.side_file import SideFile
from osrerank.types import Query, ScoredDocument

MAX_CONSECUTIVE_FAILURES = 10
"""The number of failures in a row after which a run stops, because the server or the model is probably unavailable."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A query that failed, and why. ``is_partial`` is true if it failed because it was reranked only in part."""

    query_id: str
    reason: str
    is_partial: bool = False


def run_queries(
    queries: Sequence[Query],
    search: Callable[[Query, float], QueryRecord],
    side_file: SideFile,
    *,
    workers: int = 1,
    require_reranked: bool = True,
    allow_partial: bool = False,
    advance: Callable[[], None] = lambda: None,
) -> list[Failure]:
    """Search the queries that have no record in the side file yet, and append their records to it.

    Args:
        queries: the query set.
        search: a function from a query and its start time (``time.perf_counter``) to its record. Several threads call
            it.
        side_file: the side file. Only the calling thread writes to it.
        workers: the number of threads.
        require_reranked: whether a query fails if it is not completely reranked.
        allow_partial: whether a query that is reranked in part succeeds even so.
        advance: called after each query, to show the progress.

    Returns:
        The queries that failed or were not tried, in the order of the query set. They have no record.
    """
    remaining = iter([query for query in queries if query.query_id not in side_file])
    failures: dict[str, Failure] = {}

    def append_or_fail(query: Query, future: Future[QueryRecord]) -> Failure | None:
        """Append a query's record to the side file, or return why the query failed."""
        try:
            record = future.result()
        except Exception as error:  # noqa: BLE001 - the failure of a query must not end the other queries
            name = "" if isinstance(error, OsrerankError) else f"{type(error).__name__}: "
            return Failure(query.query_id, name + " ".join(str(error).split()))
        if require_reranked and record.failure_reason and not (allow_partial and record.is_partial):
            return Failure(query.query_id, record.failure_reason, is_partial=record.is_partial)
        side_file.append(record)
        return None

    consecutive_failures = 0
    threads = DaemonThreads(workers, "osrerank-batch-query")
    try:
        running = {_submit(threads, search, query): query for query in islice(remaining, workers)}
        while running:
            done, _pending = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                query = running.pop(future)
                failure = append_or_fail(query, future)
                if failure is None:
                    consecutive_failures = 0
                else:
                    consecutive_failures += 1
                    failures[query.query_id] = failure
                advance()
                if consecutive_failures < MAX_CONSECUTIVE_FAILURES:
                    next_query = next(remaining, None)
                    if next_query is not None:
                        running[_submit(threads, search, next_query)] = next_query
    finally:
        # after Ctrl-C, running queries are not waited for: they end when the caller closes the client
        threads.close(wait=False)
    for query in remaining:
        reason = f"not tried after {MAX_CONSECUTIVE_FAILURES} consecutive failures"
        failures[query.query_id] = Failure(query.query_id, reason)
    return [failures[query.query_id] for query in queries if query.query_id in failures]


def read_rankings(side_file: SideFile, queries: Sequence[Query]) -> Iterator[tuple[str, tuple[ScoredDocument, ...]]]:
    """Yield the query id and the ranked documents of each record, in the order of the queries."""
    for record in side_file.read_records(query.query_id for query in queries):
        yield record.query_id, record.list_documents()


def _submit(threads: DaemonThreads, search: Callable[[Query, float], QueryRecord], query: Query) -> Future[QueryRecord]:
    return threads.submit(lambda: search(query, time.perf_counter()))
