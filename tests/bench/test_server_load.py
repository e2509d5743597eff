"""What the rerank server answers while it is fully loaded, and what hostile bodies cost it.

make bench TEST_OPTIONS="-k server_load -s"
"""

import contextlib
import gzip
import http.client
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osrerank.cli.demo import Sample
from tests.serving import serving

pytestmark = pytest.mark.bench
CALLERS, DOCUMENTS, PROBES = 8, 100, 200
DEEP = 200_000


def asked(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, float, bytes]:
    """Return a request's status, milliseconds and answer."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    with contextlib.closing(connection):
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, 1000 * (time.perf_counter() - began), content


def memory_mb(process: subprocess.Popen[bytes], name: str = "VmHWM") -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split(f"{name}:")[1].split()[0]) / 1024


@contextlib.contextmanager
def full_load(port: int) -> Iterator[list[int]]:
    """Keep callers asking for scores of new texts; yield the statuses of what was answered."""
    over, statuses = threading.Event(), list[int]()
    texts = [document["text"] for document in Sample.load().documents]

    def call(number: int) -> None:
        asks = 0
        while not over.is_set():
            asks += 1
            first = (number * 977 + asks * DOCUMENTS) % len(texts)
            documents = [f"{number} {asks} {text}" for text in (texts * 2)[first : first + DOCUMENTS]]
            body = json.dumps({"query": "low blood pressure", "documents": documents}).encode()
            statuses.append(asked(port, "POST", "/v1/rerank", body)[0])

    threads = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    try:
        yield statuses
    finally:
        over.set()
        for thread in threads:
            thread.join()


def bodies() -> dict[str, tuple[bytes, dict[str, str]]]:
    """Return hostile bodies by name, with their headers."""
    plain: dict[str, Any] = {
        "300,000 numbers": {"query": "q", "documents": list(range(300_000))},
        "300,000 objects": {"query": "q", "documents": [{"a": 1}] * 300_000},
    }
    made = {name: (json.dumps(content).encode(), {}) for name, content in plain.items()}
    made["deep nesting"] = (b'{"query": "q", "documents": ' + b"[" * DEEP + b"]" * DEEP + b"}", {})
    made["a huge number"] = (b'{"query": "q", "documents": ["d"], "top_n": ' + b"9" * 1_000_000 + b"}", {})
    bomb = gzip.compress(b'{"query": "' + b"a" * (1 << 30) + b'"}', 9)
    return {**made, "1 GiB of gzip": (bomb, {"Content-Encoding": "gzip"})}


def test_server_load(tmp_path: Path) -> None:
    with serving(tmp_path / "log", environment={"OSRERANK_STATES": "off"}) as (process, port):
        for name, (body, headers) in bodies().items():
            answers = [asked(port, "POST", "/v1/rerank", body, **headers) for _ in range(3)]
            milliseconds = sorted(spent for _, spent, _ in answers)
            status, _, content = answers[0]
            spent = f"{status} in {milliseconds[1]:.0f} ms (median of 3), {len(content)} bytes"
            print(f"\nidle, {name}: {spent}; peak {memory_mb(process):.0f} MB", end="")
            assert all(400 <= status < 500 for status, _, _ in answers)
        with full_load(port) as statuses:
            for path in ("/health", "/live", "/ready"):
                spent = [asked(port, "GET", path)[1] for _ in range(PROBES)]
                p50, p95 = np.percentile(spent, [50, 95])
                print(f"\nloaded, {path}: p50 {p50:.1f}, p95 {p95:.1f}, slowest {max(spent):.1f} ms", end="")
            for name, (body, headers) in bodies().items():
                status, spent_ms, _ = asked(port, "POST", "/v1/rerank", body, **headers)
                print(f"\nloaded, {name}: {status} in {spent_ms:.0f} ms", end="")
            statuses_before = list(statuses)
        print(f"\nmeanwhile {len(statuses_before)} requests of {DOCUMENTS}, statuses {sorted(set(statuses_before))}")
        assert statuses_before
        assert set(statuses_before) <= {200, 429}
