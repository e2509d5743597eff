"""Scripts that stop at awkward moments end with their own exit code, and not with an abort or never."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

START = """
import asyncio, atexit, multiprocessing, os, random, signal, sys, threading, time
WORDS = "blood pressure salt diet heart artery vein nurse doctor patient".split()
def text(words=80): return " ".join(random.choice(WORDS) + str(random.randint(0, 9999)) for _ in range(words))
def response(count=100):
    return {"hits": {"hits": [{"_id": str(at), "_score": 1.0, "_source": {"text": text()}} for at in range(count)]}}
def connected():
    import osrerank
    client = osrerank.connect("embedded:" + sys.argv[1])
    client.warm_up()
    return client
SOON = {"deadline_ms": 120}
"""
SCRIPTS = {
    "a deadline cut the last search": (3, "connected().rerank_response(response(), 'salt', options=SOON); sys.exit(3)"),
    "a daemon thread searches": (
        0,
        """
client = connected()
def search():
    while True: client.rerank_response(response(20), 'salt')
for _ in range(3): threading.Thread(target=search, daemon=True).start()
time.sleep(random.random() / 3)
""",
    ),
    "a thread searches when the main one has ended": (
        0,
        """
client = connected()
def search():
    threading.main_thread().join()
    marks = client.rerank_response(response(5), 'salt')["rerank"]
    if marks["applied"] is not True: os._exit(7)
threading.Thread(target=search).start()
""",
    ),
    "an exit handler searches and closes": (
        0,
        """
atexit.register(lambda: (client.rerank_response(response(5), 'salt'), client.close()))
client = connected()
client.rerank_response(response(), 'salt', options=SOON)
""",
    ),
    "a cancelled search of asyncio": (
        0,
        """
import osrerank.aio
async def main():
    client = osrerank.aio.connect_async("embedded:" + sys.argv[1])
    await client.warm_up()
    try: await asyncio.wait_for(client.rerank_response(response(30), 'salt'), random.random() / 3)
    except TimeoutError: pass
asyncio.run(main())
""",
    ),
    "Ctrl-C in a search": (
        -signal.SIGINT,
        """
client = connected()
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts jobs beside it has it ignored
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
signal.setitimer(signal.ITIMER_REAL, 0.01 + random.random() / 3)
while True: client.rerank_response(response(30), 'salt')
""",
    ),
    "a daemon thread writes": (
        0,
        """
client = connected()
def write():
    while True:
        lines = [part for _ in range(50) for part in ({"index": {"_index": "i"}}, {"text": text()})]
        client.bulk(body=lines, refresh=True); client.search("salt", index="i")
threading.Thread(target=write, daemon=True).start()
time.sleep(random.random())
""",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_process_without_close_ends_with_its_own_exit_code(name: str, tmp_path: Path) -> None:
    code, script = SCRIPTS[name]
    environment = {**os.environ, "OSRERANK_VECTORS_FOLDER": str(tmp_path / "vectors")}
    command = [sys.executable, "-c", START + script, str(tmp_path / "index")]
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=120, env=environment)
    assert done.returncode == code, done.stderr[-2000:]
    assert "cannot schedule new futures" not in done.stderr
