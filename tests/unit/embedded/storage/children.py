"""Other processes that use an engine's folder; run as ``python children.py WHAT FOLDER``."""

import itertools
import os
import resource
import signal
import sys
import time
from pathlib import Path

from opensearchpy import TransportError

from osrerank import connect


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def hold(folder: str) -> None:
    """Write, then stay."""
    client = connect(f"embedded:{folder}")
    client.index(index="a", id="child", body={"text": "from the child"}, refresh=True)
    say("written")
    time.sleep(60)


def index_until_killed(folder: str) -> None:
    """Index in bulks, and report each as it is acknowledged."""
    client = connect(f"embedded:{folder}")
    for batch in itertools.count():
        say(f"begun {batch}")
        lines = [
            line
            for number in range(20)
            for line in (
                {"index": {"_id": f"{batch}-{number}"}},
                {"text": f"batch {batch} number {number} of some words", f"field{batch // 5 % 7}": number},
            )
        ]
        if batch:
            lines += [{"delete": {"_id": f"{batch - 1}-0"}}]
        assert not client.bulk(index="a", body=lines)["errors"]
        say(f"done {batch}")
        if batch % 7 == 3:
            client.indices.refresh(index="a")


def fill_disk(folder: str) -> None:
    """Index until a file may grow no further."""
    client = connect(f"embedded:{folder}")
    client.index(index="a", id="first", body={"text": "before"}, refresh=True)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit = max(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) + 200_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        for number in range(1000):
            client.index(index="a", id=str(number), body={"text": f"{number} " + "filler words " * 1000})
            say(f"done {number}")
    except TransportError as error:
        say(f"error {error.status_code} {error.error} {error.info['error']['reason']}")
    say(f"found {client.count(index='a')['count'] >= 1}")
    os._exit(0)


def start_on_full_disk(folder: str) -> None:
    """Open a new folder on a disk without room for its tables."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        connect(f"embedded:{folder}").info()
    except TransportError as error:
        say(f"error {error.status_code} {error.error} {error.info['error']['reason']}")
    os._exit(0)


def read_only(folder: str) -> None:
    """Search and write as a user who may only read."""
    client = connect(f"embedded:{folder}")
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    say(f"count {client.count(index='a')['count']}")
    try:
        client.index(index="a", body={"text": "x"})
    except TransportError as error:
        say(f"error {error.status_code} {error.error} {error.info['error']['reason']}")
    os._exit(0)


if __name__ == "__main__":
    {"hold": hold, "index": index_until_killed, "fill": fill_disk, "start": start_on_full_disk, "read": read_only}[
        sys.argv[1]
    ](sys.argv[2])
