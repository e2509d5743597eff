"""Measure how many searches are fully reranked while an index is built, with and without reports of what they lacked.

::

    python tools/collections/lacking.py http://localhost:9200 squad/train-v1.1.json FOLDER

The index has the paragraphs of SQuAD. Two clients, each with a file of its own, send a question a second; a question is
drawn by Zipf's law. Encoders are stand-ins that sleep: the builder encodes 125 documents a second, each client 4 or 20.
A row has the share of the vectors that are stored, the searches, and which share of them was fully reranked.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from osrerank import connect
from osrerank.indexing.build import build_vectors
from osrerank.search.vectors import SideVectors
from osrerank.types import NEVER, Deadline, Side, Vectors
from tests.letters import Letters

INDEX, SIDE = "lacking-squad", "osrerank-vectors-lacking-squad"
BUILDER_S, CLIENTS_S, CLIENTS, QUERIES, BATCH = 1 / 125, (1 / 4, 1 / 20), 2, 5_000, 4
"""Seconds in which the builder and the clients encode a document, numbers of clients and questions, and a batch."""


class Device(Letters):
    """Encodes a few documents at a time, in a time in proportion to their number."""

    def __init__(self, s_per_text: float) -> None:
        super().__init__()
        self._s_per_text, self._lock = s_per_text, threading.Lock()

    def encode(self, texts: Sequence[str], side: Side, *, deadline: Deadline = NEVER) -> Vectors:
        vectors = super().encode(texts, side)
        if side == "query":
            return vectors
        rows = np.full((len(texts), self.dimensions), np.nan, np.float32)
        for start in range(0, len(texts), BATCH):
            if deadline.passed:
                break
            with self._lock:
                time.sleep(self._s_per_text * len(texts[start : start + BATCH]))
            rows[start : start + BATCH] = vectors.rows[start : start + BATCH]
        return Vectors(rows)


def read_squad(file: Path) -> tuple[list[str], list[str]]:
    """Return the paragraphs and the questions, in an order of chance."""
    paragraphs = [entry for article in json.loads(file.read_text("utf-8"))["data"] for entry in article["paragraphs"]]
    texts = list(dict.fromkeys(entry["context"] for entry in paragraphs))
    questions = list(dict.fromkeys(question["question"].strip() for entry in paragraphs for question in entry["qas"]))
    random.Random(7).shuffle(texts)
    random.Random(1).shuffle(questions)
    return texts, questions[:QUERIES]


def search(url: str, file: Path, folder: Path, number: int, s_per_text: float, *, reports: bool) -> None:
    """Send searches until the file ``stop`` appears; write the time of each, and whether it was fully reranked."""
    if not reports:
        SideVectors.report_steps = lambda _self, _lacking: None  # type: ignore[assignment,method-assign]
    _, questions = read_squad(file)
    weights, chance = list(accumulate(1 / (rank + 1) for rank in range(len(questions)))), random.Random(100 + number)
    with connect(url, scorer=Device(s_per_text), timeout=60) as client, (folder / f"{number}.jsonl").open("w") as log:

        def send(question: str) -> None:
            began_s = time.time()
            applied = client.search(question, index=INDEX, rerank=True)["rerank"]["applied"]
            log.write(f"{json.dumps([began_s, applied is True])}\n")

        threads = []
        while not (folder / "stop").exists():
            question = questions[bisect(weights, chance.random() * weights[-1])]
            threads.append(threading.Thread(target=send, args=(question,)))
            threads[-1].start()
            time.sleep(1)
        for thread in threads:
            thread.join()


def measure(url: str, file: Path, folder: Path, s_per_text: float, *, reports: bool) -> None:
    """Build the index while clients search, and print the shares by the vectors stored."""
    folder.mkdir(parents=True)

    def start(role: str, number: int) -> subprocess.Popen[bytes]:
        arguments = [url, str(file), str(folder), "--role", role, "--number", str(number), "--seconds", str(s_per_text)]
        environment = {**os.environ, "OSRERANK_VECTORS_FOLDER": str(folder / f"{role}-{number}")}
        flags = ["--reports"] if reports else []
        return subprocess.Popen([sys.executable, __file__, *arguments, *flags], env=environment)  # noqa: S603 - ours

    with connect(url, scorer=Letters(), timeout=180) as client:
        client.indices.delete(index=SIDE, ignore_unavailable=True)
        count, progress = client.count(index=INDEX)["count"], list[tuple[float, float]]()
        builder = start("builder", 0)
        while not client.indices.exists(index=SIDE):
            time.sleep(0.5)
        clients = [start("client", number) for number in range(CLIENTS)]
        while builder.poll() is None:
            stored = client.count(index=SIDE, body={"query": {"exists": {"field": "model"}}})["count"]
            progress.append((time.time(), stored / count))
            time.sleep(3)
    (folder / "stop").touch()
    for process in clients:
        process.wait()
    lines = [line for number in range(CLIENTS) for line in (folder / f"{number}.jsonl").read_text().splitlines()]
    searches = [json.loads(line) for line in lines]
    print(f"clients encode {1 / s_per_text:g} documents a second, {'with' if reports else 'without'} reports")
    for fifth in range(5):
        outcomes = [
            is_full
            for began_s, is_full in searches
            if (place := bisect(progress, (began_s,)) - 1) >= 0 and min(4, int(5 * progress[place][1])) == fifth
        ]
        share = sum(outcomes) / max(1, len(outcomes))
        print(f"| {20 * fifth}-{20 * fifth + 20}% | {len(outcomes)} | {share:.2f} |", flush=True)


def main() -> None:
    """Fill the index and measure, or play a role in a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--role", choices=["all", "builder", "client"], default="all", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--reports", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role == "client":
        search(given.url, given.file, given.folder, given.number, given.seconds, reports=given.reports)
    elif given.role == "builder":
        with connect(given.url, scorer=Device(BUILDER_S), timeout=180) as client:
            build_vectors(client, INDEX)
    else:
        texts, _ = read_squad(given.file)
        with connect(given.url, scorer=Letters(), timeout=180) as client:
            client.indices.delete(index=INDEX, ignore_unavailable=True)
            for start in range(0, len(texts), 1_000):
                batch = enumerate(texts[start : start + 1_000], start)
                lines = [line for number, text in batch for line in ({"index": {"_id": str(number)}}, {"text": text})]
                client.bulk(index=INDEX, body=lines, refresh=True)
        for s_per_text in CLIENTS_S:
            for reports in (False, True):
                folder = given.folder / f"{s_per_text:g}-{reports}"
                measure(given.url, given.file, folder, s_per_text, reports=reports)


if __name__ == "__main__":
    main()
