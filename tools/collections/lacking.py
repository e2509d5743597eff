"""Measure how many searches are fully reranked while vectors are built, with and without reports of missing vectors.

::

    python tools/collections/lacking.py http://localhost:9200 squad/train-v1.1.json FOLDER

The index has the paragraphs of SQuAD. Two clients, each with its own vector file, send a question a second, by Zipf's
law. Encoders are fakes that sleep: the builder encodes 125 documents a second, each client 4 or 20. A table row has the
share of stored vectors, the number of searches, and the share of these that was fully reranked.
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
from osrerank.search.side_indices import SideIndices
from osrerank.types import NEVER, Deadline, Side, Vectors
from tests.letters import Letters

INDEX = "lacking-squad"
SIDE_INDEX = "osrerank-vectors-lacking-squad"
"""The index of the vectors."""
BUILDER_S_PER_TEXT = 1 / 125
CLIENT_S_PER_TEXT = (1 / 4, 1 / 20)
CLIENTS = 2
QUERIES = 5_000
BATCH_SIZE = 4


class SlowEncoder(Letters):
    """An encoder that takes a fixed time per document, and encodes one batch at a time."""

    def __init__(self, s_per_text: float) -> None:
        super().__init__()
        self._s_per_text = s_per_text
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str], side: Side, *, deadline: Deadline = NEVER) -> Vectors:
        vectors = super().encode(texts, side)
        if side == "query":
            return vectors
        rows = np.full((len(texts), self.dimensions), np.nan, np.float32)
        for start in range(0, len(texts), BATCH_SIZE):
            if deadline.passed:
                break
            end = start + BATCH_SIZE
            with self._lock:
                time.sleep(self._s_per_text * len(texts[start:end]))
            rows[start:end] = vectors.rows[start:end]
        return Vectors(rows)


def read_squad(file: Path) -> tuple[list[str], list[str]]:
    """Return the paragraphs and the questions, in random order."""
    paragraphs = [entry for article in json.loads(file.read_text("utf-8"))["data"] for entry in article["paragraphs"]]
    texts = list(dict.fromkeys(entry["context"] for entry in paragraphs))
    questions = list(dict.fromkeys(question["question"].strip() for entry in paragraphs for question in entry["qas"]))
    random.Random(7).shuffle(texts)
    random.Random(1).shuffle(questions)
    return texts, questions[:QUERIES]


def search(url: str, file: Path, folder: Path, number: int, s_per_text: float, *, reports: bool) -> None:
    """Send searches until the file ``stop`` appears; write the time of each, and whether it was fully reranked."""
    if not reports:
        SideIndices.report_steps = lambda _self, _lacking: None  # type: ignore[assignment,method-assign]
    _, questions = read_squad(file)
    cumulative = list(accumulate(1 / (rank + 1) for rank in range(len(questions))))
    generator = random.Random(100 + number)
    encoder = SlowEncoder(s_per_text)
    with connect(url, scorer=encoder, timeout=60) as client, (folder / f"{number}.jsonl").open("w") as log:

        def send(question: str) -> None:
            start_s = time.time()
            applied = client.search(question, index=INDEX, rerank=True)["rerank"]["applied"]
            log.write(f"{json.dumps([start_s, applied is True])}\n")

        threads = []
        while not (folder / "stop").exists():
            question = questions[bisect(cumulative, generator.random() * cumulative[-1])]
            threads.append(threading.Thread(target=send, args=(question,)))
            threads[-1].start()
            time.sleep(1)
        for thread in threads:
            thread.join()


def measure(url: str, file: Path, folder: Path, s_per_text: float, *, reports: bool) -> None:
    """Build vectors while clients search, and print the share of fully reranked searches in each fifth of the build."""
    folder.mkdir(parents=True)

    def start_process(role: str, number: int) -> subprocess.Popen[bytes]:
        arguments = [url, str(file), str(folder), "--role", role, "--number", str(number), "--seconds", str(s_per_text)]
        environment = {**os.environ, "OSRERANK_VECTORS_FOLDER": str(folder / f"{role}-{number}")}
        flags = ["--reports"] if reports else []
        return subprocess.Popen([sys.executable, __file__, *arguments, *flags], env=environment)  # noqa: S603 - ours

    with connect(url, scorer=Letters(), timeout=180) as client:
        client.indices.delete(index=SIDE_INDEX, ignore_unavailable=True)
        n_documents = client.count(index=INDEX)["count"]
        progress: list[tuple[float, float]] = []  # times, and shares of stored vectors
        builder = start_process("builder", 0)
        while not client.indices.exists(index=SIDE_INDEX):
            time.sleep(0.5)
        clients = [start_process("client", number) for number in range(CLIENTS)]
        while builder.poll() is None:
            n_stored = client.count(index=SIDE_INDEX, body={"query": {"exists": {"field": "model"}}})["count"]
            progress.append((time.time(), n_stored / n_documents))
            time.sleep(3)
    (folder / "stop").touch()
    for process in clients:
        process.wait()
    lines = [line for number in range(CLIENTS) for line in (folder / f"{number}.jsonl").read_text().splitlines()]
    searches = [json.loads(line) for line in lines]
    print(f"clients encode {1 / s_per_text:g} documents a second, {'with' if reports else 'without'} reports")
    outcomes: list[list[bool]] = [[] for _fifth in range(5)]
    for start_s, is_full in searches:
        index = bisect(progress, (start_s,)) - 1
        if index >= 0:
            outcomes[min(4, int(5 * progress[index][1]))].append(is_full)
    for fifth, fulls in enumerate(outcomes):
        share = sum(fulls) / max(1, len(fulls))
        print(f"| {20 * fifth}-{20 * fifth + 20}% | {len(fulls)} | {share:.2f} |", flush=True)


def main() -> None:
    """Index the paragraphs and measure, or run as one of the measurement's processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--role", choices=["all", "builder", "client"], default="all", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--reports", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "client":
        search(options.url, options.file, options.folder, options.number, options.seconds, reports=options.reports)
    elif options.role == "builder":
        with connect(options.url, scorer=SlowEncoder(BUILDER_S_PER_TEXT), timeout=180) as client:
            build_vectors(client, INDEX)
    else:
        texts, _ = read_squad(options.file)
        with connect(options.url, scorer=Letters(), timeout=180) as client:
            client.indices.delete(index=INDEX, ignore_unavailable=True)
            for start in range(0, len(texts), 1_000):
                batch = enumerate(texts[start : start + 1_000], start)
                lines = [line for number, text in batch for line in ({"index": {"_id": str(number)}}, {"text": text})]
                client.bulk(index=INDEX, body=lines, refresh=True)
        for s_per_text in CLIENT_S_PER_TEXT:
            for reports in (False, True):
                folder = options.folder / f"{s_per_text:g}-{reports}"
                measure(options.url, options.file, folder, s_per_text, reports=reports)


if __name__ == "__main__":
    main()
