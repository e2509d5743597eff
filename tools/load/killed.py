"""Search a whole query set with `mono-duo` while workers serve both models, kill one worker of each, and compare.

python tools/load/killed.py MONO DUO --broker-url redis://localhost:6379/0 [--queries 100]

Two workers of each model run on this machine, a thread each. After a third of the queries a worker of MONO is killed,
after two thirds one of DUO. Each response must have the order that this process alone computes. Nothing
is cached.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from osrerank import Client, connect
from osrerank.cli.demo import INDEX, Sample, index_sample

OPTIONS: Mapping[str, Any] = {"pipeline": "mono-duo", "depth": 30, "duo_depth": 10, "blend": "replace"}
WORKERS = 2
STARTED_S = 120.0


@contextmanager
def worker(model: str, broker_url: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a worker of one thread."""
    command = [sys.executable, "-m", "osrerank", "worker", "--model", model, "--broker-url", broker_url]
    process = subprocess.Popen([*command, "--threads", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603 - our own command
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def search(client: Client, query: str) -> tuple[list[str], Mapping[str, Any], float]:
    """Return the order, what the response says of it, and the seconds that it took."""
    began = time.perf_counter()
    response = client.search(query, index=INDEX, size=OPTIONS["depth"], rerank=dict(OPTIONS))  # type: ignore[arg-type]
    return [hit["_id"] for hit in response["hits"]["hits"]], response["rerank"], time.perf_counter() - began


def await_workers(client: Client, query: str) -> None:
    """Search until all stages were applied.

    Raises:
        TimeoutError: the workers did not start.
    """
    ends_at = time.monotonic() + STARTED_S
    while search(client, query)[1]["applied"] is not True:
        if time.monotonic() > ends_at:
            raise TimeoutError("the workers did not start in time")
        time.sleep(1)


def measured(
    models: Any, broker_url: str, queries: Sequence[str]
) -> tuple[list[tuple[bool, bool]], list[float], Sequence[int]]:
    """Search while workers are killed.

    Args:
        models: names of both, as `connect` takes them.
        broker_url: of the Redis where client and workers meet.
        queries: texts.

    Returns:
        For each query whether its order is complete, and whether it is the expected one; its seconds; and before which
        queries a worker was killed.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        url = f"embedded:{folder}"
        with closing(connect(url, **models)) as here:
            index_sample(here, Sample.load())
            expected = [search(here, query)[0] for query in queries]
        running = {
            name: [stack.enter_context(worker(model, broker_url)) for _ in range(WORKERS)]
            for name, model in models.items()
        }
        client = stack.enter_context(closing(connect(url, **models, backend="workers")))
        await_workers(client, queries[0])
        kills = {len(queries) // 3: running["model"][0], 2 * len(queries) // 3: running["duo_model"][0]}
        found, seconds = [], []
        for at, query in enumerate(queries):
            if at in kills:
                kills[at].kill()
            order, told, took_s = search(client, query)
            found.append((told["applied"] is True, order == expected[at]))
            seconds.append(took_s)
        return found, seconds, tuple(kills)


def main() -> None:
    """Print how many orders were complete and equal, and the median time before and after each kill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mono", help="a cross-encoder, named as for --model")
    parser.add_argument("duo", help="a duo model")
    parser.add_argument("--broker-url", required=True)
    parser.add_argument("--queries", type=int, default=100)
    options = parser.parse_args()
    os.environ |= {"OSRERANK_THREADS": "1", "OSRERANK_CACHE_LOCAL_MB": "0", "OSRERANK_BROKER_URL": options.broker_url}
    queries = list(Sample.load().queries.values())[: options.queries]
    models: Any = {"model": options.mono, "duo_model": options.duo}
    found, seconds, kills = measured(models, options.broker_url, queries)
    parts = [sorted(seconds[part : part + len(queries) // 3]) for part in (0, *kills)]
    figures = {
        "queries": len(queries),
        "complete": sum(complete for complete, _ in found),
        "same_order": sum(same for _, same in found),
        "median_s": [round(part[len(part) // 2], 3) for part in parts],
        "longest_s": [round(part[-1], 3) for part in parts],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
