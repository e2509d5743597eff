"""Run a query set through a search, in threads, with a checkpoint after each query."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice

from osrerank.evaluation.records import Record
from osrerank.evaluation.side_file import Checkpoint
from osrerank.types import Query, ScoredDocument

GIVE_UP_AFTER = 10
"""Failures in a row after which the batch stops: the server is gone, or the model cannot be loaded."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A query that failed, and why."""

    query_id: str
    reason: str


def run_queries(
    queries: Sequence[Query],
    search: Callable[[Query, float], Record],
    checkpoint: Checkpoint,
    *,
    workers: int = 1,
    reranked: bool = True,
    advance: Callable[[], None] = lambda: None,
) -> list[Failure]:
    """Run the queries that the checkpoint lacks, and append their records to it.

    Args:
        queries: the query set.
        search: query and start time (``time.perf_counter``) -> record; called from several threads.
        checkpoint: where records go; appended to from the calling thread only.
        workers: threads.
        reranked: whether a record that was not completely reranked counts as failed.
        advance: called after each query.

    Returns:
        The queries that failed or were not tried, in the order of the query set; none of them is in the checkpoint.
    """
    waiting = iter([query for query in queries if query.query_id not in checkpoint])
    failed: dict[str, str] = {}
    in_a_row = 0
    threads = ThreadPoolExecutor(workers)
    try:
        running = {_submit(threads, search, query): query for query in islice(waiting, workers)}
        while running:
            done, _others = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                query = running.pop(future)
                reason = _settle(future, checkpoint, reranked=reranked)
                in_a_row = in_a_row + 1 if reason else 0
                if reason:
                    failed[query.query_id] = reason
                advance()
                if in_a_row < GIVE_UP_AFTER and (following := next(waiting, None)) is not None:
                    running[_submit(threads, search, following)] = following
    finally:  # an interrupted batch does not wait for its queries, which end when the caller closes what they use
        threads.shutdown(wait=False, cancel_futures=True)
    untried = {query.query_id: f"not tried after {GIVE_UP_AFTER} failures in a row" for query in waiting}
    return [
        Failure(query.query_id, (failed | untried)[query.query_id])
        for query in queries
        if query.query_id in failed or query.query_id in untried
    ]


def rankings_of(checkpoint: Checkpoint, queries: Sequence[Query]) -> Iterator[tuple[str, tuple[ScoredDocument, ...]]]:
    """Yield the query id and the documents of each record, in the order of the queries."""
    for record in checkpoint.records(query.query_id for query in queries):
        yield record.query_id, record.documents()


def _submit(threads: ThreadPoolExecutor, search: Callable[[Query, float], Record], query: Query) -> Future[Record]:
    return threads.submit(lambda: search(query, time.perf_counter()))


def _settle(future: Future[Record], checkpoint: Checkpoint, *, reranked: bool) -> str:
    """Append a query's record, or return why there is none."""
    try:
        record = future.result()
    except Exception as error:  # noqa: BLE001 - one query's failure is listed and must not end the others
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    if reranked and record.problem:
        return record.problem
    checkpoint.append(record)
    return ""
