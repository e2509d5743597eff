"""Rerank the searches of shadow mode (option ``traffic``) in the background, after the caller has the plain response.

One thread runs these searches one by one. Metrics count what reranking would have changed. A file gets one line of JSON
for each search.
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
due = LogThrottle()

TOP = 10
"""The number of hits that are compared, from the top of a page."""
MAX_WAITING = 100
"""The maximum number of searches that wait to be run again; further ones are dropped."""
MAX_BYTES = 100_000_000
"""The maximum size of the file of records, in bytes."""
PAUSE_FACTOR = 19.0
"""The pause after a shadow search, as a multiple of the search's time: the thread works a twentieth of the time."""
QUIET_S = 1.0
"""The pause ends if nobody has searched for this many seconds, because then the thread slows nobody down."""
EXIT_S = 1.0
"""How long an exiting process waits for shadow searches, in seconds."""


class Shadows:
    """Reranks searches in the background, and records what that would have changed for the caller.

    Safe to use from many threads.

    Args:
        settings: the settings, with the path of the file of records, and whether records contain texts.
        pause_factor: the pause after a search, as a multiple of the search's time.
    """

    def __init__(self, settings: Settings, pause_factor: float = PAUSE_FACTOR) -> None:
        path = settings.shadow_file
        self._file = None if path is None else AppendedLines(path, MAX_BYTES)
        self._has_texts, self._pause_factor = settings.shadow_texts, pause_factor
        self.renew()
        renew_after_fork(self)
        self._queue = BackgroundTasks(MAX_WAITING, name="osrerank-shadow", on_drop=self._drop)
        _all.add(self)

    def renew(self) -> None:
        """Reset the state in a forked child; the parent counts the searches that were dropped before the fork."""
        self._lock = threading.Lock()
        self._dropped = 0
        self._is_closed = threading.Event()
        self._searched_at = -math.inf

    def submit(self, run: Callable[[], Mapping[str, Any]]) -> bool:
        """Queue a function that runs a search again and returns its record; return whether there was room."""
        self._searched_at = time.monotonic()
        return self._queue.submit(lambda: self._run(run))

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Run the waiting searches for at most ``wait_s`` seconds; drop the remaining ones, and log their number."""
        self._is_closed.set()
        if dropped := self._queue.drain(wait_s):
            logger.warning("[shadow-lost] %d shadow searches were not run in %g s, and were dropped", dropped, wait_s)
        if self._dropped:
            self._write({"time": _now()})

    def shadow_run(
        self, text: str, index: Any, plain_ids: Sequence[str], steps: Generator[ClientStep, Any, tuple[Any, float]]
    ) -> Generator[ClientStep, Any, dict[str, Any]]:
        """Yield the steps of a search that is run again with reranking, and return its record.

        Args:
            text: the query's text.
            index: the index or indices searched.
            plain_ids: the ids of the first hits that the caller got.
            steps: the steps of the reranked search; they return its response and the seconds that it took.
        """
        record: dict[str, Any] = {"time": _now(), "index": join_names(index), "query": digest_of(text)}
        reranked_ids: Sequence[str] = ()
        try:
            response, took_s = yield from steps
            reranked_ids = ids_of(parse_hits(response))
            record |= record_outcome(response, took_s) | compare_orders(plain_ids, response)
        except Exception as error:  # noqa: BLE001 - the caller already has the response
            reason = Reason.from_error(error)
            record |= {"applied": False, "reason": str(reason), "reason_code": reason.code}
        if self._has_texts:
            return record | {"texts": {"query": text, "before": list(plain_ids), "after": list(reranked_ids)}}
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
        """Wait for this long, but only while users search."""
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
            if due.should_log("lost"):
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


_all: "weakref.WeakSet[Shadows]" = weakref.WeakSet()


def _close_all() -> None:
    for shadows in list(_all):
        shadows.close(EXIT_S)


atexit.register(_close_all)  # it runs before `NATIVE_CODE.end`, because that was registered earlier


def record_outcome(response: Mapping[str, Any], took_s: float) -> dict[str, Any]:
    """Return the fields of a record about the reranked search: its outcome, its times and its counts of vectors.

    Args:
        response: the response with reranking.
        took_s: wall time of the search, in seconds; 0 if it was not run.
    """
    marks = response["rerank"]
    counts = {name: sum(stage.get(name, 0) for stage in marks["stages"]) for name in ("known", "encoded", "lacking")}
    times = {"ms": round(took_s * 1000, 1), "first_pass_ms": marks["first_pass_took_ms"]} if took_s else {}
    outcome = {name: marks[name] for name in ("applied", "reason", "reason_code")}
    return {**outcome, **times, **counts}


def compare_orders(before: Sequence[str], response: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that compare the first ten hits before and after reranking.

    If the search was not reranked, there are no such fields.

    Args:
        before: the ids of the first hits without reranking.
        response: the response with reranking.
    """
    if response["rerank"]["applied"] is False:
        return {}
    after = ids_of(parse_hits(response))
    moves = [_move(hit) for hit in parse_hits(response)[:TOP]]
    return {
        "hits": len(before),
        "after": len(after),
        "overlap": len({*before} & {*after}),
        "first_changed": before[:1] != after[:1],
        "moved": sum(move > 0 for move in moves),
        "farthest": max(moves, default=0),
    }


def _move(hit: Mapping[str, Any]) -> int:
    """Return by how many ranks reranking moved a hit."""
    ranks = [marks["rank"] for marks in hit["_rerank"].values() if isinstance(marks, Mapping) and "rank" in marks]
    return abs(int(ranks[-1]) - int(ranks[0]))


def ids_of(hits: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ids of a page's first ten hits, as ``index/id``."""
    return [f"{hit.get('_index')}/{hit['_id']}" for hit in hits[:TOP]]


def digest_of(text: str) -> str:
    """Return a pseudonymous id of a query or a user key, for records: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
