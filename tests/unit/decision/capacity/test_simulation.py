"""The simulation against what queueing theory says where it has a formula, and against how searches are divided."""

import itertools
import math

import numpy as np
import pytest

from osrerank.decision.capacity.simulation import Setup, ends_of, sizes_of
from osrerank.scoring.remote.chunks import divide

SEARCHES = 40_000


def poisson(rate, count=SEARCHES, seed=0):
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count)).tolist()


def latencies(arrivals, setup, works, clients=()):
    ends = ends_of(arrivals, setup, lambda search, width: works[search][:1], clients)
    return np.array(ends) - arrivals


def exponential(mean, seed=1):
    return np.random.default_rng(seed).exponential(mean, SEARCHES)[:, None].tolist()


def test_one_worker_that_takes_turns_has_the_mean_of_processor_sharing():
    """M/G/1 with processor sharing: the mean time is S / (1 - load), however the work is distributed."""
    arrivals = poisson(7.0)
    setup = Setup(1, tasks=10**6)
    for works in ([[0.1]] * SEARCHES, exponential(0.1)):
        assert latencies(arrivals, setup, works).mean() == pytest.approx(0.1 / 0.3, rel=0.08)


def test_one_chunk_at_a_time_waits_as_pollaczek_and_khinchine_say():
    """M/D/1, load .7: W = load * S / (2 (1 - load)) = .1167 S ... 0.7 * .1 / .6 = .1167 s, and S itself."""
    found = latencies(poisson(7.0), Setup(1, tasks=1), [[0.1]] * SEARCHES)
    assert found.mean() == pytest.approx(0.1 + 0.7 * 0.1 / 0.6, rel=0.05)


def test_the_tail_of_one_exponential_worker():
    """M/M/1: the time in the system is exponential with rate mu - lambda = 10 - 5; its p95 is ln(20) / 5."""
    found = latencies(poisson(5.0), Setup(1, tasks=1), exponential(0.1))
    assert np.percentile(found, 95) == pytest.approx(math.log(20) / 5, rel=0.07)


def test_workers_share_a_queue():
    """Erlang's C for four workers at load .8 is .5964: the mean wait is C / (c mu - lambda).

    A worker fetches one chunk in advance, which then does not go to another worker that is idle first: the wait is
    longer, but far below that of four queues of their own (M/M/1: .8 / (10 - 8) = .4 s).
    """
    found = latencies(poisson(32.0), Setup(4, tasks=1), exponential(0.1))
    wait = found.mean() - 0.1
    assert 0.95 * 0.5964 / (40 - 32) < wait < 0.25


def test_a_search_ends_with_its_last_chunk():
    ends = ends_of([0.0], Setup(2, tasks=1, width=2), lambda _search, width: [1.0, 3.0][:width])
    assert ends == [3.0]


def test_chunks_of_one_worker_share_it():
    """The first alone for 1 s, both at half speed for 2 s, then the second alone."""
    ends = ends_of([0.0, 1.0], Setup(1, tasks=2), lambda search, _width: [[2.0], [2.0]][search])
    assert ends == pytest.approx([3.0, 4.0])


def test_what_a_worker_fetched_waits_for_it():
    """One at a time, one in advance: the third search waits in the queue, and all end in their order."""
    ends = ends_of([0.0, 0.1, 0.2], Setup(1, tasks=1), lambda _search, _width: [1.0])
    assert ends == pytest.approx([1.0, 2.0, 3.0])


@pytest.mark.parametrize(("second", "ends"), [(0.2, 10.2), (1.05, 20.1)])
def test_redis_serves_the_worker_that_has_asked_for_longest(second, ends):
    """The first chunk goes to worker 1, which asks again at .1; worker 0 asked at 0, and anew at 1."""
    found = ends_of([0.1, second], Setup(2, tasks=1), lambda _search, _width: [10.0])
    assert found == pytest.approx([10.1, ends])


def test_a_client_divides_less_while_it_has_searches_under_way():
    widths = []

    def works(search, width):
        widths.append(width)
        return [1.0] * width

    ends_of([0.0, 0.1, 0.2, 9.0], Setup(4, tasks=4, clients=2, width=3), works, [0, 0, 1, 1])
    assert widths == [3, 2, 3, 3]


@pytest.mark.parametrize(("pairs", "width"), [*itertools.product((1, 7, 100, 101, 250, 1000), (1, 2, 3, 8))])
def test_searches_are_divided_as_clients_do(pairs, width):
    texts = ["x" * 5_000] * pairs
    chunks = divide(texts, [(at,) for at in range(pairs)], width)
    assert sizes_of(pairs, width) == [len(chunk.places) for chunk in chunks]
