"""A client that was used before its process forks, as an application server's is that loads the application first."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.rerank_server import Received, Reply, answering

pytestmark = [pytest.mark.long, pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")]

ASKING = """
import os, signal, sys, opensearchpy
from osrerank import connect, wrap

url, kind = sys.argv[1:]
classes = {"urllib3": opensearchpy.Urllib3HttpConnection, "requests": opensearchpy.RequestsHttpConnection}
client = wrap(opensearchpy.OpenSearch(url, connection_class=classes[kind], pool_maxsize=4))
client.info()
child = os.fork()
signal.alarm(60)
name = "parent" if child else "child"
wrong = sum(client.transport.perform_request("GET", f"/{name}")["path"] != f"/{name}" for _ in range(200))
if not child:
    os._exit(wrong > 0)
sys.exit(wrong > 0 or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def answer(received: Received) -> Reply:
    time.sleep(0.003)  # so that both wait for an answer at once
    return Reply({"path": received.path}, headers=(("Content-Type", "application/json"),))


@pytest.mark.parametrize("kind", ["urllib3", "requests"])
def test_a_client_used_before_a_fork_answers_parent_and_child(kind: str) -> None:
    with answering(answer) as server:
        folder = Path(__file__).parents[2]
        subprocess.run([sys.executable, "-c", ASKING, server.url, kind], check=True, timeout=120, cwd=folder)
