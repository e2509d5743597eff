"""Answer a benchmark's requests: JSON lines on standard input, one JSON line for each on standard output.

``{"do": "load", "peer": NAME, "request": {...}}`` makes a peer and answers its version; ``{"do": "score", "peer": NAME,
"batch": N, "query": TEXT, "documents": [TEXT, ...]}`` answers the scores and the processor time that they took.
What fails is answered as ``{"error": REASON}``, and the process goes on. What the libraries print goes to standard
error. This package runs in the peers' own environment, and imports nothing of osrerank.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .table import LoadedPeer, PeerRequest, load


def main() -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    peers: dict[str, LoadedPeer] = {}
    for line in sys.stdin:
        try:
            answer = _answer(json.loads(line), peers)
        except Exception as error:  # noqa: BLE001 - whatever a foreign library raises is the reason
            answer = {"error": reason_of(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def reason_of(error: Exception) -> str:
    """Return an error in one line."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def _answer(message: Mapping[str, Any], peers: dict[str, LoadedPeer]) -> dict[str, Any]:
    name = message["peer"]
    if message["do"] == "load":
        given = message["request"]
        paths = {key: Path(given[key]) for key in ("checkpoint", "padded", "folder", "calibration")}
        peers[name] = load(name, PeerRequest(**paths, threads=given["threads"], max_tokens=given["max_tokens"]))
        return {"version": peers[name].version}
    began = time.process_time()
    scores = peers[name].scoring(message["query"], message["documents"], message["batch"])
    return {"scores": [float(score) for score in scores], "cpu_s": time.process_time() - began}
