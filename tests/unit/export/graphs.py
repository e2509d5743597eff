"""Small ONNX graphs for tests of quantisation."""

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper


def of_words(nodes: Sequence[NodeProto], constants: Mapping[str, np.ndarray], outputs: int) -> ModelProto:
    """A graph from ``input_ids`` to ``logits``, so many for each token."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", "tokens"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", "tokens", outputs])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
