"""A client process: searches that it is told to make, and what came of each, as JSON lines on standard output."""

import asyncio
import contextlib
import contextvars
import inspect
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from osrerank import connect
from osrerank.aio import connect_async

FIRST_PASS_S: contextvars.ContextVar[list[float]] = contextvars.ContextVar("FIRST_PASS_S")
"""Seconds of each request to OpenSearch of the search that runs."""
WRITING = threading.Lock()


def timed(client: Any) -> Any:
    """Let a client's transport note how long each of its requests took."""
    perform = client.transport.perform_request

    def noted(*args: Any, **kwargs: Any) -> Any:
        started = time.monotonic()
        try:
            return perform(*args, **kwargs)
        finally:
            FIRST_PASS_S.get([]).append(time.monotonic() - started)

    async def noted_async(*args: Any, **kwargs: Any) -> Any:
        started = time.monotonic()
        try:
            return await perform(*args, **kwargs)
        finally:
            FIRST_PASS_S.get([]).append(time.monotonic() - started)

    client.transport.perform_request = noted_async if inspect.iscoroutinefunction(perform) else noted
    return client


def outcome(job: dict[str, Any], started: float, response: Any, error: Exception | None) -> None:
    """Print what came of a search."""
    ended = time.monotonic()
    record: dict[str, Any] = {"number": job["number"], "ms": 1000 * (ended - started)}
    record["first_pass_ms"] = 1000 * sum(FIRST_PASS_S.get())
    if error is not None:
        record["error"] = [f"{type(error).__module__}.{type(error).__name__}", str(error)[:200]]
        record["is_opensearch"] = type(error).__module__.startswith("opensearchpy")
    else:
        record["hits"] = [
            (hit["_id"], (hit.get("_rerank") or {}).get("mono", {}).get("logit")) for hit in response["hits"]["hits"]
        ]
        record["rerank"] = {name: response["rerank"].get(name) for name in ("applied", "reason")}
    say(record)


def say(record: dict[str, Any]) -> None:
    """Write a line for whoever started this process; an empty record says that it is ready."""
    with WRITING:
        sys.stdout.write(json.dumps(record) + "\n")
        sys.stdout.flush()


def arguments(job: dict[str, Any]) -> dict[str, Any]:
    FIRST_PASS_S.set([])
    return {name: job[name] for name in ("query", "index", "size", "rerank")}


def search_sync(client: Any, job: dict[str, Any]) -> None:
    search_arguments, started, response, error = arguments(job), time.monotonic(), None, None
    try:
        response = client.search(**search_arguments)
    except Exception as caught:  # noqa: BLE001 - judged by whoever reads it
        error = caught
    outcome(job, started, response, error)


async def search_async(client: Any, job: dict[str, Any]) -> None:
    search_arguments, started, response, error = arguments(job), time.monotonic(), None, None
    try:
        response = await client.search(**search_arguments)
    except Exception as caught:  # noqa: BLE001 - judged by whoever reads it
        error = caught
    outcome(job, started, response, error)


def run_sync(given: dict[str, Any]) -> None:
    client = timed(connect(given["url"], **given["options"]))
    with contextlib.suppress(Exception):  # load the model and make connections, as far as that is possible now
        client.warm_up()
    say({})
    with ThreadPoolExecutor(given["slots"]) as threads:
        for line in sys.stdin:
            threads.submit(search_sync, client, json.loads(line))
    client.close()


async def run_async(given: dict[str, Any]) -> None:
    client = timed(connect_async(given["url"], **given["options"]))
    with contextlib.suppress(Exception):
        await client.warm_up()
    say({})
    running: set[asyncio.Task[None]] = set()
    while line := await asyncio.to_thread(sys.stdin.readline):
        running.add(task := asyncio.create_task(search_async(client, json.loads(line))))
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    await client.close()


def main() -> None:
    """Search until standard input ends."""
    content = json.loads(sys.argv[1])
    if content["is_async"]:
        asyncio.run(run_async(content))
    else:
        run_sync(content)


if __name__ == "__main__":
    main()
