"""The network of the layout cross-bias for pairs of documents, against its definition and by hand."""

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from osrerank.scoring.card import SLACK, Kind, ModelCard, states_of
from osrerank.scoring.inputs import InputBuilder, Tokens, padded
from osrerank.scoring.model_files import read_json
from tests.cross_bias import defined

torch = pytest.importorskip("torch")

from osrerank.scoring.card import BLOCKED, CrossBias  # noqa: E402 - imports torch
from osrerank.scoring.networks.cross_bias import CrossBiasEncoder, Pool, from_bert, pooled_length  # noqa: E402 - imports torch
from osrerank.scoring.torch_scorer import read_weights  # noqa: E402 - likewise

DIRECTORY = Path(__file__).parents[3] / "data" / "tiny-bert-cross-bias"
QUERY = "what causes low blood pressure"
DOCUMENTS = ("blood pressure is low when the heart is slow", "", "wing flow " * 40, "water & heat: 1,000!")
PAIRS = list(permutations(range(len(DOCUMENTS)), 2))
BIASES = [
    CrossBias(), CrossBias(other="closed"), CrossBias(0.5, -1.0, other=-0.5), CrossBias("closed", 0.0, 5.0, other=1.0),
    CrossBias(pool_factor=2.5), CrossBias(0.5, -1.0, other=-0.5, pool_factor=1.4), CrossBias(pool_factor=600.0),
]  # fmt: skip


def network(bias: CrossBias, kind: Kind = "duo") -> CrossBiasEncoder:
    return from_bert(read_weights(DIRECTORY), read_json(DIRECTORY / "config.json"), bias, kind=kind)


def sequences(kind: Kind, tuples: Sequence[tuple[int, ...]]) -> list[Tokens]:
    builder = InputBuilder.load(DIRECTORY, ModelCard("tiny", "cosine", kind=kind, layout="cross-bias"))
    query = builder.query(QUERY)
    texts = builder.documents(DOCUMENTS, query)
    make = builder.duo if kind == "duo" else builder.mono
    return [make(query, *(texts[place] for place in places)) for places in tuples]


def values(encoder: CrossBiasEncoder, batch: Sequence[Tokens]) -> np.ndarray:
    inputs = padded(batch)
    with torch.inference_mode():
        found = encoder(*(torch.from_numpy(getattr(inputs, name)) for name in inputs.__slots__))
    assert found.shape == (len(batch), 1)
    return found[:, 0].numpy()


@pytest.mark.parametrize("bias", BIASES)
def test_pairs_equal_the_definition(bias: CrossBias) -> None:
    expected = [defined(DIRECTORY, QUERY, [DOCUMENTS[i], DOCUMENTS[j]], bias) for i, j in PAIRS]
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(values(network(bias), sequences("duo", PAIRS)), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("bias", BIASES)
def test_exchanged_documents_turn_the_sign(bias: CrossBias) -> None:
    found = values(network(bias), sequences("duo", PAIRS))
    back = values(network(bias), sequences("duo", [(j, i) for i, j in PAIRS]))
    np.testing.assert_allclose(found, -back, atol=2e-5, rtol=0)
    assert np.abs(values(network(bias), sequences("duo", [(0, 0), (2, 2)]))).max() < 2e-5


def test_closed_it_is_the_difference_of_two_mono_scores() -> None:
    closed = CrossBias("closed", "closed", other="closed")
    alone = values(network(closed, "mono"), sequences("mono", [(place,) for place in range(len(DOCUMENTS))]))
    expected = [alone[i] - alone[j] for i, j in PAIRS]
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(values(network(closed), sequences("duo", PAIRS)), expected, atol=2e-5, rtol=0)


def test_one_document_sees_the_other_where_it_may() -> None:
    shut, ajar = (values(network(CrossBias(other=other)), sequences("duo", PAIRS)) for other in ("closed", -4.0))
    assert np.abs(shut - ajar).max() > 1e-3


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("place", range(len(DOCUMENTS)))
def test_a_document_equals_the_definition(bias: CrossBias, place: int) -> None:
    expected = defined(DIRECTORY, QUERY, [DOCUMENTS[place]], bias)
    found = values(network(bias, "mono"), sequences("mono", [(place,), (0,), (2,)]))
    np.testing.assert_allclose(found[0], expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_padding_changes_nothing(factor: float) -> None:
    encoder, batch = network(CrossBias(pool_factor=factor)), sequences("duo", PAIRS)
    alone = np.concatenate([values(encoder, [tokens]) for tokens in batch])
    np.testing.assert_allclose(values(encoder, batch), alone, atol=2e-5, rtol=0)


def test_pooling_by_hand() -> None:
    """States are directions, in degrees."""
    degrees = torch.tensor([[0.0, 2, 90, 95, 180, 90, 90, 0, 0], [7, 50, 60, 0, 0, 0, 0, 0, 0]])
    states = torch.stack([torch.cos(degrees.deg2rad()), torch.sin(degrees.deg2rad())], dim=2)
    segments = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1, 1]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0, 0, 0, 0]])
    found = Pool(2.0, 2)(states, segments, mask)
    runs = [[[0], [1], [2, 3, 4], [5, 6], [7]], [[0], [1, 2]]]
    assert found.shares.sum(dim=2).sum(dim=1).tolist() == [5, 2]
    for row, expected in enumerate(runs):
        for place, run in enumerate(expected):
            np.testing.assert_allclose(found.states[row, place], states[row, run].mean(dim=0), atol=1e-6)
            assert found.shares[row, place, run].tolist() == pytest.approx([1 / len(run)] * len(run))
    assert found.token_type_ids.tolist() == [[0, 0, 1, 1, 1], [0, 1, 0, 0, 0]]
    assert found.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]


def test_neighbours_that_are_equally_alike_part_at_the_first() -> None:
    states = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1], [1, 0]]).unsqueeze(0)
    alone = torch.ones(1, 5, dtype=torch.long)
    found = Pool(1.6, 2)(states, alone, alone)
    assert (found.shares > 0).long().tolist() == [[[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 1]]]


@pytest.mark.parametrize("factor", [1.0, 1.3, 1.4, 1.8, 1.9, 2.0, 2.5, 2.6, 2.8, 3.0, 3.5, 7.0, 512.0, 1e6])
def test_the_number_of_states_depends_on_no_rounding(factor: float) -> None:
    pieces = torch.arange(1, 513)
    exact = [states_of(int(one), factor) for one in pieces]
    assert min(exact) == 1
    assert pooled_length(pieces, factor).tolist() == exact
    by_reciprocal = torch.ceil(pieces * torch.tensor(1 / factor) - SLACK).long().clamp(min=1)
    assert by_reciprocal.tolist() == exact
    tenths = round(factor * 10)
    assert exact == [-(-int(one) * 10 // tenths) for one in pieces]


def test_pooling_is_computed_in_fp32_under_autocast() -> None:
    encoder = network(CrossBias(pool_factor=2.5), "mono")
    inputs = padded(sequences("mono", [(0,), (2,)]))
    ids, mask, segments = (torch.from_numpy(getattr(inputs, name)) for name in inputs.__slots__)
    with torch.inference_mode():
        exact = encoder.pool(encoder.embed(ids, segments), segments, mask)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = encoder.pool(encoder.embed(ids, segments), segments, mask)
    assert torch.equal(found.shares, exact.shares)
    assert found.states.dtype == torch.float32
    assert torch.equal(found.states, exact.states)


def test_the_attention_bias_by_hand() -> None:
    segments = torch.tensor([[0, 1, 2, 2]])
    is_token = torch.tensor([[True, True, True, False]])
    encoder = network(CrossBias(-1.0, -2.0, other=-3.0))
    expected = [
        [0, -1, -1, BLOCKED - 1], [-2, 0, -3, BLOCKED - 3], [-2, -3, 0, BLOCKED], [-2, -3, 0, BLOCKED],
    ]  # fmt: skip
    assert encoder.attention_bias(segments, is_token).tolist() == [[expected]]


def test_positions_begin_anew_with_each_document() -> None:
    encoder = network(CrossBias())
    encoder.norm = torch.nn.Identity()
    with torch.no_grad():
        for table in (encoder.word, encoder.segment, encoder.position):
            table.weight.zero_()
        encoder.position.weight[:, 0] = torch.arange(512.0)
    segments = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2], [0, 0, 1, 1, 1, 1, 2, 2]])
    found = encoder.embed(torch.ones_like(segments), segments)[:, :, 0]
    assert found.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2], [0, 1, 0, 1, 2, 3, 0, 1]]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mono", "duo"])
def test_nothing_in_it_depends_on_the_content(kind: Kind) -> None:
    """What ``torch.compile`` needs to make one graph for every length."""
    encoder = network(CrossBias(), kind)
    traced = torch.compile(encoder, backend="eager", fullgraph=True, dynamic=True)
    for tuples in ([(0, 1), (2, 3)], [(2, 1), (1, 0), (3, 0)]):
        batch = sequences(kind, tuples if kind == "duo" else [(first,) for first, _ in tuples])
        np.testing.assert_array_equal(values(traced, batch), values(encoder, batch))
