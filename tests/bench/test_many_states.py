"""The states of 100,000 passages of SQuAD's lengths: time, peak memory and size; then 1,000 searches of each depth.

BENCH_PASSAGES=1000 make bench TEST_OPTIONS="-k many_states -s"

Without BENCH_PASSAGES there are 100,000, and two cores need more than an hour. The passages are sentences of the
bundled sample, drawn anew: as many as a passage of the sample has.
"""

import gzip
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from opensearchpy.helpers import bulk

from osrerank import connect
from osrerank.stages.sentence_splitting import sentence_spans
from tests.bench.test_states import SAMPLE, questions, show, took_ms
from tests.servers import ROOT

pytestmark = [pytest.mark.bench, pytest.mark.timeout(4 * 3600)]

PASSAGES = int(os.environ.get("BENCH_PASSAGES", "100000"))
INDEX = "squad"


def passages() -> Iterator[str]:
    """Yield passages that are all different."""
    texts = [
        json.loads(line)["text"] for line in gzip.decompress((SAMPLE / "corpus.jsonl.gz").read_bytes()).splitlines()
    ]
    divided = [[text[start:end] for start, end in sentence_spans(text, "en", max_words=200)] for text in texts]
    pool = [sentence for sentences in divided for sentence in sentences]
    draw = random.Random(7)
    for _ in range(PASSAGES):
        yield " ".join(draw.choices(pool, k=len(draw.choice(divided))))


def test_many_states(tmp_path, monkeypatch):
    url = f"embedded:{tmp_path / 'engine'}"
    monkeypatch.setenv("OSRERANK_STATES_FOLDER", str(tmp_path / "states"))
    monkeypatch.setenv("OSRERANK_CACHE_LOCAL_MB", "0")
    with connect(url) as client:
        documents = ({"_index": INDEX, "_id": str(number), "text": text} for number, text in enumerate(passages()))
        bulk(client, documents, refresh=True)
    command = [sys.executable, "-m", "osrerank", "--url", url, "--json", "states", "build", "--index", INDEX]
    began = time.perf_counter()
    built = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout
    took_s = time.perf_counter() - began
    found = json.loads(built)
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000
    print(f"\n{found['documents']:,} documents in {took_s:,.0f} s: {found['encoded'] / took_s:.1f} a second")
    print(
        f"peak memory {peak_mb:,.0f} MB; {found['stored'] / 1e6:,.1f} MB, "
        f"{found['stored'] / found['records']:.0f} bytes a passage"
    )
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT)
    print(f"once more, when all are there: {time.perf_counter() - began:,.0f} s")
    with connect(url) as client:
        client.warm_up()
        print(f"{'ms a search':<44} {'median':>9} {'p95':>8} {'p99':>8}")
        for name, rerank in (("BM25", False), ("depth 100", {"depth": 100}), ("depth 1,000", {"depth": 1000})):
            show(name, [took_ms(client, question, rerank) for question in questions()])
