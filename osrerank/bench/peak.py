"""How fast this machine multiplies matrices, and which share of that a model reaches."""

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from osrerank._optional import require
from osrerank.scoring.backends.networks.modern_bert.shape import MODEL_TYPE, ModernBertShape

SIZE = 768
ROUNDS = 7
REPEATS = 4


def measured_peak(precision: str, threads: int) -> float:
    """Return ONNX Runtime's operations per second in products of 768 x 768 matrices, one on each thread.

    Args:
        precision: ``fp32``, or ``int8`` with dynamically quantised activations.
        threads: each computes a product.

    Raises:
        MissingDependencyError: the extra ``onnx`` is not installed.
    """
    session = _product(precision)
    states = np.random.default_rng(1).normal(size=(SIZE, SIZE)).astype(np.float32)

    def work(_lane: int) -> None:
        for _ in range(REPEATS):
            session.run(None, {"states": states})

    taken = []
    with ThreadPoolExecutor(threads) as executor:
        for _ in range(ROUNDS + 1):
            began = time.perf_counter()
            list(executor.map(work, range(threads)))
            taken.append(time.perf_counter() - began)
    return 2.0 * SIZE**3 * REPEATS * threads / statistics.median(taken[1:])


def operations(config: Mapping[str, Any], lengths: Iterable[int]) -> float:
    """Return a BERT's matrix operations for sequences of these lengths: all layers, all rows, no padding.

    A token costs 2 (4 h^2 + 2 h f) in each layer, with width h and inner width f, and 4 h t for attention to t tokens.
    A ModernBERT's costs 2 (4 h^2 + 3 h f), and attends to no more than the window where a layer has one.
    """
    hidden, inner, layers = (int(config[name]) for name in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    is_modern = config.get("model_type") == MODEL_TYPE
    windows: Sequence[int | None] = ModernBertShape.from_config(config).windows if is_modern else [None] * layers
    fixed = 2 * (4 * hidden**2 + (3 if is_modern else 2) * hidden * inner)
    total = 0
    for tokens in lengths:
        seen = (tokens if window is None else min(tokens, 2 * window + 1) for window in windows)
        total += tokens * sum(fixed + 4 * hidden * columns for columns in seen)
    return float(total)


def _product(precision: str) -> Any:
    onnx: Any = require("onnx", extra="onnx")
    onnxruntime: Any = require("onnxruntime", extra="onnx")
    make, arrays = onnx.helper, onnx.numpy_helper
    draw = np.random.default_rng(2)
    if precision == "int8":
        constants = {
            "weight": draw.integers(-63, 64, size=(SIZE, SIZE), dtype=np.int8),
            "scales": np.full(SIZE, 0.01, dtype=np.float32),
            "zeros": np.zeros(SIZE, dtype=np.int8),
        }
        node = make.make_node("DynamicQuantizeMatMul", ["states", *constants], ["out"], domain="com.microsoft")
    else:
        constants = {"weight": draw.normal(size=(SIZE, SIZE)).astype(np.float32)}
        node = make.make_node("MatMul", ["states", "weight"], ["out"])
    values = [make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [SIZE, SIZE]) for name in ("states", "out")]
    kept = [arrays.from_array(array, name) for name, array in constants.items()]
    graph = make.make_graph([node], "product", values[:1], values[1:], kept)
    opsets = [make.make_opsetid("", 18), make.make_opsetid("com.microsoft", 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    model = make.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
