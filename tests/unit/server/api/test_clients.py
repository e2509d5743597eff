"""Each dialect answers what its clients send, byte by byte; docs/rerank-servers.md lists them.

UPDATE_DOCS=1 .venv/bin/python -m pytest tests/unit/server/api/test_clients.py
"""

import json
import os
import re
import socket

import pytest

from osrerank.testing import FunctionScorer
from tests.clients import CLIENTS, DIALECTS, table
from tests.http_server import running
from tests.servers import ROOT

PAGE = ROOT / "docs" / "rerank-servers.md"
LISTED = re.compile(r"(?<=<!-- clients -->\n).*?(?=\n<!-- /clients -->)", re.DOTALL)


@pytest.fixture(scope="module")
def port():
    with running(FunctionScorer(), token="none") as url:
        yield int(url.rpartition(":")[2])


def send(port, method, path, headers, body=b""):
    """Send exactly these bytes; return the answer's status, its first lines and its body."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", *headers, "Connection: close"]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        received = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, content = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode().lower(), content


def at(content, path):
    for part in path.split("."):
        content = content[int(part) if part.isdecimal() else part]
    return content


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_each_client_gets_the_answer_that_it_reads(port, client):
    has_token = any(header.lower().startswith("authorization:") for header in client.headers)
    headers = client.headers if has_token else (*client.headers, "Authorization: none")
    status, _, content = send(port, "POST", client.path, headers, client.body)
    assert status == 200, content
    answer = json.loads(content)
    for path in client.needs:
        assert at(answer, path) is not None, path
    path, expected = client.best
    assert at(answer, path) == expected


@pytest.mark.parametrize("path", ["/.well-known/ready", "/meta"])
def test_weaviates_start_up_requests_are_answered(port, path):
    status, _, content = send(port, "GET", path, ("User-Agent: Go-http-client/1.1", "Authorization: none"))
    assert (status, isinstance(json.loads(content), dict)) == (200, True)


def test_every_scoring_route_has_a_recorded_client():
    from osrerank.server.api.missing_routes import METHOD_BY_PATH

    posts = {path for path, method in METHOD_BY_PATH.items() if method == "POST"}
    assert {route for dialect in DIALECTS for route in dialect.routes} == posts
    assert all(client.path in dialect.routes for dialect in DIALECTS for client in dialect.clients)


def test_the_page_on_rerank_servers_lists_the_recorded_clients():
    page = PAGE.read_text("utf-8")
    with_table = LISTED.sub(lambda _: table(), page)
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(with_table, "utf-8")
    assert page == with_table, "run: UPDATE_DOCS=1 .venv/bin/python -m pytest tests/unit/server/api/test_clients.py"
