"""The drawn graphs of `osrerank.export.graph` against torch, on the tiny BERTs: every head; and transformers' pairs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from osrerank.export.export_model import ExportOptions, export_model
from osrerank.export.graph import can_build
from osrerank.scoring.cross_encoder import CrossEncoder
from osrerank.scoring.registry import load_scorer

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
transformers = pytest.importorskip("transformers")

DATA = Path(__file__).parents[1] / "data"
FORMS = ("one-label", "two-labels", "next-sentence", "duo")
QUERY = "what causes low blood pressure"
DOCUMENTS = ["blood pressure is low when the heart is slow", "", "wing flow " * 40, "water & heat: 1,000!"]
TUPLES = {"cross-encoder": [(0,), (1,), (2,), (3,)], "duo": [(0, 1), (1, 0), (2, 3), (3, 2)]}


def next_sentence(folder: Path) -> Path:
    """Write a BERT with a next-sentence head, on the body of the tiny classifier."""
    source = DATA / "tiny-bert-one-label"
    torch.manual_seed(1)
    config = transformers.BertConfig.from_pretrained(source)
    network = transformers.BertForNextSentencePrediction(config)
    body = transformers.BertModel.from_pretrained(source)
    network.bert.load_state_dict(body.state_dict())
    network.save_pretrained(folder)
    shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    return folder


@pytest.fixture(params=FORMS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "next-sentence":
        return next_sentence(tmp_path / request.param)
    return DATA / f"tiny-bert-{request.param}"


def exported(source: Path, output: Path, form: str = "fp32") -> CrossEncoder:
    kind = "duo" if source.name.endswith("duo") else None
    export_model(source, output, ExportOptions(kind=kind, precision=form))
    return load_scorer(str(output), backend="onnx", threads=2)


def values(scorer: CrossEncoder) -> np.ndarray:
    return scorer.score(QUERY, DOCUMENTS, TUPLES[scorer.advice.kind]).values


def test_the_exported_graph_equals_torch(source: Path, tmp_path: Path) -> None:
    expected = values(load_scorer(str(source), backend="torch", threads=1))
    assert np.ptp(expected) > 1e-3
    np.testing.assert_allclose(values(exported(source, tmp_path / "made")), expected, atol=1e-5, rtol=0)
    graph = onnx.load(tmp_path / "made" / "onnx" / "model.onnx").graph
    assert [entry.name for entry in graph.input] == ["input_ids", "token_type_ids"]  # it takes no padding


@pytest.mark.parametrize("form", ["one-label", "two-labels"])
def test_pairs_are_read_as_by_transformers(form: str) -> None:
    directory = DATA / f"tiny-bert-{form}"
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    network = transformers.AutoModelForSequenceClassification.from_pretrained(directory).eval()
    onnx_values = values(load_scorer(str(directory), backend="onnx", threads=1))
    for text, value in zip(DOCUMENTS, onnx_values, strict=True):
        with torch.inference_mode():
            inputs = tokenizer([QUERY], [text], return_tensors="pt", return_token_type_ids=True)
            logits = network(**inputs).logits[0]
        assert value == pytest.approx(float(logits[0] if form == "one-label" else logits[1] - logits[0]), abs=1e-4)


@pytest.mark.parametrize("form", ["fp32", "int8"])
def test_other_sequences_of_a_batch_change_no_bit_of_a_score(source: Path, tmp_path: Path, form: str) -> None:
    scorer = exported(source, tmp_path / "made", form)
    tuples = TUPLES[scorer.advice.kind]
    alone = [scorer.score(QUERY, DOCUMENTS, [indices]).values[0] for indices in tuples]
    together = scorer.score(QUERY, DOCUMENTS, tuples * 20).values
    assert together.tolist() == alone * 20


def test_only_the_first_row_goes_through_a_classifiers_last_layer(tmp_path: Path) -> None:
    exported(DATA / "tiny-bert-one-label", tmp_path / "made")
    import onnxruntime

    model = onnx.load(tmp_path / "made" / "onnx" / "model.onnx")
    for name in ("layers.0.widen.0", "layers.1.widen.0"):
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    ids = np.arange(5, 12, dtype=np.int64)[None]
    _logits, every, last = session.run(None, {"input_ids": ids, "token_type_ids": np.zeros_like(ids)})
    assert (every.shape[1], last.shape[1]) == (7, 1)


def test_sequences_of_equal_length_may_share_a_batch(source: Path, tmp_path: Path) -> None:
    import onnxruntime

    exported(source, tmp_path / "made")
    session = onnxruntime.InferenceSession(
        str(tmp_path / "made" / "onnx" / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    ids = np.random.default_rng(1).integers(5, 60, size=(3, 9))
    segments = (np.arange(9) >= np.array([[3], [5], [4]])).astype(np.int64)
    if source.name.endswith("duo"):
        segments += np.arange(9) >= np.array([[5], [6], [8]])
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": segments}
    session_inputs = {entry.name: inputs[entry.name] for entry in session.get_inputs()}
    (together,) = session.run(None, session_inputs)
    alone = [
        session.run(None, {name: array[[row]] for name, array in session_inputs.items()})[0][0] for row in range(3)
    ]
    np.testing.assert_allclose(together, alone, atol=1e-5, rtol=0)


def test_architectures_other_than_plain_bert_are_traced() -> None:
    config = json.loads((DATA / "tiny-bert-one-label" / "config.json").read_bytes())
    changes = {"model_type": "roberta", "hidden_act": "relu", "position_embedding_type": "relative_key"}
    assert can_build(config)
    for name, value in {**changes, "is_decoder": True}.items():
        assert not can_build({**config, name: value}), name
