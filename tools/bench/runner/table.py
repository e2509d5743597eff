"""The peers by name, and the modules that make them."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BATCH_SIZES = (1, 4, 8, 16, 32, 64)
"""Those that are tried for each peer."""


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """What a peer is made of.

    Attributes:
        checkpoint: a directory with config, tokenizer and safetensors of a classifier.
        padded: the same as a plain ONNX graph, for libraries that cannot export: ``onnx/model.onnx`` and tokenizer.
        folder: for the files that the peer writes; what is there from an earlier run is used.
        calibration: JSON lines with ``query`` and ``document``, for static quantisation.
        threads: CPU threads.
        max_tokens: of a pair; what is longer is cut.
    """

    checkpoint: Path
    padded: Path
    folder: Path
    calibration: Path
    threads: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class LoadedPeer:
    """A peer that is ready.

    Attributes:
        version: of the library and its engine.
        scoring: query, documents, batch size -> scores in the order of the documents.
    """

    version: str
    scoring: Callable[[str, Sequence[str], int], Any]


Maker = Callable[[PeerRequest], LoadedPeer]

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
"""Name -> the module that makes it, which is also the process that it runs in."""


def load(name: str, request: PeerRequest) -> LoadedPeer:
    """Make a peer; whatever its library raises passes through."""
    makers: Mapping[str, Maker] = importlib.import_module(f"{__package__}.{PEERS[name]}").MAKERS
    request.folder.mkdir(parents=True, exist_ok=True)
    return makers[name](request)


def positive(logits: Any) -> Any:
    """Return one number for each row of logits ``(n,)``, ``(n, 1)`` or ``(n, 2)``."""
    rows = np.asarray(logits, dtype=np.float64).reshape(len(logits), -1)
    return rows[:, 0] if rows.shape[1] == 1 else rows[:, 1] - rows[:, 0]
