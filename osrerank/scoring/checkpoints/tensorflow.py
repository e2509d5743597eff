"""Read TensorFlow checkpoints of BERT, and give their weights the names that transformers uses.

For example, ``bert/encoder/layer_0/output/dense/kernel`` becomes ``bert.encoder.layer.0.output.dense.weight``.

Google, dl4marco-bert and duobert released such checkpoints. A directory contains ``bert_config.json``, ``vocab.txt``
and ``model.ckpt-N.index`` with its data files. Classifiers have the variables ``output_weights`` ``(labels, hidden)``
and ``output_bias``. Pre-trained models have ``cls/seq_relationship/...`` and ``cls/predictions/...`` instead.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank.errors import ModelLoadError
from osrerank.scoring.checkpoints.bundle import read_bundle
from osrerank.scoring.json_file import read_json

CONFIG_FILE = "bert_config.json"
CHECKPOINT_PATH = re.compile(r'^model_checkpoint_path:\s*"(?P<path>[^"]+)"', re.MULTILINE)
"""Matches the line of the file ``checkpoint`` that contains the path of the checkpoint to read."""
OPTIMISER_VARIABLE = re.compile(r"(/adam_[mv]|/Adam(_1)?|/LAMB(_1)?|_power|/ExponentialMovingAverage)$")
"""Matches the names of variables that only the optimiser needs."""
HEAD_NAMES = {
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "cls/predictions/output_bias": "cls.predictions.bias",
}
"""Variable of a head -> transformers' name of the weight."""
PARAMETER_NAMES = {"kernel": "weight", "gamma": "weight", "beta": "bias"}
"""Last part of a variable's name -> last part of transformers' name."""

Arrays = dict[str, npt.NDArray[Any]]


def is_tensorflow(directory: Path) -> bool:
    """Return whether a directory contains a TensorFlow checkpoint of a BERT."""
    return (directory / CONFIG_FILE).exists() and any(directory.glob("*.index"))


def read_tensorflow(directory: Path) -> tuple[Arrays, dict[str, Any]]:
    """Return a checkpoint's weights under transformers' names, and its config.

    Raises:
        ModelLoadError: there are several checkpoints (`find_checkpoint`), or the checkpoint cannot be read.
        MissingDependencyError: the extra ``torch`` is not installed.
    """
    prefix = find_checkpoint(directory)
    variables = read_bundle(prefix)
    weights = {
        _transformers_name(name): _as_float32(name, array)
        for name, array in variables.items()
        if name != "global_step" and not OPTIMISER_VARIABLE.search(name)
    }
    if not any(name.startswith("bert.") for name in weights):
        names = ", ".join(sorted(variables)[:3]) or "none"
        reason = f"{prefix}.index is not a BERT checkpoint: no variable is named bert/...; its first ones are {names}"
        raise ModelLoadError(reason, path=f"{prefix}.index")
    return weights, {**read_json(directory / CONFIG_FILE), "model_type": "bert"}


def find_checkpoint(directory: Path) -> Path:
    """Return the path of a directory's checkpoint without suffixes, such as ``model.ckpt-100000``.

    If the directory contains several checkpoints, its file ``checkpoint`` specifies which one to read.

    Raises:
        ModelLoadError: the directory contains several checkpoints, and no file ``checkpoint`` specifies one of them.
    """
    prefixes = sorted(file.with_suffix("") for file in directory.glob("*.index"))
    if len(prefixes) == 1:
        return prefixes[0]
    pointer_file = directory / "checkpoint"
    if pointer_file.exists():
        match = CHECKPOINT_PATH.search(pointer_file.read_text("utf-8", errors="replace"))
        prefix = directory / Path(match["path"]).name if match else None
        if prefix in prefixes:
            return prefix
    names = ", ".join(prefix.name for prefix in prefixes)
    reason = f"{directory} has several checkpoints ({names}); keep one, or write a file named checkpoint that names it"
    raise ModelLoadError(reason, path=str(directory))


def _transformers_name(name: str) -> str:
    """Translate a variable's name, such as ``bert/pooler/dense/kernel`` to ``bert.pooler.dense.weight``."""
    if name in HEAD_NAMES:
        return HEAD_NAMES[name]
    *stem, parameter = re.sub(r"/layer_(\d+)/", r"/layer/\1/", name).split("/")
    if parameter.endswith("_embeddings"):
        return ".".join([*stem, parameter, "weight"])
    return ".".join([*stem, PARAMETER_NAMES.get(parameter, parameter)])


def _as_float32(name: str, array: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return a variable in float32. Matrices, which TensorFlow stores as ``(inputs, outputs)``, are transposed."""
    transposed = array.T if name.endswith("/kernel") else array
    return np.array(transposed, dtype=np.float32, order="C")
