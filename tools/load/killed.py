"""Kill a worker in the middle of a query set, and count the complete and the degraded responses.

python tools/load/killed.py MONO DUO --redis-url redis://localhost:6379/0 --kill duo

Two workers per model score the sample's questions in the pipeline mono-duo. During the middle search, a worker of the
named model is killed (SIGKILL). The orders of complete responses are compared with those of a client without workers.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from osrerank import Client, connect
from osrerank.cli.demo import INDEX, Sample, index_sample

START_TIMEOUT_S = 120
KILL_DELAYS = {"mono": 0.2, "duo": 0.7}
"""The time from the start of the middle search until a model's worker is killed, as a share of the previous search."""


def start_worker(model: str, broker: str) -> "subprocess.Popen[bytes]":
    """Start a worker with one thread."""
    command = [sys.executable, "-m", "osrerank", "worker", "--model", model, "--broker-url", broker, "--threads", "1"]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)  # noqa: S603 - our own program


def wait_until_ready(client: Client, options: Any) -> None:
    """Search until the workers of both models score; exit after `START_TIMEOUT_S` attempts, one per second."""
    for _ in range(START_TIMEOUT_S):
        marks = client.search("who is ready", index=INDEX, rerank=options)["rerank"]
        if marks["applied"] is True:
            return
        time.sleep(1)
    sys.exit(f"the workers are not ready: {marks['reason']}")


def search_all(
    client: Client, questions: Sequence[str], options: Any, victims: Sequence[int] = (), kill_delay: float = 0
) -> list[tuple[Any, float]]:
    """Search the questions one by one, and kill the victims during the middle search.

    Args:
        client: the client.
        questions: the questions.
        options: the options of reranking.
        victims: the process ids of the workers to kill.
        kill_delay: the time from the start of the middle search, as a share of the previous search's.

    Returns:
        Each search's response and time, in seconds.
    """
    results: list[tuple[Any, float]] = []
    for number, question in enumerate(questions):
        if number == len(questions) // 2:
            for victim in victims:
                threading.Timer(kill_delay * results[-1][1], os.kill, (victim, signal.SIGKILL)).start()
        start_s = time.monotonic()
        response = client.search(question, index=INDEX, size=options["depth"], rerank=options)
        results.append((response, time.monotonic() - start_s))
    return results


def report(results: Sequence[tuple[Any, float]], reference: Sequence[tuple[Any, float]]) -> None:
    """Print how many responses are complete, how many are degraded and why, and how many have the reference's order."""
    marks = [response["rerank"] for response, _ in results]
    complete = [number for number, mark in enumerate(marks) if mark["applied"] is True]
    ids, reference_ids = (
        [[hit["_id"] for hit in response["hits"]["hits"]] for response, _ in part] for part in (results, reference)
    )
    n_equal = sum(ids[number] == reference_ids[number] for number in complete)
    print(f"{len(results)} searches, {len(complete)} complete, {n_equal} of these in the order without workers")
    for reason, count in Counter(mark["reason"] for mark in marks if mark["applied"] is not True).items():
        print(f"{count} degraded: {reason}")
    seconds = sorted(took_s for _, took_s in results)
    middle_s = results[len(results) // 2][1]
    median_s = seconds[len(seconds) // 2]
    print(f"seconds per search: median {median_s:.1f}, middle search {middle_s:.1f}, maximum {seconds[-1]:.1f}")


def measure(arguments: argparse.Namespace, folder: str, workers: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Search without workers, then with them, and print a report."""
    sample = Sample.load()
    questions = list(sample.queries.values())[: arguments.queries]
    options = {"pipeline": "mono-duo", "blend": "replace"}
    options |= {"depth": arguments.depth, "duo_depth": arguments.duo_depth}
    models = {"model": arguments.mono, "duo_model": arguments.duo}
    with connect(f"embedded:{folder}", **models) as client:
        index_sample(client, sample)
        reference = search_all(client, questions, {**options, "deadline_ms": None})
    url = arguments.redis_url
    with connect(f"embedded:{folder}", backend="workers", redis_url=url, **models) as client:
        wait_until_ready(client, options)
        first = 0 if arguments.kill == "mono" else 2
        victims = [worker.pid for worker in workers[first : first + arguments.killed]]
        options["deadline_ms"] = arguments.deadline_ms
        report(search_all(client, questions, options, victims, KILL_DELAYS[arguments.kill]), reference)


def main() -> None:
    """Start the workers, measure, and stop them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mono")
    parser.add_argument("duo")
    parser.add_argument("--redis-url", required=True)
    parser.add_argument("--kill", choices=("mono", "duo"), default="duo", help="the model whose worker is killed")
    parser.add_argument("--killed", type=int, choices=(1, 2), default=1, help="number of its workers to kill")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--deadline-ms", type=float, help="deadline of a search; none by default")
    parser.add_argument("--depth", type=int, default=30)
    parser.add_argument("--duo-depth", type=int, default=6)
    arguments = parser.parse_args()
    models = (arguments.mono, arguments.mono, arguments.duo, arguments.duo)
    workers = [start_worker(model, arguments.redis_url) for model in models]
    try:
        with tempfile.TemporaryDirectory() as folder:
            measure(arguments, folder, workers)
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()


if __name__ == "__main__":
    main()
