"""Measure what shadow mode costs the searches that are answered: an open loop at half of the machine's load.

python tools/load/shadow.py --seconds 20 --url http://localhost:9200

The default model runs in this process, over documents of the demo's sample. Without an address, the embedded engine
does, too: then first passes and reranking share one interpreter, which is the worst case. The load is half of the first
passes that the machine does at most. Latencies count from when a search was due, so that one that waits for a thread is
late.
"""

import argparse
import gzip
import itertools
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import osrerank
from osrerank import Client, connect
from osrerank.decision.use.shadow import percentiles, read_report
from osrerank.indexing.build import build_vectors

SAMPLE = Path(osrerank.__file__).parent / "data" / "squad"
INDEX = "sample"
QUERIES = [line.split("\t")[1] for line in (SAMPLE / "queries.tsv").read_text("utf-8").splitlines()]
THREADS = 8
PLAIN = "first pass alone"
MODES: dict[str, Any] = {
    PLAIN: False,
    "shadow": {"traffic": {"shadow": True}},
    "shadow, share 0.1": {"traffic": {"shadow": True, "share": 0.1}},
}


def fill(client: Client, documents: int) -> None:
    """Index documents of the sample, and build their vectors."""
    with gzip.open(SAMPLE / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        bodies = [json.loads(line) for line in itertools.islice(lines, documents)]
    for number, body in enumerate(bodies):
        client.index(index=INDEX, id=str(number), body={name: body[name] for name in ("title", "text")})
    client.indices.refresh(index=INDEX)
    build_vectors(client, INDEX)


def capacity(search: Callable[[int], object], seconds: float) -> float:
    """Return how many searches a second the machine does at most, from as many threads as it has cores."""
    ends_at, counts = time.monotonic() + seconds, []

    def work(first: int) -> None:
        done = 0
        while time.monotonic() < ends_at:
            search(first + done)
            done += 1
        counts.append(done)

    threads = [threading.Thread(target=work, args=(1000 * at,)) for at in range(os.cpu_count() or 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def open_loop(search: Callable[[int], object], rate: float, seconds: float) -> list[float]:
    """Return the latencies of searches that come at a rate, in milliseconds from when each was due."""
    latencies: list[float] = []
    begins = time.monotonic()

    def one(number: int, due_at: float) -> None:
        search(number)
        latencies.append((time.monotonic() - due_at) * 1000)

    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(int(rate * seconds)):
            due_at = begins + number / rate
            time.sleep(max(0.0, due_at - time.monotonic()))
            pool.submit(one, number, due_at)
    return latencies


def compare(client: Client, rerank: Any, records: Path, load: Callable[[Callable[[int], object]], list[float]]) -> str:
    """Return what a mode's searches took, and what became of those in shadow, as a line."""
    client.warm_up()
    records.unlink(missing_ok=True)
    loaded = load(lambda number: search(client, number, rerank))
    client.searcher.shadows.close()
    said = ", ".join(f"{percentile} {value:.1f} ms" for percentile, value in percentiles(loaded).items())
    row = f"{len(loaded):6,} answered, {said}"
    if records.exists():
        report = read_report([records])
        again = percentiles(report.ms)
        row += f"; {report.searches:,} recorded, {report.dropped:,} dropped, run again p50 {again['p50']:.0f} ms"
    return row


def search(client: Client, number: int, rerank: Any) -> Any:
    """Search one of the sample's queries."""
    return client.search(QUERIES[number % len(QUERIES)], index=INDEX, rerank=rerank)


def main() -> None:
    """Print a row for each mode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="the index sample of an OpenSearch, which is made anew")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--rate", type=float, default=0.0, help="searches a second; 0 for half of what is possible")
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        records, url = Path(folder) / "shadow.jsonl", arguments.url or f"embedded:{folder}/engine"
        os.environ |= {"OSRERANK_VECTORS_FOLDER": f"{folder}/vectors", "OSRERANK_SHADOW_FILE": str(records)}
        with connect(url) as client:
            client.indices.delete(index=f"{INDEX},osrerank-vectors-{INDEX}", ignore=[404])
            fill(client, arguments.documents)
            most = capacity(lambda number: search(client, number, MODES[PLAIN]), 5.0)
        rate = arguments.rate or most / 2
        print(f"load {os.getloadavg()[0]:.1f}; {most:.0f} first passes a second at most; {rate:.0f} a second come")
        for name, rerank in list(MODES.items()) * arguments.rounds:
            with connect(url) as client:
                row = compare(client, rerank, records, lambda one: open_loop(one, rate, arguments.seconds))
            print(f"{name:18} {row}; load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
