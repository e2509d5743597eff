"""Read pickled PyTorch weights without running what a pickle can run.

Modules that were pickled whole, such as those of Birch's archive, are read too (`whole_modules`).
"""

import pickle
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from osrerank._optional import require
from osrerank.errors import ModelLoadError
from osrerank.scoring.checkpoints.whole_modules import Inert, read_whole, tensors_of
from osrerank.scoring.json_file import read_json
from osrerank.scoring.model_files import PICKLES, is_pickled

INDEX = "pytorch_model.bin.index.json"
SUFFIXES = (".bin", ".pt", ".pth")
NESTED = ("state_dict", "model_state_dict", "model")
"""Where trainings keep a state dict, or a whole module, beside their own numbers."""
PARALLEL = "module."
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
BUFFERS = ("position_ids", "token_type_ids")
"""Ends of the names of buffers that old transformers saved, which are no weights."""


def pickled_files(directory: Path) -> list[Path]:
    """Return the files of a directory's pickled weights: its index's, else one by its usual name or its only one.

    The only one is found by its content, whatever it is called. A file instead of a directory is itself.

    Raises:
        ModelLoadError: the index cannot be read, or there are several files and none has a usual name.
    """
    if directory.is_file():
        return [directory]
    index = directory / INDEX
    if index.exists():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict):
            raise ModelLoadError(f"{index} has no weight_map", path=str(index))
        return [directory / name for name in sorted(set(map(str, shards.values())))]
    usual = [directory / name for name in PICKLES if (directory / name).exists()]
    others = sorted(file for file in directory.glob("*") if file.suffix in SUFFIXES or is_pickled(file))
    if not usual and len(others) > 1:
        names = ", ".join(file.name for file in others)
        reason = f"{directory} has several files of PyTorch weights ({names}); name the one, such as {others[0]}"
        raise ModelLoadError(reason, path=str(directory))
    return usual[:1] or others


def read_pickled(directory: Path) -> dict[str, Any]:
    """Return the tensors of `pickled_files`, by today's names; likewise of a file.

    Raises:
        ModelLoadError: a file is missing, cannot be read, or has no tensors of a model.
        MissingDependencyError: the extra ``torch`` is not installed.
    """
    tensors = {name: tensor for file in pickled_files(directory) for name, tensor in _read(file).items()}
    return {_name(name): tensor for name, tensor in tensors.items() if not name.endswith(BUFFERS)}


def _read(file: Path) -> Mapping[str, Any]:
    torch: Any = require("torch", extra="torch")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        content = _whole(file, error)
    except Exception as error:
        raise ModelLoadError(f"{file} cannot be read as PyTorch weights: {error}", path=str(file)) from error
    tensors = {name: tensor for name, tensor in _tensors(content) if isinstance(tensor, torch.Tensor)}
    if not tensors:
        has = ", ".join(map(str, list(content)[:3])) if isinstance(content, Mapping) else type(content).__name__
        raise ModelLoadError(f"{file} has no tensors, but {has}", path=str(file))
    return tensors


def _tensors(content: object) -> Iterator[tuple[str, Any]]:
    """Yield what a file may have as tensors, by name: a state dict's, or a module's, bare or beside other values."""
    if isinstance(content, Mapping):
        nested = (content[name] for name in NESTED if isinstance(content.get(name), Mapping | Inert))
        content = next(nested, content)
    if isinstance(content, Mapping):
        yield from ((str(name), value) for name, value in content.items())
    elif isinstance(content, Inert):
        yield from tensors_of(content)


def _whole(file: Path, refused: pickle.UnpicklingError) -> object:
    """Return what a file has besides tensors too, such as a whole module.

    Raises:
        ModelLoadError: there is no module with tensors in it.
    """
    try:
        content = read_whole(file)
        if any(_tensors(content)):
            return content
    except Exception as error:
        raise ModelLoadError(_refusal(file, refused), path=str(file)) from error
    raise ModelLoadError(_refusal(file, refused), path=str(file)) from refused


def _refusal(file: Path, error: Exception) -> str:
    """Return why a pickle is not read, and how to make one that is."""
    lines = [line for line in str(error).splitlines() if "GLOBAL" in line or "class" in line.lower()]
    what = f" ({lines[0].strip()})" if lines else ""
    made = file.with_name(f"{file.name}.weights.pt")
    code = (
        f"import torch; found = torch.load({str(file)!r}, map_location='cpu', weights_only=False); "
        "found = found['model'] if isinstance(found, dict) else found; "
        f"torch.save(found.state_dict(), open({str(made)!r}, 'xb'))"
    )
    quoted = shlex.quote(code) if {*code} & {*'"$`\\'} else f'"{code}"'
    fix = (
        "if you trust whoever made it with all that you may do on this machine, run, where its classes are installed, "
        f"python -c {quoted} and name {made} as the model"
    )
    return f"{file} is a pickle of more than tensors{what}, which would run code when it is read; {fix}"


def _name(name: str) -> str:
    name = name.removeprefix(PARALLEL)
    for old, new in OLD_NAMES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
