"""Search each query of a query set, in threads, with a checkpoint after each query."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import islice

from osrerank._threads import DaemonThreads
from osrerank.evaluation.records import QueryRecord
from osrerank.evaluation.side_file import SideFile
from osrerank.types import Query, ScoredDocument

GIVE_UP_AFTER = 10
"""How many failures in a row stop the batch; by then the server is gone, or the model cannot be loaded."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A query that failed, and why; ``is_partial`` is set if it failed because it was reranked only in part."""

    query_id: str
    reason: str
    is_partial: bool = False


def run_queries(
    queries: Sequence[Query],
    search: Callable[[Query, float], QueryRecord],
    checkpoint: SideFile,
    *,
    workers: int = 1,
    reranked: bool = True,
    allow_partial: bool = False,
    advance: Callable[[], None] = lambda: None,
) -> list[Failure]:
    """Run the queries that the checkpoint lacks, and append their records to it.

    Args:
        queries: the query set.
        search: takes a query and its start time (``time.perf_counter``), returns a record; called from several threads.
        checkpoint: the side file that records are appended to, from the calling thread only.
        workers: the number of threads.
        reranked: whether a record that was not completely reranked counts as failed.
        allow_partial: whether a record that was reranked in part counts as complete.
        advance: called after each query.

    Returns:
        The queries that failed or were not tried, in the order of the query set. The checkpoint does not contain them.
    """
    waiting = iter([query for query in queries if query.query_id not in checkpoint])
    failed: dict[str, Failure] = {}
    consecutive_failures = 0
    threads = DaemonThreads(workers, "osrerank-batch-query")
    try:
        running = {_submit(threads, search, query): query for query in islice(waiting, workers)}
        while running:
            done, _others = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                query = running.pop(future)
                failure = _record_or_failure(query, future, checkpoint, reranked=reranked, allow_partial=allow_partial)
                consecutive_failures = consecutive_failures + 1 if failure else 0
                if failure is not None:
                    failed[query.query_id] = failure
                advance()
                if consecutive_failures < GIVE_UP_AFTER and (following := next(waiting, None)) is not None:
                    running[_submit(threads, search, following)] = following
    finally:  # an interrupted batch does not wait for its queries; they end when the caller closes the client
        threads.close(wait=False)
    for query in waiting:
        failed[query.query_id] = Failure(query.query_id, f"not tried after {GIVE_UP_AFTER} failures in a row")
    return [failed[query.query_id] for query in queries if query.query_id in failed]


def rankings_of(checkpoint: SideFile, queries: Sequence[Query]) -> Iterator[tuple[str, tuple[ScoredDocument, ...]]]:
    """Yield the query id and the documents of each record, in the order of the queries."""
    for record in checkpoint.records(query.query_id for query in queries):
        yield record.query_id, record.documents()


def _submit(threads: DaemonThreads, search: Callable[[Query, float], QueryRecord], query: Query) -> Future[QueryRecord]:
    return threads.submit(lambda: search(query, time.perf_counter()))


def _record_or_failure(
    query: Query, future: Future[QueryRecord], checkpoint: SideFile, *, reranked: bool, allow_partial: bool
) -> Failure | None:
    """Append a query's record to the checkpoint, or return why the query failed."""
    try:
        record = future.result()
    except Exception as error:  # noqa: BLE001 - one query's failure is listed and must not end the others
        return Failure(query.query_id, f"{type(error).__name__}: {' '.join(str(error).split())}")
    if reranked and record.problem and not (allow_partial and record.is_partial):
        return Failure(query.query_id, record.problem, is_partial=record.is_partial)
    checkpoint.append(record)
    return None
