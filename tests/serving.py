"""`osrerank serve` in a process of its own."""

import contextlib
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.servers import ROOT, free_port
from tests.waiting import wait_until

START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 30.0


@contextlib.contextmanager
def serving(
    log: Path,
    *arguments: str,
    port: int | None = None,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Yield a server that is ready, and its port.

    Args:
        log: file for what it prints.
        arguments: of ``osrerank``, before ``serve``.
        port: a free one where none is given.
        options: of ``serve``.
        environment: variables besides this process's own, of which those of osrerank are left out.
    """
    port = port or free_port()
    own = {name: value for name, value in os.environ.items() if not name.startswith("OSRERANK_")}
    command = [sys.executable, "-m", "osrerank", *arguments, "serve", "--port", str(port), *options]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, cwd=ROOT, env={**own, **(environment or {})})
    try:
        wait_until(lambda: is_ready(port) or process.poll() is not None, START_TIMEOUT_S, log.read_text)
        assert process.poll() is None, log.read_text()
        yield process, port
    finally:
        process.terminate()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_ready(port: int) -> bool:
    """Return whether a server on this port says that it is ready."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=60) as answer:
        return bool(answer.status == 200)
    return False
