"""Joined models in training: whole, and the joined layers alone on states."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from osrerank.errors import ConfigError, ModelLoadError
from osrerank.export.export_model import ExportOptions, export_model, write_card
from osrerank.scoring.card import Joining, ModelCard
from osrerank.scoring.inputs import Batch, InputBuilder, padded
from osrerank.scoring.model_files import read_card
from osrerank.scoring.onnx_scorer import EncoderBackend
from osrerank.scoring.registry import load_scorer
from osrerank.scoring.states.configured import States
from osrerank.scoring.states.record import PROFILES
from osrerank.scoring.states.scorer import BiEncoderScorer

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

from safetensors.torch import load_file  # noqa: E402 - needs torch

from osrerank.training.curve import read_curve  # noqa: E402 - imports torch
from osrerank.training.examples.sources import open_source  # noqa: E402 - likewise
from osrerank.training.fit import Request, train  # noqa: E402 - likewise
from osrerank.training.objective import to_device  # noqa: E402 - likewise
from osrerank.training.recipes import Recipe  # noqa: E402 - likewise
from osrerank.training.weights.joined import TEMPERATURE, OnStates, on_states  # noqa: E402 - likewise
from osrerank.training.weights.models import load_trainee  # noqa: E402 - likewise
from tests.servers import ROOT  # noqa: E402

BI_ENCODER = ROOT / "tests" / "data" / "tiny-bert-bi-encoder"
JOININGS = [
    Joining(1, -1.0),
    Joining(2, -1.0, cosine_share=0.25),
    Joining(1, -1.0, "all", "mean", query_prefix="ask : "),
]
SMALL = Recipe(steps=40, batch=8, negatives=3, rate=1e-3, mine_at=0.5, evaluate_every=20, max_tokens=64)
DOCUMENTS = ["blood pressure is low when the heart is slow", "", "wing flow " * 12, "water & heat: 1,000!"]
Source = Callable[[Joining], Path]


@pytest.fixture
def adapted(tmp_path: Path) -> Source:
    """Makes a joined model with weights and fp32 graphs."""

    def make(joining: Joining) -> Path:
        folder = tmp_path / "source"
        folder.mkdir()
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            shutil.copyfile(BI_ENCODER / name, folder / name)
        write_card(folder, ModelCard("tiny", "cosine", layout="joined", max_query_tokens=512, joining=joining))
        export_model(folder, tmp_path / "adapted", ExportOptions(keep_weights=True))
        return tmp_path / "adapted"

    return make


def request(examples: Path, source: Path, output: Path, **changes: object) -> Request:
    data = open_source({"examples": str(examples)})
    given = {"recipe": SMALL, "data": [data], "development": data, **changes}
    return Request(source=source, output=output, **given)  # type: ignore[arg-type]


def values(model: Path, backend: str = "torch") -> np.ndarray:
    scorer = load_scorer(str(model), backend=backend)
    return scorer.score("low blood pressure", DOCUMENTS, [(place,) for place in range(4)]).values


def sequences(builder: InputBuilder, query: str, documents: list[str]) -> Batch:
    pieces = builder.query(query)
    return padded([builder.mono(pieces, text) for text in builder.documents(documents, pieces)])


@pytest.mark.parametrize("joining", JOININGS, ids=str)
def test_on_states_the_logits_are_those_of_the_whole_model_and_each_text_is_encoded_once(
    adapted: Source, joining: Joining
) -> None:
    source = adapted(joining)
    trainee = load_trainee(source, SMALL)
    inputs = to_device(torch.device("cpu"), sequences(trainee.builder, "low blood pressure", DOCUMENTS * 2))
    with torch.inference_mode():
        expected = trainee.network(**inputs)
        network, card = on_states(trainee.network, trainee.card, source)
        found = network(**inputs)
        network(**inputs)
    assert card.joining == replace(joining, own_weights=True)
    assert network.encoded == 1 + len(DOCUMENTS)
    assert float(expected.abs().max()) > 0.1 * TEMPERATURE
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=5e-3 * TEMPERATURE)  # states have 16 bits


@pytest.mark.parametrize("joining", JOININGS, ids=str)
@pytest.mark.parametrize("profile", ["standard", "small"])
def test_on_records_the_logits_are_those_that_searches_compute_from_them(
    adapted: Source, joining: Joining, profile: str
) -> None:
    source = adapted(joining)
    trainee = load_trainee(source, SMALL)
    network, _ = on_states(trainee.network, trainee.card, source, PROFILES[profile])
    card, builder = read_card(source), trainee.builder
    scorer = BiEncoderScorer(
        source, card, builder, EncoderBackend.load(source, card), States(None, PROFILES[profile], b"")
    )
    served = scorer.score("low blood pressure", DOCUMENTS, [(place,) for place in range(4)]).values
    scorer.close()
    batch = sequences(builder, "low blood pressure", DOCUMENTS)
    with torch.inference_mode():
        found = network(**to_device(torch.device("cpu"), batch))[:, 0].numpy()
    np.testing.assert_allclose(found / TEMPERATURE, served, atol=2e-3)
    assert np.abs(served - values(source, "onnx")).max() > 5e-3


def test_states_that_do_not_fit_are_encoded_again(adapted: Source) -> None:
    source = adapted(JOININGS[0])
    trainee = load_trainee(source, SMALL)
    whole, _ = on_states(trainee.network, trainee.card, source)
    network = OnStates(whole.encoder, whole._encode, kept_bytes=1)
    inputs = to_device(torch.device("cpu"), sequences(trainee.builder, "wing", DOCUMENTS))
    with torch.inference_mode():
        torch.testing.assert_close(network(**inputs), network(**inputs))
        torch.testing.assert_close(network(**inputs), whole(**inputs))
    assert network.encoded == 3 * (1 + len(DOCUMENTS))


@pytest.mark.parametrize("joining", JOININGS, ids=str)
def test_on_states_the_joined_layers_alone_learn(
    adapted: Source, examples: Path, tmp_path: Path, joining: Joining
) -> None:
    source = adapted(joining)
    made = train(request(examples, source, tmp_path / "made", on_states=True, states_profile="exact"))
    assert made is not None
    losses = [float(row["loss"]) for row in read_curve(made / "curve.csv")]
    assert np.mean(losses[-8:]) < 0.8 * np.mean(losses[:8])
    before, after = load_file(source / "model.safetensors"), load_file(made / "model.safetensors")
    own = {name for name in after if name.startswith("joined.layer.")}
    assert after.keys() == before.keys() | own
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert len(own) == 16 * joining.layers
    card = read_card(made)
    assert card.joining == replace(joining, own_weights=True)
    assert card.max_query_tokens == SMALL.max_tokens
    for precision, tolerance in (("fp32", 3e-6), ("int8", 0.05)):
        exported = tmp_path / precision
        export_model(made, exported, ExportOptions(precision=precision))
        np.testing.assert_allclose(values(exported, "onnx"), values(made), atol=tolerance)
    assert not np.allclose(values(made), values(source), atol=0.01)
    again = train(request(examples, tmp_path / "fp32", tmp_path / "again", on_states=True))  # on records
    assert again is not None


@pytest.mark.parametrize("kind", ["mono", "duo"])
def test_a_whole_joined_model_learns_and_scores_the_same_after_it_was_written(
    adapted: Source, examples: Path, tmp_path: Path, kind: str
) -> None:
    source = adapted(JOININGS[1])
    made = train(request(examples, source, tmp_path / "made"), kind)  # type: ignore[arg-type]
    assert made is not None
    losses = [float(row["loss"]) for row in read_curve(made / "curve.csv")]
    assert np.mean(losses[-8:]) < 0.8 * np.mean(losses[:8])
    card = read_card(made)
    wanted = JOININGS[1] if kind == "mono" else JOININGS[1].as_duo()
    assert (card.kind, card.layout, card.joining) == (kind, "joined", wanted)
    before, after = load_file(source / "model.safetensors"), load_file(made / "model.safetensors")
    assert after.keys() == before.keys()
    assert not torch.equal(before["encoder.layer.0.output.dense.weight"], after["encoder.layer.0.output.dense.weight"])
    trainee = load_trainee(made, SMALL, kind=kind)  # type: ignore[arg-type]
    assert torch.equal(after["encoder.layer.0.output.dense.weight"], trainee.network.encoder.layers[0].narrow.weight)


def test_what_cannot_be_trained_on_states_is_refused(adapted: Source, examples: Path, tmp_path: Path) -> None:
    output = tmp_path / "made"
    source = adapted(Joining(1))
    with pytest.raises(ConfigError, match="no mono model with joined layers; osrerank adapt"):
        train(
            request(
                examples,
                BI_ENCODER,
                output,
                on_states=True,
                recipe=replace(SMALL, layout="cross-bias", max_query_tokens=16),
            )
        )
    with pytest.raises(ConfigError, match="no mono model with joined layers"):
        train(request(examples, source, output, on_states=True), "duo")
    with pytest.raises(ConfigError, match="is no joined model; osrerank adapt makes one"):
        train(request(examples, BI_ENCODER, output, recipe=replace(SMALL, layout="joined")))
    with pytest.raises(ModelLoadError, match="has no ONNX graph"):
        train(request(examples, tmp_path / "source", output, on_states=True))
    assert not output.exists()
