"""From a model's name to its directory: a folder, a shipped model, or a repository of the Hugging Face hub."""

import re
from pathlib import Path
from typing import Any

from osrerank.errors import ModelLoadError
from osrerank.scoring.model_files import ONNX_FILES

SHIPPED = Path(__file__).parent.parent / "models"
SHIPPED_PREFIX = "osrerank/"
HUB_ID = re.compile(r"^(?P<repository>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?$")
DESCRIPTIONS = (
    "config.json",
    "osrerank.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
)
WEIGHTS = ("*.safetensors", "model.safetensors.index.json")
FORMS = {
    "onnx": (ONNX_FILES["int8"], (*ONNX_FILES["fp32"], "onnx/model.onnx_data", "model.onnx_data")),
    "torch": (WEIGHTS,),
}
"""What to fetch for a backend: the first form that a repository has, so that not every precision is downloaded."""


def locate(model: str, *, backend: str = "auto") -> Path:
    """Return the directory of a model, downloading it from the hub where it is nowhere else.

    Args:
        model: a directory, ``osrerank/NAME`` for a shipped model, or a hub id with an optional ``@revision``.
        backend: for a hub id: ``onnx`` wants graphs, ``torch`` weights, ``auto`` graphs where there are some.

    Raises:
        ModelLoadError: there is no such model, or the hub cannot be reached; the message says how to bring the files.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if model.startswith(SHIPPED_PREFIX):
        return _shipped(model)
    matched = HUB_ID.match(model)
    if matched is None or model.startswith("."):
        raise ModelLoadError(
            f"there is no directory {model}, and it is no hub id either", model=model, path=str(folder)
        )
    return _download(model, matched["repository"], matched["revision"], backend)


def name_of(directory: Path) -> str:
    """Return how the cards of others call a model: a shipped one by the name that `locate` takes, else its folder's."""
    return f"{SHIPPED_PREFIX}{directory.name}" if directory.parent == SHIPPED else directory.name


def _shipped(model: str) -> Path:
    directory = SHIPPED / model.removeprefix(SHIPPED_PREFIX)
    if not directory.is_dir():
        names = ", ".join(sorted(f"{SHIPPED_PREFIX}{entry.name}" for entry in SHIPPED.iterdir() if entry.is_dir()))
        raise ModelLoadError(f"osrerank ships no model {model}; it ships {names}", model=model, path=str(directory))
    return directory


def _download(model: str, repository: str, revision: str | None, backend: str) -> Path:
    """Fetch a repository's descriptions and one form of its weights; nothing that could run as code."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - half a second

    forms = FORMS["onnx"] + FORMS["torch"] if backend == "auto" else FORMS[backend]
    try:
        for form in forms:
            patterns = [*DESCRIPTIONS, *form]
            directory = Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))
            if any(found for pattern in form for found in directory.glob(pattern)):
                break
    except Exception as error:
        raise _unreachable(model, repository, revision, error) from error
    return directory


def _unreachable(model: str, repository: str, revision: str | None, error: Any) -> ModelLoadError:
    version = f" --revision {revision}" if revision else ""
    command = f"hf download {repository}{version} --local-dir {repository.rsplit('/', 1)[-1]}"
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ModelLoadError(
        f"there is no directory {model}, and the Hugging Face hub did not give it ({reason}); where the hub can be "
        f"reached run {command}, copy that directory here and name it as the model",
        model=model,
    )
