"""Process a benchmark's requests: JSON lines on standard input, each with a JSON line as reply on standard output.

``{"do": "load", "peer": NAME, "request": {...}}`` loads a peer; the reply has its version. ``{"do": "score", "peer":
NAME, "batch": N, "query": TEXT, "documents": [TEXT, ...]}`` scores; the reply has the scores and their processor time.
The reply to a failed request is ``{"error": REASON}``. The libraries' output goes to standard error.

This package runs in the peers' own environment, so it does not import osrerank.
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
    """Process requests until standard input ends."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    peers: dict[str, LoadedPeer] = {}
    for line in sys.stdin:
        try:
            reply = _process(json.loads(line), peers)
        except Exception as error:  # noqa: BLE001 - a library may raise anything
            first_line = next(iter(str(error).strip().splitlines()), "")
            reply = {"error": first_line or type(error).__name__}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _process(message: Mapping[str, Any], peers: dict[str, LoadedPeer]) -> dict[str, Any]:
    name = message["peer"]
    if message["do"] == "load":
        fields = message["request"]
        paths = {key: Path(fields[key]) for key in ("checkpoint", "padded", "folder", "calibration")}
        peers[name] = load(name, PeerRequest(**paths, threads=fields["threads"], max_tokens=fields["max_tokens"]))
        return {"version": peers[name].version}
    start_s = time.process_time()
    scores = peers[name].score(message["query"], message["documents"], message["batch"])
    return {"scores": [float(score) for score in scores], "cpu_s": time.process_time() - start_s}
