"""Add a model's head, which turns the encoder's states into logits or vectors, to the encoder's ONNX graph."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from osrerank.scoring.modular.head import Head, HeadStep, Mode

ACTIVATION_OPERATORS = {"tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid", "gelu": "Gelu"}
POOLING_OPERATORS: Mapping[str, str] = {"mean": "ReduceMean", "max": "ReduceMax"}
RUNTIME_DOMAIN = "com.microsoft"
"""The domain of the operators that only ONNX Runtime has, such as BiasGelu."""
FLOAT32 = 1
"""ONNX's number for the type float32."""


class GraphBuilder(Protocol):
    """A graph under construction, such as `osrerank.export.graph.Graph`."""

    def constant(self, name: str, array: npt.NDArray[Any]) -> str:
        """Add an array, unless this name is already used, and return the name."""

    def add(self, operator: str, inputs: Sequence[str], name: str = "", *, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output, and return the output's name."""


def add_head(graph: GraphBuilder, states: str, head: Head, weights: Mapping[str, npt.NDArray[np.float32]]) -> str:
    """Add a head's pooling and steps to a graph for sequences of the same length, and return the output's name.

    The output is logits ``(n, labels)`` or vectors ``(n, dimensions)``. A head without pooling outputs the vectors of
    all tokens ``(n * tokens, dimensions)``.

    Args:
        graph: the graph.
        states: the name of the encoder's states ``(n, tokens, hidden)``. For [CLS] pooling, the first token's state
            suffices.
        head: the head.
        weights: the weights of the head's steps, by names such as ``2_Dense.linear.weight``.

    Raises:
        KeyError: a weight is missing.
    """
    vectors = [_pool(graph, states, mode) for mode in head.pooling] or [_flatten_tokens(graph, states)]
    vector = vectors[0] if len(vectors) == 1 else graph.add("Concat", vectors, axis=1)
    for step in head.steps:
        vector = _add_step(graph, vector, step, weights)
    return vector


def _pool(graph: GraphBuilder, states: str, mode: Mode) -> str:
    """Pool states ``(n, tokens, hidden)`` to vectors ``(n, hidden)``."""
    axis = graph.constant("axis.1", np.array([1]))
    if mode in POOLING_OPERATORS:
        return graph.add(POOLING_OPERATORS[mode], [states, axis], keepdims=0)
    if mode == "weightedmean":
        return _weighted_mean(graph, states, axis)
    position = graph.constant(f"row.{mode}", np.array([0 if mode == "cls" else -1]))  # the first or the last token
    return graph.add("Squeeze", [graph.add("Gather", [states, position], axis=1), axis])


def _weighted_mean(graph: GraphBuilder, states: str, axis: str) -> str:
    """Return the mean of the tokens' states ``(n, hidden)``, weighted by the tokens' positions, which begin with 1."""
    one = graph.constant("one", np.array(1))
    tokens = graph.add("Squeeze", [graph.add("Shape", [states], start=1, end=2)])
    positions = graph.add("Range", [one, graph.add("Add", [tokens, one]), one])
    weights = graph.add("Unsqueeze", [graph.add("Cast", [positions], to=FLOAT32), axis])  # (tokens, 1)
    total = graph.add("ReduceSum", [graph.add("Mul", [states, weights]), axis], keepdims=0)
    return graph.add("Div", [total, graph.add("ReduceSum", [weights], keepdims=0)])


def _flatten_tokens(graph: GraphBuilder, states: str) -> str:
    """Return the states of all tokens ``(n * tokens, hidden)``."""
    width = graph.add("Shape", [states], start=2, end=3)
    n_rows = graph.constant("any", np.array([-1]))  # as many as are needed
    return graph.add("Reshape", [states, graph.add("Concat", [n_rows, width], axis=0)])


def _add_step(graph: GraphBuilder, vector: str, step: HeadStep, weights: Mapping[str, npt.NDArray[np.float32]]) -> str:
    """Add one step of a head, such as a matrix product with an activation, and return its output's name."""
    if step.kind == "unit":
        return graph.add("LpNormalization", [vector], axis=1, p=2)
    if step.kind == "first":  # keep the first values of each vector
        start, end, axis = (graph.constant(f"place.{number}", np.array([number])) for number in (0, step.size, 1))
        return graph.add("Slice", [vector, start, end, axis])
    parameters = ("weight", "bias") if step.has_bias else ("weight",)
    names = [f"{step.name}.{parameter}" for parameter in parameters]
    constants: Sequence[str] = [graph.constant(name, weights[name]) for name in names]
    if step.kind == "norm":
        return graph.add("LayerNormalization", [vector, *constants], axis=-1, epsilon=step.epsilon)
    product = graph.add("Gemm", [vector, *constants], transB=1)  # torch's matrices are (outputs, inputs)
    if not step.activation:
        return product
    if step.activation == "silu":
        return graph.add("Mul", [product, graph.add("Sigmoid", [product])])
    domain = RUNTIME_DOMAIN if step.activation == "gelu" else ""
    return graph.add(ACTIVATION_OPERATORS[step.activation], [product], domain=domain)
