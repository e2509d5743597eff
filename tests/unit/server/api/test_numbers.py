"""Scores in answers of the HTTP server: rounding keeps their order."""

import json

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from osrerank.server.api.numbers import encode, round_without_ties

logits = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60)
close = st.lists(st.integers(0, 8), min_size=1, max_size=60).map(lambda steps: [1.0 - step * 2**-24 for step in steps])


def sigmoid(values):
    return 1 / (1 + np.exp(-np.clip(values, -700, 700)))


def check(numbers, keys):
    shown = json.loads(encode(numbers), parse_float=lambda text: text)
    assert all(len(text) <= 18 and "." in text and "e" not in text for text in shown)
    floats = [np.float32(text) for text in shown]
    for index in range(1, len(keys)):
        if keys[index] == keys[index - 1]:
            assert floats[index] == floats[index - 1]
        else:
            assert floats[index] < floats[index - 1]


@given(logits | close)
@example([40.0, 39.0, 38.0])  # all 1 in seven decimals
@example([-40.0, -41.0, -41.0, -42.0])  # all 0
def test_rounded_probabilities_keep_the_order_of_logits(values):
    keys = sorted(values, reverse=True)
    chances = [float(chance) for chance in sigmoid(np.array(keys))]
    numbers = round_without_ties(chances, keys, lowest=0.0)
    check(numbers, keys)
    assert numbers[0] <= 1.0
    assert numbers[-1] >= 0.0
    assert max(abs(np.subtract(numbers, chances))) <= len(keys) * 1e-7


@given(logits | close)
def test_rounded_logits_keep_their_order(values):
    keys = sorted(values, reverse=True)
    numbers = round_without_ties(keys, keys)
    check(numbers, keys)
    assert max(abs(np.subtract(numbers, keys))) <= len(keys) * 1.2e-7 * max(1.0, abs(keys[0]), abs(keys[-1]))


def test_encoded_answers_are_json():
    content = {"a": [1, 0.0, 1e-7, -2.5, True, None], "b": {"ä\ud800": "é"}}
    assert json.loads(encode(content)) == content
    assert encode([1.0, 1e-9, 12345.0]) == b"[1.0,0.0,12345.0]"
