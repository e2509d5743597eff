"""Speed and memory of the loaders. Printed; run with ``pytest -m bench -s tests/bench/test_loaders.py``.

The readers' rate is compared with ir_datasets' where that is installed, on the same synthesised file.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import cbor2
import pytest
from opensearchpy import OpenSearch, helpers

from osrerank.formats.sources import open_sources
from osrerank_loaders.collections.base import read_records
from osrerank_loaders.collections.registry import LOADERS
from osrerank_loaders.load.job import load
from tests.peak import peak_mib

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1200)]

RECORDS = int(os.environ.get("BENCH_RECORDS", "500000"))
WORDS = (
    "presence of communication amid scientific minds was equally important to the success of the project " * 4
).strip()


def passage(number: int) -> str:
    begin = number % 40
    return f"{number} {WORDS[begin : begin + 300]}"


def tsv(number: int) -> bytes:
    return f"{number}\t{passage(number)}\n".encode()


def passage_v2(number: int) -> bytes:
    row = {"pid": f"msmarco_passage_00_{number}", "passage": passage(number), "spans": "(0,9),(10,300)", "docid": "d"}
    return json.dumps(row).encode() + b"\n"


def beir(number: int) -> bytes:
    return (
        json.dumps({"_id": str(number), "title": "A title", "text": passage(number), "metadata": {}}).encode() + b"\n"
    )


def sgml(number: int) -> bytes:
    text = f"<TEXT>\n{passage(number)}\n</TEXT>"
    return f"<DOC>\n<DOCNO> N{number} </DOCNO>\n<HEADLINE>A title</HEADLINE>\n{text}\n</DOC>\n".encode()


def paragraph(number: int) -> bytes:
    link = [1, [0, "Page", [], b"Page", "anchor"]]
    return cbor2.dumps([0, f"{number:040x}".encode(), [[0, passage(number)[:150]], link, [0, passage(number)[150:]]]])


FORMATS: dict[str, Callable[[int], bytes]] = {
    "msmarco-passage": tsv,
    "msmarco-v2-passage": passage_v2,
    "beir": beir,
    "trec": sgml,
    "trec-car": paragraph,
}


def synthesised(path: Path, record: Callable[[int], bytes], count: int) -> Path:
    with path.open("wb") as file:
        for number in range(count):
            file.write(record(number))
    return path


def rate(records: Iterable[Any], expected: int, began: float) -> float:
    assert sum(1 for _record in records) == expected
    return expected / (time.perf_counter() - began)


def ours(name: str, path: Path) -> Iterator[Any]:
    return read_records(LOADERS[name], open_sources([str(path)]))


def theirs(name: str, path: Path) -> Iterator[Any]:
    ir_datasets = pytest.importorskip("ir_datasets")
    from ir_datasets.datasets import car, msmarco_passage_v2
    from ir_datasets.formats import JsonlDocs, TrecDocs, TsvDocs

    local = ir_datasets.util.LocalDownload(path)
    if name == "msmarco-passage":
        return TsvDocs(local).docs_iter()
    if name == "msmarco-v2-passage":
        return map(msmarco_passage_v2.parse_msmarco_passage, _lines(path))
    if name == "beir":
        return JsonlDocs(local, mapping={"doc_id": "_id", "text": "text"}).docs_iter()
    if name == "trec":
        return TrecDocs(local).docs_iter()
    return car.CarDocs(local).docs_iter()


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


@pytest.mark.parametrize("name", FORMATS)
def test_reader(tmp_path: Path, name: str) -> None:
    count = RECORDS if name != "trec" else RECORDS // 10  # ir_datasets reads it with BeautifulSoup
    path = synthesised(tmp_path / "file", FORMATS[name], count)
    rates = [
        median(rate(read(name, path), count, time.perf_counter()) for _round in range(3)) for read in (ours, theirs)
    ]
    print(f"\n{name}: {rates[0]:,.0f} records/s, ir_datasets {rates[1]:,.0f}; {rates[0] / rates[1]:.2f} times")


def test_end_to_end(opensearch_url: str, tmp_path: Path) -> None:
    count = RECORDS // 5
    path = synthesised(tmp_path / "collection.tsv", tsv, count)
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
        rates[way].append(count / (time.perf_counter() - began))
        assert client.count(index=way)["count"] == count
        client.indices.delete(index=way)
    client.close()
    ours_per_s, plain = median(rates["loader"]), median(rates["helper"])
    print(f"\n{ours_per_s:,.0f} documents/s, helpers.bulk {plain:,.0f}; {ours_per_s / plain:.2f} times")


READING = """
import sys
from osrerank_loaders.collections.base import read_records
from osrerank_loaders.load.bulk import BulkOptions
from osrerank_loaders.load.reading import Reading
from osrerank_loaders.collections.registry import LOADERS
from osrerank.formats.sources import open_sources
reading = Reading(read_records(LOADERS["msmarco-passage"], open_sources([sys.argv[1]])))
assert sum(len(batch.entries) for batch in reading.batches(BulkOptions())) == int(sys.argv[2])
"""
LOADING = """
import sys
from osrerank.cli import cli
arguments = ["index", "msmarco-passage", sys.argv[1], "--index", "memory-" + sys.argv[2], "--url", sys.argv[3]]
cli.main(arguments, standalone_mode=False)
"""


def test_peak_memory_of_reading(tmp_path: Path) -> None:
    peaks = []
    for count in (100_000, 1_000_000):
        path = synthesised(tmp_path / f"{count}.tsv", tsv, count)
        peaks.append(peak_mib(READING, str(path), str(count)))
    print(f"\nreading: peak memory {peaks[0]:.1f} MiB at 100,000 records, {peaks[1]:.1f} at 1,000,000")


def test_peak_memory_of_a_load(opensearch_url: str, tmp_path: Path) -> None:
    peaks = []
    for count in (100_000, 1_000_000):
        path = synthesised(tmp_path / f"{count}.tsv", tsv, count)
        peaks.append(peak_mib(LOADING, str(path), str(count), opensearch_url))
        with OpenSearch([opensearch_url]) as client:
            assert client.count(index=f"memory-{count}")["count"] == count
            client.indices.delete(index=f"memory-{count}")
    print(f"\nload: peak memory {peaks[0]:.1f} MiB at 100,000 documents, {peaks[1]:.1f} at 1,000,000")
