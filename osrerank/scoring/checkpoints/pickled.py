"""Read pickled PyTorch weights without running code from the pickle.

torch's safe unpickler reads most files. Modules that were pickled as whole objects are read by `safe_unpickler`.
"""

import pickle
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from osrerank._optional import require
from osrerank.errors import ModelLoadError
from osrerank.scoring.card import is_inside
from osrerank.scoring.checkpoints.safe_unpickler import Placeholder, load_with_placeholders, module_tensors
from osrerank.scoring.json_file import read_json
from osrerank.scoring.model_files import PICKLES, current_name, is_pickled

INDEX_FILE = "pytorch_model.bin.index.json"
SUFFIXES = (".bin", ".pt", ".pth")
NESTED_KEYS = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts save a state dict or a whole module, next to numbers such as the epoch."""
PARALLEL_PREFIX = "module."
"""Prefix that torch's DataParallel adds to the names of all weights."""
BUFFER_SUFFIXES = ("position_ids", "token_type_ids")
"""Name suffixes of tensors that are not weights, which old versions of transformers saved too."""


def pickled_files(source: Path) -> list[Path]:
    """Return the files of a directory's pickled weights. If ``source`` is a file, return that file.

    `INDEX_FILE` lists the files. A directory without this index must contain a file with a usual name (`PICKLES`), or
    only one file that torch.save wrote.

    Raises:
        ModelLoadError: the index cannot be read, or several files could be the weights.
    """
    if source.is_file():
        return [source]
    index = source / INDEX_FILE
    if index.exists():
        files_of_weights = read_json(index).get("weight_map")
        if not isinstance(files_of_weights, dict) or not all(
            is_inside(str(name)) for name in files_of_weights.values()
        ):
            reason = f"{index} has no weight_map with files of the model's folder; save the model again"
            raise ModelLoadError(reason, path=str(index))
        return [source / name for name in sorted({str(name) for name in files_of_weights.values()})]
    for name in PICKLES:
        if (source / name).exists():
            return [source / name]
    files = sorted(file for file in source.glob("*") if file.suffix in SUFFIXES or is_pickled(file))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        reason = f"{source} has several PyTorch weight files ({names}); pass one of them, such as {files[0]}"
        raise ModelLoadError(reason, path=str(source))
    return files


def read_pickled(source: Path) -> dict[str, Any]:
    """Return the tensors of `pickled_files`, under the names that transformers uses today.

    Raises:
        ModelLoadError: a file is missing, cannot be read, or contains no tensors.
        MissingDependencyError: the extra ``torch`` is not installed.
    """
    tensors = {name: tensor for file in pickled_files(source) for name, tensor in _read_tensors(file).items()}
    return {
        current_name(name.removeprefix(PARALLEL_PREFIX)): tensor
        for name, tensor in tensors.items()
        if not name.endswith(BUFFER_SUFFIXES)
    }


def _read_tensors(file: Path) -> Mapping[str, Any]:
    """Return the tensors of one file by name, or raise a `ModelLoadError` if it has none."""
    torch: Any = require("torch", extra="torch")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        content = _load_module(file, error)
    except Exception as error:
        reason = f"{file} cannot be read as PyTorch weights; save or download it again ({error})"
        raise ModelLoadError(reason, path=str(file)) from error
    tensors = {name: value for name, value in _named_values(content) if isinstance(value, torch.Tensor)}
    if not tensors:
        is_mapping = isinstance(content, Mapping)
        contents = ", ".join(map(str, list(content)[:3])) if is_mapping else type(content).__name__
        raise ModelLoadError(f"{file} contains no tensors, only {contents}; pass a file of weights", path=str(file))
    return tensors


def _named_values(content: object) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a state dict or a module, which can be nested under one of `NESTED_KEYS`."""
    if isinstance(content, Mapping):
        nested = (content[key] for key in NESTED_KEYS if isinstance(content.get(key), Mapping | Placeholder))
        content = next(nested, content)
    if isinstance(content, Mapping):
        yield from ((str(name), value) for name, value in content.items())
    elif isinstance(content, Placeholder):
        yield from module_tensors(content)


def _load_module(file: Path, refusal: pickle.UnpicklingError) -> object:
    """Load a file that torch's safe unpickler refused, such as a module that was pickled as a whole object.

    Raises:
        ModelLoadError: the file contains no module with tensors.
    """
    try:
        content = load_with_placeholders(file)
        has_values = next(_named_values(content), None) is not None
    except Exception as error:
        raise ModelLoadError(_unsafe_pickle_message(file, refusal), path=str(file)) from error
    if not has_values:
        raise ModelLoadError(_unsafe_pickle_message(file, refusal), path=str(file)) from refusal
    return content


def _unsafe_pickle_message(file: Path, refusal: Exception) -> str:
    """Return the error message for an unsafe pickle, with a command that writes its tensors to a safe file."""
    # torch names the class that it refused in one of these lines
    lines = [line for line in str(refusal).splitlines() if "GLOBAL" in line or "class" in line.lower()]
    detail = f" ({lines[0].strip()})" if lines else ""
    target = file.with_name(f"{file.name}.weights.pt")
    code = (
        f"import torch; content = torch.load({str(file)!r}, map_location='cpu', weights_only=False); "
        "content = content['model'] if isinstance(content, dict) else content; "
        f"torch.save(content.state_dict(), open({str(target)!r}, 'xb'))"
    )
    # double quotes also work in Windows' cmd.exe, but do not protect special characters from a Unix shell
    has_special_characters = any(character in code for character in '"$`\\')
    quoted = shlex.quote(code) if has_special_characters else f'"{code}"'
    fix = (
        "if you trust its author to run code on this machine, run this where the file's classes are installed: "
        f"python -c {quoted} and then pass {target} as the model"
    )
    return f"{file} is a pickle of more than tensors{detail}, which would run code when it is loaded; {fix}"
