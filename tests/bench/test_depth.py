"""What depth costs: searches of the bundled sample with the model in the package, one at a time, nothing kept.

make bench TEST_OPTIONS="-k depth -s"
"""

import gzip
import json
import statistics
import time

import pytest
from opensearchpy.helpers import bulk

from osrerank import connect
from tests.servers import ROOT

pytestmark = pytest.mark.bench

SAMPLE = ROOT / "osrerank" / "data" / "squad"
QUESTIONS = 20
DEPTHS = (10, 30, 100)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSRERANK_VECTORS", "off")
        yield from filled(tmp_path_factory)


def filled(tmp_path_factory):
    with connect(f"embedded:{tmp_path_factory.mktemp('depth')}") as made:
        lines = gzip.decompress((SAMPLE / "corpus.jsonl.gz").read_bytes()).splitlines()
        documents = [json.loads(line) for line in lines]
        bulk(made, ({"_index": "squad", "_id": one.pop("id"), **one} for one in documents), refresh=True)
        made.warm_up()
        yield made


def test_depth(client):
    questions = [line.split("\t")[1] for line in (SAMPLE / "queries.tsv").read_text().splitlines()[:QUESTIONS]]
    print(f"\n{'depth':>6} {'median ms':>10} {'p95 ms':>8}")
    for depth in (0, *DEPTHS):
        rerank = {"depth": depth} if depth else False
        times_ms = []
        for question in questions:
            began = time.perf_counter()
            response = client.search(question, index="squad", rerank=rerank)
            times_ms.append((time.perf_counter() - began) * 1000)
            assert not depth or response["rerank"]["stages"][0]["candidates"] <= depth
        ninety_five = sorted(times_ms)[round(0.95 * len(times_ms)) - 1]
        print(f"{depth:>6} {statistics.median(times_ms):>10.0f} {ninety_five:>8.0f}")
