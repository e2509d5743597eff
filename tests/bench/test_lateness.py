"""How late answers come: searches over texts of 10 to 1,000,000 characters, cut in every way, with deadlines.

BENCH_SEARCHES=1000 make bench TEST_OPTIONS="-k lateness -s"

Each search has 20 texts that nobody knows. The lateness is what its answer takes beyond the deadline; the work of a
single text, which no deadline stops, is measured beside it.
"""

import os
import random
import time

import numpy as np
import pytest

from osrerank import connect

pytestmark = [pytest.mark.bench, pytest.mark.timeout(7200)]

SEARCHES = int(os.environ.get("BENCH_SEARCHES", "100"))
WAYS = (
    {},
    {"passages": "off"},
    {"passages": "maxp"},
    {"passages": {"limit": 10_000}},
    {"passages": {"policy": "sampled"}},
    {"passages": {"least_words": 10**6}},
    {"sentences": True},
    {"sentences": {"chunks": "tokens"}},
    {"sentences": {"splitter": "punkt"}},
    {"sentences": {"limit": 10}},
)
DEADLINES_MS = (20, 50, 100, 200, 500, 1000)
LENGTHS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
WORDS = ["Blood", "pressure", "salt", "diet.", "Heart", "artery", "vein", "nurse", "doctor,", "clinic", "trial!"]


def text(draw: random.Random, characters: int) -> str:
    return " ".join(draw.choices(WORDS, k=characters // 7 + 1))


@pytest.mark.parametrize("model", ["tests/data/tiny-bert-one-label", "osrerank/e5-small"])
def test_lateness(model, tmp_path, monkeypatch):
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    draw = random.Random(1)
    client = connect(f"embedded:{tmp_path}", model=model, backend="onnx" if "/data/" in model else None, warm=True)
    for way in WAYS:
        client.rerank("salt", ["low salt."], options=way)
    late_ms: dict[str, list[float]] = {}
    for number in range(SEARCHES):
        way, deadline_ms = WAYS[number % len(WAYS)], draw.choice(DEADLINES_MS)
        lengths = [draw.choice(LENGTHS)] * 20 if draw.random() < 0.5 else draw.choices(LENGTHS, k=20)
        hits = [
            {"_id": str(at), "_score": 20.0 - at, "_source": {"text": text(draw, length)}}
            for at, length in enumerate(lengths)
        ]
        response = {"took": 1, "hits": {"hits": hits}}
        started = time.perf_counter()
        client.rerank_response(response, f"salt diet {number}", options={"deadline_ms": deadline_ms, **way})
        late_ms.setdefault(str(way), []).append(1000 * (time.perf_counter() - started) - deadline_ms)
    client.close()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, late in (*late_ms.items(), ("all", [one for some in late_ms.values() for one in some])):
        shares = " ".join(f"{value:8.0f}" for value in np.percentile(late, (50, 90, 99, 100)))
        print(f"{model} {name:40} {len(late):5} searches, ms late at 50, 90, 99, 100%: {shares}")
