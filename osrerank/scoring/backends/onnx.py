"""Compute models in ONNX Runtime on the CPU: the default backend, and the only one of a base install."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from osrerank._platform import usable_cores
from osrerank._threads import NATIVE_CODE
from osrerank.errors import InferenceError, ModelLoadError
from osrerank.scoring.backends.base import Backend, Compute
from osrerank.scoring.card import ModelCard
from osrerank.scoring.inputs import PaddedBatch, Tokens, padded
from osrerank.scoring.modular.head import Head
from osrerank.types.vectors import Rows

PREFERRED = ("int8", "fp32")
VECTOR = "vector"
"""Output name of an encoder's graph; a late-interaction model's output has a row for each token."""
STATES = ("last_hidden_state", "token_embeddings")
"""Output names, in a bi-encoder's graph that another program exported, of the last states of all tokens."""


def load(directory: Path, card: ModelCard, compute: Compute) -> Backend:
    """Load the ONNX backend of a model directory; `osrerank.scoring.registry` calls this."""
    encoders = {"bi-encoder": EncoderBackend, "late-interaction": TokenBackend}
    backend_class = encoders.get(card.kind, OnnxBackend)
    return backend_class.load(directory, card, threads=compute.threads)


class OnnxBackend:
    """An ONNX Runtime session of a cross-encoder; each thread computes one sequence at a time.

    So no layer computes padding, and a score never depends on the other sequences. This is as fast as batches that use
    all cores (docs/performance.md).

    Args:
        session: the ``onnxruntime.InferenceSession``, which uses one thread for each run.
        threads: number of sequences that are computed at once.
        card: the model's card; errors name the model.
        precision: the graph's precision.
        file: the graph's file, relative to the model's directory.
    """

    name = "onnx"
    packed = True
    parallel = True
    budget_tokens = 1

    def __init__(self, session: Any, *, threads: int, card: ModelCard, precision: str, file: str) -> None:
        self.threads = threads
        self._session: Any = session
        self._model = card.name
        self._inputs = [entry.name for entry in session.get_inputs()]
        self.precision = precision
        self.files: Sequence[str] = (file,)

    @classmethod
    def load(cls, directory: Path, card: ModelCard, *, threads: int = 0) -> Self:
        """Open the model's int8 graph if it has one, else its fp32 graph.

        Args:
            directory: the model's directory.
            card: the model's card, which names the graphs.
            threads: number of sequences that are computed at once; 0 means the physical cores that this process may
                use.

        Raises:
            ModelLoadError: the directory has no graph, or the graph cannot be read or does not match the card.
        """
        precision = _precision(directory, card)
        file = card.onnx[precision]
        session = _open(directory / file, card.name)
        cls._check(session, directory / file, card)
        return cls(session, threads=threads or usable_cores(), card=card, precision=precision, file=file)

    def run(self, sequences: Sequence[Tokens]) -> Rows:
        try:
            return np.concatenate([self._run(padded([tokens])) for tokens in sequences])
        except Exception as error:
            raise InferenceError(f"{self._model} failed in ONNX Runtime: {error}", model=self._model) from error

    def _run(self, batch: PaddedBatch) -> npt.NDArray[np.float32]:
        logits: npt.NDArray[np.float32] = self._session.run(
            None, {name: getattr(batch, name) for name in self._inputs}
        )[0]
        return logits

    @staticmethod
    def _check(session: Any, file: Path, card: ModelCard) -> None:
        """Refuse a graph whose inputs or output do not match the card."""
        _check_inputs(session, file, card)
        labels = 2 if card.head in {"logits2", "next-sentence"} else 1
        shape = session.get_outputs()[0].shape
        if len(shape) != 2 or (isinstance(shape[1], int) and shape[1] != labels):
            reason = f"{file} has an output of shape {shape}, but the card's head {card.head} needs (n, {labels})"
            raise ModelLoadError(reason, model=card.name, path=str(file))

    def close(self) -> None:
        self._session = None


class EncoderBackend(OnnxBackend):
    """An ONNX Runtime session of a bi-encoder; it encodes each text alone, so a vector never depends on other texts."""

    def __init__(self, session: Any, *, threads: int, card: ModelCard, precision: str, file: str) -> None:
        super().__init__(session, threads=threads, card=card, precision=precision, file=file)
        self._output = _output(session)
        self._to_vector = card.to_vector

    def run(self, sequences: Sequence[Tokens]) -> Rows:
        try:
            return np.concatenate([self.encode(tokens) for tokens in sequences])
        except Exception as error:
            raise InferenceError(f"{self._model} failed in ONNX Runtime: {error}", model=self._model) from error

    def encode(self, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return a text's vector ``(1, dimensions)``, or late interaction's vectors ``(tokens, dimensions)``."""
        batch = padded([tokens])
        with NATIVE_CODE:
            output: npt.NDArray[np.float32] = self._session.run(
                [self._output], {name: getattr(batch, name) for name in self._inputs}
            )[0]
        return output if self._output == VECTOR else vector_of(output[0], self._to_vector)

    @staticmethod
    def _check(session: Any, file: Path, card: ModelCard) -> None:
        """Refuse a graph with unknown inputs, or whose output does not match the card."""
        _check_inputs(session, file, card)
        output = _output(session)
        if output is None or (output != VECTOR and not card.is_bi_encoder):
            names = ", ".join(entry.name for entry in session.get_outputs())
            reason = f"{file} has the outputs {names}, but a bi-encoder's graph needs {VECTOR} or {' or '.join(STATES)}"
            raise ModelLoadError(f"{reason}; run osrerank export on the model", model=card.name, path=str(file))
        size = next(entry.shape[-1] for entry in session.get_outputs() if entry.name == output)
        if output == VECTOR and card.dimensions not in (0, size):
            reason = f"{file} computes vectors of {size} dimensions, but the card has {card.dimensions}"
            raise ModelLoadError(f"{reason}; export the model again with --dimensions", model=card.name, path=str(file))


class TokenBackend(EncoderBackend):
    """An ONNX Runtime session of a late-interaction model; it encodes each text alone, to a vector for each token."""

    def run(self, sequences: Sequence[Tokens]) -> Rows:
        try:
            return [self.encode(tokens) for tokens in sequences]
        except Exception as error:
            raise InferenceError(f"{self._model} failed in ONNX Runtime: {error}", model=self._model) from error


def vector_of(states: npt.NDArray[np.float32], head: Head) -> npt.NDArray[np.float32]:
    """Return a text's vector ``(1, dimensions)`` from its states ``(tokens, size)``, by steps without weights."""
    vector: npt.NDArray[Any]
    match head.pooling[0]:
        case "cls":
            vector = states[0]
        case "lasttoken":
            vector = states[-1]
        case "max":
            vector = states.max(axis=0)
        case "mean":
            vector = states.mean(axis=0)
        case "weightedmean":
            vector = np.average(states, axis=0, weights=np.arange(1, len(states) + 1))
    for step in head.steps:
        vector = vector[: step.size] if step.kind == "first" else vector / max(float(np.linalg.norm(vector)), 1e-12)
    vectors: npt.NDArray[np.float32] = vector[None].astype(np.float32)
    return vectors


def _output(session: Any) -> str | None:
    """Return the name of the output with the encoder's vectors or else states; None if the graph has neither."""
    names = {entry.name for entry in session.get_outputs()}
    return next((name for name in (VECTOR, *STATES) if name in names), None)


def _check_inputs(session: Any, file: Path, card: ModelCard) -> None:
    unknown = {entry.name for entry in session.get_inputs()} - set(PaddedBatch.__slots__)
    if unknown:
        reason = f"{file} has inputs that osrerank does not know: {', '.join(sorted(unknown))}"
        raise ModelLoadError(reason, model=card.name, path=str(file))


def _precision(directory: Path, card: ModelCard) -> str:
    """Return the precision of the graph to open."""
    precision = next((name for name in PREFERRED if name in card.onnx), None)
    if precision is None:
        reason = f"{directory} has no ONNX graph in {', '.join(PREFERRED)}; make one with osrerank export"
        raise ModelLoadError(reason, model=card.name, path=str(directory))
    return precision


def _open(file: Path, model: str) -> Any:
    import onnxruntime  # noqa: PLC0415 - takes half a second

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if not file.is_file():
        raise ModelLoadError(
            f"{file} is missing: export or download the model again",
            model=model,
            path=str(file),
        )
    try:
        with NATIVE_CODE:
            return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        reason = f"{file} cannot be read as an ONNX graph; download or export it again ({error})"
        raise ModelLoadError(reason, model=model, path=str(file)) from error
