"""The embedded engine beside a real OpenSearch: documents a second, latency, memory; same documents and queries."""

import json
import random
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from opensearchpy import OpenSearch

from osrerank import connect

pytestmark = pytest.mark.bench

DOCUMENTS = 100_000
QUERIES = 500


def passages(shared: Path) -> list[str]:
    """Return real passages, and after them shuffles of their halves up to the number wanted."""
    lines = (shared / "msmarco-dl19" / "corpus.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
    real = [json.loads(line)["text"] for line in lines]
    draw = random.Random(1)
    while len(real) < DOCUMENTS:
        left, right = draw.choice(real).split(), draw.choice(real).split()
        real.append(" ".join(left[: len(left) // 2] + right[len(right) // 2 :]))
    return real


def index_all(client: OpenSearch, texts: list[str]) -> float:
    """Return the seconds until all are searchable."""
    client.indices.delete(index="bench", ignore_unavailable=True)
    mappings = {"properties": {"text": {"type": "text", "analyzer": "english"}}}
    client.indices.create(index="bench", body={"settings": {"number_of_shards": 1}, "mappings": mappings})
    began = time.perf_counter()
    for start in range(0, len(texts), 1000):
        lines: list[dict] = []
        for number, text in enumerate(texts[start : start + 1000], start=start):
            lines += [{"index": {"_id": str(number)}}, {"text": text}]
        assert not client.bulk(index="bench", body=lines, request_timeout=120)["errors"]
    client.indices.refresh(index="bench", request_timeout=120)
    return time.perf_counter() - began


def latencies_ms(client: OpenSearch, queries: list[str], size: int) -> list[float]:
    times_ms = []
    for query in queries:
        began = time.perf_counter()
        client.search(index="bench", body={"query": {"match": {"text": query}}, "size": size})
        times_ms.append(1000 * (time.perf_counter() - began))
    return sorted(times_ms)


def clients(url: str, folder: Path) -> Iterator[tuple[str, OpenSearch]]:
    yield "opensearch", connect(url, timeout=120)
    yield "embedded", connect(f"embedded:{folder}")


def test_the_embedded_engine_beside_opensearch_with_100_000_documents(
    opensearch_url: str, tmp_path: Path, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = passages(shared)
    draw = random.Random(2)
    queries = [" ".join(draw.choice(texts).split()[:6]) for _ in range(QUERIES)]
    for name, client in clients(opensearch_url, tmp_path / "engine"):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds = index_all(client, texts)
        latencies_ms(client, queries[:50], 10)
        figures = []
        for size in (10, 1000):
            times_ms = latencies_ms(client, queries, size)
            figures.append(
                f"size {size}: median {statistics.median(times_ms):.1f} ms, "
                f"p99 {times_ms[int(len(times_ms) * 0.99)]:.1f} ms"
            )
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        disk = sum(path.stat().st_size for path in (tmp_path / "engine").rglob("*") if path.is_file()) / 1e6
        memory = (
            f", this process grew by {(after - before) / 1024:.0f} MiB, {disk:.0f} MB on disk"
            if name == "embedded"
            else ""
        )
        with capsys.disabled():
            sys.stdout.write(f"\n{name}: {len(texts) / seconds:.0f} documents/s, {'; '.join(figures)}{memory}\n")
        client.close()
