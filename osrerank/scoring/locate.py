"""Find a model's directory by its name: a folder, a shipped model, or a repository on the Hugging Face hub."""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from osrerank._optional import require
from osrerank._removed import find_replacement
from osrerank.errors import ModelLoadError
from osrerank.scoring.model_files import GRAPH_PATTERNS, SHIPPED, WEIGHT_PATTERNS, is_pickled
from osrerank.scoring.modular.description import has_weighted_modules
from osrerank.scoring.names import MULTILINGUAL, MULTILINGUAL_PACKAGE

SHIPPED_PREFIX = "osrerank/"
HUB_ID = re.compile(r"^(?!\.)(?P<repository>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?$")
"""Matches a hub id with an optional revision, such as ``org/model@main``, but no relative path, such as ``./model``."""
CONFIG_FILES = (
    "*_Dense/config.json",
    "*_Dropout/config.json",
    "*_HierarchicalTokenPooling/config.json",
    "*_LayerNorm/config.json",
    "*_MultiVectorMask/config.json",
    "*_Normalize/config.json",
    "*_Pooling/config.json",
    "*_StaticEmbedding/tokenizer.json",
    "artifact.metadata",
    "config.json",
    "config_sentence_transformers.json",
    "modules.json",
    "osrerank.json",
    "query/*",
    "sentence_*_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
)
"""Patterns of the files that are downloaded from a hub repository besides the weights."""


def locate(
    model: str,
    *,
    weight_patterns: Sequence[Sequence[str]] = (*GRAPH_PATTERNS, *WEIGHT_PATTERNS),
    extra_files: Sequence[str] = (),
) -> Path:
    """Return a model's directory, after downloading a hub repository if necessary.

    Args:
        model: a directory, ``osrerank/NAME`` for a shipped model, or a hub id with an optional ``@revision``. The path
            of a file that torch.save wrote is returned unchanged.
        weight_patterns: for a hub id, lists of patterns of weight files, best first. The first list that matches any
            file decides which weights are downloaded.
        extra_files: for a hub id, patterns of further files to download.

    Raises:
        ModelLoadError: there is no such model, or the hub cannot be reached. The message says how to copy the files.
        MissingDependencyError: the package that contains the model is not installed.
    """
    path = Path(model).expanduser()
    if path.is_dir() or is_pickled(path):
        return path
    if path.is_file():
        reason = f"{path} is a file that torch.save did not write; pass the model's directory instead"
        raise ModelLoadError(reason, model=model, path=str(path))
    if model.startswith(SHIPPED_PREFIX):
        return _require_shipped_directory(model)
    match = HUB_ID.match(model)
    if match is None:
        reason = (
            f"there is no directory {model!r}; pass a model's directory, its hub id, or the name of a shipped model"
        )
        raise ModelLoadError(reason, model=model, path=str(path))
    return _download(model, match, weight_patterns, extra_files)


def locate_offline(model: str) -> Path | None:
    """Return a model's directory without downloading it, or None if the model is not on this machine."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if model == MULTILINGUAL and find_spec(MULTILINGUAL_PACKAGE) is None:
        return None
    if model.startswith(SHIPPED_PREFIX):
        directory = _find_shipped_directory(model)
        return directory if directory.is_dir() else None
    match = HUB_ID.match(model)
    if match is None:
        return None
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - takes half a second
    from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415 - takes half a second

    try:
        return Path(snapshot_download(match["repository"], revision=match["revision"], local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def read_hub_id(directory: Path) -> str:
    """Return the repository id of a directory in the hub's cache, or "" for any other directory.

    For example, the id of ``models--org--name/snapshots/5fa3`` is ``org/name``.
    """
    repository_folder = directory.parent.parent.name
    if directory.parent.name != "snapshots" or not repository_folder.startswith("models--"):
        return ""
    return repository_folder.removeprefix("models--").replace("--", "/", 1)


def model_name(directory: Path) -> str:
    """Return ``osrerank/NAME`` for the directory of a shipped model, and the folder's name for any other directory."""
    is_shipped = directory.parent == SHIPPED or directory.parent.name == MULTILINGUAL_PACKAGE
    return f"{SHIPPED_PREFIX}{directory.name}" if is_shipped else directory.name


def _find_shipped_directory(model: str) -> Path:
    """Return the directory that a shipped model has, even if there is no such model."""
    if model != MULTILINGUAL:
        return SHIPPED / model.removeprefix(SHIPPED_PREFIX)
    (package,) = require(MULTILINGUAL_PACKAGE, extra="multilingual").__path__
    return Path(package) / model.removeprefix(SHIPPED_PREFIX)


def _require_shipped_directory(model: str) -> Path:
    directory = _find_shipped_directory(model)
    if not directory.is_dir():
        names = ", ".join(sorted(f"{SHIPPED_PREFIX}{entry.name}" for entry in SHIPPED.iterdir() if entry.is_dir()))
        choices = f"choose {names}, or {MULTILINGUAL}, which needs pip install 'osrerank[multilingual]'"
        fix = find_replacement(model) or choices
        raise ModelLoadError(f"osrerank ships no model {model!r}; {fix}", model=model, path=str(directory))
    return directory


def _download(
    model: str, match: re.Match[str], weight_patterns: Sequence[Sequence[str]], extra_files: Sequence[str]
) -> Path:
    """Download a repository's config files, and its weights by the first list of patterns that matches any file.

    Code is never downloaded. If modules after the transformer have weights, ONNX graphs are not used, because graphs
    that other programs export do not contain these modules.
    """
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - takes half a second

    try:
        for patterns in weight_patterns:
            files = [*CONFIG_FILES, *extra_files, *patterns]
            directory = Path(snapshot_download(match["repository"], revision=match["revision"], allow_patterns=files))
            if patterns in GRAPH_PATTERNS and has_weighted_modules(directory):
                continue
            if any(any(directory.glob(pattern)) for pattern in patterns):
                break
    except ModelLoadError:
        raise
    except Exception as error:
        raise _download_error(model, match["repository"], match["revision"], error) from error
    return directory


def _download_error(model: str, repository: str, revision: str | None, error: Any) -> ModelLoadError:
    version = f" --revision {revision}" if revision else ""
    command = f"hf download {repository}{version} --local-dir {repository.rsplit('/', 1)[-1]}"
    text = str(error).strip()
    reason = text.splitlines()[0] if text else type(error).__name__
    message = f"there is no directory {model!r}, and the download from the Hugging Face hub failed ({reason}); "
    message += f"on a machine that reaches the hub run {command}, copy that directory here and pass it as the model"
    return ModelLoadError(message, model=model)
