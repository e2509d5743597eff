"""Model directories: what is read from them, what their configs leave out, and what is refused, with the reason."""

import json
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from osrerank.cli import main
from osrerank.errors import ConfigError, ModelLoadError
from osrerank.scoring.card import ModelCard
from osrerank.scoring.card_file import read_card
from osrerank.scoring.locate import locate
from osrerank.scoring.model_files import DEFAULTS, hash_files
from osrerank.scoring.registry import load_scorer
from osrerank.settings import DEFAULT_MODEL

DATA = Path(__file__).parents[2] / "data"
BI_ENCODER = {"kind": "bi-encoder", "head": "cosine"}


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
    for changes, head in (
        ({"id2label": {"0": "no", "1": "yes"}}, "logits2"),
        ({"id2label": {"0": "LABEL_0"}, "architectures": ["ElectraForSequenceClassification"]}, "logit1"),
        ({"architectures": ["BertForNextSentencePrediction"]}, "next-sentence"),
    ):
        edit_json(directory / "config.json", **changes)
        assert read_card(directory).head == head


def test_the_models_positions_bound_the_sequence_length(directory: Path) -> None:
    edit_json(directory / "config.json", max_position_embeddings=514, model_type="xlm-roberta", pad_token_id=1)
    assert read_card(directory).max_tokens == 512
    edit_json(directory / "config.json", max_position_embeddings=128, model_type="bert", pad_token_id=0)
    assert read_card(directory).max_tokens == 128


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _card(folder: Path, changes: dict[str, object]) -> None:
    content = json.dumps({**ModelCard("tiny", "logit1").to_json(), **changes}, default=dict)
    (folder / "osrerank.json").write_text(content)


def _borrowing(folder: Path, tokenizer: str) -> None:
    _card(folder, {"tokenizer": tokenizer})
    (folder / "tokenizer.json").unlink()


DUO = {"kind": "duo", "head": "logits2", "segment_rows": 3}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "config.json").unlink(), r"config\.json is missing"),
        (lambda folder: (folder / "config.json").write_text("{"), r"config\.json cannot be read as JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), "is not a JSON object"),
        (lambda folder: (folder / "tokenizer.json").unlink(), r"no tokenizer\.json; save it there"),
        (lambda folder: (folder / "tokenizer.json").write_text("no"), r"tokenizer\.json cannot be read as JSON"),
        (lambda folder: edit_json(folder / "config.json", id2label={"0": "", "1": "", "2": ""}), "3 labels"),
        (lambda folder: edit_json(folder / "config.json", id2label={"0": "", "1": ""}), r"needs \(n, 2\)"),
        (lambda folder: edit_json(folder / "config.json", architectures=["BertModel"]), "export MODEL OUTPUT makes"),
        (lambda folder: edit_json(folder / "config.json", auto_map={"AutoModel": "x.Y"}), "never runs"),
        (lambda folder: (folder / "onnx/model.onnx").write_bytes(b"\x08\x08 cut"), "cannot be read as an ONNX graph"),
        (lambda folder: _truncate(folder / "onnx/model.onnx"), "cannot be read as an ONNX graph"),
        (
            lambda folder: (folder / "osrerank.json").write_text('{"version": 1}'),
            "version is 1; .* reads 2: export",
        ),
        (lambda folder: _card(folder, {"head": "odd"}), "head is 'odd'"),
        (lambda folder: _card(folder, {"x": 1}), r"osrerank\.json: .*'x'"),
        (lambda folder: _card(folder, BI_ENCODER | {"pooling": "sum"}), "pooling is 'sum'; it must be"),
        (lambda folder: _card(folder, {"kind": "bi-encoder"}), "head is 'logit1' and kind is bi-encoder"),
        (lambda folder: _card(folder, {"kind": "cross-encoder", "head": "cosine"}), "head is 'cosine' and kind"),
        (lambda folder: _card(folder, {"document_prefix": "x"}), "and only an encoder can have document_prefix"),
        (lambda folder: _card(folder, BI_ENCODER | {"feedback": {"share": 0.3}}), "feedback was removed; export the"),
        (lambda folder: _card(folder, {"languages": "English"}), "languages contains 'E'; it must list ISO 639"),
        (lambda folder: _card(folder, {"kind": "duo"}), r"segment_rows is 2; .*osrerank export --kind duo adds"),
        (lambda folder: _card(folder, DUO | {"head": "cosine"}), "head is 'cosine' and kind is duo"),
        (lambda folder: _card(folder, DUO | {"head": "next-sentence"}), "a duo model needs the head logit1 or logits2"),
        (lambda folder: _card(folder, DUO | {"segment_rows": 2}), "a row each for the query and both documents"),
        (lambda folder: _card(folder, DUO | {"max_tokens": 69}), "a query and two documents need 70 or more"),
        (lambda folder: _card(folder, {"calibration": {"scale": -1.0, "offset": 0.0}}), "scale is -1"),
        (lambda folder: _card(folder, {"onnx": {"int8": "onnx/none.onnx"}}), r"none\.onnx is missing"),
        (lambda folder: _card(folder, {"onnx": {"int8": "../other/model.onnx"}}), r"onnx\.int8 is '../other/model"),
        (
            lambda folder: _card(folder, {"onnx": {"fp32": "/srv/model.onnx"}}),
            "it must be a file in the model's folder",
        ),
        (lambda folder: _borrowing(folder, "../other/tokenizer.json"), r"osrerank\.json: tokenizer is '\.\./other/tok"),
        (lambda folder: _borrowing(folder, "C:\\tokenizer.json"), "it must be a file in the model's folder"),
    ],
)
def test_a_damaged_model_directory_is_refused_with_the_reason(
    directory: Path, damage: Callable[[Path], None], reason: str
) -> None:
    damage(directory)
    with pytest.raises(ModelLoadError, match=reason):
        load_scorer(str(directory), backend="onnx")


def test_a_bi_encoders_card_round_trips(directory: Path) -> None:
    prefixes = {"query_prefix": "query: ", "document_prefix": "passage: "}
    options = {"max_query_tokens": 512, "pooling": "mean", "languages": ("en", "deu")}
    card = ModelCard("tiny", "cosine", kind="bi-encoder", **options, **prefixes)
    assert card.advice.languages == ("en", "deu")
    (directory / "osrerank.json").write_text(json.dumps(card.to_json()))
    assert read_card(directory) == card


def test_the_backend_auto_is_torch_without_a_graph(directory: Path) -> None:
    pytest.importorskip("torch")
    (directory / "onnx/model.onnx").unlink()
    assert load_scorer(str(directory)).score("low", ["wing"], [(0,)]).inferences == 1
    with pytest.raises(ModelLoadError, match="osrerank export"):
        load_scorer(str(directory), backend="onnx")
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="neither"):
        load_scorer(str(directory))


def test_of_two_graphs_the_int8_graph_is_used(directory: Path) -> None:
    shutil.copyfile(directory / "onnx/model.onnx", directory / "onnx/model_int8.onnx")
    assert load_scorer(str(directory)).backend.files == ("onnx/model_int8.onnx",)


def test_without_torch_a_model_without_a_graph_is_refused_by_the_name_of_the_extra(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "onnx/model.onnx").unlink()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelLoadError, match=r"contains no ONNX graph, .* pip install 'osrerank\[torch\]'"):
        load_scorer(str(directory))


def test_the_models_digest_covers_the_named_files(directory: Path) -> None:
    before = hash_files(directory, ["config.json", "tokenizer.json"])
    (directory / "README.md").write_text("no score depends on this")
    assert hash_files(directory, ["tokenizer.json", "config.json"]) == before
    edit_json(directory / "config.json", pad_token_id=1)
    assert hash_files(directory, ["config.json", "tokenizer.json"]) != before
    models = (DATA / "tiny-bert-one-label", DATA / "tiny-bert-two-labels", directory)
    assert len({load_scorer(str(model)).identity for model in models}) == 3


@pytest.mark.parametrize("name", ["./no/such/folder", "/no/such/folder", "a b", "../x", "osrerank/none"])
def test_a_model_name_that_is_neither_shipped_nor_a_folder_is_refused(name: str) -> None:
    with pytest.raises(ModelLoadError, match=f"no directory|{DEFAULT_MODEL}"):
        locate(name)


def test_an_unknown_backend_is_refused(directory: Path) -> None:
    with pytest.raises(ConfigError, match="backend is 'onx'; it must be one of auto, onnx, torch; did you mean 'onnx'"):
        load_scorer(str(directory), backend="onx")


NEEDED = {"hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size", "model_type"}
"""Keys without which the tiny model is another, and the key by which defaults are chosen."""
BERT = DATA / "tiny-bert-two-labels"
KEYS = sorted(set(json.loads((BERT / "config.json").read_text())) - NEEDED - {"architectures"})


def scores(model: Path, backend: str) -> np.ndarray:
    with closing(load_scorer(str(model), backend=backend, threads=1)) as scorer:
        return scorer.score("low pressure", ["the wing of the engine", "heat flow"], [(0,), (1,)]).values


@pytest.mark.parametrize("family", DEFAULTS)
def test_defaults_of_missing_config_keys_are_those_of_transformers(family: str) -> None:
    theirs = pytest.importorskip("transformers").AutoConfig.for_model(family)
    assert dict(DEFAULTS[family]) == {name: getattr(theirs, name) for name in DEFAULTS[family]}


@pytest.mark.long
@pytest.mark.parametrize("key", [*KEYS, "all"])
def test_a_model_whose_config_lacks_a_key_scores_as_before_in_both_backends(tmp_path: Path, key: str) -> None:
    pytest.importorskip("onnx")
    source = shutil.copytree(BERT, tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    lacking = KEYS if key == "all" else [key]
    (source / "config.json").write_text(json.dumps({name: config[name] for name in config if name not in lacking}))
    main(["export", str(source), str(tmp_path / "made"), "--no-self-check", "--keep-weights"])
    assert (read_card(source).segment_rows, read_card(source).max_tokens) == (2, 512)
    expected = scores(BERT, "torch")
    for model, backend in ((source, "torch"), (tmp_path / "made", "torch"), (tmp_path / "made", "onnx")):
        np.testing.assert_allclose(scores(model, backend), expected, atol=1e-5, err_msg=f"{model.name} {backend}")


@pytest.mark.long
@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "electra", "modernbert"])
def test_cards_of_other_model_families_are_inferred(tmp_path: Path, family: str) -> None:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
    vocabulary = max(300, DEFAULTS[family]["pad_token_id"] + 1)
    config = transformers.AutoConfig.for_model(family, vocab_size=vocabulary, num_labels=2, **small)
    network = transformers.AutoModelForSequenceClassification.from_config(config)
    network.save_pretrained(tmp_path / "whole")
    shutil.copy(BERT / "tokenizer.json", tmp_path / "whole")
    lacking = shutil.copytree(tmp_path / "whole", tmp_path / "lacking")
    kept_options = {**small, "vocab_size": vocabulary, "model_type": family, "architectures": [type(network).__name__]}
    (lacking / "config.json").write_text(json.dumps(kept_options))
    expected = scores(tmp_path / "whole", "torch")
    main(["export", str(lacking), str(tmp_path / "made"), "--no-self-check"])
    for model, backend in ((lacking, "torch"), (tmp_path / "made", "onnx")):
        np.testing.assert_allclose(scores(model, backend), expected, atol=1e-4, err_msg=backend)
