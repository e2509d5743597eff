"""Batches of training examples: token budgets, widths, skipping and prefetching."""

from dataclasses import replace

import numpy as np
import pytest

from osrerank.scoring.card_file import read_card
from osrerank.scoring.cross_encoder import CrossEncoder
from osrerank.scoring.inputs import InputBuilder
from osrerank.training.examples.batches import MonoSequenceBuilder, StepBuilder, prefetch
from osrerank.training.examples.example import Example
from tests.backends import FunctionBackend
from tests.servers import ROOT

MODEL = ROOT / "tests" / "data" / "tiny-bert-two-labels"
EXAMPLE = Example("low pressure [SEP]", ("salt " * 600, "", "the wing"), (0, 1, 0))


def test_training_tokenises_as_scoring_does() -> None:
    card = read_card(MODEL)
    builder = InputBuilder.load(MODEL, card)
    batches_seen = []

    def keep(sequences):
        batches_seen.extend(sequences)
        return np.zeros((len(sequences), 2), dtype=np.float32)

    scorer = CrossEncoder(MODEL, card, builder, FunctionBackend(keep))
    scorer.score(EXAMPLE.query, EXAMPLE.documents, [(index,) for index in range(3)])
    scorer.close()
    made = MonoSequenceBuilder(builder).build_sequences(EXAMPLE)
    assert [sequence.target for sequence in made] == [0, 1, 0]
    expected = sorted((tuple(tokens.ids), tuple(tokens.segments)) for tokens in batches_seen)
    assert sorted((tuple(sequence.tokens.ids), tuple(sequence.tokens.segments)) for sequence in made) == expected
    assert max(len(sequence.tokens.ids) for sequence in made) == 512


def steps(**changes: object) -> StepBuilder:
    builder = InputBuilder.load(MODEL, read_card(MODEL))
    return StepBuilder(
        **{"sequence_builder": MonoSequenceBuilder(builder), "min_sequences": 6, "budget_tokens": 60, **changes}
    )


def some(count: int) -> list[Example]:
    return [
        Example("low", ("salt " * (1 + number % 9), "wing", "heat"), (1, 0, 0), str(number)) for number in range(count)
    ]


@pytest.mark.parametrize("lists", [False, True])
def test_a_training_step_has_each_sequence_once_within_the_token_budget(lists: bool) -> None:
    batches = list(steps(is_listwise=lists).build(iter(some(6))))
    assert [step.n_sequences for step in batches] == [6, 6, 6]
    assert [step.locations for step in batches] == [("0", "1"), ("2", "3"), ("4", "5")]
    for step in batches:
        assert sum(micro_batch.weight for micro_batch in step.micro_batches) == pytest.approx(1)
        assert sum(len(micro_batch.targets) for micro_batch in step.micro_batches) == 6
        assert sum(int(micro_batch.targets.sum()) for micro_batch in step.micro_batches) == 2
        assert sum(int(micro_batch.inputs.attention_mask.sum()) for micro_batch in step.micro_batches) == step.n_tokens
        for micro_batch in step.micro_batches:
            assert micro_batch.sizes == (
                (3,) * (len(micro_batch.targets) // 3) if lists else (1,) * len(micro_batch.targets)
            )
            assert micro_batch.inputs.input_ids.size <= 60 or len(micro_batch.sizes) == 1
            if lists:
                assert all(int(row[0]) == 1 for row in micro_batch.targets.reshape(-1, 3))


def test_training_batches_have_few_widths_within_the_models_limit() -> None:
    texts = [Example("low", ("salt " * number, "wing"), (1, 0)) for number in range(1, 120, 3)]
    builder = InputBuilder.load(MODEL, replace(read_card(MODEL), max_tokens=100))
    batches = StepBuilder(MonoSequenceBuilder(builder), 2, 10_000).build(iter(texts))
    widths = {micro_batch.inputs.input_ids.shape[1] for step in batches for micro_batch in step.micro_batches}
    assert widths == {16, 32, 48, 64, 80, 96, 100}


def test_skipping_steps_continues_with_the_next_batch() -> None:
    all_batches, later_batches = list(steps().build(iter(some(10)))), list(steps().build(iter(some(10)), skip=3))
    assert [step.locations for step in later_batches] == [step.locations for step in all_batches[3:]]


def test_prefetching_keeps_the_order_and_passes_errors_on() -> None:
    assert list(prefetch(iter(range(50)))) == list(range(50))

    def failing():
        yield 1
        raise ValueError("in the thread")

    prefetched = prefetch(failing())
    assert next(prefetched) == 1
    with pytest.raises(ValueError, match="in the thread"):
        next(prefetched)
    prefetched = prefetch(iter(range(10**9)))
    assert next(prefetched) == 0
    prefetched.close()
