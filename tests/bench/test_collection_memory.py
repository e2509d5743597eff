"""Peak memory of what reads whole collections: ``pytest -m bench -s tests/bench/test_collection_memory.py``.

Passages are made up, of MS MARCO's lengths. BENCH_FOLDER keeps the files between runs; they take 4 GB.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

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
DUPLICATES = """
import sys
from osrerank.formats.sources import open_sources
from osrerank_loaders.collections.base import read_records
from osrerank_loaders.collections.registry import LOADERS
from osrerank_loaders.load.duplicates import name_duplicates
named = name_duplicates(read_records(LOADERS["msmarco-passage"], open_sources([sys.argv[1]])), shown=5)
assert named == ("'7' (records 8 and " + str(int(sys.argv[2]) + 1) + ")",), named
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


def side_file(folder: Path, queries: int) -> Path:
    """Return what `osrerank rerank` leaves of a mono run: scores of all candidates."""
    path = folder / f"{queries}.run.jsonl"
    if not path.exists():
        with path.open("w") as file:
            file.write(json.dumps({"osrerank_run": 1, "options": {}}) + "\n")
            file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in _records(queries))
    return path


def _records(queries: int) -> Iterator[dict[str, object]]:
    draw = random.Random(2)
    for query in range(queries):
        scores = sorted((draw.gauss(0, 4) for _ in range(DEPTH)), reverse=True)
        before = draw.sample(range(1, DEPTH + 1), DEPTH)
        entries = [
            {
                "doc_id": str(draw.randrange(8_841_823 // DEPTH) * DEPTH + first - 1),
                "score": 1 + rank / DEPTH,
                "first_pass": {"score": 20 - first / DEPTH, "rank": first},
                "stages": {"mono": {"score": score, "rank": rank, "logit": score, "probability": 0.5}},
            }
            for rank, (score, first) in enumerate(zip(scores, before, strict=True), start=1)
        ]
        stages = [{"name": "mono", "candidates": DEPTH, "inferences": DEPTH}]
        yield {"query_id": str(query), "applied": True, "reason": None, "candidates": entries, "stages": stages}


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


@pytest.mark.parametrize("count", DOCUMENTS)
def test_duplicates_of_a_load(folder: Path, count: int) -> None:
    path = folder / f"{count}.repeated.tsv"
    path.write_text(collection(folder, count).read_text() + "7\tanother text\n")
    peak, took_s = timed_peak(DUPLICATES, str(path), str(count))
    print(f"\nduplicates, {count:,} records: peak {peak:.0f} MiB, {took_s:.1f} s")
    path.unlink()


@pytest.mark.parametrize("queries", QUERIES)
def test_reranking_candidates(folder: Path, tmp_path: Path, queries: int) -> None:
    model = str(ROOT / "tests" / "data" / "tiny-bert-one-label")
    arguments = ["--candidates", str(candidates(folder, queries)), "-o", str(tmp_path / "run"), "--depth", "10"]
    peak, took_s = timed_peak(COMMAND, "--model", model, "--backend", "onnx", "rerank", *arguments)
    assert len((tmp_path / "run.jsonl").read_bytes().splitlines()) == queries + 1
    print(f"\nrerank --candidates, {queries:,} queries of {DEPTH:,}: peak {peak:.0f} MiB, {took_s:.1f} s")


@pytest.mark.parametrize("queries", QUERIES)
def test_tradeoff(folder: Path, tmp_path: Path, queries: int) -> None:
    qrels = tmp_path / "qrels"
    run = side_file(folder, queries)
    with run.open() as lines:
        next(lines)
        judged = (json.loads(line) for line in lines)
        qrels.write_text("".join(f"{one['query_id']} 0 {one['candidates'][3]['doc_id']} 1\n" for one in judged))
    peak, took_s = timed_peak(COMMAND, "tradeoff", str(qrels), str(run), "-m", "RR@10")
    print(f"\ntradeoff, {queries:,} queries of {DEPTH:,}: peak {peak:.0f} MiB, {took_s:.1f} s")
