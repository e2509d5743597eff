"""A bi-encoder as sentence-transformers publishes it on the hub: its files, and a graph that ends with the states."""

import json
import shutil
from pathlib import Path

import onnx

from osrerank.scoring.model_files import SHIPPED, tokenizer_file

SOURCE = SHIPPED / "minilm-l6"
LIBRARY = "sentence_transformers.models"


def published(folder: Path, *, pooling: str = "mean", output: str = "last_hidden_state") -> Path:
    """Write osrerank/minilm-l6 without its card, and with the graph's pooling cut off.

    Args:
        folder: the directory to make.
        pooling: what the files say.
        output: the name of the graph's output.
    """
    (folder / "onnx").mkdir(parents=True)
    shutil.copyfile(SOURCE / "config.json", folder / "config.json")
    shutil.copyfile(tokenizer_file(SOURCE), folder / "tokenizer.json")
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"{LIBRARY}.{kind}"} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules), "utf-8")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": pooling}), "utf-8")
    model = onnx.load(SOURCE / "onnx" / "model_int8.onnx")
    nodes = model.graph.node
    mean_index = next(index for index, node in enumerate(nodes) if node.op_type == "ReduceMean")
    states = nodes[mean_index].input[0]
    del nodes[mean_index:], model.graph.output[:]
    nodes.append(onnx.helper.make_node("Identity", [states], [output]))
    shape = ["n", "tokens", json.loads((SOURCE / "config.json").read_text("utf-8"))["hidden_size"]]
    model.graph.output.append(onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, shape))
    onnx.save(model, folder / "onnx" / "model.onnx")
    return folder


def in_cache(cache: Path, name: str) -> Path:
    """Return the folder of a model's snapshot in a hub cache, in which the model can be found by its name."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0f1e", "utf-8")
    return repository / "snapshots" / "0f1e"
