"""Processors without VNNI, AVX-512 or AVX2, as ``qemu-x86_64`` imitates them (Debian's package ``qemu-user``)."""

import platform
from pathlib import Path

import numpy as np
import pytest

from tests import old_processor

onnx = pytest.importorskip("onnx")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(old_processor.QEMU is None, reason="qemu-x86_64 is not installed"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="imitates processors of this kind alone"),
]
CLASSIFIER = Path(__file__).parents[1] / "data" / "tiny-bert-one-label"
TOLERANCE = 1e-5
"""Logits differ by rounding in fp32, of sums in another order; the integers of int8 are the same everywhere."""
WIDTH = 64


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from osrerank.export.export_model import ExportOptions, export_model

    path = tmp_path_factory.mktemp("models") / "int8"
    export_model(CLASSIFIER, path, ExportOptions(precision="int8"))
    return path


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cpu", ["Haswell", "SandyBridge", "Nehalem"])
def test_scores_on_an_old_processor_equal_scores_on_this_machine(cpu: str, int8: Path) -> None:
    for model in (int8, CLASSIFIER):
        scores_here, there = (old_processor.imitated(one, "scores", str(model)) for one in ("", cpu))
        np.testing.assert_allclose(there, scores_here, atol=TOLERANCE)


def write_product(file: Path, *, reduce_range: bool) -> None:
    """Write a product of 64 inputs with weights that are all 1, in int8."""
    from onnx import TensorProto, helper, numpy_helper

    from osrerank.export.quantise import QuantisationRecipe, quantise

    weight = numpy_helper.from_array(np.ones((WIDTH, WIDTH), dtype=np.float32), "weight")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in ("vectors", "out")]
    nodes = [helper.make_node("MatMul", ["vectors", "weight"], ["out"], name="product")]
    graph = helper.make_graph(nodes, "product", values[:1], values[1:], [weight])
    source = file.with_suffix(".fp32")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), source)
    quantise(source, file, QuantisationRecipe(reduce_range=reduce_range))


@pytest.mark.timeout(600)
def test_shipped_int8_weights_do_not_saturate_without_vnni(tmp_path: Path) -> None:
    found = {}
    for reduce_range in (True, False):
        file = tmp_path / f"{reduce_range}.onnx"
        write_product(file, reduce_range=reduce_range)
        found[reduce_range] = old_processor.imitated("Haswell", "product", str(file))
    np.testing.assert_allclose(found[True], WIDTH, rtol=0.02)  # 7 bits: 255 * 63 * 2 fits into 16
    assert max(found[False]) < 0.6 * WIDTH  # 8 bits: 255 * 127 * 2 is cut to 32,767
