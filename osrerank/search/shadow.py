"""Shadow mode, an option of ``traffic``: record how reranking would change searches, without showing it to users.

The caller gets the first pass's response. Then a thread runs the searches again with reranking, one by one. Metrics
count the changes, and a line of JSON is written to a file for each search.
"""

import atexit
import hashlib
import json
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from osrerank._log_throttle import LogThrottle
from osrerank._platform import renew_after_fork
from osrerank.formats.appended import AppendedLines
from osrerank.metrics import SHADOW_OVERLAP, SHADOW_SEARCHES, SHADOW_SECONDS
from osrerank.response import parse_hits
from osrerank.search.step import ClientStep
from osrerank.settings import Settings
from osrerank.tracing.attributes import join_names
from osrerank.types.reasons import Reason
from osrerank.vectors.background import CLOSE_S, BackgroundTasks

logger = logging.getLogger(__name__)
log_throttle = LogThrottle()

TOP_HITS = 10
"""The number of top hits that are compared."""
MAX_WAITING = 100
"""The maximum number of searches that wait to be run again. Beyond it, searches are dropped."""
MAX_FILE_BYTES = 100_000_000
"""The maximum size of the file of records, in bytes."""
PAUSE_FACTOR = 19.0
"""The thread's pause after a search, as a multiple of the search's duration: it works a twentieth of the time."""
QUIET_S = 1.0
"""The thread does not pause if the caller has not searched for this time, in seconds, because it slows nobody down."""
EXIT_S = 1.0
"""The maximum time that an exiting process waits for shadow searches, in seconds."""


class Shadows:
    """Reranks searches in the background, and records what reranking would have changed for the caller.

    Safe to use from many threads.

    Args:
        settings: the settings, which say where records are written and whether they contain texts.
        pause_factor: the pause after a search, as a multiple of the search's duration.
    """

    def __init__(self, settings: Settings, pause_factor: float = PAUSE_FACTOR) -> None:
        path = settings.shadow_file
        self._file = None if path is None else AppendedLines(path, MAX_FILE_BYTES)
        self._records_texts, self._pause_factor = settings.shadow_texts, pause_factor
        self.renew()
        renew_after_fork(self)
        self._queue = BackgroundTasks(MAX_WAITING, name="osrerank-shadow", on_drop=self._drop)
        _instances.add(self)

    def renew(self) -> None:
        """Reset the state. A forked child does so too, because its parent reports the searches that it has dropped."""
        self._lock = threading.Lock()
        self._n_dropped = 0
        self._is_closed = threading.Event()
        self._last_search_at_s = -math.inf

    def submit(self, search_again: Callable[[], Mapping[str, Any]]) -> bool:
        """Queue a function that runs a search again and returns its record. Return whether the queue had room."""
        self._last_search_at_s = time.monotonic()
        return self._queue.submit(lambda: self._run(search_again))

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Run the waiting searches for at most ``wait_s`` seconds. Drop the rest, and log their number."""
        self._is_closed.set()
        n_dropped = self._queue.drain(wait_s)  # the queue calls `_drop` for each
        if n_dropped:
            logger.warning(
                "[shadow-lost] the client was closed, and %d shadow searches that waited longer than %g s were dropped",
                n_dropped,
                wait_s,
            )
        if self._n_dropped:
            self._write({"time": _now()})  # adds their number

    def compare_with_reranking(
        self, text: str, index: Any, unranked_ids: Sequence[str], steps: Generator[ClientStep, Any, tuple[Any, float]]
    ) -> Generator[ClientStep, Any, dict[str, Any]]:
        """Run a search again with reranking, and return a record of how the hits change.

        Args:
            text: the query's text.
            index: the index or indices searched.
            unranked_ids: the ids of the top hits that the caller got, as `first_ids` returns them.
            steps: the steps of the reranked search. They return its response and its duration in seconds.
        """
        record: dict[str, Any] = {"time": _now(), "index": join_names(index), "query": make_digest(text)}
        reranked_ids: Sequence[str] = ()
        try:
            response, took_s = yield from steps
            reranked_ids = first_ids(parse_hits(response))
            record |= outcome_fields(response, took_s) | change_fields(unranked_ids, response)
        except Exception as error:  # noqa: BLE001 - the caller already has the response
            reason = Reason.from_error(error)
            record |= {"applied": False, "reason": str(reason), "reason_code": reason.code}
        if self._records_texts:
            record["texts"] = {"query": text, "before": list(unranked_ids), "after": list(reranked_ids)}
        else:  # an error message of another program may quote the query or a document
            record["reason"] = None
        return record

    def _run(self, search_again: Callable[[], Mapping[str, Any]]) -> None:
        """Run a search again, count and write its record, and pause."""
        began_s = time.monotonic()
        try:
            record = search_again()
        except Exception:  # noqa: BLE001 - for example, the event loop has ended
            self._drop()
            return
        SHADOW_SEARCHES.labels(str(record["applied"]).lower()).inc()
        if record.get("ms"):
            SHADOW_SECONDS.observe(record["ms"] / 1000)
        if record.get("hits"):
            SHADOW_OVERLAP.observe(record["overlap"] / record["hits"])
        self._write(record)
        self._pause(self._pause_factor * (time.monotonic() - began_s))

    def _pause(self, duration_s: float) -> None:
        """Pause, but end the pause early if no user searches any more."""
        latest_end_s = time.monotonic() + duration_s
        while True:
            end_s = min(latest_end_s, self._last_search_at_s + QUIET_S)
            remaining_s = end_s - time.monotonic()
            if remaining_s <= 0 or self._is_closed.wait(remaining_s):
                return

    def _write(self, record: Mapping[str, Any]) -> None:
        """Append a record to the file, with the number of searches that were dropped since the last record."""
        if self._file is None:
            return
        with self._lock:
            n_dropped, self._n_dropped = self._n_dropped, 0
        try:
            self._file.append(json.dumps({**record, "dropped": n_dropped} if n_dropped else record))
        except OSError as error:
            n_unwritten = 1 if "query" in record else 0  # the record that `close` writes is not of a search
            with self._lock:
                self._n_dropped += n_dropped + n_unwritten
            if log_throttle.should_log("lost"):
                logger.warning(
                    "[shadow-lost] the record of a shadow search was not written to %s: %s; not logged again for a "
                    "minute",
                    self._file.path,
                    error.strerror or error,
                )

    def _drop(self) -> None:
        SHADOW_SEARCHES.labels("dropped").inc()
        with self._lock:
            self._n_dropped += 1


_instances: "weakref.WeakSet[Shadows]" = weakref.WeakSet()


def _close_all() -> None:
    for shadows in list(_instances):
        shadows.close(EXIT_S)


# Exit functions run in reverse order: this one runs before `NATIVE_CODE.wait_for_exit`, which was registered earlier.
atexit.register(_close_all)


def outcome_fields(response: Mapping[str, Any], took_s: float) -> dict[str, Any]:
    """Return the fields of a record that say whether the search was reranked, how long it took, and what it encoded.

    Args:
        response: the reranked response.
        took_s: the wall time of the search, in seconds. It is 0 if the search was not run.
    """
    report = response["rerank"]
    # of texts that had a stored vector, that were encoded, and that remain without a vector
    counts = {name: sum(stage.get(name, 0) for stage in report["stages"]) for name in ("known", "encoded", "lacking")}
    times = {"ms": round(took_s * 1000, 1), "first_pass_ms": report["first_pass_took_ms"]} if took_s else {}
    outcome = {name: report[name] for name in ("applied", "reason", "reason_code")}
    return {**outcome, **times, **counts}


def change_fields(unranked_ids: Sequence[str], response: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that compare the top hits before and after reranking.

    The record has none of these fields if the search could not be reranked, not even in part.

    Args:
        unranked_ids: the ids of the top hits without reranking.
        response: the reranked response.
    """
    if response["rerank"]["applied"] is False:
        return {}
    hits = parse_hits(response)
    reranked_ids = first_ids(hits)
    moves = [_move(hit) for hit in hits[:TOP_HITS]]
    return {
        "hits": len(unranked_ids),
        "after": len(reranked_ids),
        "overlap": len({*unranked_ids} & {*reranked_ids}),
        "first_changed": unranked_ids[:1] != reranked_ids[:1],
        "moved": sum(move > 0 for move in moves),
        "farthest": max(moves, default=0),
    }


def _move(hit: Mapping[str, Any]) -> int:
    """Return by how many ranks reranking moved a hit, from its rank in the first pass to that of its last stage."""
    ranks = [entry["rank"] for entry in hit["_rerank"].values() if isinstance(entry, Mapping) and "rank" in entry]
    return abs(int(ranks[-1]) - int(ranks[0]))


def first_ids(hits: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ids of a page's top hits, such as "notes/7" for the document 7 in the index notes."""
    return [f"{hit.get('_index')}/{hit['_id']}" for hit in hits[:TOP_HITS]]


def make_digest(text: str) -> str:
    """Return a pseudonym for a query or a user key, for use in records: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
