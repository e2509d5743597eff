"""The ONNX backend: the default on CPU, and all that a base install needs."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from osrerank._platform import usable_cores
from osrerank.errors import InferenceError, ModelLoadError
from osrerank.scoring.backend import Backend, Compute
from osrerank.scoring.card import SEGMENTS, ModelCard, join_keys
from osrerank.scoring.inputs import Batch, Ids, Tokens, padded
from osrerank.scoring.model_files import FIXED_SCALES

PREFERRED = ("int8", "fp32")
BUDGET_TOKENS = 1024
"""Tokens of a batch whose sequences may share passes: large enough to contain some of equal length."""
PASS_STATES = 256
"""Most states of a pass: beyond it, reading the weights takes little time, and the values overflow the cache."""
QUERIES = 128
"""Queries of the layout ``joined`` whose states are kept: all documents of a search share one."""
PAIRED = 128
"""Documents of a duo model of the layout ``joined`` whose states are kept: each is in many pairs."""


def load(directory: Path, card: ModelCard, compute: Compute) -> Backend:
    """Return the backend, as `osrerank.scoring.registry` asks for it."""
    kind = JoinedBackend if card.layout == "joined" else OnnxBackend
    return kind.load(directory, card, threads=compute.threads)


class OnnxBackend:
    """An ONNX Runtime session on the CPU: one pass at a time on each of as many threads as there are cores.

    A pass has one sequence; where the graph's scales are fixed, sequences with equally many states share one. So no
    layer computes padding, and a score never depends on what else is being scored. That is as fast as batches on all
    cores, see docs/performance.md.

    Args:
        session: the ``onnxruntime.InferenceSession``, with one thread for a run.
        threads: passes at the same time.
        card: the model's: its name for errors, and how many states its sequences have.
        precision: the graph's.
        file: the graph, relative to the model's directory.
    """

    name = "onnx"
    packed = True
    parallel = True

    def __init__(self, session: Any, *, threads: int, card: ModelCard, precision: str, file: str) -> None:
        self.threads = threads
        self._session: Any = session
        self._model = card.name
        self._cross_bias = card.cross_bias
        self._inputs = [entry.name for entry in session.get_inputs()]
        is_shared = FIXED_SCALES in session.get_modelmeta().custom_metadata_map
        self.budget_tokens = BUDGET_TOKENS if is_shared else 1
        self.precision = precision
        self.files: Sequence[str] = (file,)

    @classmethod
    def load(cls, directory: Path, card: ModelCard, *, threads: int = 0) -> Self:
        """Open the int8 graph where the model has one, else the fp32 one.

        Args:
            directory: the model's.
            card: names the graphs.
            threads: how many sequences are computed at once; 0 means the cores that this process may use.

        Raises:
            ModelLoadError: there is no graph, it cannot be read, or it is not a reranking model's.
        """
        precision = _precision(directory, card)
        file = card.onnx[precision]
        session = _open(directory / file, card.name)
        _check_signature(session, directory / file, card)
        return cls(session, threads=threads or usable_cores(), card=card, precision=precision, file=file)

    def run(self, sequences: Sequence[Tokens]) -> npt.NDArray[np.float32]:
        try:
            passes = [*self._passes(sequences)]
            logits = np.concatenate([self._run(padded([sequences[at] for at in places])) for places in passes])
            return logits[np.argsort(np.concatenate(passes))]
        except Exception as error:
            raise InferenceError(f"{self._model} failed in ONNX Runtime: {error}", model=self._model) from error

    def _passes(self, sequences: Sequence[Tokens]) -> Iterator[list[int]]:
        """Yield the places of the sequences of each pass."""
        if self.budget_tokens == 1:
            yield from ([place] for place in range(len(sequences)))
            return
        states = [self._cross_bias.states(tokens.segments) for tokens in sequences]
        for rows, equal in groupby(sorted(range(len(sequences)), key=states.__getitem__), key=states.__getitem__):
            places, size = [*equal], max(1, PASS_STATES // rows)
            yield from (places[start : start + size] for start in range(0, len(places), size))

    def _run(self, batch: Batch) -> npt.NDArray[np.float32]:
        logits: npt.NDArray[np.float32] = self._session.run(
            None, {name: getattr(batch, name) for name in self._inputs}
        )[0]
        return logits

    def close(self) -> None:
        self._session = None


class JoinedBackend:
    """ONNX Runtime sessions on the CPU, for the layout ``joined``: one encodes texts, others join query and document.

    Each text goes through the encoder alone, a query once for all its documents and a duo model's document once for all
    its pairs. So a score never depends on what else is being scored.

    Args:
        encoder: the ``onnxruntime.InferenceSession`` of `osrerank.export.joined_graph.build_encoder`.
        joins: those of the graphs that join, in the order of `osrerank.scoring.card.join_keys`.
        threads: texts at the same time.
        card: the model's.
        precision: the graphs'.
        files: the graphs, relative to the model's directory.
    """

    name = "onnx"
    packed = True
    parallel = True
    budget_tokens = 1

    def __init__(
        self, encoder: Any, joins: Sequence[Any], *, threads: int, card: ModelCard, precision: str, files: Sequence[str]
    ) -> None:
        self.threads = threads
        self.precision = precision
        self.files = files
        self.joins = joins
        self.hidden = int(next(one.shape[1] for one in encoder.get_outputs() if one.name == "vector"))
        self._encoder: Any = encoder
        self._model = card.name
        self._layers, self._bias = card.joining.layers, card.joining.bias
        self._parts = range(1, SEGMENTS[card.kind])
        self._outputs = ["vector", *(f"states.{place}" for place in range(self._layers))]
        self._query = lru_cache(QUERIES)(self._of_bytes)
        self._document = lru_cache(PAIRED if card.kind == "duo" else 0)(self._of_bytes)

    @classmethod
    def load(cls, directory: Path, card: ModelCard, *, threads: int = 0) -> Self:
        """Open the int8 graphs where the model has them, else the fp32 ones.

        Args:
            directory: the model's.
            card: names the graphs.
            threads: how many texts are encoded at once; 0 means the cores that this process may use.

        Raises:
            ModelLoadError: there is no graph, or it cannot be read.
        """
        precision = _precision(directory, card)
        keys = (precision, *join_keys(card, precision))
        if missing := next((key for key in keys if key not in card.onnx), ""):
            reason = (
                f"{directory} has no graph {missing}; make it with osrerank export or adapt, from the model's weights"
            )
            raise ModelLoadError(reason, model=card.name, path=str(directory))
        files = [card.onnx[key] for key in keys]
        encoder, *joins = (_open(directory / file, card.name) for file in files)
        if any(one.name == "log_pieces" for join in joins for one in join.get_inputs()):
            reason = f"{directory} has graphs of an older osrerank; export or adapt the model again, from its weights"
            raise ModelLoadError(reason, model=card.name, path=str(directory))
        threads = threads or usable_cores()
        return cls(encoder, joins, threads=threads, card=card, precision=precision, files=files)

    def run(self, sequences: Sequence[Tokens]) -> npt.NDArray[np.float32]:
        try:
            return np.concatenate([self._score(tokens) for tokens in sequences])
        except Exception as error:
            raise InferenceError(f"{self._model} failed in ONNX Runtime: {error}", model=self._model) from error

    def close(self) -> None:
        self._encoder, self.joins = None, ()
        self._query.cache_clear()
        self._document.cache_clear()

    def _score(self, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the raw score of a query and a document, or of two documents ``(1, 1)``."""
        query = self._query(tokens.ids[tokens.segments == 0].tobytes())
        documents = [self._document(tokens.ids[tokens.segments == part].tobytes()) for part in self._parts]
        if self._layers == 1:
            return self._by_contexts(query, documents)
        vector = documents[0]["vector"]
        if len(documents) == 2:
            vector = vector - documents[1]["vector"]
        if not self._layers:
            cosine: npt.NDArray[np.float32] = (query["vector"] * vector).sum(axis=1, keepdims=True)
            return cosine
        feeds = {"query_vector": query["vector"], "document_vector": vector}
        for place in range(self._layers):
            feeds[f"query.{place}"] = query[f"states.{place}"]
            rows = [document[f"states.{place}"] for document in documents]
            feeds[f"document.{place}"] = np.concatenate(rows, axis=1) if len(rows) == 2 else rows[0]
            feeds[f"scale.{place}"] = np.ones(feeds["document.0"].shape[:2], dtype=np.float32)
        feeds["bias"] = np.full_like(feeds["scale.0"], self._bias)
        logits: npt.NDArray[np.float32] = self.joins[0].run(None, feeds)[0]
        return logits

    def _by_contexts(
        self, query: Mapping[str, npt.NDArray[np.float32]], documents: Sequence[Mapping[str, npt.NDArray[np.float32]]]
    ) -> npt.NDArray[np.float32]:
        """Return the raw score of a document, or of two, where one layer is joined ``(1, 1)``."""
        queries, contexts, scores = self.joins
        looking = dict(zip(("queries", "offsets"), queries.run(None, {"query.0": query["states.0"]}), strict=True))
        seen = []
        for text, bias in ((query, 0.0), *((document, self._bias) for document in documents)):
            scale = np.ones(text["states.0"].shape[:2], dtype=np.float32)
            feeds = {**looking, "rows": text["states.0"], "scale": scale, "bias": np.full_like(scale, bias)}
            seen.append(contexts.run(["context", "log_sum"], feeds))
        (own_context, own_log_sum), *others = seen
        feeds = {"query.0": query["states.0"], "query_vector": query["vector"]}
        feeds |= {"own_context": own_context, "own_log_sum": own_log_sum, "places": np.arange(len(documents))[None]}
        feeds["context"], feeds["log_sum"] = (np.concatenate(parts) for parts in zip(*others, strict=True))
        feeds["document_vector"] = np.concatenate([document["vector"] for document in documents])
        logits: npt.NDArray[np.float32] = scores.run(None, feeds)[0]
        return logits

    def _of_bytes(self, ids: bytes) -> Mapping[str, npt.NDArray[np.float32]]:
        return self.encoded(np.frombuffer(ids, dtype=np.int64))

    def query(self, ids: Ids) -> Mapping[str, npt.NDArray[np.float32]]:
        """Return what `encoded` does; the last queries' are kept."""
        return self._query(ids.tobytes())

    def encoded(self, ids: Ids) -> Mapping[str, npt.NDArray[np.float32]]:
        """Return a text's ``vector`` ``(1, hidden)`` and ``states.i`` ``(1, tokens, hidden)``.

        Args:
            ids: of its tokens, specials among them.
        """
        return dict(zip(self._outputs, self._encoder.run(self._outputs, {"input_ids": ids[None]}), strict=True))


def _precision(directory: Path, card: ModelCard) -> str:
    """Return the precision of the graph to open."""
    precision = next((name for name in PREFERRED if name in card.onnx), None)
    if precision is None:
        reason = f"{directory} has no ONNX graph in {', '.join(PREFERRED)}; make one with osrerank export"
        raise ModelLoadError(reason, model=card.name, path=str(directory))
    return precision


def _open(file: Path, model: str) -> Any:
    import onnxruntime  # noqa: PLC0415 - heavy

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if not file.is_file():
        raise ModelLoadError(f"{file} is missing; the model's card names it", model=model, path=str(file))
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        reason = f"{file} cannot be read as an ONNX graph; download or export it again ({error})"
        raise ModelLoadError(reason, model=model, path=str(file)) from error


def _check_signature(session: Any, file: Path, card: ModelCard) -> None:
    """Refuse a graph whose inputs or output are not those of the card."""
    unknown = {entry.name for entry in session.get_inputs()} - set(Batch.__slots__)
    if unknown:
        raise ModelLoadError(
            f"{file} has inputs that osrerank does not know: {', '.join(unknown)}", model=card.name, path=str(file)
        )
    labels = 2 if card.head in {"logits2", "next-sentence"} else 1
    shape = session.get_outputs()[0].shape
    if len(shape) != 2 or (isinstance(shape[1], int) and shape[1] != labels):
        reason = f"{file} gives an output of shape {shape}; a head of the form {card.head} gives (n, {labels})"
        raise ModelLoadError(reason, model=card.name, path=str(file))
