"""The bi-encoder on padded batches, against its definition."""

from pathlib import Path

import numpy as np
import pytest

from osrerank.scoring.inputs import Tokens, padded
from osrerank.scoring.model_files import read_json

torch = pytest.importorskip("torch")

from osrerank.scoring.backends.networks.bi_encoder import PaddedBiEncoder  # noqa: E402 - imports torch
from osrerank.scoring.backends.torch import read_weights  # noqa: E402 - likewise
from tests.bi_encoders import TINY, defined  # noqa: E402 - likewise

QUERIES = ("what causes low blood pressure", "wing", "heat flow of the water: what is it")
DOCUMENTS = ("blood pressure is low when the heart is slow", "", "wing flow " * 12, "water & heat: 1,000!")


def ids(text: str) -> list[int]:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(TINY / "tokenizer.json")).encode(text).ids


@pytest.mark.long
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_cosines_of_a_padded_batch_equal_the_definition(pooling: str) -> None:
    pairs = [(query, text) for query in QUERIES for text in DOCUMENTS]
    sequences = [Tokens(np.array(ids(q) + ids(d)), np.repeat([0, 1], [len(ids(q)), len(ids(d))])) for q, d in pairs]
    batch = padded(sequences)
    network = PaddedBiEncoder(read_json(TINY / "config.json"), pooling).load_bert(read_weights(TINY))
    with torch.inference_mode():
        found = network(*(torch.from_numpy(getattr(batch, name)) for name in batch.__slots__))
    expected = [[defined(TINY, query, text, pooling)] for query, text in pairs]
    assert np.ptp(expected) > 0.05
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-6, rtol=0)


def test_its_weights_come_back_under_berts_names() -> None:
    weights = dict(read_weights(TINY))
    found = PaddedBiEncoder(read_json(Path(TINY) / "config.json"), "mean").load_bert(weights).bert_weights()
    assert found.keys() == weights.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, weights[name])
