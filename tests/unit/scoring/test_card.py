"""Model directories: what is read from them, and what is refused, with the reason."""

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from osrerank.errors import ConfigError, ModelLoadError
from osrerank.scoring.card import Calibration, CrossBias, Joining, ModelCard
from osrerank.scoring.locate import locate
from osrerank.scoring.model_files import digest, read_card
from osrerank.scoring.registry import load_scorer
from osrerank.settings import DEFAULT_MODEL

DATA = Path(__file__).parents[2] / "data"
JOINED = {"layout": "joined", "head": "cosine"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A model as others publish it: no card of ours."""
    copy = tmp_path / "tiny"
    shutil.copytree(DATA / "tiny-bert-one-label", copy)
    (copy / "osrerank.json").unlink()
    return copy


def edit_json(file: Path, **changes: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_a_card_is_inferred_from_a_classifiers_config(directory: Path) -> None:
    card = read_card(directory)
    assert card == ModelCard(name="tiny", head="logit1", onnx={"fp32": "onnx/model.onnx"})
    assert read_card(directory, name="somebody/tiny").name == "somebody/tiny"


@pytest.mark.parametrize(
    ("changes", "head"),
    [
        ({"id2label": {"0": "no", "1": "yes"}}, "logits2"),
        ({"id2label": {"0": "LABEL_0"}, "architectures": ["ElectraForSequenceClassification"]}, "logit1"),
        ({"architectures": ["BertForNextSentencePrediction"]}, "next-sentence"),
    ],
)
def test_heads_are_read_from_the_config(directory: Path, changes: dict[str, object], head: str) -> None:
    edit_json(directory / "config.json", **changes)
    assert read_card(directory).head == head


def test_positions_bound_the_sequence(directory: Path) -> None:
    edit_json(directory / "config.json", max_position_embeddings=514, model_type="xlm-roberta", pad_token_id=1)
    assert read_card(directory).max_tokens == 512
    edit_json(directory / "config.json", max_position_embeddings=128, model_type="bert", pad_token_id=0)
    assert read_card(directory).max_tokens == 128


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "config.json").unlink(), r"config\.json is missing"),
        (lambda folder: (folder / "config.json").write_text("{"), r"config\.json cannot be read as JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), "is not a JSON object"),
        (lambda folder: (folder / "tokenizer.json").unlink(), r"no tokenizer\.json; save it there"),
        (lambda folder: (folder / "tokenizer.json").write_text("no"), r"tokenizer\.json cannot be used as a tokenizer"),
        (lambda folder: edit_json(folder / "config.json", id2label={"0": "", "1": "", "2": ""}), "3 labels"),
        (lambda folder: edit_json(folder / "config.json", id2label={"0": "", "1": ""}), r"gives \(n, 2\)"),
        (
            lambda folder: edit_json(folder / "config.json", architectures=["BertModel"]),
            "osrerank adapt makes",
        ),
        (lambda folder: edit_json(folder / "config.json", auto_map={"AutoModel": "x.Y"}), "never runs"),
        (lambda folder: (folder / "onnx/model.onnx").write_bytes(b"\x08\x08 cut"), "cannot be read as an ONNX graph"),
        (lambda folder: _truncate(folder / "onnx/model.onnx"), "cannot be read as an ONNX graph"),
        (lambda folder: (folder / "osrerank.json").write_text('{"version": 2}'), "version is 2"),
        (lambda folder: (folder / "osrerank.json").write_text('{"version": 1, "head": "odd"}'), "head is 'odd'"),
        (lambda folder: (folder / "osrerank.json").write_text('{"version": 1, "x": 1}'), r"osrerank\.json: .*'x'"),
        (lambda folder: _card(folder, JOINED | {"joining": {"odd": 1}}), "joining: odd is unknown"),
        (lambda folder: _card(folder, JOINED | {"joining": {"rows": "some"}}), "rows is 'some'; it must be cls or all"),
        (lambda folder: _card(folder, JOINED | {"joining": {"layers": -1}}), "layers is -1"),
        (lambda folder: _card(folder, JOINED | {"joining": {"bias": "open"}}), "bias is 'open'; it must be a number"),
        (lambda folder: _card(folder, JOINED | {"joining": {"cosine_share": 2}}), "cosine_share is 2; .* from 0 to 1"),
        (lambda folder: _card(folder, JOINED | {"joining": {"pooling": "mean"}}), "set rows to all"),
        (lambda folder: _card(folder, {"layout": "joined"}), "head is 'logit1'; in the layout joined it is cosine"),
        (lambda folder: _card(folder, {"languages": "English"}), "languages has 'E'; they are ISO 639 codes, such as"),
        (lambda folder: _card(folder, {"kind": "duo"}), r"segment_rows is 2; .*osrerank export --kind duo adds"),
        (lambda folder: _card(folder, {"calibration": {"scale": -1.0, "offset": 0.0}}), "scale is -1"),
        (lambda folder: _card(folder, {"onnx": {"int8": "onnx/none.onnx"}}), r"none\.onnx is missing"),
    ],
)
def test_a_damaged_directory_is_refused_with_the_reason(
    directory: Path, damage: Callable[[Path], None], reason: str
) -> None:
    damage(directory)
    with pytest.raises(ModelLoadError, match=reason):
        load_scorer(str(directory), backend="onnx")


def test_a_joined_card_comes_back(directory: Path) -> None:
    joining = Joining(2, -1.5, "all", "mean", 0.25, "query: ", "passage: ")
    languages = ("en", "deu")
    card = ModelCard("tiny", "cosine", layout="joined", max_query_tokens=512, joining=joining, languages=languages)
    assert card.advice.languages == languages
    (directory / "osrerank.json").write_text(json.dumps(card.to_json()))
    assert read_card(directory) == card


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _card(folder: Path, changes: dict[str, object]) -> None:
    (folder / "osrerank.json").write_text(
        json.dumps({**ModelCard("tiny", "logit1").to_json(), **changes}, default=dict)
    )


def test_pickles_are_refused(directory: Path) -> None:
    (directory / "onnx/model.onnx").unlink()
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"is a pickle of more than tensors.*state_dict"):
        load_scorer(str(directory))


def test_a_directory_without_weights_is_refused(directory: Path) -> None:
    (directory / "onnx/model.onnx").unlink()
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="neither"):
        load_scorer(str(directory))


def test_torch_refuses_weights_that_are_not_the_configs(directory: Path) -> None:
    pytest.importorskip("torch")
    shutil.copyfile(DATA / "tiny-bert-cross-bias" / "model.safetensors", directory / "model.safetensors")
    with pytest.raises(ModelLoadError, match="lacks weights"):
        load_scorer(str(directory), backend="torch")


def test_torch_refuses_a_truncated_file(directory: Path) -> None:
    pytest.importorskip("torch")
    _truncate(directory / "model.safetensors")
    with pytest.raises(ModelLoadError, match="cannot be read as"):
        load_scorer(str(directory), backend="torch")


def test_auto_takes_torch_where_there_is_no_graph(directory: Path) -> None:
    pytest.importorskip("torch")
    (directory / "onnx/model.onnx").unlink()
    assert load_scorer(str(directory)).score("low", ["wing"], [(0,)]).inferences == 1
    with pytest.raises(ModelLoadError, match="osrerank export"):
        load_scorer(str(directory), backend="onnx")


def test_the_card_round_trips() -> None:
    directory = DATA / "tiny-bert-cross-bias"
    card = read_card(directory)
    assert card.cross_bias == CrossBias(-2.0, "closed", 20.0)
    written = json.loads((directory / "osrerank.json").read_text())
    assert card.to_json() == {**written, "prior_share": 0.0}  # a card from before there was one
    assert card.prior_share == 0
    with pytest.raises(ValueError, match="prior_share is 1; it must be 0 or above and below 1"):
        replace(card, prior_share=1)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"query_pool_factor": 1.5}, "query_pool_factor is unknown; the fields are document, other, pool_factor"),
        ({"query": "shut"}, "query is 'shut'; it must be a number or 'closed'"),
        ({"other": math.nan}, "other is nan; it must be a number or 'closed'"),
        ({"temperature": 0}, "temperature is 0; it must be a number above 0"),
        ({"pool_factor": 0.9}, "pool_factor is 0.9; it must be 1 or above"),
        ({"pool_factor": "2"}, "pool_factor is '2'; it must be 1 or above"),
    ],
)
def test_biases_that_cannot_be_are_refused_by_file_and_field(tmp_path: Path, content: dict, reason: str) -> None:
    made = tmp_path / "made"
    shutil.copytree(DATA / "tiny-bert-cross-bias", made)
    card = json.loads((made / "osrerank.json").read_text())
    (made / "osrerank.json").write_text(json.dumps({**card, "biases": {**card["biases"], **content}}))
    with pytest.raises(ModelLoadError, match=re.escape(f"{made / 'osrerank.json'}: biases: {reason}")):
        read_card(made)


def test_the_card_of_a_pooling_duo_model_round_trips() -> None:
    biases = {"query": -1.5, "document": "closed", "temperature": 10.0, "pool_factor": 2.5, "other": -3.0}
    cross_bias = CrossBias.from_json(biases)
    assert cross_bias == CrossBias(-1.5, "closed", 10.0, other=-3.0, pool_factor=2.5)
    assert list(cross_bias.to_json("duo").items()) == list(biases.items())
    assert "other" not in cross_bias.to_json("mono")
    assert ModelCard("plain", "logit1", cross_bias=cross_bias).to_json()["biases"] == {}


def test_the_digest_is_that_of_the_files_named(directory: Path) -> None:
    before = digest(directory, ["config.json", "tokenizer.json"])
    (directory / "README.md").write_text("no score depends on this")
    assert digest(directory, ["tokenizer.json", "config.json"]) == before
    edit_json(directory / "config.json", pad_token_id=1)
    assert digest(directory, ["config.json", "tokenizer.json"]) != before


def test_identities_differ_by_model(directory: Path) -> None:
    identities = {load_scorer(str(DATA / f"tiny-bert-{form}")).identity for form in ("one-label", "two-labels")}
    identities.add(load_scorer(str(directory)).identity)
    assert len(identities) == 3


def test_a_calibration_that_turns_the_order_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Calibration(scale=0.0)


@pytest.mark.parametrize("name", ["./no/such/folder", "/no/such/folder", "a b", "../x", "osrerank/none"])
def test_names_that_are_nothing(name: str) -> None:
    with pytest.raises(ModelLoadError, match=f"no directory|{DEFAULT_MODEL}"):
        locate(name)


def test_a_backend_must_be_one(directory: Path) -> None:
    with pytest.raises(ConfigError, match="backend is 'onx'; it must be one of auto, onnx, torch; did you mean onnx"):
        load_scorer(str(directory), backend="onx")


def test_two_equal_documents_weigh_what_the_one_did() -> None:
    one, both = np.exp(-2.0 + 1.5), 2 * np.exp(CrossBias(-2.0).as_duo(-4.0).query + 1.5)
    assert both == pytest.approx(one)
    assert CrossBias("closed").as_duo("closed") == CrossBias("closed", other="closed")
