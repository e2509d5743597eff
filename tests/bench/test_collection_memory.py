"""Peak memory of what reads whole collections: ``pytest -m bench -s tests/bench/test_collection_memory.py``.

Passages are made up, of MS MARCO's lengths. BENCH_FOLDER keeps the files between runs; they take 4 GB.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from opensearchpy import OpenSearch

from tests.peak import peak_mib
from tests.servers import ROOT

pytestmark = [
    pytest.mark.bench,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc"),
]

DOCUMENTS = (100_000, 1_000_000)
QUERIES = (1000, 4000)
DEPTH = 1000
LOOKUP = """
import random, sys
from pathlib import Path
from osrerank.training.examples.texts import TextFile
texts = TextFile(Path(sys.argv[1]))
draw = random.Random(1)
assert len(texts) == int(sys.argv[2])
assert all(texts[str(draw.randrange(len(texts)))] for _ in range(10_000))
"""
COMMAND = """
import sys
from osrerank.cli import cli
cli.main(sys.argv[1:], standalone_mode=False)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(os.environ.get("BENCH_FOLDER") or tmp_path_factory.mktemp("collections"))


def collection(folder: Path, count: int) -> Path:
    """Return made-up passages as MS MARCO's collection.tsv."""
    path = folder / f"{count}.tsv"
    if not path.exists():
        script = "tools/collections/synthetic_passages.py"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, script, str(count), str(path)], check=True, cwd=ROOT, env=environment)
    return path


def texts_of(path: Path) -> list[str]:
    with path.open() as file:
        return [line.rstrip("\n").partition("\t")[2] for line in file]


def candidates(folder: Path, queries: int) -> Path:
    """Return a candidate file; every text is another string, as when texts come from a collection."""
    path = folder / f"{queries}.candidates.jsonl"
    if not path.exists():
        texts, draw = texts_of(collection(folder, DOCUMENTS[0])), random.Random(1)
        with path.open("w") as file:
            for query in range(queries):
                chosen = draw.sample(range(len(texts)), DEPTH)
                entries = [
                    {"doc_id": str(doc), "text": texts[doc], "score": 20 - rank / DEPTH}
                    for rank, doc in enumerate(chosen)
                ]
                line = {"query_id": str(query), "query": f"what is {texts[query][:30]}", "candidates": entries}
                file.write(json.dumps(line) + "\n")
    return path


def timed_peak(script: str, *arguments: str) -> tuple[float, float]:
    began = time.perf_counter()
    peak = peak_mib(script, *arguments)
    return peak, time.perf_counter() - began


@pytest.mark.parametrize("count", DOCUMENTS)
def test_texts_of_a_training(folder: Path, count: int) -> None:
    path = collection(folder, count)
    for which in ("first", "second"):
        peak, took_s = timed_peak(LOOKUP, str(path), str(count))
        print(f"\ntexts, {count:,} documents, {which} time: peak {peak:.0f} MiB, {took_s:.1f} s")


@pytest.mark.parametrize("queries", QUERIES)
def test_reranking_candidates(folder: Path, tmp_path: Path, queries: int) -> None:
    model = str(ROOT / "tests" / "data" / "tiny-bert-one-label")
    arguments = ["--candidates", str(candidates(folder, queries)), "-o", str(tmp_path / "run"), "--depth", "10"]
    peak, took_s = timed_peak(COMMAND, "--model", model, "--backend", "onnx", "rerank", *arguments)
    assert len((tmp_path / "run.jsonl").read_bytes().splitlines()) == queries + 1
    print(f"\nrerank --candidates, {queries:,} queries of {DEPTH:,}: peak {peak:.0f} MiB, {took_s:.1f} s")


@pytest.mark.parametrize("count", DOCUMENTS)
def test_a_load(opensearch_url: str, folder: Path, count: int) -> None:
    path, index = collection(folder, count), f"memory-{count}"
    arguments = ["msmarco-passage", str(path), "--index", index, "--url", opensearch_url]
    peak, took_s = timed_peak(COMMAND, "index", *arguments)
    with OpenSearch([opensearch_url]) as client:
        assert client.count(index=index)["count"] == count
        client.indices.delete(index=index)
    print(f"\nindex, {count:,} documents: peak {peak:.0f} MiB, {count / took_s:,.0f} documents a second")
