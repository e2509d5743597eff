"""Plans: the fewest workers that keep a limit, what is stored, rates in files, and the command."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from click.testing import CliRunner

from osrerank.bench.workload import synthetic
from osrerank.cli import cli
from osrerank.decision.capacity.measure import WAITING_COST, Asked, measure_rate
from osrerank.decision.capacity.plan import Wanted, make_plan
from osrerank.decision.capacity.predict import Traffic, at_load, least_workers, load_of, predict
from osrerank.decision.capacity.rates import Rate, Rates, StatesRate, read_rates
from osrerank.decision.capacity.simulation import Setup
from osrerank.decision.capacity.words import lines
from osrerank.errors import ConfigError, FormatError
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer
from tests.workers import TINY

RATE = Rate.given(200.0, variation=0.2, tasks=4)
SETUP = Setup(1, 4, width=6)
TRAFFIC = Traffic(10.0, 100)
STATES = StatesRate(Rate(0.0001, 0.004), encode_s=0.01, record_bytes=700.0, dimension=384)
RATES = Rates("osrerank/mono", 2, 60, 6, 360.0, RATE, STATES)


def planned(**given):
    return make_plan(Wanted(TRAFFIC, 400.0, searches=600, **given), RATES, Settings())


def test_a_rate_that_is_given_has_its_mean_and_its_variation():
    assert RATE.busy_s(100) == pytest.approx(0.5)
    assert RATE.variation == pytest.approx(0.2, rel=0.05)


def test_a_slow_search_alone_takes_its_work_first_pass_and_overhead():
    rate = Rate(0.005)
    found = predict(replace(TRAFFIC, first_pass_ms=(6.0, 6.0), searches_per_s=0.01), rate, Setup(4, 4, width=4))
    assert (found.p50_ms, found.p95_ms) == pytest.approx((6 + 6 + 125, 6 + 6 + 125), rel=0.01)


def test_what_overlaps_occupies_no_worker_but_takes_its_time():
    rate = Rate(0.005, together=0.8)
    assert load_of(replace(TRAFFIC, searches_per_s=2.0), rate, Setup(1, 4)) == pytest.approx(0.8)
    quiet = replace(TRAFFIC, first_pass_ms=(6.0, 6.0), searches_per_s=0.01)
    assert predict(quiet, rate, Setup(1, 4)).p50_ms == pytest.approx(512, rel=0.01)


def test_latency_rises_with_load_and_burstiness_and_falls_with_cached_searches():
    setup = Setup(2, 4)
    p95 = [predict(at_load(TRAFFIC, RATE, setup, load), RATE, setup).p95_ms for load in (0.3, 0.5, 0.7, 0.8)]
    assert p95 == sorted(p95)
    busy = at_load(TRAFFIC, RATE, setup, 0.7)
    assert predict(replace(busy, burstiness=2.0), RATE, setup).p95_ms > 1.3 * p95[2]
    assert predict(replace(busy, burstiness=0.0), RATE, setup).p95_ms < p95[2]
    assert predict(replace(busy, hit_rate=0.5), RATE, setup).p95_ms < p95[1]


def test_the_least_number_keeps_the_limit_and_one_less_does_not():
    found = least_workers(TRAFFIC, RATE, SETUP, 400.0, searches=2000)
    assert found is not None
    assert found.p95_ms <= 400
    assert predict(TRAFFIC, RATE, replace(SETUP, workers=found.workers - 1), searches=2000).p95_ms > 400
    half = least_workers(replace(TRAFFIC, hit_rate=0.5), RATE, SETUP, 400.0, searches=2000)
    assert half is not None
    assert half.workers < 0.7 * found.workers


def test_a_generous_limit_leaves_workers_room():
    found = least_workers(TRAFFIC, RATE, SETUP, 60_000.0, searches=500)
    assert found is not None
    assert 0.6 < found.load <= 0.8


def test_a_limit_that_no_number_keeps():
    assert least_workers(TRAFFIC, RATE, Setup(1, 4), 300.0, searches=500) is None
    made = planned()
    poor = replace(made, workers=replace(made.workers, found=None))
    assert "no number of workers keeps the limit" in "\n".join(lines(poor))


def test_states_take_far_fewer_cores_unless_they_are_missing():
    made = planned(documents=1_000_000)
    assert made.states is not None
    assert made.states.found is not None
    assert made.states.cores < made.workers.cores / 5
    without = make_plan(replace(made.wanted, traffic=replace(TRAFFIC, known=0.9)), RATES, Settings())
    assert without.states is not None
    assert without.states.cores > made.states.cores


def test_what_is_stored():
    stored = planned(documents=1_000_000).storage
    assert stored.states is not None
    assert stored.states.file_bytes == 700e6
    assert stored.states.states_mb == 1400
    assert stored.states.side_index_bytes == 1000e6
    assert stored.states.vectors_bytes == 490e6
    assert stored.states.core_hours == pytest.approx(1e6 * 0.01 * 2 / 3600)
    assert stored.scores.new_per_s == 1000
    assert stored.scores.kept_s == pytest.approx((256e6 / 2 / 110 / 1000, 256e6 / 110 / 1000))
    assert planned().storage.states is None


def test_gpus_are_planned_by_a_given_rate_alone():
    assert planned().gpus is None
    assert "GPUs: not measured here" in "\n".join(lines(planned()))
    gpus = planned(gpu_pairs_per_s=20_000.0).gpus
    assert gpus is not None
    assert gpus.found is not None
    assert gpus.found.workers == 1
    assert gpus.cores == 0


def test_rates_are_read_as_they_were_written(tmp_path):
    RATES.write(tmp_path / "rates.json")
    assert read_rates(tmp_path / "rates.json") == RATES


@pytest.mark.parametrize(
    "change",
    [
        {"version": 9},
        {"whole": {"pair_s": 0.0, "spread": [1.0]}},
        {"whole": {"pair_s": "fast", "spread": [1.0]}},
        {"surprise": 1},
        {"document_characters": -1},
    ],
)
def test_a_file_of_other_things_is_refused(tmp_path, change):
    file = tmp_path / "rates.json"
    RATES.write(file)
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(FormatError, match=r"rates\.json has no rates of osrerank plan --save-rates"):
        read_rates(file)


def test_a_scorer_of_known_speed_is_measured():
    scorer = FunctionScorer(seconds_per_pair=0.001)

    def score(query, documents):
        scorer.score(query, documents, [(at,) for at in range(len(documents))])

    rate = measure_rate(score, synthetic(10, queries=2, depth=20), 20, budget_s=1.0, at_a_time=2)
    assert 0.0005 < rate.pair_s < 0.01
    assert rate.alone_s(20) >= 0.02
    assert rate.together < 0.9  # it sleeps for each caller by itself


def test_a_worker_that_is_not_always_busy_needs_more_for_a_chunk(monkeypatch):
    monkeypatch.setattr(Asked, "per_search_s", lambda *_: 1.0)
    monkeypatch.setattr(Asked, "times", lambda _, pairs, __: [(pairs, 2.0)] * 4)
    measured = partial(measure_rate, str, synthetic(10, queries=2, depth=20), 20, budget_s=1.0, at_a_time=2)
    assert (measured().together, measured(waiting_cost=1.0).together) == (0.5 * WAITING_COST, 0.5)


def run(*arguments):
    return CliRunner().invoke(cli, ["--json", "plan", "--searches-per-s", "5", *arguments], catch_exceptions=True)


def test_the_command_measures_once_and_plans_again_by_the_file(tmp_path):
    file = tmp_path / "rates.json"
    given = ["--json", "--model", TINY, "plan", "--searches-per-s", "2", "--depth", "4", "--p95-ms", "60000"]
    found = CliRunner().invoke(
        cli, [*given, "--budget-s", "0.5", "--document-words", "20", "--threads", "1", "--save-rates", str(file)]
    )
    assert found.exit_code == 0, found.output
    measured = json.loads(found.stdout)
    assert measured["rates"]["where"]["backend"] == "onnx"
    assert measured["workers"]["found"]["workers"] >= 1
    assert measured["states"] is None
    again = json.loads(CliRunner().invoke(cli, [*given, "--rates", str(file)]).stdout)
    assert again == measured


def test_the_command_measures_a_model_with_states(tmp_path):
    given = ["--model", "osrerank/mono-small", "--json", "plan", "--searches-per-s", "1", "--depth", "3"]
    rest = ["--document-words", "10", "--budget-s", "0.5", "--p95-ms", "60000", "--documents", "1000"]
    found = CliRunner().invoke(cli, [*given, *rest])
    assert found.exit_code == 0, found.output
    made = json.loads(found.stdout)
    assert made["rates"]["states"]["dimension"] == 384
    assert made["states"]["found"]["workers"] >= 1
    assert made["storage"]["states"]["file_bytes"] > 384_000


def test_one_screen():
    text = CliRunner().invoke(cli, ["plan", "--searches-per-s", "2", "--pairs-per-s", "200", "--threads", "2"]).output
    assert text.startswith("2 searches a second of 100 candidates of 60 words: p95 at most 300 ms\n")
    assert "workers of 2 threads" in text
    assert len(text.splitlines()) <= 24


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--pairs-per-s", "0"], "--pairs-per-s"),
        (["--pairs-per-s", "100", "--cache-hit-rate", "1"], "--cache-hit-rate"),
        (["--pairs-per-s", "100", "--first-pass-ms", "12/6"], "--first-pass-ms"),
        (["--pairs-per-s", "100", "--first-pass-ms", "quick"], "--first-pass-ms"),
        (["--pairs-per-s", "100", "--depth", "0"], "--depth"),
        (["--rates", "nowhere.json"], "--rates"),
    ],
)
def test_bad_options_are_named(arguments, named):
    found = run(*arguments)
    assert found.exit_code == 2
    assert named in found.output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--pairs-per-s", "100", "--query-words", "3"], "--query-words has no effect with --pairs-per-s"),
        (["--variation", ".3"], "--variation has no effect without --pairs-per-s"),
    ],
)
def test_options_without_effect_are_refused(arguments, reason):
    found = run(*arguments)
    assert isinstance(found.exception, ConfigError)
    assert reason in str(found.exception)


def test_arrivals_have_the_rate_and_the_burstiness():
    rng = np.random.default_rng(0)
    for burstiness in (0.0, 0.5, 1.0, 2.0):
        between = np.diff(Traffic(20.0, 1, burstiness=burstiness).arrivals(rng, 50_000))
        assert between.mean() == pytest.approx(0.05, rel=0.05)
        assert between.std() / between.mean() == pytest.approx(burstiness, abs=0.1)
