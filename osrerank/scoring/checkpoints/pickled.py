"""Read pickled PyTorch weights without running what a pickle can run."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from osrerank._optional import require
from osrerank.errors import ModelLoadError
from osrerank.scoring.model_files import PICKLES, read_json

INDEX = "pytorch_model.bin.index.json"
SUFFIXES = (".bin", ".pt", ".pth")
NESTED = ("state_dict", "model_state_dict", "model")
"""Where trainings keep a state dict beside their own numbers."""
PARALLEL = "module."
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
BUFFERS = ("position_ids", "token_type_ids")
"""Ends of the names of buffers that old transformers saved, which are no weights."""


def pickled_files(directory: Path) -> list[Path]:
    """Return the files of a directory's pickled weights: its index's, else one by its usual name or its only one.

    Raises:
        ModelLoadError: the index cannot be read.
    """
    index = directory / INDEX
    if index.exists():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict):
            raise ModelLoadError(f"{index} has no weight_map", path=str(index))
        return [directory / name for name in sorted(set(map(str, shards.values())))]
    usual = [directory / name for name in PICKLES if (directory / name).exists()]
    others = sorted(file for file in directory.iterdir() if file.suffix in SUFFIXES) if directory.is_dir() else []
    return usual[:1] or (others if len(others) == 1 else [])


def read_pickled(directory: Path) -> dict[str, Any]:
    """Return the tensors of `pickled_files`, by today's names.

    Raises:
        ModelLoadError: a file is missing, cannot be read, or has more than tensors.
        MissingDependencyError: the extra ``torch`` is not installed.
    """
    tensors = {name: tensor for file in pickled_files(directory) for name, tensor in _read(file).items()}
    return {_name(name): tensor for name, tensor in tensors.items() if not name.endswith(BUFFERS)}


def _read(file: Path) -> Mapping[str, Any]:
    torch: Any = require("torch", extra="torch")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelLoadError(_refusal(file, error), path=str(file)) from error
    except Exception as error:
        raise ModelLoadError(f"{file} cannot be read as PyTorch weights: {error}", path=str(file)) from error
    nested = next((content[name] for name in NESTED if isinstance(content.get(name), Mapping)), None)
    found = content if nested is None else nested
    tensors = {str(name): tensor for name, tensor in found.items() if isinstance(tensor, torch.Tensor)}
    if not tensors:
        raise ModelLoadError(f"{file} has no tensors, but {', '.join(map(str, list(content)[:3]))}", path=str(file))
    return tensors


def _refusal(file: Path, error: Exception) -> str:
    """Return why a pickle is not read, and how to make one that is."""
    lines = [line for line in str(error).splitlines() if "GLOBAL" in line or "class" in line.lower()]
    what = f" ({lines[0].strip()})" if lines else ""
    fix = (
        f'where you trust it, in an environment that has its classes, run: python -c "import torch; '
        f"torch.save(torch.load('{file.name}', map_location='cpu', weights_only=False).state_dict(), "
        f"'pytorch_model.bin')\""
    )
    return f"{file} is a pickle of more than tensors{what}, which would run code when it is read; {fix}"


def _name(name: str) -> str:
    name = name.removeprefix(PARALLEL)
    for old, new in OLD_NAMES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
