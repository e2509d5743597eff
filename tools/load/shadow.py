"""Measure how shadow mode, which repeats searches with reranking in the background, slows the searches of users.

python tools/load/shadow.py --seconds 20 --url http://localhost:9200

The default model runs in this process, on documents of the demo's sample. Without --url, the embedded engine also runs
in this process, which is the worst case. Searches are sent at half of the maximum rate of first passes. A latency is
measured from the time at which the search was due, even if no thread was free then.
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from osrerank import Client, connect
from osrerank.cli.demo import Sample
from osrerank.decision.use.shadow import percentiles, read_report
from osrerank.indexing.build import build_vectors

SAMPLE = Sample.load()
INDEX = "sample"
QUERIES = list(SAMPLE.queries.values())
THREADS = 8
PLAIN = "first pass alone"
MODES: dict[str, Any] = {
    PLAIN: False,
    "shadow": {"traffic": {"shadow": True}},
    "shadow, share 0.1": {"traffic": {"shadow": True, "share": 0.1}},
}


def fill(client: Client, documents: int) -> None:
    """Index documents of the sample, and build their vectors."""
    for number, body in enumerate(SAMPLE.documents[:documents]):
        client.index(index=INDEX, id=str(number), body={name: body[name] for name in ("title", "text")})
    client.indices.refresh(index=INDEX)
    build_vectors(client, INDEX)


def measure_capacity(search: Callable[[int], object], seconds: float) -> float:
    """Return the maximum number of searches per second, from one thread per core."""
    end_s = time.monotonic() + seconds
    counts: list[int] = []

    def work(first: int) -> None:
        count = 0
        while time.monotonic() < end_s:
            search(first + count)
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=work, args=(1000 * number,)) for number in range(os.cpu_count() or 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def run_open_loop(search: Callable[[int], object], rate: float, seconds: float) -> list[float]:
    """Search at a constant rate; return the latencies in milliseconds from the time at which each search was due."""
    latencies_ms: list[float] = []
    start_s = time.monotonic()

    def run(number: int, due_s: float) -> None:
        search(number)
        latencies_ms.append((time.monotonic() - due_s) * 1000)

    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(int(rate * seconds)):
            due_s = start_s + number / rate
            time.sleep(max(0.0, due_s - time.monotonic()))
            pool.submit(run, number, due_s)
    return latencies_ms


def measure_mode(client: Client, rerank: Any, shadow_file: Path, rate: float, seconds: float) -> str:
    """Return a line with the latencies of a mode, and the number of recorded and dropped shadow searches."""
    client.warm_up()
    shadow_file.unlink(missing_ok=True)
    latencies_ms = run_open_loop(lambda number: search(client, number, rerank), rate, seconds)
    client.searcher.shadows.close()
    latencies = ", ".join(f"{percentile} {ms:.1f} ms" for percentile, ms in percentiles(latencies_ms).items())
    line = f"{len(latencies_ms):6,} searches, {latencies}"
    if shadow_file.exists():
        report = read_report([shadow_file])
        median_ms = percentiles(report.ms)["p50"]
        line += f"; {report.searches:,} recorded, {report.dropped:,} dropped, repeated searches p50 {median_ms:.0f} ms"
    return line


def search(client: Client, number: int, rerank: Any) -> Any:
    """Search one of the sample's queries."""
    return client.search(QUERIES[number % len(QUERIES)], index=INDEX, rerank=rerank)


def main() -> None:
    """Print a line for each mode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="an OpenSearch, whose index sample is deleted and created")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--rate", type=float, default=0.0, help="searches a second; 0: half of the maximum")
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shadow_file, url = Path(folder) / "shadow.jsonl", arguments.url or f"embedded:{folder}/engine"
        os.environ |= {"OSRERANK_VECTORS_FOLDER": f"{folder}/vectors", "OSRERANK_SHADOW_FILE": str(shadow_file)}
        with connect(url) as client:
            client.indices.delete(index=f"{INDEX},osrerank-vectors-{INDEX}", ignore=[404])
            fill(client, arguments.documents)
            max_rate = measure_capacity(lambda number: search(client, number, MODES[PLAIN]), 5.0)
        rate = arguments.rate or max_rate / 2
        print(
            f"load {os.getloadavg()[0]:.1f}; maximum {max_rate:.0f} first passes a second; sending {rate:.0f} a second"
        )
        for name, rerank in list(MODES.items()) * arguments.rounds:
            with connect(url) as client:
                line = measure_mode(client, rerank, shadow_file, rate, arguments.seconds)
            print(f"{name:18} {line}; load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
