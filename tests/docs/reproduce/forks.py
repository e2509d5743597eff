"""The program ``osrerank`` for scripts of many commands: each runs in a fork of a process that has imported torch.

python tests/docs/reproduce/forks.py SOCKET
"""

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

HEAVY = (
    "torch",
    "transformers.models.bert.modeling_bert",
    "ir_measures",
    "matplotlib.pyplot",
    "scipy.stats",
    "tantivy",
    "huggingface_hub",
    "osrerank.cli",
    "osrerank.evaluation.measures",
    "osrerank.training.fit",
    "osrerank.training.pretrain",
    "osrerank.training.distill",
    "osrerank.scoring.backends.torch",
    "osrerank.scoring.checkpoints.convert",
    "osrerank_loaders.command",
)
CLIENT = """\
import json, os, socket, sys
asked = socket.socket(socket.AF_UNIX)
asked.connect({address!r})
message = {{"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}
socket.send_fds(asked, [json.dumps(message).encode()], [0, 1, 2])
answer = asked.recv(16)
sys.exit(int(answer) if answer else 137)
"""
ROOM = 1 << 20


@contextlib.contextmanager
def osrerank_program(folder: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield a folder for ``PATH`` with the program in it."""
    with tempfile.TemporaryDirectory(prefix="forks-") as short:  # a socket's path has at most 107 bytes
        yield from _program(folder, environment, f"{short}/socket")


def _program(folder: Path, environment: Mapping[str, str], address: str) -> Iterator[Path]:
    client = folder / "client.py"
    client.write_text(CLIENT.format(address=address), "utf-8")
    programs = folder / "bin"
    programs.mkdir()
    program = programs / "osrerank"
    wrapper = f'[ "$1" = worker ] && exec "{sys.executable}" -m osrerank "$@"'  # so that a signal reaches it
    program.write_text(f'#!/bin/sh\n{wrapper}\nexec "{sys.executable}" -ES "{client}" "$@"\n', "utf-8")
    program.chmod(0o755)
    command = [sys.executable, "-m", "tests.docs.reproduce.forks", address]
    process = subprocess.Popen(command, env=dict(environment), stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield programs
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def serve(address: str) -> None:
    """Answer until terminated."""
    for name in HEAVY:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks: they answer themselves
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _run(connection)
            connection.close()


def _run(asked: socket.socket) -> None:
    """Run a command on the caller's own streams, send its exit code, and end this process."""
    from osrerank.cli import main

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    content, streams, _, _ = socket.recv_fds(asked, ROOM, 3)
    message = json.loads(content)
    for index, stream in enumerate(streams):
        os.dup2(stream, index)
        os.close(stream)
    os.chdir(message["folder"])
    os.environ.clear()
    os.environ.update(message["environment"])
    code = 0
    try:
        main(message["arguments"])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    asked.sendall(str(code).encode())
    os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
