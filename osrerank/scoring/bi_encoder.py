"""Bi-encoders: each text is encoded alone into a vector; a document's vector is computed once for all later queries."""

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from osrerank.errors import InferenceError, ModelLoadError
from osrerank.scoring.backends.base import Backend
from osrerank.scoring.backends.onnx import PREFERRED
from osrerank.scoring.batcher import BatcherOutput
from osrerank.scoring.card import ModelCard
from osrerank.scoring.card_file import parameter_files
from osrerank.scoring.inputs import InputBuilder, Tokens
from osrerank.scoring.local import LocalModel
from osrerank.scoring.model_files import CARD_FILE, digest, read_config, tokenizer_file
from osrerank.types import NEVER, Deadline, Side, Vectors
from osrerank.types.vectors import Floats

QUERIES = 128
"""How many query vectors are cached, because one search may need the same vector several times."""
NOT_FINITE = "its vector has numbers that are not finite; if the model computes in 16 bits, try --dtype fp32"
"""The reason given for a text whose vector is not finite."""


class BiEncoder(LocalModel):
    """Encodes queries and documents into vectors: ``[CLS] q [SEP]`` and ``[CLS] d [SEP]``, each with the card's prefix.

    The similarity of two vectors is their cosine or dot product, which the card's calibration maps to a logit:
    ``scale * product + offset``.
    """

    most_rows = 0
    """The most vectors of a document; 0 for models that give a single one."""

    def __init__(
        self,
        directory: Path,
        card: ModelCard,
        builder: InputBuilder,
        backend: Backend,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(directory, card, builder, backend, *([clock] if clock else []))
        self.dimensions = card.dimensions or int(read_config(directory)["hidden_size"])
        self._no_query = builder.query("")
        self._query = functools.lru_cache(QUERIES)(self._of_bytes)
        self._for_queries: BiEncoder | None = None

    def encode_queries_with(self, other: "BiEncoder") -> None:
        """Have another model encode the queries, as in sentence-transformers' Router.

        Raises:
            ModelLoadError: its vectors cannot be compared with this model's.
        """
        ours, theirs = ((one.card.kind, one.card.head, one.dimensions) for one in (self, other))
        if ours != theirs:
            reason = f"{self._directory / self.card.query_model} is a {theirs[0]} ({theirs[1]}, {theirs[2]} dimensions)"
            wanted = f"beside a {ours[0]} ({ours[1]}, {ours[2]} dimensions); both must be alike"
            raise ModelLoadError(f"{reason} {wanted}", model=self.model, path=str(self._directory))
        self._for_queries = other

    @functools.cached_property
    def key(self) -> str:
        """Everything that a document's vector depends on except its text: weights, tokenizer, prefix, lengths, modules.

        Backend, device and dtype are not part of it, so that a client on a CPU can use vectors that a worker on a GPU
        computed.
        """
        parts = (
            weights_digest(self._directory, self.card),
            _content(tokenizer_file(self._directory)),
            self.card.document_prefix,
            str(self.card.max_tokens),
            *([self.card.normalization] if self.card.normalization != "tokenizer" else []),
            *(json.dumps(step.to_json(), sort_keys=True) for step in self.card.to_vector.steps),
        )
        return "\0".join(parts)

    @functools.cached_property
    def identity(self) -> str:
        """Everything that a similarity depends on except the texts; backend, device and dtype are not part of it."""
        key = hashlib.blake2b(self.key.encode(), digest_size=16).hexdigest()
        queries = f"/{self._for_queries.identity}" if self._for_queries else ""
        return f"{self._digest(())}/{key}/{self.card.kind}/{self._policy}{queries}"

    def encode(self, texts: Sequence[str], side: Side, *, deadline: Deadline = NEVER) -> Vectors:
        """Encode texts, as `osrerank.types.Encoder.encode`; queries are cached, and encoded whatever the deadline.

        Raises:
            InferenceError: no text could be encoded.
        """
        if side == "query" and self._for_queries:
            return self._for_queries.encode(texts, side, deadline=deadline)
        if side == "query":
            read = [self._builder.query(text) for text in texts]
            rows = [self._query(self._builder.alone(pieces).ids.tobytes()) for pieces in read]
            return Vectors(np.concatenate(rows), cut=frozenset(at for at, pieces in enumerate(read) if pieces.cut))
        _, outcome, cut = self._computed(texts, deadline)
        vectors = np.full((len(texts), self.dimensions), np.nan, dtype=np.float32)
        for at, row in outcome.outputs.items():
            vectors[at] = row
        infinite = [at for at, row in outcome.outputs.items() if not np.isfinite(row).all()]
        if infinite and len(infinite) == len(outcome.outputs):
            raise InferenceError(f"no text could be encoded: {NOT_FINITE}", model=self.model)
        return Vectors(vectors, {**outcome.failures, **dict.fromkeys(infinite, NOT_FINITE)}, cut)

    def _computed(self, texts: Sequence[str], deadline: Deadline) -> tuple[list[Tokens], BatcherOutput, frozenset[int]]:
        """Encode documents until the deadline; return the tokens of those reached, the outputs, and the texts cut."""
        cut: list[int] = []
        sequences: list[Tokens] = []
        with self._batcher.call(deadline) as call:
            for chunk in self.chunks_at_once([len(text) for text in texts]):
                if deadline.passed:
                    break
                read = self._builder.documents(texts[chunk], self._no_query)
                cut += [at for at, pieces in enumerate(read, chunk.start) if pieces.cut]
                new = [self._builder.alone(pieces) for pieces in read]
                sequences += new
                call.add(new)
            return sequences, call.result(), frozenset(cut)

    def close(self) -> None:
        super().close()
        if self._for_queries:
            self._for_queries.close()

    def similarity(self, query: Floats, vectors: Floats) -> Floats:
        """Return the logits ``(n,)`` of a query's vector ``(dimensions,)`` and documents' ``(n, dimensions)``."""
        products: Floats = (vectors * query).sum(axis=1)
        return self.card.calibration.scale * products + self.card.calibration.offset

    def _of_bytes(self, ids: bytes) -> Floats:
        """Return the vector ``(1, dimensions)`` of a query, given as the bytes of its int64 token ids."""
        read = np.frombuffer(ids, dtype=np.int64)
        vector: Floats = self.backend.run([Tokens(read, np.zeros_like(read))])
        return vector


def weights_digest(directory: Path, card: ModelCard) -> str:
    """Return the digest of an encoder's weights: the card's, else that of its graph, else that of its safetensors.

    Safetensors do not contain the pooling, nor do graphs of other programs, so it is appended. The steps after the
    pooling are in `BiEncoder.key`.
    """
    if card.weights:
        return card.weights
    for precision in PREFERRED:
        if (graph := card.onnx.get(precision)) and (directory / CARD_FILE).exists():
            return _content(directory / graph)
        if graph:
            files = [name for name in (graph, f"{graph}_data") if (directory / name).exists()]
            return f"{digest(directory, files)}/{card.pooling}"
    return f"{digest(directory, parameter_files(directory))}/{card.pooling}"


def _content(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
