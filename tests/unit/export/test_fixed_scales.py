"""Scales that are fixed at export: rows of a product know nothing of each other, and what exceeds them saturates."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from osrerank.cli import main
from osrerank.errors import ConfigError
from osrerank.export.fixed_scales import activation_ranges
from osrerank.export.outliers import separate_outliers
from osrerank.export.quantise import Recipe, quantise
from osrerank.scoring.inputs import Tokens
from osrerank.scoring.model_files import FIXED_SCALES
from tests.unit.export.graphs import of_words

WIDTH, OUTPUTS, WORDS = 64, 32, 50
LOUD, QUIET = (3, 40), slice(0, 30)
CLASSIFIER = Path(__file__).parents[2] / "data" / "tiny-bert-one-label"


def tokens(*ids: int) -> Tokens:
    return Tokens(np.array(ids), np.zeros(len(ids), dtype=np.int64))


def rows() -> np.ndarray:
    """States of words, of which the first thirty are quiet; two channels are loud."""
    states = np.random.default_rng(0).normal(size=(WORDS, WIDTH)).astype(np.float32)
    states[QUIET] /= 4
    states[:, list(LOUD)] *= 30
    return states


def product() -> onnx.ModelProto:
    """The states of words times a matrix, and a bias."""
    draw = np.random.default_rng(1)
    constants = {
        "table": rows(),
        "matrix": draw.normal(size=(WIDTH, OUTPUTS)).astype(np.float32),
        "bias": draw.normal(size=OUTPUTS).astype(np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["states"], name="states"),
        helper.make_node("MatMul", ["states", "matrix"], ["multiplied"], name="product"),
        helper.make_node("Add", ["multiplied", "bias"], ["sum"], name="plus"),
        helper.make_node("Identity", ["sum"], ["logits"], name="end"),
    ]
    return of_words(nodes, constants, OUTPUTS)


def made(folder: Path, seen: list[Tokens], **recipe: object) -> onnx.ModelProto:
    onnx.save(product(), folder / "fp32.onnx")
    quantise(folder / "fp32.onnx", folder / "int8.onnx", Recipe(embeddings="fp32", **recipe), seen)  # type: ignore[arg-type] # a test's own
    return onnx.load(folder / "int8.onnx")


def run(model: onnx.ModelProto, *ids: int) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"input_ids": np.array([ids])})[0][0]


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_ranges_are_of_what_is_seen_and_leave_outlying_channels_out() -> None:
    model, seen = product(), [tokens(0, 1), tokens(2)]
    found = rows()[:3]
    assert activation_ranges(model, seen)["states"] == pytest.approx((found.min(), found.max()))
    separate_outliers(model, seen, 2, 1.25, hidden=False)
    others = np.delete(found, LOUD, axis=1)
    assert activation_ranges(model, seen)["states"] == pytest.approx((others.min(), others.max()))


def test_neighbours_share_no_scale(tmp_path: Path) -> None:
    every = [tokens(*range(WORDS))]
    fixed = made(tmp_path, every, activations="static", outliers=2)
    assert run(fixed, 5, 45).tolist() == [*run(fixed, 5).tolist(), *run(fixed, 45).tolist()]
    dynamic = made(tmp_path, every, outliers=2)
    assert run(dynamic, 5, 45)[0].tolist() != run(dynamic, 5)[0].tolist()


@pytest.mark.parametrize("outliers", [0, 2])
def test_the_product_stays_near_and_adds_its_bias_itself(tmp_path: Path, outliers: int) -> None:
    model = made(tmp_path, [tokens(*range(WORDS))], activations="static", outliers=outliers)
    divided = ["Gather", "MatMul", "Add"] if outliers else []
    assert sorted(operators(model)) == sorted(
        ["Gather", "QuantizeLinear", "MatMulIntegerToFloat", *divided, "Identity"]
    )
    exact = run(product(), *range(WORDS))
    error = np.abs(run(model, *range(WORDS)) - exact).max()
    assert error < (0.4 if outliers else 8.0)  # one scale for loud channels and quiet ones is what outliers are for
    assert {entry.key: entry.value for entry in model.metadata_props}[FIXED_SCALES] == "yes"


def test_what_was_not_seen_saturates(tmp_path: Path) -> None:
    model = made(tmp_path, [tokens(*range(WORDS)[QUIET])], activations="static", outliers=2)
    quiet, loud = (np.abs(run(model, *ids) - run(product(), *ids)).max() for ids in (range(30), range(30, WORDS)))
    assert quiet < 0.2
    assert 1.0 < loud < 40


def test_scales_need_sequences(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="static scales need sequences"):
        made(tmp_path, [], activations="static")
    assert not (tmp_path / "int8.onnx").exists()


def test_dynamic_graphs_do_not_say_that_their_scales_are_fixed(tmp_path: Path) -> None:
    assert FIXED_SCALES not in {entry.key for entry in made(tmp_path, [tokens(1)]).metadata_props}


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["export", str(CLASSIFIER), str(tmp_path / "made"), "--no-self-check", "--activations", "static"]
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert "add --precision int8" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()
    main([*arguments, "--precision", "int8"])
    graph = onnx.load(tmp_path / "made" / "onnx" / "model_int8.onnx")
    assert "MatMulIntegerToFloat" in operators(graph)
    assert "DynamicQuantizeLinear" not in operators(graph)
