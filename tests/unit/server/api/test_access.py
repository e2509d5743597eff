"""Access to the HTTP server: host names, other sites, access logs, and the API documentation."""

import json
import re

import pytest
from starlette.testclient import TestClient

from osrerank.errors import ConfigError
from osrerank.server.api.access_log import AccessLog
from osrerank.server.api.app import create_app
from osrerank.server.origins import list_host_names, restrict_origins
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer

BODY = {"query": "low blood", "documents": ["secret low", "blood"]}
SITE = "https://example.org"


def open_client(log=None, *, hosts=None, origins=(), token=None):
    app = create_app(RerankService(Settings.load(), FunctionScorer()), token=token, access_log=log)
    restrict_origins(app, hosts=hosts, origins=origins)
    return TestClient(app, base_url="http://127.0.0.1:8088", raise_server_exceptions=False)


@pytest.fixture
def log(tmp_path):
    log = AccessLog(str(tmp_path / "log"))
    yield log
    log.close()


def test_the_server_answers_only_under_its_own_host_names():
    client = open_client(hosts={*list_host_names("127.0.0.1"), "search.lan"})
    for host in ("localhost", "LOCALHOST:8088", "192.168.7.7:8088", "[::1]:8088", "search.lan"):
        assert client.get("/health", headers={"Host": host}).status_code == 200, host
    for host in ("evil.example", "evil.example:8088", "localhost.evil.example", "", "[::1"):
        answer = client.get("/health", headers={"Host": host})
        assert (answer.status_code, "--allow-host" in answer.json()["message"]) == (403, True), host


def test_pages_of_other_sites_are_refused_unless_admitted():
    client = open_client(hosts=list_host_names("127.0.0.1"), origins=(SITE,))
    for origin, status in (
        (SITE, 200),
        ("http://127.0.0.1:8088", 200),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://[", 403),
    ):
        assert client.post("/rerank", json=BODY, headers={"Origin": origin}).status_code == status
    assert open_client().post("/rerank", json=BODY, headers={"Origin": "https://evil.example"}).status_code == 200
    client = open_client(origins=(SITE,), token="s3cret")
    header_names = "authorization,content-type,x-fern-sdk-name,x-stainless-retry-count,x-client-name"
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": header_names}
    assert client.options("/rerank", headers={"Origin": SITE, **preflight}).status_code == 200
    assert client.options("/rerank", headers={"Origin": "https://evil.example", **preflight}).status_code == 400
    headers = {"Origin": SITE, "Authorization": "Bearer s3cret"}
    answer = client.post("/rerank", json=BODY, headers=headers)
    assert answer.headers["Access-Control-Allow-Origin"] == SITE
    shown = answer.headers["Access-Control-Expose-Headers"].split(", ")
    assert {"X-Rerank-Unscored", "X-Rerank-Truncated", "X-Request-Id", "Retry-After"} == set(shown)
    assert "Access-Control-Allow-Origin" not in open_client().get("/health", headers={"Origin": SITE}).headers


def test_each_request_has_an_access_log_line(tmp_path, log):
    client = open_client(log)
    accepted = client.post("/v1/rerank", json=BODY, headers={"X-Request-Id": "abc-1"})
    refused = client.post("/v1/rerank", json={"query": "secret"}, headers={"X-Request-Id": "a b"})
    client.get("/nowhere")
    text = (tmp_path / "log").read_text()
    first, second, third = (json.loads(line) for line in text.splitlines())
    answered = {"method": "POST", "route": "/v1/rerank", "status": 200, "documents": 2, "cached": 0}
    assert {name: first[name] for name in first if name not in ("time", "ms")} == {"request_id": "abc-1", **answered}
    assert first["ms"] > 0
    assert accepted.headers["X-Request-Id"] == "abc-1"
    assert second["request_id"] == refused.headers["X-Request-Id"] != "a b"
    assert (second["status"], third["status"], third["route"]) == (422, 404, "other")
    assert "secret" not in text


def test_the_access_log_has_texts_only_on_request(tmp_path, log):
    log.logs_texts = True
    open_client(log).post("/v1/rerank", json=BODY)
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert json.loads(line)["questions"] == [BODY]


def test_a_moved_access_log_is_created_again_and_an_unwritable_log_is_refused(tmp_path, log):
    client = open_client(log)
    client.get("/health")
    (tmp_path / "log").rename(tmp_path / "old")
    client.get("/health")
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    with pytest.raises(ConfigError, match="--access-log"):
        AccessLog(str(tmp_path / "no" / "log"))


@pytest.mark.parametrize("is_moved", [False, True])
def test_requests_are_answered_although_the_access_log_cannot_be_written(tmp_path, is_moved, caplog, capsys):
    (tmp_path / "logs").mkdir()
    log = AccessLog(str(tmp_path / "logs" / "log") if is_moved else "/dev/full", logs_texts=True)
    if is_moved:
        (tmp_path / "logs").rename(tmp_path / "gone")
    client = open_client(log)
    assert [client.post("/v1/rerank", json=BODY).status_code for _ in range(3)] == [200, 200, 200]
    (line,) = [message for message in caplog.messages if "access-log-lost" in message]
    assert line.startswith("[access-log-lost] the access log cannot be written: [Errno")
    captured = capsys.readouterr()
    assert BODY["query"] not in caplog.text + captured.err
    log.close()


def test_the_api_documentation_loads_no_foreign_files():
    client = open_client(token="s3cret")
    page = client.get("/docs")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    linked = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert linked
    for link in linked:
        assert "//" not in link
        assert client.get(f"/{link}").status_code == 200, link
    assert "http" not in client.get("/docs/docs.js").text
