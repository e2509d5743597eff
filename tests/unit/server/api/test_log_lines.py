"""What the server's log says of requests that it could not answer, by codes; without a request's texts."""

import pytest
from starlette.testclient import TestClient

from osrerank._seldom import Seldom
from osrerank.errors import WorkerError
from osrerank.server.api import app as module
from osrerank.server.api.app import create_app
from osrerank.server.api.service import Busy
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer

BODY = {"query": "salt", "documents": ["a secret"]}


@pytest.fixture
def client(monkeypatch):
    monkeypatch.setattr(module, "due", Seldom())
    app = create_app(RerankService(Settings.load(), FunctionScorer()))
    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("error", "status", "code", "lines"),
    [
        (WorkerError("there is no worker of m"), 503, "request-failed", 3),
        (Busy("9 documents are waiting"), 429, "overloaded", 1),
        (ZeroDivisionError("a secret"), 500, "server-defect", 3),
    ],
)
def test_a_request_that_is_not_answered_is_told_by_its_code(client, monkeypatch, caplog, error, status, code, lines):
    async def judge(*_arguments, **_options):
        raise error

    monkeypatch.setattr(client.app.state.service, "judge", judge)
    assert [client.post("/v1/rerank", json=BODY).status_code for _ in range(3)] == [status] * 3
    assert [f"[{code}]" in record.getMessage() for record in caplog.records if record.name == module.__name__] == (
        [True] * lines
    )
    assert "secret" not in caplog.text


def test_a_server_that_is_not_ready_says_so_once_a_minute(client, monkeypatch, caplog):
    async def check():
        return "the model is being loaded"

    monkeypatch.setattr(client.app.state.service, "check", check)
    assert [client.get("/ready").status_code for _ in range(3)] == [503] * 3
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("[not-ready] requests cannot be answered now: the model is being loaded")
