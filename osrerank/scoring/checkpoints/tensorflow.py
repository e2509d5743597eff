"""Google's BERT checkpoints, and those that dl4marco-bert and duobert released, under transformers' names.

A directory has ``bert_config.json``, ``vocab.txt`` and ``model.ckpt-N.index`` with its data files. The classifiers have
``output_weights`` ``(labels, hidden)`` and ``output_bias``; the pre-trained models ``cls/seq_relationship`` and
``cls/predictions`` instead.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank.errors import ModelLoadError
from osrerank.scoring.checkpoints.bundle import read_bundle
from osrerank.scoring.json_file import read_json

CONFIG = "bert_config.json"
CHECKPOINT = re.compile(r'^model_checkpoint_path:\s*"(?P<path>[^"]+)"', re.MULTILINE)
OPTIMISER = re.compile(r"(/adam_[mv]|/Adam(_1)?|/LAMB(_1)?|_power|/ExponentialMovingAverage)$")
"""Ends of the names of variables that only a training needs."""
HEADS = {
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "cls/predictions/output_bias": "cls.predictions.bias",
}
PARTS = {"kernel": "weight", "gamma": "weight", "beta": "bias"}

Arrays = dict[str, npt.NDArray[Any]]


def is_tensorflow(directory: Path) -> bool:
    """Return whether a directory has a TensorFlow checkpoint of a BERT."""
    return (directory / CONFIG).exists() and any(directory.glob("*.index"))


def read_tensorflow(directory: Path) -> tuple[Arrays, dict[str, Any]]:
    """Return a checkpoint's weights by transformers' names, and its config.

    Raises:
        ModelLoadError: the directory has several checkpoints and does not say which, or one cannot be read.
        MissingDependencyError: the extra ``torch`` is not installed.
    """
    prefix = checkpoint_of(directory)
    variables = read_bundle(prefix)
    named = {_name(name): _as_float32(name, array) for name, array in variables.items() if not _is_of_training(name)}
    if not any(name.startswith("bert.") for name in named):
        found = f"has no variable bert/..., but {_first_names(variables)}"
        reason = f"{prefix}.index is not a BERT checkpoint: it {found}"
        raise ModelLoadError(reason, path=f"{prefix}.index")
    return named, {**read_json(directory / CONFIG), "model_type": "bert"}


def checkpoint_of(directory: Path) -> Path:
    """Return a checkpoint's path without its file endings: the only one, or the one that the file ``checkpoint`` names.

    Raises:
        ModelLoadError: there are several, and no file ``checkpoint`` says which is meant.
    """
    prefixes = sorted(file.with_suffix("") for file in directory.glob("*.index"))
    if len(prefixes) == 1:
        return prefixes[0]
    pointer_file = directory / "checkpoint"
    named = CHECKPOINT.search(pointer_file.read_text("utf-8", errors="replace")) if pointer_file.exists() else None
    last = directory / Path(named["path"]).name if named else None
    if last in prefixes:
        return last
    names = ", ".join(prefix.name for prefix in prefixes)
    reason = f"{directory} has several checkpoints ({names}); keep one, or name it in a file checkpoint beside them"
    raise ModelLoadError(reason, path=str(directory))


def _is_of_training(name: str) -> bool:
    return name == "global_step" or OPTIMISER.search(name) is not None


def _name(name: str) -> str:
    """Return transformers' name of a variable."""
    if name in HEADS:
        return HEADS[name]
    *stem, part = re.sub(r"/layer_(\d+)/", r"/layer/\1/", name).split("/")
    if part.endswith("_embeddings"):
        return ".".join([*stem, part, "weight"])
    return ".".join([*stem, PARTS.get(part, part)])


def _as_float32(name: str, array: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return a variable in float32; TensorFlow has matrices as ``(inputs, outputs)``."""
    transposed = array.T if name.endswith("/kernel") else array
    return np.array(transposed, dtype=np.float32, order="C")


def _first_names(variables: Mapping[str, Any]) -> str:
    return ", ".join(sorted(variables)[:3]) or "none"
