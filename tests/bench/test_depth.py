"""What depth costs: searches of the bundled sample with the model in the package, one at a time, nothing kept.

make bench TEST_OPTIONS="-k depth -s"
"""

import statistics
import time

import pytest

from osrerank import connect
from tests.bench.test_vectors import SAMPLE, fill_sample

pytestmark = pytest.mark.bench

QUESTIONS = 20
DEPTHS = (10, 30, 100)


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.setenv("OSRERANK_VECTORS", "off")
    with connect(f"embedded:{tmp_path}") as made:
        fill_sample(made)
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
