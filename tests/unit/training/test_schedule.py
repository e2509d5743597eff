"""When and on how much a development set is measured during a training."""

from dataclasses import replace
from pathlib import Path

import pytest

from osrerank.options.passages import Passages
from osrerank.training.development import (
    DevelopmentSet,
    estimate_cost,
    plan_schedule,
)
from osrerank.training.examples.example import Example
from osrerank.training.fit import train
from tests.unit.training.test_fit import SMALL, curve, request

EXAMPLES = tuple(
    Example(f"query {number:02}", ("word " * 300,) * 4, (0, int(number % 2), 0, 0)) for number in range(60)
)
PASSAGES = Passages(words=150, stride=75)


def per_query() -> float:
    """The cost of a query: four documents of four passages, two of which have 150 words, one 150 and one 75."""
    return 4 * sum(len("query 00") + len(" ".join(["word"] * words)) for words in (150, 150, 150, 75))


def planned(sequences: float, development: DevelopmentSet | None = None):
    """The schedule of a training of sequences that each cost as much as a query's."""
    development = development or DevelopmentSet(EXAMPLES, "RR@10", passages=PASSAGES)
    return plan_schedule(development, sequences * per_query(), "cross-encoder", 10_000)


@pytest.mark.long
@pytest.mark.parametrize(
    ("sequences", "queries", "measurements", "before"),
    [
        (10_000, 60, 10, True),
        (3_000, 60, 5, False),
        (1_200, 60, 2, False),
        (600, 30, 2, False),
        (300, 16, 2, False),
        (181, 10, 2, False),
        (50, 0, 0, False),
        (2, 0, 0, False),
    ],
)
def test_development_takes_at_most_a_tenth_of_the_training_time(
    sequences: int, queries: int, measurements: int, *, before: bool
) -> None:
    plan = planned(sequences)
    if plan.development is None:
        assert queries == 0
        assert "the last weights are kept" in plan.note
        assert "evaluate_every=STEPS" in plan.note
        return
    assert (len(plan.development.examples), plan.max_measurements, plan.measures_untrained) == (
        queries,
        measurements,
        before,
    )
    measured = queries * (measurements + before)
    assert measured <= 0.1 * (sequences + measured)
    assert f"{queries} " in plan.note


def test_a_development_sample_is_spread_over_the_set() -> None:
    plan = planned(300)
    assert plan.development is not None
    chosen = [EXAMPLES.index(example) for example in plan.development.examples]
    assert all(EXAMPLES[index].relevant_documents for index in chosen)
    assert chosen[0] < 5
    assert chosen[-1] > 50
    assert chosen == sorted(set(chosen))
    small = DevelopmentSet(EXAMPLES[:5], "RR@10", passages=PASSAGES)
    plan = planned(36, small).development
    assert plan is not None
    assert len(plan.examples) == 2  # those with a relevant candidate
    assert planned(5, small).development is None


def test_the_schedule_counts_pairs_and_cut_sequences() -> None:
    assert estimate_cost("1234", ("123456", "12"), 2, "cross-encoder", 100) == 2 * (4 + 4)
    assert estimate_cost("1234", ("123456", "12"), 2, "duo", 100) == 2 * (4 + 8)
    assert estimate_cost("1234", ("1" * 10_000,), 1, "cross-encoder", 100) == 500
    assert estimate_cost("1234", (), 0, "cross-encoder", 100) == 0


@pytest.mark.long
def test_a_short_training_is_not_delayed_by_its_development_set(examples: Path, tmp_path: Path) -> None:
    said: list[str] = []
    open_recipe = replace(SMALL, evaluate_every=0)
    train(request(examples, tmp_path / "short", open_recipe, report=said.append, passages=Passages(words=4, stride=2)))
    assert any("the last weights are kept" in line for line in said)
    assert not any("before" in line for line in said)
    assert not any(row["measure"] for row in curve(tmp_path / "short"))
    assert "no development set was measured" in (tmp_path / "short" / "README.md").read_text(encoding="utf-8")
