"""The probes of a worker, from loading to its end."""

import json
import socket
import time
import urllib.error
import urllib.request
from contextlib import closing

import pytest
from redis.exceptions import ResponseError

from osrerank.errors import ConfigError
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer, ManualClock
from osrerank_workers import service as of_service
from osrerank_workers.broker_health import BrokerHealth
from osrerank_workers.probes import Status, serve_probes
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
    assert asked(port, "/ready")[1]["reason"] == "the broker does not respond"
    service.start()
    wait_until(lambda: asked(port, "/ready")[0] == 200)
    service.register_chunk("c1")
    assert asked(port, "/ready") == (200, {"ready": True, "reason": "", "held": 1})
    assert asked(port, "/else")[0] == 404
    service.stop_accepting()
    assert asked(port, "/live")[0] == 200
    assert asked(port, "/ready") == (503, {"ready": False, "reason": "the worker is stopping", "held": 1})
    monkeypatch.setattr(of_service, "HANGS_AFTER_S", 0.0)
    assert asked(port, "/live") == (503, {"live": False})
    service.close()
    stop()
    with pytest.raises(OSError, match="refused"):
        asked(port, "/live")


def test_a_worker_that_waits_for_its_broker_goes_on_checking_its_model(monkeypatch):
    monkeypatch.setattr(of_service, "CHECK_EVERY_S", 0.01)
    monkeypatch.setattr(of_service, "HANGS_AFTER_S", 1.0)
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    with closing(WorkerService(Settings.load(broker_url=nobody, model="probed"), FunctionScorer())) as service:
        service.load()
        time.sleep(1.5)
        assert service.status().live
        assert service.status().reason == "the broker does not respond"


def test_a_worker_whose_consumer_cannot_use_the_broker_is_not_ready_and_takes_no_chunks(redis_url):
    clock = ManualClock()
    with closing(WorkerService(Settings.load(broker_url=redis_url, model="probed"), FunctionScorer())) as service:
        service.broker = BrokerHealth("the consumer", clock)
        service.load()
        service.start()
        wait_until(lambda: service.status().ready)
        service.broker.record_failure(ResponseError("WRONGTYPE Operation against a key"))
        clock.sleep(10)
        assert service.status() == Status(True, False, "the broker responds with an error, WRONGTYPE", 0)
        assert not service.heartbeat().taking


def test_a_probe_port_in_use_is_named():
    with socket.create_server(("", 0)) as busy_socket, pytest.raises(ConfigError, match="set probe_port to another"):
        serve_probes(busy_socket.getsockname()[1], lambda: None)
    serve_probes(0, lambda: None)()


def test_a_metrics_port_in_use_is_named(redis_url):
    with socket.create_server(("", 0)) as busy_socket:
        settings = Settings.load(broker_url=redis_url, model="probed", metrics_port=busy_socket.getsockname()[1])
        with closing(WorkerService(settings, FunctionScorer())) as service:
            service.load()
            with pytest.raises(ConfigError, match="set metrics_port to another port"):
                service.start()
