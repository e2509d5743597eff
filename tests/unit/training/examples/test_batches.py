"""Batches of training examples: token budgets, widths, skipping and prefetching."""

from dataclasses import replace

import numpy as np
import pytest

from osrerank.scoring.card_file import read_card
from osrerank.scoring.cross_encoder import CrossEncoder
from osrerank.scoring.inputs import InputBuilder
from osrerank.training.examples.batches import MonoAssembly, Steps, prefetched
from osrerank.training.examples.lists import Example
from tests.backends import FunctionBackend
from tests.servers import ROOT

MODEL = ROOT / "tests" / "data" / "tiny-bert-two-labels"
EXAMPLE = Example("low pressure [SEP]", ("salt " * 600, "", "the wing"), (0, 1, 0))


def test_training_tokenises_as_scoring_does() -> None:
    card = read_card(MODEL)
    builder = InputBuilder.load(MODEL, card)
    seen = []

    def keep(sequences):
        seen.extend(sequences)
        return np.zeros((len(sequences), 2), dtype=np.float32)

    scorer = CrossEncoder(MODEL, card, builder, FunctionBackend(keep))
    scorer.score(EXAMPLE.query, EXAMPLE.documents, [(place,) for place in range(3)])
    scorer.close()
    made = MonoAssembly(builder).sequences(EXAMPLE)
    assert [one.target for one in made] == [0, 1, 0]
    expected = sorted((tuple(tokens.ids), tuple(tokens.segments)) for tokens in seen)
    assert sorted((tuple(one.tokens.ids), tuple(one.tokens.segments)) for one in made) == expected
    assert max(len(one.tokens.ids) for one in made) == 512


def steps(**changes: object) -> Steps:
    builder = InputBuilder.load(MODEL, read_card(MODEL))
    return Steps(**{"assembly": MonoAssembly(builder), "batch": 6, "budget_tokens": 60, **changes})


def some(count: int) -> list[Example]:
    return [
        Example("low", ("salt " * (1 + number % 9), "wing", "heat"), (1, 0, 0), str(number)) for number in range(count)
    ]


@pytest.mark.parametrize("lists", [False, True])
def test_a_training_step_has_each_sequence_once_within_the_token_budget(lists: bool) -> None:
    made = list(steps(lists=lists).make(iter(some(6))))
    assert [step.sequences for step in made] == [6, 6, 6]
    assert [step.locations for step in made] == [("0", "1"), ("2", "3"), ("4", "5")]
    for step in made:
        assert sum(lot.share for lot in step.lots) == pytest.approx(1)
        assert sum(len(lot.targets) for lot in step.lots) == 6
        assert sum(int(lot.targets.sum()) for lot in step.lots) == 2
        assert sum(int(lot.inputs.attention_mask.sum()) for lot in step.lots) == step.tokens
        for lot in step.lots:
            assert lot.sizes == ((3,) * (len(lot.targets) // 3) if lists else (1,) * len(lot.targets))
            assert lot.inputs.input_ids.size <= 60 or len(lot.sizes) == 1
            if lists:
                assert all(int(row[0]) == 1 for row in lot.targets.reshape(-1, 3))


def test_training_batches_have_few_widths_within_the_models_limit() -> None:
    texts = [Example("low", ("salt " * number, "wing"), (1, 0)) for number in range(1, 120, 3)]
    builder = InputBuilder.load(MODEL, replace(read_card(MODEL), max_tokens=100))
    made = Steps(MonoAssembly(builder), 2, 10_000).make(iter(texts))
    widths = {lot.inputs.input_ids.shape[1] for step in made for lot in step.lots}
    assert widths == {16, 32, 48, 64, 80, 96, 100}


def test_skipping_steps_continues_with_the_next_batch() -> None:
    whole, rest = list(steps().make(iter(some(10)))), list(steps().make(iter(some(10)), skip=3))
    assert [step.locations for step in rest] == [step.locations for step in whole[3:]]


def test_prefetching_keeps_the_order_and_passes_errors_on() -> None:
    assert list(prefetched(iter(range(50)))) == list(range(50))

    def failing():
        yield 1
        raise ValueError("in the thread")

    found = prefetched(failing())
    assert next(found) == 1
    with pytest.raises(ValueError, match="in the thread"):
        next(found)
    found = prefetched(iter(range(10**9)))
    assert next(found) == 0
    found.close()
