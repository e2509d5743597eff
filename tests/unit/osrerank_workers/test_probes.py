import json
import socket
import urllib.error
import urllib.request

import pytest

from osrerank.errors import ConfigError
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer
from osrerank_workers import service as of_service
from osrerank_workers.probes import serve_probes
from osrerank_workers.service import WorkerService
from tests.servers import free_port
from tests.waiting import wait_until


def asked(port: int, path: str) -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_probes_follow_a_worker_from_loading_to_its_end(redis_url, monkeypatch):
    port = free_port()
    service = WorkerService(Settings.load(broker_url=redis_url, model="probed"), FunctionScorer())
    stop = serve_probes(port, service.status)
    assert asked(port, "/live") == (200, {"live": True})
    assert asked(port, "/ready") == (503, {"ready": False, "reason": "the model is being loaded", "held": 0})
    service.load()
    assert asked(port, "/ready")[1]["reason"] == "the broker does not answer"
    service.begin()
    wait_until(lambda: asked(port, "/ready")[0] == 200)
    service.hold("c1")
    assert asked(port, "/ready") == (200, {"ready": True, "reason": "", "held": 1})
    assert asked(port, "/else")[0] == 404
    service.stop_taking()
    assert asked(port, "/live")[0] == 200
    assert asked(port, "/ready") == (503, {"ready": False, "reason": "the worker is stopping", "held": 1})
    monkeypatch.setattr(of_service, "STALE_S", 0.0)
    assert asked(port, "/live") == (503, {"live": False})
    service.close()
    stop()
    with pytest.raises(OSError, match="refused"):
        asked(port, "/live")


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("", 0)) as taken, pytest.raises(ConfigError, match="probe_port: port"):
        serve_probes(taken.getsockname()[1], lambda: None)
    serve_probes(0, lambda: None)()
