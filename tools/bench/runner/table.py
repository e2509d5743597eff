"""The table of peers: the name of each, and the module that loads it."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BATCH_SIZES = (1, 4, 8, 16, 32, 64)
"""The batch sizes that are tried for each peer."""


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """The model and the limits of a peer.

    Attributes:
        checkpoint: a directory with config, tokenizer and safetensors of a classifier.
        padded: a directory with the same model as an ONNX graph for padded batches, for libraries that cannot export.
        folder: the folder for the peer's exported models, which later runs use again.
        calibration: a file of JSON lines with ``query`` and ``document``, for static quantisation.
        threads: the number of CPU threads.
        max_tokens: the maximum number of tokens of a pair; longer pairs are truncated.
    """

    checkpoint: Path
    padded: Path
    folder: Path
    calibration: Path
    threads: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class LoadedPeer:
    """A peer with a loaded model.

    Attributes:
        version: the versions of the library and its engine.
        score: a function of query, documents and batch size that returns the scores in the order of the documents.
    """

    version: str
    score: Callable[[str, Sequence[str], int], Any]


PeerLoader = Callable[[PeerRequest], LoadedPeer]

SENTENCE, ENGINES, SMALL = "sentence", "engines", "small"
PEERS: Mapping[str, str] = {
    "transformers torch fp32": SENTENCE,
    "sentence-transformers torch fp32": SENTENCE,
    "sentence-transformers torch bf16": SENTENCE,
    "sentence-transformers onnx fp32": SENTENCE,
    "sentence-transformers onnx O2": SENTENCE,
    "sentence-transformers onnx O3": SENTENCE,
    "sentence-transformers onnx int8 avx512_vnni": SENTENCE,
    "sentence-transformers openvino fp32": SENTENCE,
    "sentence-transformers openvino qint8": SENTENCE,
    "FlashRank onnx fp32": SMALL,
    "fastembed onnx fp32": SMALL,
    "ONNX Runtime fp32": ENGINES,
    "ONNX Runtime int8 dynamic": ENGINES,
    "OpenVINO fp32": ENGINES,
    "OpenVINO int8": ENGINES,
    "OpenVINO int8 and bf16": ENGINES,
}
"""The name of a peer -> the module that loads it. The peers of a module share a process."""


def load(name: str, request: PeerRequest) -> LoadedPeer:
    """Load a peer; the exceptions of its library pass through."""
    loaders: Mapping[str, PeerLoader] = importlib.import_module(f"{__package__}.{PEERS[name]}").LOADERS
    request.folder.mkdir(parents=True, exist_ok=True)
    return loaders[name](request)


def to_scores(logits: Any) -> Any:
    """Convert logits ``(n,)``, ``(n, 1)`` or ``(n, 2)`` to scores ``(n,)``."""
    rows = np.asarray(logits, dtype=np.float64).reshape(len(logits), -1)
    return rows[:, 0] if rows.shape[1] == 1 else rows[:, 1] - rows[:, 0]
