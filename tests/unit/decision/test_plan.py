import heapq
import json
import math
import random

import pytest
from click.testing import CliRunner

from osrerank.cli import cli
from osrerank.decision.plan import Load, Rates, erlang_c, least_workers, measure, predict, storage
from osrerank.errors import ConfigError
from osrerank.settings import Settings
from tests.workers import TINY

SECOND = Rates(search_s=1.0, variation=1.0)


def alone(searches_per_s, **given):
    return Load(searches_per_s, p95_ms=60_000.0, first_pass_ms=0.0, **given)


@pytest.mark.parametrize(
    ("workers", "offered", "waits"), [(1, 0.5, 1 / 2), (2, 1.0, 1 / 3), (3, 2.0, 4 / 9), (2, 0.0, 0.0)]
)
def test_erlangs_c_by_hand(workers, offered, waits):
    # c=2, a=1: (1/2! * 2) / (1 + 1 + 1/2! * 2) = 1/3; c=3, a=2: (8/6 * 3) / (1 + 2 + 2 + 4) = 4/9
    assert erlang_c(workers, offered) == pytest.approx(waits)


def test_one_worker_is_m_m_1_and_variation_and_burstiness_scale_the_wait():
    # mu = 1, lambda = .8: time in the system 1 / (mu - lambda) = 5 s, of these 4 waiting
    found = predict(alone(0.8), SECOND, 1)
    assert found.busy == pytest.approx(0.8)
    assert found.wait_ms == pytest.approx(4_000)
    # P(wait > t) = .8 exp(-t / 5) = .05 at t = 5 ln 16 = 13.86 s
    assert found.p95_ms == pytest.approx(1000 * (1 + 5 * math.log(16)))
    # M/D/1 by Pollaczek and Khinchine: half of M/M/1; bursts of Ca = 2 with Cs = 0: (4 + 0) / 2 of it
    certain = Rates(search_s=1.0, variation=0.0)
    assert predict(alone(0.8), certain, 1).wait_ms == pytest.approx(2_000)
    assert predict(alone(0.8, burstiness=2.0), certain, 1).wait_ms == pytest.approx(8_000)
    assert predict(alone(0.8, burstiness=0.0), certain, 1).p95_ms == pytest.approx(1_000)


def test_an_answer_without_a_wait_has_the_services_own_tail_and_the_first_pass():
    found = predict(Load(0.01, first_pass_ms=18.0), Rates(0.1, 0.2), 1)
    assert found.p95_ms == pytest.approx(18 + 100 * (1 + 1.645 * 0.2))


@pytest.mark.parametrize(("workers", "busy"), [(1, 0.3), (1, 0.7), (2, 0.5), (2, 0.8), (4, 0.7), (16, 0.8)])
def test_a_simulated_queue_agrees(workers, busy):
    draw, at, free, took = random.Random(0), 0.0, [0.0] * workers, []
    for _ in range(20_000):
        at += draw.expovariate(busy * workers)
        ends = max(at, heapq.heappop(free)) + draw.gammavariate(25, 1 / 25)  # mean 1, variation .2
        heapq.heappush(free, ends)
        took.append(ends - at)
    measured = 1000 * sorted(took)[int(0.95 * len(took))]
    assert predict(alone(busy * workers), Rates(1.0, 0.2), workers).p95_ms == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize("searches_per_s", [0.1, 3.0, 40.0, 999.0])
def test_the_least_number_keeps_the_limit_and_one_less_does_not(searches_per_s):
    load, rates = Load(searches_per_s, p95_ms=250.0), Rates(0.15, 0.2)
    number = least_workers(load, rates)
    assert predict(load, rates, number).p95_ms <= 250
    assert predict(load, rates, number).busy <= 0.8
    offered = searches_per_s * 0.15
    assert number == 1 or offered / (number - 1) > 0.8 or predict(load, rates, number - 1).p95_ms > 250


def test_what_cannot_be_served_says_why():
    with pytest.raises(
        ConfigError,
        match=r"2 workers serve fewer than 20.0 searches a second: 40 a second within 300 ms need 5 workers",
    ):
        predict(Load(40.0), Rates(0.1, 0.2), 2)
    with pytest.raises(ConfigError, match="no number of workers meets 300 ms: without a wait, the p95 is 1,347 ms"):
        least_workers(Load(40.0), Rates(1.0, 0.2))


def test_what_is_stored():
    rates = Rates(0.02, 0.1, 10_000.0, 50.0, record_bytes=700.0)
    assert storage(1_000_000, rates) == {"file": 700e6, "side_index": 1000e6}
    assert storage(1_000_000, SECOND) is None


def test_a_model_without_vectors_is_measured():
    found = measure(Settings.load(model=TINY, threads=1), ["low blood", "salt and rest"])
    assert found.search_s > 0
    assert found.record_bytes is None


def run(*arguments):
    return CliRunner().invoke(cli, [*arguments])


def test_the_command_with_a_given_rate():
    given = ["plan", "--searches-per-s", "40", "--pairs-per-s", "2000", "--workers", "3"]
    text = run(*given).output
    assert "a worker: 50.0 ms for a search at depth 100 (variation 0.20), 20.0 searches a second at most" in text
    assert "40 searches a second, p95 at most 300 ms: workers needed: 3" in text
    made = json.loads(run("--json", *given).stdout)
    assert made["needed"] == 3
    assert [one["workers"] for one in made["workers"]] == [3, 4, 5]
    assert made["rates"]["search_s"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    "option",
    ["--pairs-per-s 0", "--searches-per-s -1", "--depth 0", "--workers 0", "--documents 9 --pairs-per-s 5"],
)
def test_bad_options_are_named(option):
    found = run("plan", "--searches-per-s", "5", *option.split())
    assert (found.exit_code, option.split()[0] in found.output) == (2, True)
