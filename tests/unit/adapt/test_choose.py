"""Choosing by judged candidates, on scores whose answer is planted."""

import numpy as np
import pytest

from osrerank.adapt.choose import PLAIN, Judged, choose, simplest
from osrerank.scoring.card import Joining

DEPTH, QUERIES = 30, 60
SETTINGS = [Joining(0), Joining(1, -3.0), Joining(2, -3.0)]


def judged(noise: dict[tuple[int, float], float], first_pass: float = 50.0, seed: int = 1) -> list[Judged]:
    """Return queries with one relevant document each; all settings have the same noise, some have more of it."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(QUERIES):
        relevant = int(rng.integers(DEPTH))
        signal = (np.arange(DEPTH) == relevant).astype(float)
        same = rng.normal(size=DEPTH)
        scores = {key: (signal + same * much).astype(np.float32) for key, much in noise.items()}
        ids = [f"d{place}" for place in range(DEPTH)]
        found.append(Judged(scores, signal + rng.normal(size=DEPTH) * first_pass, ids, {f"d{relevant}": 1}))
    return found


def test_a_joined_layer_that_helps_is_chosen() -> None:
    choice = choose(judged({PLAIN: 1.0, (1, -3.0): 0.2, (2, -3.0): 0.2}), SETTINGS)
    assert choice.chosen.joining.layers == 1  # as good as two, and simpler
    assert choice.chosen.joining.cosine_share == 0
    assert choice.chosen.mean > choice.plain.mean + 0.1 > choice.first_pass
    assert choice.held_out == pytest.approx(choice.chosen.mean, abs=0.05)


def test_the_bi_encoder_is_chosen_where_nothing_is_better() -> None:
    choice = choose(judged({PLAIN: 0.3, (1, -3.0): 0.3, (2, -3.0): 0.9}), SETTINGS)
    assert choice.chosen.joining.layers == 0
    assert choice.plain.mean >= choice.chosen.mean


def test_the_first_pass_gets_a_weight_where_it_helps() -> None:
    noise = {PLAIN: 1.0, (1, -3.0): 1.0, (2, -3.0): 1.0}
    assert choose(judged(noise, first_pass=0.5), SETTINGS).chosen.weight >= 0.2
    silent = [
        Judged(one.scores, np.zeros(DEPTH), one.doc_ids, one.relevance) for one in judged(noise)
    ]  # candidates without scores
    assert {one.weight for one in choose(silent, SETTINGS).tried} == {0.0}


def test_held_out_is_measured_on_queries_that_did_not_choose() -> None:
    choice = choose(judged({PLAIN: 3.0, (1, -3.0): 3.0, (2, -3.0): 3.0}), SETTINGS)
    assert choice.held_out <= choice.tried[0].mean  # the best of many noisy settings on the same queries
    folds = np.arange(QUERIES) % 5
    each = [simplest(choice.tried, folds != fold).values[folds == fold] for fold in range(5)]
    assert choice.held_out == pytest.approx(np.concatenate(each).mean())


def test_of_equals_the_simpler_is_the_simplest() -> None:
    choice = choose(judged({PLAIN: 0.0, (1, -3.0): 0.0, (2, -3.0): 0.0}), SETTINGS)
    assert (choice.chosen.mean, choice.chosen.joining.layers) == (1.0, 0)
