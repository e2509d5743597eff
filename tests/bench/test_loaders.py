"""Documents a second and peak memory of a load: ``pytest -m bench -s tests/bench/test_loaders.py``."""

import os
import time
from pathlib import Path
from statistics import median

import pytest
from opensearchpy import OpenSearch, helpers

from osrerank_loaders.collections.registry import LOADERS
from osrerank_loaders.load.job import load
from tests.peak import peak_mib

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1200)]

RECORDS = int(os.environ.get("BENCH_RECORDS", "100000"))
WORDS = (
    "presence of communication amid scientific minds was equally important to the success of the project " * 4
).strip()
LOADING = """
import sys
from osrerank.cli import cli
arguments = ["index", "msmarco-passage", sys.argv[1], "--index", "memory-" + sys.argv[2], "--url", sys.argv[3]]
cli.main(arguments, standalone_mode=False)
"""


def collection(path: Path, count: int) -> Path:
    with path.open("w") as file:
        file.writelines(f"{number}\t{number} {WORDS[number % 40 :][:300]}\n" for number in range(count))
    return path


def test_documents_a_second_beside_opensearch_pys_helper(opensearch_url: str, tmp_path: Path) -> None:
    path = collection(tmp_path / "collection.tsv", RECORDS)
    client = OpenSearch([opensearch_url], pool_maxsize=8, timeout=60)

    def with_helper() -> None:
        text = {"type": "text", "analyzer": "english"}
        client.indices.create(index="helper", body={"mappings": {"properties": {"text": text, "title": text}}})
        with path.open(encoding="utf-8") as file:
            rows = (line.rstrip("\n").split("\t") for line in file)
            helpers.bulk(client, ({"_index": "helper", "_id": row[0], "text": row[1], "title": ""} for row in rows))
        client.indices.refresh(index="helper")

    def with_loader() -> None:
        load(client, "loader", LOADERS["msmarco-passage"], [str(path)])

    rates: dict[str, list[float]] = {"loader": [], "helper": []}
    for way, run in (("helper", with_helper), ("loader", with_loader)) * 3:
        began = time.perf_counter()
        run()
        rates[way].append(RECORDS / (time.perf_counter() - began))
        assert client.count(index=way)["count"] == RECORDS
        client.indices.delete(index=way)
    client.close()
    ours, plain = median(rates["loader"]), median(rates["helper"])
    print(f"\n{ours:,.0f} documents/s, helpers.bulk {plain:,.0f}; {ours / plain:.2f} times")


def test_peak_memory_of_a_load(opensearch_url: str, tmp_path: Path) -> None:
    peaks = []
    for count in (100_000, 1_000_000):
        path = collection(tmp_path / f"{count}.tsv", count)
        peaks.append(peak_mib(LOADING, str(path), str(count), opensearch_url))
        with OpenSearch([opensearch_url]) as client:
            assert client.count(index=f"memory-{count}")["count"] == count
            client.indices.delete(index=f"memory-{count}")
    print(f"\nload: peak memory {peaks[0]:.1f} MiB at 100,000 documents, {peaks[1]:.1f} at 1,000,000")
