"""Rerank searches in the background to record what reranking would change (shadow mode of the option ``traffic``).

The caller gets the first pass. Then one thread runs the searches again with reranking, one by one. Metrics count the
changes, and a file gets one line of JSON for each search.
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

TOP = 10
"""The first hits of a page that are compared."""
MAX_WAITING = 100
"""While this many searches wait to be run again, further ones are dropped."""
MAX_BYTES = 100_000_000
"""The file of records does not grow beyond this size, in bytes."""
PAUSE_FACTOR = 19.0
"""After a search, the thread pauses for this multiple of the search's time, so it works a twentieth of the time."""
QUIET_S = 1.0
"""If nobody has searched for this many seconds, the thread slows nobody down, so it does not pause."""
EXIT_S = 1.0
"""How long an exiting process waits for shadow searches, in seconds."""


class Shadows:
    """Reranks searches in the background, and records what that would have changed for the caller.

    Safe to use from many threads.

    Args:
        settings: the settings, which say where records are written and whether they contain texts.
        pause_factor: the pause after a search, as a multiple of the search's time.
    """

    def __init__(self, settings: Settings, pause_factor: float = PAUSE_FACTOR) -> None:
        path = settings.shadow_file
        self._file = None if path is None else AppendedLines(path, MAX_BYTES)
        self._records_texts, self._pause_factor = settings.shadow_texts, pause_factor
        self.renew()
        renew_after_fork(self)
        self._queue = BackgroundTasks(MAX_WAITING, name="osrerank-shadow", on_drop=self._drop)
        _instances.add(self)

    def renew(self) -> None:
        """Reset the state in a forked child. The parent counts the searches that were dropped before the fork."""
        self._lock = threading.Lock()
        self._dropped = 0
        self._is_closed = threading.Event()
        self._searched_at = -math.inf

    def submit(self, run: Callable[[], Mapping[str, Any]]) -> bool:
        """Queue a function that runs a search again and returns its record. Return whether the queue had room."""
        self._searched_at = time.monotonic()
        return self._queue.submit(lambda: self._run(run))

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Run the waiting searches for at most ``wait_s`` seconds. Drop the others, and log their number."""
        self._is_closed.set()
        if dropped := self._queue.drain(wait_s):
            logger.warning(
                "[shadow-lost] the client was closed, and %d shadow searches that waited longer than %g s were dropped",
                dropped,
                wait_s,
            )
        if self._dropped:
            self._write({"time": _now()})

    def compare_with_reranking(
        self, text: str, index: Any, unranked_ids: Sequence[str], steps: Generator[ClientStep, Any, tuple[Any, float]]
    ) -> Generator[ClientStep, Any, dict[str, Any]]:
        """Run a search again with reranking, and return the record of what that changes.

        Args:
            text: the query's text.
            index: the index or indices searched.
            unranked_ids: the ids of the first hits that the caller got.
            steps: the steps of the reranked search. They return its response and the seconds that it took.
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
            return record | {"texts": {"query": text, "before": list(unranked_ids), "after": list(reranked_ids)}}
        return record | {"reason": None}  # an error message of another program may quote the query or a document

    def _run(self, run: Callable[[], Mapping[str, Any]]) -> None:
        started = time.monotonic()
        try:
            record = run()
        except Exception:  # noqa: BLE001 - the event loop has ended
            self._drop()
            return
        SHADOW_SEARCHES.labels(str(record["applied"]).lower()).inc()
        if record.get("ms"):
            SHADOW_SECONDS.observe(record["ms"] / 1000)
        if record.get("hits"):
            SHADOW_OVERLAP.observe(record["overlap"] / record["hits"])
        self._write(record)
        self._pause(self._pause_factor * (time.monotonic() - started))

    def _pause(self, seconds: float) -> None:
        """Pause, but only as long as users search."""
        pause_end = time.monotonic() + seconds
        while (remaining_s := min(pause_end, self._searched_at + QUIET_S) - time.monotonic()) > 0:
            if self._is_closed.wait(remaining_s):
                return

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        try:
            self._file.append(json.dumps({**record, "dropped": dropped} if dropped else record))
        except OSError as error:
            with self._lock:
                self._dropped += dropped + ("query" in record)
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
            self._dropped += 1


_instances: "weakref.WeakSet[Shadows]" = weakref.WeakSet()


def _close_all() -> None:
    for shadows in list(_instances):
        shadows.close(EXIT_S)


atexit.register(_close_all)  # it runs before `NATIVE_CODE.end`, because that was registered earlier


def outcome_fields(response: Mapping[str, Any], took_s: float) -> dict[str, Any]:
    """Return the fields of a record that say whether the search was reranked, how long it took, and what it encoded.

    Args:
        response: the response with reranking.
        took_s: the wall time of the search, in seconds. It is 0 if the search was not run.
    """
    report = response["rerank"]
    counts = {name: sum(stage.get(name, 0) for stage in report["stages"]) for name in ("known", "encoded", "lacking")}
    times = {"ms": round(took_s * 1000, 1), "first_pass_ms": report["first_pass_took_ms"]} if took_s else {}
    outcome = {name: report[name] for name in ("applied", "reason", "reason_code")}
    return {**outcome, **times, **counts}


def change_fields(unranked_ids: Sequence[str], response: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that compare the first ten hits before and after reranking.

    A search that was not reranked has no such fields.

    Args:
        unranked_ids: the ids of the first hits without reranking.
        response: the response with reranking.
    """
    if response["rerank"]["applied"] is False:
        return {}
    reranked_ids = first_ids(parse_hits(response))
    moves = [_move(hit) for hit in parse_hits(response)[:TOP]]
    return {
        "hits": len(unranked_ids),
        "after": len(reranked_ids),
        "overlap": len({*unranked_ids} & {*reranked_ids}),
        "first_changed": unranked_ids[:1] != reranked_ids[:1],
        "moved": sum(move > 0 for move in moves),
        "farthest": max(moves, default=0),
    }


def _move(hit: Mapping[str, Any]) -> int:
    """Return by how many ranks reranking moved a hit."""
    ranks = [entry["rank"] for entry in hit["_rerank"].values() if isinstance(entry, Mapping) and "rank" in entry]
    return abs(int(ranks[-1]) - int(ranks[0]))


def first_ids(hits: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ids of a page's first ten hits, as ``index/id``."""
    return [f"{hit.get('_index')}/{hit['_id']}" for hit in hits[:TOP]]


def make_digest(text: str) -> str:
    """Return a pseudonym for a query or a user key in records: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
