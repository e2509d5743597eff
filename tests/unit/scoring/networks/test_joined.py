"""The network of the layout joined, against its definition and against what it must equal."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from osrerank.scoring.card import BLOCKED, CrossBias, Joining
from osrerank.scoring.inputs import Tokens
from osrerank.scoring.inputs import padded as batched
from osrerank.scoring.model_files import read_json

torch = pytest.importorskip("torch")

from osrerank.scoring.networks.cross_bias import from_bert  # noqa: E402 - imports torch
from osrerank.scoring.networks.joined import (  # noqa: E402 - likewise
    JoinedEncoder,
    TextStates,
    joined_from_bert,
    merged,
)
from osrerank.scoring.networks.joined_scores import joined_scores  # noqa: E402 - likewise
from osrerank.scoring.torch_scorer import read_weights  # noqa: E402 - likewise
from tests.joined import defined  # noqa: E402 - likewise

DIRECTORY = Path(__file__).parents[3] / "data" / "tiny-bert-cross-bias"
LAYERS = read_json(DIRECTORY / "config.json")["num_hidden_layers"]
QUERY = "what causes low blood pressure"
JOININGS = [
    Joining(0), Joining(0, rows="all", pooling="mean"), Joining(1, -3.0), Joining(2, 0.5),
    Joining(2, -1.0, "all", "cls", 0.25), Joining(1, -1.0, "all", "mean"), Joining(2, 0.0, "all", "mean", 1.0),
    Joining(2, 1.0, "all", "mean", 0.5),
]  # fmt: skip
DOCUMENTS = ("blood pressure is low when the heart is slow", "", "wing flow " * 12, "water & heat: 1,000!")


def network(joining: Joining) -> JoinedEncoder:
    weights = dict(read_weights(DIRECTORY))
    if joining.own_weights:
        first = LAYERS - joining.layers
        own = [(name, name.split(".")) for name in weights if name.startswith("encoder.layer.")]
        for name, (_, _, index, *rest) in own:
            if int(index) >= first:
                weights[".".join(("joined.layer", str(int(index) - first), *rest))] = 1.1 * weights[name]
    return joined_from_bert(weights, read_json(DIRECTORY / "config.json"), joining)


def ids(text: str) -> list[int]:
    return Tokenizer.from_file(str(DIRECTORY / "tokenizer.json")).encode(text).ids


def padded(texts: Sequence[str]) -> tuple[Any, Any]:
    rows = [torch.tensor(ids(text)) for text in texts]
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(rows, batch_first=True), pad([torch.ones_like(row) for row in rows], batch_first=True)


def scores(joining: Joining, factor: float = 1.0, documents: Sequence[str] = DOCUMENTS) -> np.ndarray:
    encoder = network(joining)
    with torch.inference_mode():
        query = encoder.encode(*padded([QUERY]), joining.layers)
        keys = encoder.project(merged(encoder.encode(*padded(documents), joining.layers), factor))
        return encoder.scores(query, keys).numpy()


@pytest.mark.parametrize("factor", [1.0, 2.5])
@pytest.mark.parametrize("joining", JOININGS, ids=str)
def test_scores_equal_the_definition(joining: Joining, factor: float) -> None:
    expected = [defined(DIRECTORY, QUERY, text, joining, factor) for text in DOCUMENTS]
    assert np.ptp(expected) > 0.05
    np.testing.assert_allclose(scores(joining, factor), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("joining", JOININGS, ids=str)
def test_without_keys_and_values_the_scores_are_the_same(joining: Joining, own: bool) -> None:
    joining = replace(joining, cosine_share=0.0, own_weights=own and joining.layers > 0)
    encoder = network(joining)
    with torch.inference_mode():
        queries = encoder.encode(*padded([QUERY, "wing", "heat flow", QUERY]), joining.layers)
        documents = merged(encoder.encode(*padded(DOCUMENTS), joining.layers), 2.0)
        expected = [
            encoder.scores(queries, encoder.project(documents), replace(joining, bias=bias)).numpy()
            for bias in (-1.0, 0.5)
        ]
        found = joined_scores(encoder, queries, documents, joining, [-1.0, 0.5])
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("joining", JOININGS, ids=str)
def test_a_query_of_several_documents_is_computed_once(joining: Joining) -> None:
    joining = replace(joining, cosine_share=0.0)
    encoder = network(joining)
    places = torch.tensor([1, 0, 1, 2])
    with torch.inference_mode():
        several = encoder.encode(*padded(["wing", QUERY, "heat flow"]), joining.layers)
        queries = TextStates(
            tuple(layer[places] for layer in several.layers), several.log_pieces[places], several.vectors[places]
        )
        documents = encoder.encode(*padded(DOCUMENTS), joining.layers)
        expected = joined_scores(encoder, queries, documents, joining, [-1.0, 0.5])
        found = joined_scores(encoder, several, documents, joining, [-1.0, 0.5], places)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=2e-6, rtol=0)


@pytest.mark.parametrize("joining", JOININGS, ids=str)
def test_sequences_of_different_queries_equal_the_definition(joining: Joining) -> None:
    pairs = [(query, text) for query in (QUERY, "wing", "heat flow of the water: what is it") for text in DOCUMENTS]
    sequences = [Tokens(np.array(ids(q) + ids(d)), np.repeat([0, 1], [len(ids(q)), len(ids(d))])) for q, d in pairs]
    batch = batched(sequences)
    with torch.inference_mode():
        found = network(joining)(*(torch.from_numpy(getattr(batch, name)) for name in batch.__slots__))
    expected = [[defined(DIRECTORY, query, text, joining)] for query, text in pairs]
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-6, rtol=0)


def test_a_query_that_sees_nothing_is_the_bi_encoder() -> None:
    np.testing.assert_allclose(scores(Joining(2, BLOCKED)), scores(Joining(0)), atol=1e-6)


def test_in_one_layer_the_cls_row_alone_is_exact() -> None:
    np.testing.assert_allclose(scores(Joining(1, -1.0, "cls")), scores(Joining(1, -1.0, "all")), atol=1e-6)


def test_joined_in_all_layers_it_is_the_layout_cross_bias() -> None:
    crossed = from_bert(read_weights(DIRECTORY), read_json(DIRECTORY / "config.json"), CrossBias(-1.0, "closed", 1.0))
    found = scores(Joining(LAYERS, -1.0, "all", "mean"))
    for place, text in enumerate(DOCUMENTS):
        parts = [ids(QUERY), ids(text)]
        sequence = torch.tensor([parts[0] + parts[1]])
        segments = torch.tensor([[0] * len(parts[0]) + [1] * len(parts[1])])
        with torch.inference_mode():
            expected = float(crossed(sequence, torch.ones_like(sequence), segments)[0, 0])
        assert found[place] == pytest.approx(expected, abs=2e-6)


def test_what_cannot_be_joined_is_refused() -> None:
    with pytest.raises(ValueError, match=f"layers is 5; the model has {LAYERS}"):
        network(Joining(5))
    encoder = network(Joining(1))
    with torch.inference_mode():
        alone = encoder.encode(*padded([QUERY]), 1)
        keys = encoder.project(alone)
        with pytest.raises(ValueError, match=r"2 layers are to be joined, .* those of 1"):
            encoder.scores(alone, keys, Joining(2))
