"""Kill one of two workers of a model in the middle of a query set, and count what the searches return.

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

START_S = 120
"""How often, once a second, the workers are asked whether they are ready."""
LATER = {"mono": 0.2, "duo": 0.7}
"""When a model's worker dies: share of the time of the search before it, after the middle search began."""


def start(model: str, broker: str) -> "subprocess.Popen[bytes]":
    """Start a worker of one thread."""
    command = [sys.executable, "-m", "osrerank", "worker", "--model", model, "--broker-url", broker, "--threads", "1"]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)  # noqa: S603 - our own program


def wait_until_ready(client: Client, question: str, options: Any) -> None:
    """Search until the workers of both models answer; give up after two minutes."""
    for _ in range(START_S):
        marks = client.search(question, index=INDEX, rerank=options)["rerank"]
        if marks["applied"] is True:
            return
        time.sleep(1)
    sys.exit(f"the workers did not answer: {marks['reason']}")


def searched(
    client: Client, questions: Sequence[str], options: Any, victims: Sequence[int] = (), later: float = 0
) -> list[Any]:
    """Search the questions one by one; the victims are killed during the middle one."""
    responses: list[Any] = []
    for number, question in enumerate(questions):
        for victim in victims if number == len(questions) // 2 else ():
            threading.Timer(later * responses[-1][1], os.kill, (victim, signal.SIGKILL)).start()
        begun = time.monotonic()
        response = client.search(question, index=INDEX, size=options["depth"], rerank=options)
        responses.append((response, time.monotonic() - begun))
    return responses


def report(found: Sequence[Any], alone: Sequence[Any]) -> None:
    """Print how many responses are complete, how many are degraded and why, and whether orders are the same."""
    marks = [response["rerank"] for response, _ in found]
    complete = [number for number, one in enumerate(marks) if one["applied"] is True]
    ids = [[[hit["_id"] for hit in response["hits"]["hits"]] for response, _ in part] for part in (found, alone)]
    same = sum(ids[0][number] == ids[1][number] for number in complete)
    print(f"{len(found)} searches answered, {len(complete)} complete, {same} of these in the order without workers")
    for reason, count in Counter(mark["reason"] for mark in marks if mark["applied"] is not True).items():
        print(f"{count} degraded: {reason}")
    seconds = sorted(took for _, took in found)
    middle = found[len(found) // 2][1]
    print(f"seconds of a search: median {seconds[len(seconds) // 2]:.1f}, of the middle one {middle:.1f}", end=", ")
    print(f"most {seconds[-1]:.1f}")


def measure(arguments: argparse.Namespace, folder: str, workers: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Search without workers, then with them, and print what came."""
    sample = Sample.load()
    questions = list(sample.queries.values())[: arguments.queries]
    options = {"pipeline": "mono-duo", "blend": "replace"}
    options |= {"depth": arguments.depth, "duo_depth": arguments.duo_depth}
    models = {"model": arguments.mono, "duo_model": arguments.duo}
    with connect(f"embedded:{folder}", **models) as client:
        index_sample(client, sample)
        alone = searched(client, questions, {**options, "deadline_ms": None})
    url = arguments.redis_url
    with connect(f"embedded:{folder}", backend="workers", redis_url=url, **models) as client:
        wait_until_ready(client, "who is ready", options)
        first = 0 if arguments.kill == "mono" else 2
        victims = [worker.pid for worker in workers[first : first + arguments.killed]]
        options["deadline_ms"] = arguments.deadline_ms
        report(searched(client, questions, options, victims, LATER[arguments.kill]), alone)


def main() -> None:
    """Start the workers, measure, and stop them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mono")
    parser.add_argument("duo")
    parser.add_argument("--redis-url", required=True)
    parser.add_argument("--kill", choices=("mono", "duo"), default="duo", help="the model whose worker is killed")
    parser.add_argument("--killed", type=int, choices=(1, 2), default=1, help="how many of its workers")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--deadline-ms", type=float, help="of a search; none if not given")
    parser.add_argument("--depth", type=int, default=30)
    parser.add_argument("--duo-depth", type=int, default=6)
    arguments = parser.parse_args()
    models = (arguments.mono, arguments.mono, arguments.duo, arguments.duo)
    workers = [start(model, arguments.redis_url) for model in models]
    try:
        with tempfile.TemporaryDirectory() as folder:
            measure(arguments, folder, workers)
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()


if __name__ == "__main__":
    main()
