"""A worker's service: scoring chunks, refusing messages, and stopping when the model fails."""

import json
import logging
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from celery.worker import state

from osrerank.errors import InferenceError
from osrerank.scoring.cache.store import connect
from osrerank.scoring.remote.messages import ChunkRequest, Reply
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer
from osrerank_workers.logs import JsonFormatter
from osrerank_workers.service import WorkerService
from tests.waiting import wait_until

TINY = str(Path(__file__).parents[2] / "data" / "tiny-bert-one-label")


@pytest.fixture
def service(redis_url: str):
    service = WorkerService(
        Settings.load(broker_url=redis_url, model="testing"), FunctionScorer(unscorable=frozenset({"x"}))
    )
    service.load()
    service.registry.renew(service.heartbeat())
    yield service
    service.close()


def request(service: WorkerService, **changed: object) -> ChunkRequest:
    request_fields = {"query": "low pressure", "documents": ["low", "x"], "tuples": [(0,), (1,)]}
    chunk_fields = {"chunk": "c1", "reply_queue": f"test:{service.worker}", "identity": service.scorer.identity}
    return ChunkRequest(
        **{"sent_s": service.registry.now_s(), "deadline_s": None, **request_fields, **chunk_fields, **changed}
    )


def answer(redis_url: str, service: WorkerService) -> Reply | None:
    redis = connect(redis_url)
    message = redis.lpop(f"test:{service.worker}")
    redis.close()
    return None if message is None else Reply.decode(message)


def test_a_chunk_is_scored_and_answered(service, redis_url):
    service.handle("c1", request(service).encode())
    reply = answer(redis_url, service)
    assert reply.scores.values[0] == 0.5
    assert reply.scores.failures == {1: "unscorable on purpose"}
    assert service.heartbeat().held == ()


def test_a_late_chunk_is_not_answered_and_another_model_is_refused(service, redis_url):
    now = service.registry.clock.to_broker(time.monotonic())
    service.handle("c1", request(service, deadline_s=now - 0.1).encode())
    assert answer(redis_url, service) is None
    service.handle("c1", request(service, deadline_s=now + 60).encode())
    assert answer(redis_url, service).scores is not None
    service.handle("c1", request(service, identity="other").encode())
    assert "model differs" in answer(redis_url, service).error


@pytest.mark.parametrize("message", [None, b"", 5, {"chunk": "c1"}])
def test_a_malformed_chunk_is_refused_and_dropped(service, redis_url, message):
    service.handle("c1", message)
    assert answer(redis_url, service) is None
    assert service.heartbeat().held == ()


def test_a_worker_notices_a_model_that_does_not_score(redis_url):
    broken = WorkerService(Settings.load(broker_url=redis_url), FunctionScorer(broken=True))
    with pytest.raises(InferenceError, match="broken"):
        broken.load()
    broken.close()


def test_trying_the_model_asks_no_cache(redis_url):
    service = WorkerService(
        Settings.load(broker_url=redis_url, redis_url=redis_url, model=TINY, backend="onnx", threads=1)
    )
    service.load()
    service.check_model()
    local = service._uncached_scorer
    assert service.scorer is not local
    local.close()
    with pytest.raises(InferenceError, match="closed"):
        service.check_model()
    service.close()


def test_a_workers_log_lines_are_json():
    try:
        int("no number")
    except ValueError:
        record = logging.LogRecord(
            "a.b", logging.WARNING, str(Path()), 1, "[odd-thing] it %s", ("fails",), sys.exc_info()
        )
    line = json.loads(JsonFormatter().format(record))
    assert (line["level"], line["logger"], line["message"]) == ("WARNING", "a.b", "[odd-thing] it fails")
    assert line["code"] == "odd-thing"
    assert "ValueError: invalid" in line["traceback"]


def test_a_model_that_stops_scoring_stops_the_worker_with_code_1(redis_url, monkeypatch, caplog):
    monkeypatch.setattr(state, "should_stop", None)
    monkeypatch.setattr("osrerank_workers.service.CHECK_EVERY_S", 0.0)
    logits = {"it is": 1.0, "it is not": 0.0}
    scorer = FunctionScorer(lambda _query, text: logits[text])
    with closing(WorkerService(Settings.load(broker_url=redis_url, model="testing"), scorer)) as service:
        service.load()
        logits.clear()
        service.start()
        wait_until(lambda: state.should_stop == 1)
    assert "[model-broken] the worker cannot score or send heartbeats, and stops: 'it is'" in caplog.text


def test_an_error_that_nobody_expects_in_a_thread_of_the_worker_stops_it(service, monkeypatch):
    def fail(_heartbeat):
        raise ValueError("a heartbeat of another kind")

    monkeypatch.setattr(state, "should_stop", None)
    monkeypatch.setattr(service.registry, "renew", fail)
    service.start()
    wait_until(lambda: state.should_stop == 1, 20)
    assert service.status().reason == "the worker is stopping"
