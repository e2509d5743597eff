import ssl

from osrerank.scoring.remote.broker import celery_app
from osrerank.scoring.remote.worker_registry import BrokerClock


def test_tls_is_never_left_out():
    conf = celery_app("rediss://:p@host:6380/1").conf
    assert conf.broker_use_ssl["ssl_cert_reqs"] is ssl.CERT_REQUIRED
    assert conf.broker_use_ssl["ssl_check_hostname"] is True
    chosen = celery_app("rediss://host/0?ssl_ca_certs=/ca.pem&ssl_cert_reqs=none&x=1").conf
    assert chosen.broker_url == "rediss://host/0?x=1"
    assert chosen.broker_use_ssl["ssl_ca_certs"] == "/ca.pem"
    assert chosen.broker_use_ssl["ssl_cert_reqs"] is ssl.CERT_NONE


def test_only_messagepack_is_accepted():
    conf = celery_app("redis://host").conf
    assert (conf.task_serializer, conf.accept_content) == ("msgpack", ["msgpack"])


def test_a_socket_is_reached_the_way_kombu_names_it():
    found = celery_app("unix:///run/redis.sock?db=2").conf.broker_url
    assert found == "redis+socket:///run/redis.sock?virtual_host=2"


def test_the_brokers_clock_takes_the_middle_of_a_round_trip():
    clock = BrokerClock()
    clock.adjust((1_000, 500_000), 10.0, 11.0)
    assert clock.at(10.5) == 1_000.5
    assert clock.local(1_001.5) == 11.5
