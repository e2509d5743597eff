"""The one way to a scorer: from a model's name to something that scores."""

from importlib.util import find_spec
from pathlib import Path

from osrerank.errors import ModelLoadError
from osrerank.scoring.backend import Backend
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.local import LocalScorer
from osrerank.scoring.locate import locate
from osrerank.scoring.model import ModelCard, read_card, weight_files

BACKENDS = ("auto", "onnx", "torch")


def load_scorer(model: str, *, backend: str = "auto", threads: int = 0) -> LocalScorer:
    """Load a mono model into this process.

    Args:
        model: a directory in Hugging Face layout, the name of a shipped model (``osrerank/mono``), or a hub id, with an
            optional ``@revision``.
        backend: ``onnx``, ``torch``, or ``auto``: ONNX where the model has a graph, else torch where it is installed.
        threads: CPU threads for scoring; 0 means the cores that this process may use.

    Raises:
        ModelLoadError: the model is not there, or is no mono model; the message says why and what to do.
        MissingDependencyError: the backend needs an extra that is not installed.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; it must be one of {', '.join(BACKENDS)}")
    directory = locate(model, backend=backend)
    card = read_card(directory, name="" if Path(model).expanduser().is_dir() else model)
    if card.kind != "mono":
        reason = f"{directory} is a {card.kind} model; this stage needs a mono one"
        raise ModelLoadError(reason, model=card.name, path=str(directory))
    return LocalScorer(
        directory, card, InputBuilder.load(directory, card), _load_backend(directory, card, backend, threads)
    )


def _load_backend(directory: Path, card: ModelCard, backend: str, threads: int) -> Backend:
    if backend == "onnx" or (backend == "auto" and card.onnx):
        from osrerank.scoring.onnx_scorer import OnnxBackend  # noqa: PLC0415 - keeps the choice of backend in one place

        return OnnxBackend.load(directory, card, threads=threads)
    if backend == "auto" and (find_spec("torch") is None or not weight_files(directory)):
        reason = "has no ONNX graph, and torch or its safetensors are not here; either run osrerank export on it"
        fix = "or pip install 'osrerank[torch]' and bring the safetensors"
        raise ModelLoadError(f"{directory} {reason}, {fix}", model=card.name, path=str(directory))
    from osrerank.scoring.torch_scorer import TorchBackend  # noqa: PLC0415 - torch is an extra

    return TorchBackend.load(directory, card, threads=threads)
