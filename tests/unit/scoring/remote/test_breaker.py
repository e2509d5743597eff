"""The circuit breaker of a client's broker, by a clock of the test's own."""

from osrerank.scoring.remote.breaker import PAUSES_S, Attempt, Breaker


def test_one_probe_after_each_pause_and_nothing_else_until_the_broker_answers():
    now = [100.0]
    breaker = Breaker(lambda: now[0])
    assert breaker.attempt() is Attempt.USE
    breaker.trip()
    breaker.trip()  # of a call that was under way: the same failure
    assert breaker.attempt() is Attempt.NONE
    now[0] += PAUSES_S[0]
    assert [breaker.attempt() for _ in range(3)] == [Attempt.PROBE, Attempt.NONE, Attempt.NONE]
    breaker.trip(probed=True)
    assert breaker.attempt() is Attempt.NONE
    now[0] += PAUSES_S[1] / 2 - 0.01
    assert breaker.attempt() is Attempt.NONE
    now[0] += PAUSES_S[1]
    assert breaker.attempt() is Attempt.PROBE
    breaker.close()
    assert [breaker.attempt() for _ in range(3)] == [Attempt.USE] * 3


def test_ten_minutes_take_few_probes():
    now = [0.0]
    breaker = Breaker(lambda: now[0])
    breaker.trip()
    probes = 0
    while now[0] < 600:
        if breaker.attempt() is Attempt.PROBE:
            probes += 1
            breaker.trip(probed=True)
        now[0] += 0.01
    assert 150 <= probes <= 320
