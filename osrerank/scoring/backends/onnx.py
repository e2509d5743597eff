"""Run models in ONNX Runtime on the CPU: the default backend, and the only one of a base install."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from osrerank._platform import usable_cores
from osrerank._threads import NATIVE_CODE
from osrerank.errors import InferenceError, ModelLoadError
from osrerank.scoring.backends.base import Backend
from osrerank.scoring.card import ModelCard
from osrerank.scoring.inputs import PaddedBatch, Tokens, pad
from osrerank.scoring.modular.head import Head
from osrerank.types.vectors import Rows

PRECISIONS = ("int8", "fp32")
"""The precisions of ONNX graphs. If a model has a graph in each, the int8 graph is used."""
VECTOR_OUTPUT = "vector"
"""The name of the output with the vectors, in graphs of encoders that osrerank exported."""
STATE_OUTPUTS = ("last_hidden_state", "token_embeddings")
"""The possible names of the output with all tokens' last states, in graphs of bi-encoders from other programs."""


def load(directory: Path, card: ModelCard, *, threads: int, dtype: str) -> Backend:  # noqa: ARG001 - graphs set the dtype
    """Load the ONNX backend of a model directory; `osrerank.scoring.registry` calls this."""
    encoder_backends = {"bi-encoder": EncoderBackend, "late-interaction": TokenBackend}
    backend_class = encoder_backends.get(card.kind, OnnxBackend)  # all other kinds are cross-encoders
    return backend_class.load(directory, card, threads=threads)


class OnnxBackend:
    """An ONNX Runtime session of a cross-encoder. Callers call `run` from several threads, each with one sequence.

    Single sequences need no padding, so a score never depends on the other sequences of a batch. One sequence per core
    is as fast as a batch that all cores compute together (docs/performance.md).

    Args:
        session: an ``onnxruntime.InferenceSession`` that computes a call in the caller's thread.
        threads: the number of threads from which callers should call `run` at the same time.
        card: the model's card. Errors contain its name.
        precision: the precision of the graph, one of `PRECISIONS`.
        file: the file of the graph, relative to the model's directory.
    """

    name = "onnx"
    is_packed = True  # a single sequence has no padding
    is_parallel = True  # each of the threads computes on its own core
    budget_tokens = 1  # makes each batch a single sequence, whatever its length

    def __init__(self, session: Any, *, threads: int, card: ModelCard, precision: str, file: str) -> None:
        self.threads = threads
        self._session: Any = session
        self._model = card.name
        self._input_names = [entry.name for entry in session.get_inputs()]
        self.precision = precision
        self.files: Sequence[str] = (file,)

    @classmethod
    def load(cls, directory: Path, card: ModelCard, *, threads: int = 0) -> Self:
        """Open the model's int8 graph or, if there is none, its fp32 graph.

        If ``threads`` is 0, there is one for each physical core that this process can use.

        Raises:
            ModelLoadError: the directory contains no graph, or the graph cannot be read or does not match the card.
        """
        precision = _choose_precision(directory, card)
        file = card.onnx[precision]
        session = _open_session(directory / file, card.name)
        cls._check_graph(session, directory / file, card)
        return cls(session, threads=threads or usable_cores(), card=card, precision=precision, file=file)

    def run(self, sequences: Sequence[Tokens]) -> Rows:
        """Return the logits, the vector or the token vectors of each sequence.

        Raises:
            InferenceError: ONNX Runtime failed.
        """
        try:
            return self._compute(sequences)
        except Exception as error:
            message = f"ONNX Runtime could not run the model {self._model}: {error}"
            raise InferenceError(message, model=self._model) from error

    def _compute(self, sequences: Sequence[Tokens]) -> Rows:
        """Return a row of logits for each sequence."""
        return np.concatenate([self._session.run(None, self._build_feed(tokens))[0] for tokens in sequences])

    def _build_feed(self, tokens: Tokens) -> dict[str, Any]:
        batch = pad([tokens])  # its attributes have the names of the graph's inputs
        return {name: getattr(batch, name) for name in self._input_names}

    @staticmethod
    def _check_graph(session: Any, file: Path, card: ModelCard) -> None:
        """Refuse a graph whose inputs or output do not match the card."""
        _check_inputs(session, file, card)
        n_labels = 2 if card.head in {"logits2", "next-sentence"} else 1  # two: not relevant, relevant
        shape = session.get_outputs()[0].shape
        if len(shape) != 2 or (isinstance(shape[1], int) and shape[1] != n_labels):
            reason = (
                f"{file} has an output of shape {shape}, but the head {card.head!r} needs (n, {n_labels}); export "
                "it again"
            )
            raise ModelLoadError(reason, model=card.name, path=str(file))

    def close(self) -> None:
        self._session = None


class EncoderBackend(OnnxBackend):
    """An ONNX Runtime session of a bi-encoder."""

    def __init__(self, session: Any, *, threads: int, card: ModelCard, precision: str, file: str) -> None:
        super().__init__(session, threads=threads, card=card, precision=precision, file=file)
        self._output_name = _find_output(session)
        self._vector_head = card.vector_head

    def _compute(self, sequences: Sequence[Tokens]) -> Rows:
        return np.concatenate([self.encode(tokens) for tokens in sequences])

    def encode(self, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the vector of a query or document, ``(1, dimensions)``.

        For a late-interaction model, return a vector for each token, ``(tokens, dimensions)``.
        """
        feed = self._build_feed(tokens)
        with NATIVE_CODE:  # the interpreter's exit waits for it
            output: npt.NDArray[np.float32] = self._session.run([self._output_name], feed)[0]
        return output if self._output_name == VECTOR_OUTPUT else compute_vector(output[0], self._vector_head)

    @staticmethod
    def _check_graph(session: Any, file: Path, card: ModelCard) -> None:
        _check_inputs(session, file, card)
        output_name = _find_output(session)
        supported_names = (VECTOR_OUTPUT, *STATE_OUTPUTS) if card.is_bi_encoder else (VECTOR_OUTPUT,)
        if output_name not in supported_names:
            names = ", ".join(entry.name for entry in session.get_outputs())
            needed = " or ".join(supported_names)
            reason = f"{file} has the outputs {names}, but the graph of a {card.kind} model needs {needed}"
            raise ModelLoadError(f"{reason}; run osrerank export on the model", model=card.name, path=str(file))
        size = next(entry.shape[-1] for entry in session.get_outputs() if entry.name == output_name)
        if output_name == VECTOR_OUTPUT and card.dimensions not in (0, size):
            reason = f"{file} computes vectors of {size} dimensions, but the card has {card.dimensions}"
            raise ModelLoadError(f"{reason}; export the model again with --dimensions", model=card.name, path=str(file))


class TokenBackend(EncoderBackend):
    """An ONNX Runtime session of a late-interaction model (ColBERT), which computes a vector for each token."""

    def _compute(self, sequences: Sequence[Tokens]) -> Rows:
        return [self.encode(tokens) for tokens in sequences]


def compute_vector(states: npt.NDArray[np.float32], head: Head) -> npt.NDArray[np.float32]:
    """Compute the vector ``(1, dimensions)`` of a query or document from its tokens' states ``(tokens, size)``.

    The head must have no weights. Its steps can only be ``first``, which keeps the first values, and ``unit``.
    """
    vector: npt.NDArray[Any]
    match head.pooling[0]:  # the card of a bi-encoder has one pooling
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
        match step.kind:
            case "first":
                vector = vector[: step.size]
            case "unit":
                vector = vector / max(float(np.linalg.norm(vector)), 1e-12)  # as torch does, never by 0
    vectors: npt.NDArray[np.float32] = vector[None].astype(np.float32)
    return vectors


def _find_output(session: Any) -> str | None:
    """Return the name of the graph's output with vectors, or else of that with states, or None if it has neither."""
    names = {entry.name for entry in session.get_outputs()}
    return next((name for name in (VECTOR_OUTPUT, *STATE_OUTPUTS) if name in names), None)


def _check_inputs(session: Any, file: Path, card: ModelCard) -> None:
    """Refuse a graph with inputs other than the attributes of `PaddedBatch`."""
    unknown_names = {entry.name for entry in session.get_inputs()} - set(PaddedBatch.__slots__)
    if unknown_names:
        reason = (
            f"{file} has unknown inputs ({', '.join(sorted(unknown_names))}); export the model with osrerank export"
        )
        raise ModelLoadError(reason, model=card.name, path=str(file))


def _choose_precision(directory: Path, card: ModelCard) -> str:
    precision = next((name for name in PRECISIONS if name in card.onnx), None)
    if precision is None:
        reason = f"{directory} has no ONNX graph in {' or '.join(PRECISIONS)}; make one with osrerank export"
        raise ModelLoadError(reason, model=card.name, path=str(directory))
    return precision


def _open_session(file: Path, model: str) -> Any:
    import onnxruntime  # noqa: PLC0415 - takes half a second

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only
    if not file.is_file():
        raise ModelLoadError(f"{file} is missing: export or download the model again", model=model, path=str(file))
    try:
        with NATIVE_CODE:
            return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        reason = f"{file} cannot be read as an ONNX graph; download or export it again ({error})"
        raise ModelLoadError(reason, model=model, path=str(file)) from error
