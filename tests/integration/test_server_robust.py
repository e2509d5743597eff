"""`osrerank serve` in a process of its own: bad, slow and aborted requests, many connections, and the way it ends."""

import asyncio
import contextlib
import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.servers import ROOT
from tests.serving import is_ready, serving
from tests.workers import TINY

GOOD = json.dumps({"query": "cat", "documents": ["a cat", "a dog"]}).encode()
PATHS = ("/v1/rerank", "/rerank", "/hf/rerank", "/invocations", "/score", "/", "/predict")
GROWTH_MB = 150
"""Most that the resident memory may grow: a body of 32 MB and what is made of it."""


@pytest.fixture
def server(tmp_path):
    with serving(tmp_path / "log", "--model", TINY, "--backend", "onnx") as (process, port):
        yield process, port, tmp_path / "log"


def held_documents(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return float(re.search(rb"^osrerank_http_held_documents (\S+)", answer.read(), re.MULTILINE).group(1))


def memory_mb(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def send(port, body, path="/v1/rerank"):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def malformed(rng):
    """A body that is broken somewhere: cut, with bytes changed, of other types, or too deep."""
    kind = rng.randrange(5)
    if kind == 0:
        return GOOD[: rng.randrange(len(GOOD))]
    if kind == 1:
        changed = bytearray(GOOD)
        for _ in range(rng.randint(1, 8)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)
    if kind == 2:
        value = rng.choice([None, 1, 1e308, True, [], {}, "", [[]], [None], {"a": 1}])
        return json.dumps({"query": value, rng.choice(["documents", "texts", "inputs", "text_2"]): value}).encode()
    if kind == 3:
        return rng.choice([b"[", b'{"a":', b'"']) * rng.randint(1, 20_000)
    return rng.randbytes(rng.randint(0, 2_000))


async def slow(port, seconds, begun):
    """Send part of a request, say so, keep the connection open for some seconds, then close it."""
    head = b"POST /v1/rerank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    with contextlib.suppress(OSError):
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head[: random.Random(seconds).randrange(1, len(head))])
        await writer.drain()
        begun.release()
        await asyncio.sleep(seconds)
        writer.close()


async def abort(port):
    """Ask for something and leave before the answer."""
    head = (
        f"POST /v1/rerank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(GOOD)}\r\n\r\n"
    )
    with contextlib.suppress(OSError):
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + GOOD)
        await writer.drain()
        writer.transport.abort()


async def slow_and_aborted(port, count, seconds, begun):
    await asyncio.gather(*(slow(port, seconds, begun) for _ in range(count)), *(abort(port) for _ in range(count)))


def test_bad_slow_and_aborted_requests_leave_the_server_up(server):
    process, port, log = server
    for _ in range(20):
        send(port, GOOD)
    before = memory_mb(process)
    rng = random.Random(5)
    with ThreadPoolExecutor(40) as pool:
        jobs = [(malformed(rng), rng.choice(PATHS)) for _ in range(100)]
        codes = list(pool.map(lambda job: send(port, *job), jobs))
        assert {code for code in codes if code >= 500} == set()
        assert {400, 422} <= set(codes)
        begun = threading.Semaphore(0)
        trouble = pool.submit(asyncio.run, slow_and_aborted(port, 40, 3.0, begun))
        assert all(begun.acquire(timeout=10) for _ in range(40))
        assert send(port, GOOD) == 200  # while the slow ones hang on
        together = list(pool.map(lambda _: send(port, GOOD), range(40)))
        trouble.result()
    assert set(together) == {200}
    assert process.poll() is None
    assert is_ready(port)
    assert memory_mb(process) - before < GROWTH_MB
    assert "Traceback" not in log.read_text()


@pytest.mark.slow
def test_headers_that_never_end_close_the_connection(server):
    _process, port, _log = server
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"POST /v1/rerank HTTP/1.1\r\nHost:")
        assert connection.recv(1000) == b""
    assert time.monotonic() - started > 5


def test_shutdown_waits_for_requests_in_flight(server):
    process, port, _log = server
    body = json.dumps({"query": "cat", "documents": ["a cat sat " * 200] * 200}).encode()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(send, port, body)
        while held_documents(port) == 0:
            assert not answer.done()
        process.send_signal(signal.SIGTERM)
        assert answer.result(60) == 200
    assert process.wait(30) == 0
    assert not is_ready(port)


def test_a_port_in_use_ends_serve_with_an_error_that_names_it():
    with socket.socket() as busy_socket:
        busy_socket.bind(("127.0.0.1", 0))
        busy_socket.listen()
        port = str(busy_socket.getsockname()[1])
        command = [sys.executable, "-m", "osrerank", "--model", TINY, "--backend", "onnx", "serve", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert port in done.stderr.splitlines()[-1]
