"""The circuit breaker of a client's broker, by a clock of the test's own."""

from osrerank.scoring.remote.breaker import PAUSES_S, Breaker, BrokerAccess


def test_one_probe_after_each_pause_and_nothing_else_until_the_broker_answers():
    now = [100.0]
    breaker = Breaker(lambda: now[0])
    assert breaker.attempt() is BrokerAccess.USE
    breaker.trip()
    breaker.trip()  # of a call that was under way: the same failure
    assert breaker.attempt() is BrokerAccess.NONE
    now[0] += PAUSES_S[0]
    assert [breaker.attempt() for _ in range(3)] == [BrokerAccess.PROBE, BrokerAccess.NONE, BrokerAccess.NONE]
    breaker.trip(probed=True)
    assert breaker.attempt() is BrokerAccess.NONE
    now[0] += PAUSES_S[1] / 2 - 0.01
    assert breaker.attempt() is BrokerAccess.NONE
    now[0] += PAUSES_S[1]
    assert breaker.attempt() is BrokerAccess.PROBE
    breaker.close()
    assert [breaker.attempt() for _ in range(3)] == [BrokerAccess.USE] * 3


def test_ten_minutes_take_few_probes():
    now = [0.0]
    breaker = Breaker(lambda: now[0])
    breaker.trip()
    probes = 0
    while now[0] < 600:
        if breaker.attempt() is BrokerAccess.PROBE:
            probes += 1
            breaker.trip(probed=True)
        now[0] += 0.01
    assert 150 <= probes <= 320
