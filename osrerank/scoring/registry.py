"""The one way to a scorer: from a model's name to something that scores."""

import logging
from importlib.util import find_spec
from pathlib import Path

from osrerank.errors import ConfigError, ModelLoadError
from osrerank.scoring.backend import Backend
from osrerank.scoring.card import Kind, ModelCard
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.local import LocalScorer
from osrerank.scoring.locate import locate
from osrerank.scoring.model_files import read_card, weight_files

BACKENDS = ("auto", "onnx", "torch")
GPU = Path("/dev/nvidiactl")
"""Is there where NVIDIA's driver is loaded."""
DTYPES = ("auto", "fp32", "bf16", "fp16")

logger = logging.getLogger(__name__)


def load_scorer(
    model: str,
    *,
    backend: str = "auto",
    threads: int = 0,
    dtype: str = "auto",
    compiled: bool = False,
    kind: Kind | None = None,
) -> LocalScorer:
    """Load a model into this process.

    Args:
        model: a directory in Hugging Face layout, the name of a shipped model (``osrerank/mono``), or a hub id, with an
            optional ``@revision``.
        backend: ``onnx``, ``torch``, or ``auto``: ONNX where the model has a graph, else torch where it is installed; a
            GPU is used by ``torch`` alone, and ``auto`` warns where there is one.
        threads: CPU threads for scoring; 0 means the cores that this process may use.
        dtype: what torch computes in: ``fp32``, ``bf16``, ``fp16``, or ``auto`` for 16 bits on a GPU and fp32 on the
            CPU. Any but ``auto`` asks for the torch backend: what an ONNX graph computes in is in the graph.
        compiled: whether torch compiles the network; its first batches take long, the later ones less.
        kind: what the model must be: ``mono`` scores ``(i,)`` tuples, ``duo`` ``(i, j)``; None takes either.

    Raises:
        ConfigError: the backend is ``onnx`` and the dtype is not ``auto``.
        ModelLoadError: the model is not there, or is of another kind; the message says why and what to do.
        MissingDependencyError: the backend needs an extra that is not installed.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; it must be one of {', '.join(BACKENDS)}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}")
    if dtype != "auto":
        backend = _torch_only(backend, dtype)
    directory = locate(model, backend=backend)
    card = read_card(directory, name="" if Path(model).expanduser().is_dir() else model)
    if kind is not None and card.kind != kind:
        reason = f"{directory} is a {card.kind} model; a {kind} one is needed here"
        raise ModelLoadError(reason, model=card.name, path=str(directory))
    loaded = _load_backend(directory, card, backend, threads, dtype=dtype, compiled=compiled)
    return LocalScorer(directory, card, InputBuilder.load(directory, card), loaded)


def _torch_only(backend: str, dtype: str) -> str:
    if backend == "onnx":
        reason = f"dtype {dtype} is the torch backend's; leave it out, or use --backend torch"
        raise ConfigError(reason, setting="dtype", source="argument")
    return "torch"


def _load_backend(
    directory: Path, card: ModelCard, backend: str, threads: int, *, dtype: str, compiled: bool
) -> Backend:
    if backend == "onnx" or (backend == "auto" and card.onnx):
        from osrerank.scoring.onnx_scorer import OnnxBackend  # noqa: PLC0415 - keeps the choice of backend in one place

        if backend == "auto" and GPU.exists():
            logger.warning("%s is computed on the CPU, and this machine has a GPU: --backend torch uses it", card.name)
        return OnnxBackend.load(directory, card, threads=threads)
    if backend == "auto" and (find_spec("torch") is None or not weight_files(directory)):
        reason = "has no ONNX graph, and torch or its safetensors are not here; either run osrerank export on it"
        fix = "or pip install 'osrerank[torch]' and bring the safetensors"
        raise ModelLoadError(f"{directory} {reason}, {fix}", model=card.name, path=str(directory))
    from osrerank.scoring.torch_scorer import TorchBackend  # noqa: PLC0415 - torch is an extra

    return TorchBackend.load(directory, card, threads=threads, dtype=dtype, compiled=compiled)


def load_backend(directory: Path, card: ModelCard, *, backend: str = "auto", threads: int = 0) -> Backend:
    """Load a model's network alone, for measurements.

    Raises:
        ModelLoadError, MissingDependencyError: as `load_scorer`.
    """
    return _load_backend(directory, card, backend, threads, dtype="auto", compiled=False)
