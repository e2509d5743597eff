"""Which requests a worker trusts: signatures, copies and expiry."""

import time

import pytest

from osrerank.errors import PayloadError
from osrerank.metrics import MESSAGES_REFUSED
from osrerank.scoring.cache.store import connect
from osrerank.scoring.remote.delivery import MAX_SENDS
from osrerank.scoring.remote.messages import Reply
from osrerank.scoring.remote.signing import Signer
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer
from osrerank_workers import replays
from osrerank_workers.replays import ReplayGuard
from osrerank_workers.service import WorkerService
from tests.unit.osrerank_workers.test_service import request

OLD, NEW, OTHER = "an-old-key-of-24-letters", "a-new-key-of-24-letters!", "somebody-else's-own-key!"


@pytest.fixture
def service(redis_url: str):
    service = WorkerService(
        Settings.load(broker_url=redis_url, model="trusted", signing_key=f"{NEW},{OLD}"), FunctionScorer()
    )
    service.load()
    service.registry.renew(service.heartbeat())
    yield service
    service.close()


def replies(redis_url: str, service: WorkerService) -> list[bytes]:
    redis = connect(redis_url)
    found = redis.lrange(f"test:{service.worker}", 0, -1)
    redis.delete(f"test:{service.worker}")
    redis.close()
    return found


def refused(reason: str) -> float:
    return MESSAGES_REFUSED.labels("request", reason)._value.get()


@pytest.mark.parametrize("key", [OLD, NEW])
def test_a_request_signed_with_either_key_is_scored_and_the_reply_is_signed_with_the_first(service, redis_url, key):
    service.handle("c1", Signer([key.encode()]).sign("request", request(service).encode()))
    (reply,) = replies(redis_url, service)
    assert Reply.decode(Signer([NEW.encode()]).verify("reply", reply)).scores.values[0] == 0.5
    with pytest.raises(PayloadError):
        Signer([OLD.encode()]).verify("reply", reply)


@pytest.mark.parametrize(
    ("key", "kind", "reason"),
    [(None, "request", "unsigned"), (OTHER, "request", "wrong_key"), (NEW, "reply", "wrong_key")],
)
def test_a_request_without_a_valid_signature_is_refused_and_counted(service, redis_url, key, kind, reason):
    before = refused(reason)
    service.handle("c1", Signer([key.encode()] if key else []).sign(kind, request(service).encode()))
    assert replies(redis_url, service) == []
    assert refused(reason) == before + 1


def test_a_copied_request_is_scored_no_more_often_than_a_client_sends_one(service, redis_url):
    message = Signer([NEW.encode()]).sign("request", request(service).encode())
    before = refused("replayed"), refused("misplaced")
    for _ in range(MAX_SENDS + 3):
        service.handle("c1", message)
    service.handle("c2", message)  # the same in a task of another id
    assert len(replies(redis_url, service)) == MAX_SENDS
    assert (refused("replayed"), refused("misplaced")) == (before[0] + 3, before[1] + 1)


def test_a_copy_without_a_deadline_is_refused_after_an_hour(service, redis_url):
    old = request(service, sent_s=service.registry.now_s() - replays.MAX_AGE_S - 1)
    service.handle("c1", Signer([NEW.encode()]).sign("request", old.encode()))
    assert replies(redis_url, service) == []


def test_remembered_requests_expire_and_are_bounded(service, monkeypatch):
    monkeypatch.setattr(replays, "MAX_REQUESTS", 10)
    now = [time.time()]
    guard = ReplayGuard(lambda: now[0])
    for number in range(50):
        guard.check(request(service, chunk=str(number), sent_s=now[0], deadline_s=now[0] + 1))
    with guard._arrivals as counted:
        assert len(counted) == 10
    now[0] += 2
    guard.check(request(service, chunk="later", sent_s=now[0]))
    with guard._arrivals as counted:
        assert list(counted) == ["later"]
