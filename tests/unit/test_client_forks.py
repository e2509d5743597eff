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
import os, signal, sys, elasticsearch, opensearchpy
from osrerank import wrap

url, library, kind = sys.argv[1:]
if library == "opensearch":
    classes = {"urllib3": opensearchpy.Urllib3HttpConnection, "requests": opensearchpy.RequestsHttpConnection}
    client = wrap(opensearchpy.OpenSearch(url, connection_class=classes[kind], pool_maxsize=4))
    send = client.transport.perform_request
else:
    client = wrap(elasticsearch.Elasticsearch(url, node_class=kind, connections_per_node=4)).options(opaque_id="x")
    send = client.perform_request
send("GET", "/")
child = os.fork()
signal.alarm(60)
name = "parent" if child else "child"
wrong = sum(send("GET", f"/{name}")["path"] != f"/{name}" for _ in range(200))
if not child:
    os._exit(wrong > 0)
sys.exit(wrong > 0 or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def answer(received: Received) -> Reply:
    time.sleep(0.003)  # so that both wait for an answer at once
    return Reply(
        {"path": received.path}, headers=(("Content-Type", "application/json"), ("X-Elastic-Product", "Elasticsearch"))
    )


@pytest.mark.parametrize("kind", ["urllib3", "requests"])
@pytest.mark.parametrize("library", ["opensearch", "elasticsearch"])
def test_a_client_used_before_a_fork_answers_parent_and_child(library: str, kind: str) -> None:
    with answering(answer) as server:
        folder = Path(__file__).parents[2]
        subprocess.run([sys.executable, "-c", ASKING, server.url, library, kind], check=True, timeout=120, cwd=folder)
